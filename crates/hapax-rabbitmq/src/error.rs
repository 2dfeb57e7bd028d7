//! What the broker's refusals mean: lapin's errors as [`hapax_core::Error`].

use std::time::Duration;

use hapax_core::{Code, Error, ErrorKind};
use lapin::ErrorKind as Lapin;

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
/// Also what a missing virtual host is answered with.
const NOT_ALLOWED: u16 = 530;

/// The reply code of a broker that said why.
fn reply_code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        Lapin::ProtocolError(reply) => Some(reply.get_id()),
        _ => None,
    }
}

/// A value that was configured cannot be used.
pub(crate) fn misconfigured(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context.into())
}

/// No connection came about, or none that one may work on.
pub(crate) fn connecting(address: &str, error: lapin::Error) -> Error {
    if let Some(ACCESS_REFUSED | NOT_ALLOWED) = reply_code(&error) {
        let context = format!("RabbitMQ at {address} refused the connection");
        return Error::new(ErrorKind::Setup, Code::BrokerRefused, context).because(error);
    }
    let context = format!("cannot connect to RabbitMQ at {address}");
    Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context).because(error)
}

/// The broker let the time to connect pass without a word.
pub(crate) fn connect_timed_out(address: &str, limit: Duration) -> Error {
    let context = format!("RabbitMQ at {address} did not answer within {limit:?}");
    Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context)
}

/// The queue was not consumed from, or not declared.
pub(crate) fn queue(queue: &str, error: lapin::Error) -> Error {
    match reply_code(&error) {
        Some(NOT_FOUND) => {
            let context = format!("there is no queue \"{queue}\" on the broker");
            Error::new(ErrorKind::Setup, Code::QueueMissing, context).because(error)
        }
        Some(ACCESS_REFUSED) => {
            let context = format!("the broker refuses access to queue \"{queue}\"");
            Error::new(ErrorKind::Setup, Code::BrokerRefused, context).because(error)
        }
        Some(PRECONDITION_FAILED) => {
            let context = format!("queue \"{queue}\" cannot be declared or consumed from as configured");
            Error::new(ErrorKind::Setup, Code::BrokerRefused, context).because(error)
        }
        _ => {
            let context = format!("lost the broker while opening queue \"{queue}\"");
            Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context).because(error)
        }
    }
}

/// An ack or a hand-back may not have reached the broker.
pub(crate) fn settling(error: lapin::Error) -> Error {
    Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, "a delivery could not be settled")
        .because(error)
}

/// The message itself cannot be sent, whenever and wherever it is tried.
pub(crate) fn unsendable(reason: impl Into<String>) -> Error {
    let context = format!("the message cannot be sent over AMQP: {}", reason.into());
    Error::new(ErrorKind::Statement, Code::NotPublished, context)
}

/// Nothing takes messages with this routing key.
pub(crate) fn unroutable(exchange: &str, routing_key: &str, reply: &str) -> Error {
    let context =
        format!("exchange \"{exchange}\" returned the message for routing key \"{routing_key}\": {reply}");
    Error::new(ErrorKind::NotFound, Code::NotPublished, context)
}

/// The broker took no responsibility for the message.
pub(crate) fn nacked() -> Error {
    Error::new(ErrorKind::Statement, Code::NotPublished, "the broker refused the message (basic.nack)")
}

/// The broker closed the channel over this one message: a missing exchange, a permission, its size.
pub(crate) fn refused(error: lapin::Error) -> Error {
    let kind = match reply_code(&error) {
        Some(NOT_FOUND) => ErrorKind::NotFound,
        _ => ErrorKind::Statement,
    };
    Error::new(kind, Code::NotPublished, "the broker refused the message").because(error)
}

/// The connection was lost before the broker confirmed: it may or may not have the message.
pub(crate) fn unconfirmed(error: lapin::Error) -> Error {
    let context = "the connection was lost before the broker confirmed the message";
    Error::new(ErrorKind::Unavailable, Code::NotPublished, context).because(error)
}

/// The broker let the time to confirm pass: it may or may not have the message.
pub(crate) fn confirm_timed_out(limit: Duration) -> Error {
    let context = format!("the broker did not confirm the message within {limit:?}");
    Error::new(ErrorKind::Unavailable, Code::NotPublished, context)
}

/// The same error once more, for each entry of a batch that shares its fate.
pub(crate) fn again(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.code(), error.context().to_owned());
    match std::error::Error::source(error) {
        Some(source) => copy.because(source.to_string()),
        None => copy,
    }
}

/// The broker acked this message and returned others, and the connection was lost before it was
/// clear whether it returned this one, too.
pub(crate) fn return_unknown() -> Error {
    let context = "the connection was lost before it was clear whether the broker returned the message";
    Error::new(ErrorKind::Unavailable, Code::NotPublished, context)
}
