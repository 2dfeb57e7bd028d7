//! What a driver's error means, by its code and never by its text.

use std::borrow::Cow;
use std::error::Error as StdError;

use hapax_core::{Code, Error, ErrorKind};

use crate::dialect::Dialect;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Turns a driver's error into one of ours, under what was attempted.
pub(crate) fn failed<D: Dialect>(attempt: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |error| {
        let (kind, code) = match code_of::<D>(&error) {
            Some(code) if D::lacks_schema(&code) => (ErrorKind::Setup, Code::SchemaMissing),
            _ => meaning::<D>(&error),
        };
        Error::new(kind, code, attempt).because(error)
    }
}

/// The database's own code, if it was the database that answered.
fn code_of<D: Dialect>(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error().and_then(D::code_of)
}

/// What a driver's error means.
pub(crate) fn meaning<D: Dialect>(error: &sqlx::Error) -> (ErrorKind, Code) {
    match error {
        sqlx::Error::Database(_) => D::classify(&code_of::<D>(error).unwrap_or_default()),
        error if is_lost(error) => (ErrorKind::Unavailable, Code::StoreUnavailable),
        sqlx::Error::Configuration(_) => (ErrorKind::Setup, Code::StoreRefused),
        _ => (ErrorKind::Statement, Code::StoreFailed),
    }
}

/// The same for an error that came out of a handler, which runs on a guarded connection.
fn meaning_in_handler<D: Dialect>(error: &sqlx::Error) -> (ErrorKind, Code) {
    match code_of::<D>(error) {
        Some(code) if D::is_guarded(&code) => (ErrorKind::Broken, Code::TransactionBroken),
        Some(code) if D::is_timeout(&code) => (ErrorKind::Statement, Code::HandlerTimedOut),
        _ => meaning::<D>(error),
    }
}

/// An error of beginning a transaction.
pub(crate) fn not_begun<D: Dialect>(error: sqlx::Error) -> Error {
    const ATTEMPT: &str = "cannot claim messages";
    match code_of::<D>(&error) {
        Some(code) if D::begins_read_only(&code) => {
            Error::new(ErrorKind::Unavailable, Code::StoreReadOnly, ATTEMPT).because(error)
        }
        _ => failed::<D>(ATTEMPT)(error),
    }
}

/// Whether the connection is gone, as far as the driver can tell.
fn is_lost(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
    )
}

/// Whether an answer to a commit leaves open what became of it.
pub(crate) fn is_unknown<D: Dialect>(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(_) => code_of::<D>(error).is_some_and(|code| D::is_session_end(&code)),
        sqlx::Error::Protocol(_) => true,
        error => is_lost(error),
    }
}

/// Whether the session no longer knows a statement that was prepared on it.
pub(crate) fn has_forgotten<D: Dialect>(error: &sqlx::Error) -> bool {
    code_of::<D>(error).is_some_and(|code| D::has_forgotten(&code))
}

/// Whether an answer to `finish` says that the transaction is no longer ours.
pub(crate) fn is_broken<D: Dialect>(error: &sqlx::Error) -> bool {
    code_of::<D>(error).is_some_and(|code| D::is_broken(&code))
}

/// Finds an error of ours or of the driver's in a chain of causes.
pub(crate) fn kind_of<D: Dialect>(error: &(dyn StdError + 'static)) -> Option<(ErrorKind, Code)> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(ours) = error.downcast_ref::<Error>() {
            return Some((ours.kind(), ours.code()));
        }
        if let Some(drivers) = error.downcast_ref::<sqlx::Error>() {
            return Some(meaning_in_handler::<D>(drivers));
        }
        next = error.source();
    }
    None
}

/// A URL that cannot be read. It may hold a password, so that only the driver's complaint is repeated.
pub(crate) fn refused_url<D: Dialect>(error: &sqlx::Error) -> Error {
    let context = format!("the {} store's URL cannot be used", D::TITLE);
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context).because(error.to_string())
}

/// A connection that does not answer in time.
pub(crate) fn no_answer() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time"))
}

/// Text that a store wrote and can no longer read.
pub(crate) fn unreadable(what: &'static str) -> impl Fn(serde_json::Error) -> Error {
    move |error| Error::new(ErrorKind::Statement, Code::StoreFailed, what).because(error)
}
