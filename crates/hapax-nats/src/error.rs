//! What the broker's refusals mean: the client's errors as [`hapax_core::Error`].

use std::time::Duration;

use async_nats::jetstream::{self, ErrorCode};
use async_nats::{ConnectError, ConnectErrorKind};
use hapax_core::{Code, Error, ErrorKind};

use crate::api::MISSING;
use crate::link::Unanswered;

/// `JetStream`'s status for what will be better later: no leader, no resources, a server that is leaving.
const TEMPORARY: usize = 503;

/// A value that was configured cannot be used.
pub(crate) fn misconfigured(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context.into())
}

/// No connection came about.
pub(crate) fn connecting(address: &str, cause: ConnectError) -> Error {
    match cause.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            let context = format!("NATS at {address} refused the login");
            Error::new(ErrorKind::Setup, Code::BrokerRefused, context).because(cause)
        }
        _ => {
            let context = format!("cannot connect to NATS at {address}");
            Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context).because(cause)
        }
    }
}

/// The broker let the time to connect pass without a word.
pub(crate) fn connect_timed_out(address: &str, limit: Duration) -> Error {
    let context = format!("NATS at {address} did not answer within {limit:?}");
    Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context)
}

/// The server lacks what is needed of it.
pub(crate) fn too_old(address: &str, version: &str) -> Error {
    let context = format!("NATS at {address} is version {version}: Hapax needs 2.9.0 or later");
    Error::new(ErrorKind::Setup, Code::BrokerRefused, context)
}

/// A question about a stream or a consumer got no answer.
pub(crate) fn unanswered(what: &str, cause: Unanswered) -> Error {
    match &cause {
        Unanswered::NoResponders => {
            let context = format!(
                "cannot ask for {what}: JetStream is not enabled on the server, or not for this account"
            );
            Error::new(ErrorKind::Setup, Code::BrokerRefused, context)
        }
        Unanswered::Refused(_) | Unanswered::Unsendable(_) => {
            let context = format!("the broker refuses access to {what}");
            Error::new(ErrorKind::Setup, Code::BrokerRefused, context).because(cause)
        }
        Unanswered::TimedOut(_) | Unanswered::Lost(_) => {
            let context = format!("lost the broker while asking for {what}");
            Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context).because(cause)
        }
    }
}

/// `JetStream` answered with an error.
pub(crate) fn refused(what: &str, cause: &jetstream::Error) -> Error {
    let (kind, code, context) = match cause.error_code() {
        missing if MISSING.contains(&missing) => {
            (ErrorKind::Setup, Code::QueueMissing, format!("there is no {what} on the broker"))
        }
        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
            let context = format!("cannot ask for {what}: JetStream is not enabled");
            (ErrorKind::Setup, Code::BrokerRefused, context)
        }
        _ if cause.code() == TEMPORARY => {
            let context = format!("the broker cannot answer for {what} now");
            (ErrorKind::Unavailable, Code::BrokerUnavailable, context)
        }
        _ => (ErrorKind::Setup, Code::BrokerRefused, format!("the broker refused {what}")),
    };
    Error::new(kind, code, context).because(cause.to_string())
}

/// An answer that is none.
pub(crate) fn garbled(what: &str, cause: serde_json::Error) -> Error {
    let context = format!("the broker's answer about {what} cannot be read");
    Error::new(ErrorKind::Setup, Code::BrokerRefused, context).because(cause)
}

/// The consumer is there and cannot be consumed from like this.
pub(crate) fn unfit(what: &str, reason: &str) -> Error {
    Error::new(ErrorKind::Setup, Code::BrokerRefused, format!("{what} cannot be consumed from: {reason}"))
}

pub(crate) fn is_missing(error: &Error) -> bool {
    error.code() == Code::QueueMissing
}

/// An ack, a hand-back or an extension was not confirmed.
pub(crate) fn settling(cause: Unanswered) -> Error {
    let context = "a delivery could not be settled";
    match cause {
        Unanswered::NoResponders => {
            let reason = "the consumer or its stream is gone";
            Error::new(ErrorKind::NotFound, Code::QueueMissing, context).because(reason)
        }
        Unanswered::Refused(_) | Unanswered::Unsendable(_) => {
            Error::new(ErrorKind::Statement, Code::BrokerRefused, context).because(cause)
        }
        Unanswered::TimedOut(_) | Unanswered::Lost(_) => {
            Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context).because(cause)
        }
    }
}

/// The delivery is somebody else's by now, or settled.
pub(crate) fn not_held() -> Error {
    let context = "a delivery cannot be extended: its time has passed, or it is settled";
    Error::new(ErrorKind::NotFound, Code::NotFound, context)
}

/// The message itself cannot be sent, whenever it is tried.
pub(crate) fn unsendable(reason: impl Into<String>) -> Error {
    let context = format!("the message cannot be sent over NATS: {}", reason.into());
    Error::new(ErrorKind::Statement, Code::NotPublished, context)
}

/// A publish got no acknowledgement.
pub(crate) fn unpublished(subject: &str, cause: Unanswered) -> Error {
    match cause {
        Unanswered::NoResponders => {
            let context = format!("no stream takes messages for the subject \"{subject}\"");
            Error::new(ErrorKind::NotFound, Code::NotPublished, context)
        }
        Unanswered::Refused(_) => {
            let context = format!("the broker refused the message for the subject \"{subject}\"");
            Error::new(ErrorKind::Statement, Code::NotPublished, context).because(cause)
        }
        Unanswered::Unsendable(reason) => unsendable(reason),
        Unanswered::TimedOut(_) | Unanswered::Lost(_) => {
            let context = "the broker did not acknowledge the message";
            Error::new(ErrorKind::Unavailable, Code::NotPublished, context).because(cause)
        }
    }
}

/// The stream did not take the message.
pub(crate) fn not_stored(subject: &str, cause: &jetstream::Error) -> Error {
    // A stream that is full says "503" as well, and concerns nobody but those who publish to it.
    let is_full = cause.error_code() == ErrorCode::STREAM_STORE_FAILED;
    let temporary = cause.code() == TEMPORARY && !is_full;
    let kind = if temporary { ErrorKind::Unavailable } else { ErrorKind::Statement };
    let context = format!("the stream refused the message for the subject \"{subject}\"");
    Error::new(kind, Code::NotPublished, context).because(cause.to_string())
}

/// Somebody answered who is no stream, so that nothing is known to be stored.
pub(crate) fn not_an_ack(subject: &str) -> Error {
    let context = format!(
        "whoever answers for the subject \"{subject}\" is no stream: nothing says that it was stored"
    );
    Error::new(ErrorKind::NotFound, Code::NotPublished, context)
}

/// The same error once more, for each entry of a batch that shares its fate.
pub(crate) fn again(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.code(), error.context().to_owned());
    match std::error::Error::source(error) {
        Some(source) => copy.because(source.to_string()),
        None => copy,
    }
}
