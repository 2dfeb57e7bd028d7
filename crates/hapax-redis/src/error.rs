//! What the server's refusals mean: the client's errors as [`hapax_core::Error`].

use std::time::Duration;

use hapax_core::{Code, Error, ErrorKind};
use redis::{ErrorKind as Client, RedisError};

/// What a refusal means, by the server's own code for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The connection is of no use any more, or never came about.
    Lost,
    /// The server takes no writes now, or nothing at all: it loads, is full, or is a replica.
    Temporary,
    /// The login or a permission.
    Refused,
    /// The group or its stream is not there.
    Missing,
    /// The key is on another node of a cluster.
    Elsewhere,
    /// Anything else that the server has against the command.
    Other,
}

fn meaning(cause: &RedisError) -> Meaning {
    match cause.kind() {
        Client::Io | Client::Parse => return Meaning::Lost,
        Client::AuthenticationFailed => return Meaning::Refused,
        _ => {}
    }
    // A script on 6.2 passes errors on under a code of its own; what they were is in the words.
    if cause.detail().is_some_and(|words| words.contains("NOGROUP")) {
        return Meaning::Missing;
    }
    match cause.code().unwrap_or_default() {
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => Meaning::Refused,
        "NOGROUP" => Meaning::Missing,
        "MOVED" | "ASK" | "CROSSSLOT" => Meaning::Elsewhere,
        "OOM" | "LOADING" | "READONLY" | "MISCONF" | "NOREPLICAS" | "MASTERDOWN" | "CLUSTERDOWN"
        | "TRYAGAIN" | "BUSY" | "UNBLOCKED" => Meaning::Temporary,
        _ => Meaning::Other,
    }
}

/// Whether the connection is of no use any more.
pub(crate) fn is_loss(cause: &RedisError) -> bool {
    meaning(cause) == Meaning::Lost
}

/// Whether the login is what the server has against a command.
pub(crate) fn is_refusal(cause: &RedisError) -> bool {
    meaning(cause) == Meaning::Refused
}

/// A value that was configured cannot be used.
pub(crate) fn misconfigured(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context.into())
}

/// No connection came about.
pub(crate) fn connecting(address: &str, cause: RedisError) -> Error {
    let too_many = cause.detail().is_some_and(|words| words.contains("max number of clients"));
    match meaning(&cause) {
        Meaning::Lost | Meaning::Temporary => {}
        Meaning::Other if too_many => {}
        _ => {
            let context = format!("Redis at {address} refused the connection");
            return Error::new(ErrorKind::Setup, Code::BrokerRefused, context).because(cause);
        }
    }
    let context = format!("cannot connect to Redis at {address}");
    Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context).because(cause)
}

/// The server let the time to connect pass without a word.
pub(crate) fn connect_timed_out(address: &str, limit: Duration) -> Error {
    let context = format!("Redis at {address} did not answer within {limit:?}");
    Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context)
}

/// The server lacks what is needed of it.
pub(crate) fn too_old(address: &str, version: &str) -> Error {
    let context =
        format!("Redis at {address} is version {version}: Hapax needs 6.2 or later, which has XAUTOCLAIM");
    Error::new(ErrorKind::Setup, Code::BrokerRefused, context)
}

/// A command about a stream or its group failed.
pub(crate) fn stream(what: &str, cause: RedisError) -> Error {
    let (kind, code, context) = match meaning(&cause) {
        Meaning::Missing => {
            (ErrorKind::Setup, Code::QueueMissing, format!("there is no {what} on the server"))
        }
        Meaning::Lost => {
            let context = format!("lost the server while asking for {what}");
            (ErrorKind::Unavailable, Code::BrokerUnavailable, context)
        }
        Meaning::Temporary => {
            let context = format!("the server cannot serve {what} now");
            (ErrorKind::Unavailable, Code::BrokerUnavailable, context)
        }
        Meaning::Refused => {
            (ErrorKind::Setup, Code::BrokerRefused, format!("the server refuses access to {what}"))
        }
        Meaning::Elsewhere => {
            let context = format!("{what} is on another node of a Redis Cluster: connect to that one");
            (ErrorKind::Setup, Code::BrokerRefused, context)
        }
        Meaning::Other => (ErrorKind::Setup, Code::BrokerRefused, format!("{what} cannot be consumed from")),
    };
    Error::new(kind, code, context).because(cause)
}

/// An ack, a hand-back or an extension may not have reached the server.
pub(crate) fn settling(cause: RedisError) -> Error {
    let context = "a delivery could not be settled";
    let (kind, code) = match meaning(&cause) {
        Meaning::Lost | Meaning::Temporary => (ErrorKind::Unavailable, Code::BrokerUnavailable),
        Meaning::Missing => (ErrorKind::NotFound, Code::QueueMissing),
        _ => (ErrorKind::Statement, Code::BrokerRefused),
    };
    Error::new(kind, code, context).because(cause)
}

/// There was no connection on which to settle.
pub(crate) fn not_connected() -> Error {
    let context = "a delivery could not be settled: there is no connection";
    Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context)
}

/// An answer that is none.
pub(crate) fn garbled(what: &str) -> Error {
    let context = format!("the server's answer about {what} cannot be read");
    Error::new(ErrorKind::Setup, Code::BrokerRefused, context)
}

/// The delivery is somebody else's by now, or settled.
pub(crate) fn not_held() -> Error {
    let context = "a delivery cannot be extended: its time has passed, or it is settled";
    Error::new(ErrorKind::NotFound, Code::NotFound, context)
}

/// The message itself cannot be sent, whenever it is tried.
pub(crate) fn unsendable(reason: impl Into<String>) -> Error {
    let context = format!("the message cannot be sent over Redis: {}", reason.into());
    Error::new(ErrorKind::Statement, Code::NotPublished, context)
}

/// The stream does not exist, and nobody asked to create it.
pub(crate) fn no_stream(stream: &str) -> Error {
    let context = format!("there is no stream \"{stream}\" on the server");
    Error::new(ErrorKind::NotFound, Code::NotPublished, context)
}

/// The server did not take the message.
pub(crate) fn unpublished(stream: &str, cause: RedisError) -> Error {
    let kind = match meaning(&cause) {
        Meaning::Lost | Meaning::Temporary => ErrorKind::Unavailable,
        _ => ErrorKind::Statement,
    };
    let context = match meaning(&cause) {
        Meaning::Lost => format!("the server did not confirm the message for stream \"{stream}\""),
        _ => format!("the server refused the message for stream \"{stream}\""),
    };
    Error::new(kind, Code::NotPublished, context).because(cause)
}

/// The same error once more, for each entry of a batch that shares its fate.
pub(crate) fn again(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.code(), error.context().to_owned());
    match std::error::Error::source(error) {
        Some(source) => copy.because(source.to_string()),
        None => copy,
    }
}

pub(crate) fn is_missing(error: &Error) -> bool {
    error.code() == Code::QueueMissing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(line: &[u8]) -> RedisError {
        let value = redis::parse_redis_value(line).and_then(redis::Value::extract_error);
        value.unwrap_err()
    }

    #[test]
    fn the_servers_code_decides() {
        let cases: [(&[u8], Meaning); 9] = [
            (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", Meaning::Temporary),
            (b"-READONLY You can't write against a read only replica.\r\n", Meaning::Temporary),
            (b"-LOADING Redis is loading the dataset in memory\r\n", Meaning::Temporary),
            (b"-MISCONF Redis is configured to save RDB snapshots\r\n", Meaning::Temporary),
            (b"-MOVED 3999 127.0.0.1:6381\r\n", Meaning::Elsewhere),
            (b"-NOPERM this user has no permissions to run the 'xadd' command\r\n", Meaning::Refused),
            (b"-NOGROUP No such key 'a' or consumer group 'b'\r\n", Meaning::Missing),
            (b"-ERR Error running script: NOGROUP No such key 'a'\r\n", Meaning::Missing),
            (b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", Meaning::Other),
        ];
        for (line, expected) in cases {
            assert_eq!(meaning(&answered(line)), expected, "{}", String::from_utf8_lossy(line));
        }
    }
}
