//! What a driver's error means, by its kind, code and labels and never by its text.

use std::error::Error as StdError;
use std::fmt;
use std::future::IntoFuture;
use std::io;
use std::time::Duration;

use hapax_core::{Code, Error, ErrorKind};
use mongodb::error::{
    Error as Driver, ErrorKind as DriverKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT,
    WriteFailure,
};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;
/// What the driver answers.
pub(crate) type Answer<T> = std::result::Result<T, Driver>;

/// Somebody else has written the document since our snapshot, or holds it uncommitted.
const WRITE_CONFLICT: i32 = 112;
/// The transaction was ended: by an error in it, by the server, or by a change of primary.
const NO_SUCH_TRANSACTION: i32 = 251;
const DUPLICATE_KEY: i32 = 11_000;
const NAMESPACE_EXISTS: i32 = 48;

/// The driver's error as the cause of one of ours: it prints what happened, without the server's whole answer.
#[derive(Clone, Debug)]
pub struct DriverError(pub Driver);

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.kind.fmt(f)
    }
}

impl StdError for DriverError {}

/// Turns a driver's error into one of ours, under what was attempted.
pub(crate) fn failed(attempt: &'static str) -> impl Fn(Driver) -> Error {
    move |error| {
        let (kind, code) = match code_of(&error) {
            Some(26) => (ErrorKind::Setup, Code::SchemaMissing),
            _ => meaning(&error),
        };
        Error::new(kind, code, attempt).because(DriverError(error))
    }
}

/// A record that must be there once the schema is.
pub(crate) fn no_schema() -> Error {
    Error::new(ErrorKind::Setup, Code::SchemaMissing, "the collections of Hapax are not there")
}

/// What was stored is not what Hapax stores.
pub(crate) fn spoilt(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Statement, Code::StoreFailed, context.into())
}

/// The server's own code, if it was a server that answered.
fn code_of(error: &Driver) -> Option<i32> {
    match &*error.kind {
        DriverKind::Command(command) => Some(command.code),
        DriverKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        DriverKind::Write(WriteFailure::WriteConcernError(concern)) => Some(concern.code),
        DriverKind::InsertMany(insert) => {
            let first = insert.write_errors.as_ref().and_then(|errors| errors.first());
            first.map(|write| write.code).or(insert.write_concern_error.as_ref().map(|concern| concern.code))
        }
        _ => None,
    }
}

/// What a driver's error means.
pub(crate) fn meaning(error: &Driver) -> (ErrorKind, Code) {
    if let Some(code) = code_of(error) {
        return classify(code, error.contains_label(TRANSIENT_TRANSACTION_ERROR));
    }
    match &*error.kind {
        DriverKind::Io(cause) if is(cause, Told::Overdue) => (ErrorKind::Statement, Code::HandlerTimedOut),
        DriverKind::Io(cause) if is(cause, Told::Dropped) => (ErrorKind::Broken, Code::TransactionBroken),
        DriverKind::Authentication { .. } | DriverKind::InvalidTlsConfig { .. } => {
            (ErrorKind::Setup, Code::StoreRefused)
        }
        DriverKind::Transaction { .. } | DriverKind::SessionsNotSupported => {
            (ErrorKind::Setup, Code::NotAvailable)
        }
        _ if is_lost(error) => (ErrorKind::Unavailable, Code::StoreUnavailable),
        _ => (ErrorKind::Statement, Code::StoreFailed),
    }
}

/// The same for an error that came out of a handler.
fn meaning_in_handler(error: &Driver) -> Option<(ErrorKind, Code)> {
    match (&*error.kind, code_of(error)) {
        (DriverKind::Custom(_), _) => None,
        (_, Some(50)) => Some((ErrorKind::Statement, Code::HandlerTimedOut)),
        _ => Some(meaning(error)),
    }
}

fn classify(code: i32, transient: bool) -> (ErrorKind, Code) {
    match code {
        // not writable primary, no disk space
        10107 | 13435 | 10058 | 14031 => (ErrorKind::Unavailable, Code::StoreReadOnly),
        // the server ends, starts or changes its role; a host cannot be reached; no majority answers
        6 | 7 | 50 | 64 | 89 | 91 | 100 | 189 | 262 | 9001 | 11600 | 11602 | 13436 => {
            (ErrorKind::Unavailable, Code::StoreUnavailable)
        }
        11 | 13 | 18 | 8000 => (ErrorKind::Setup, Code::StoreRefused),
        // transactions need a replica set
        20 => (ErrorKind::Setup, Code::NotAvailable),
        290 => (ErrorKind::Statement, Code::HandlerTimedOut),
        WRITE_CONFLICT | NO_SUCH_TRANSACTION => (ErrorKind::Conflict, Code::StoreConflict),
        _ if transient => (ErrorKind::Conflict, Code::StoreConflict),
        _ => (ErrorKind::Statement, Code::StoreFailed),
    }
}

/// Whether no server answered.
fn is_lost(error: &Driver) -> bool {
    matches!(
        *error.kind,
        DriverKind::Io(_)
            | DriverKind::ConnectionPoolCleared { .. }
            | DriverKind::ServerSelection { .. }
            | DriverKind::DnsResolve { .. }
            | DriverKind::Shutdown
    )
}

/// Whether the connection broke, as one does that idled through an outage: another may do better at once.
pub(crate) fn is_stale(error: &Driver) -> bool {
    match &*error.kind {
        DriverKind::Io(cause) => cause.kind() != io::ErrorKind::TimedOut,
        DriverKind::ConnectionPoolCleared { .. } => true,
        _ => false,
    }
}

/// Whether somebody else has the document, or has just committed it.
pub(crate) fn is_rival(error: &Driver) -> bool {
    matches!(code_of(error), Some(WRITE_CONFLICT | DUPLICATE_KEY))
}

/// Whether a collection is there already.
pub(crate) fn is_there(error: &Driver) -> bool {
    code_of(error) == Some(NAMESPACE_EXISTS)
}

/// Whether the server knows no such transaction any more.
pub(crate) fn is_over(error: &Driver) -> bool {
    code_of(error) == Some(NO_SUCH_TRANSACTION)
}

/// Whether an answer to a commit leaves open what became of it.
pub(crate) fn is_unknown(error: &Driver) -> bool {
    error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) || is_lost(error)
}

/// Whether an error arose on our side, so that the transaction is as it was.
pub(crate) fn is_ours(error: &Driver) -> bool {
    matches!(
        *error.kind,
        DriverKind::BsonSerialization(_)
            | DriverKind::BsonDeserialization(_)
            | DriverKind::InvalidArgument { .. }
            | DriverKind::Custom(_)
    )
}

/// Finds an error of ours or of the driver's in a chain of causes.
pub(crate) fn kind_of(error: &(dyn StdError + 'static)) -> Option<(ErrorKind, Code)> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(ours) = error.downcast_ref::<Error>() {
            return Some((ours.kind(), ours.code()));
        }
        if let Some(drivers) = error.downcast_ref::<Driver>() {
            return meaning_in_handler(drivers);
        }
        next = error.source();
    }
    None
}

/// What this crate says in the driver's words, since a handler's operations answer with the driver's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The server ended a transaction that lived too long.
    Overdue,
    /// An operation's future was dropped, so that nobody knows what became of it.
    Dropped,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overdue => {
                "the transaction lived longer than the server allows (transactionLifetimeLimitSeconds)"
            }
            Self::Dropped => "an operation of this transaction was dropped before it was answered",
        })
    }
}

impl StdError for Told {}

fn is(error: &io::Error, told: Told) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Told>()) == Some(&told)
}

/// The transaction lived longer than the server allows.
pub(crate) fn overdue() -> Driver {
    io::Error::new(io::ErrorKind::TimedOut, Told::Overdue).into()
}

/// An operation of the transaction was dropped before its answer.
pub(crate) fn dropped() -> Driver {
    io::Error::new(io::ErrorKind::Interrupted, Told::Dropped).into()
}

/// An answer in time, or an error that says there was none.
pub(crate) async fn answered<T>(limit: Duration, answer: impl IntoFuture<Output = Answer<T>>) -> Answer<T> {
    let no_answer = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time").into();
    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| Err(no_answer()))
}
