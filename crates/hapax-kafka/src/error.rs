//! What the broker's refusals mean: librdkafka's errors as [`hapax_core::Error`].

use std::time::Duration;

use hapax_core::{Code, Error, ErrorKind};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Kafka};

use crate::context::Trouble;

/// A value that was configured cannot be used.
pub(crate) fn misconfigured(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context.into())
}

/// librdkafka does not accept the settings as a whole, such as TLS files that are not there.
pub(crate) fn settings(error: &KafkaError) -> Error {
    // The error's own words hold the value, which may be a password.
    let cause = match error {
        KafkaError::ClientConfig(_, description, name, _) => format!("{description} ({name})"),
        other => other.to_string(),
    };
    misconfigured(format!("the Kafka client does not accept its properties: {cause}"))
}

/// The broker let the time to connect pass without a word.
pub(crate) fn no_answer(address: &str, limit: Duration, trouble: &Trouble) -> Error {
    let context = format!("Kafka at {address} did not answer within {limit:?}");
    let error = Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context);
    match trouble.reason() {
        Some(reason) => error.because(reason),
        None => error,
    }
}

/// A question was not answered.
pub(crate) fn unanswered(error: &KafkaError) -> Error {
    let context = "the cluster does not answer now";
    Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context).because(error.to_string())
}

/// A topic cannot be read or written.
pub(crate) fn topic(topic: &str, code: Kafka) -> Error {
    let (kind, hapax, context) = match code {
        Kafka::UnknownTopicOrPartition
        | Kafka::UnknownTopic
        | Kafka::UnknownPartition
        | Kafka::UnknownTopicId => {
            (ErrorKind::Setup, Code::QueueMissing, format!("there is no topic \"{topic}\" on the broker"))
        }
        Kafka::InvalidTopic => {
            (ErrorKind::Setup, Code::QueueMissing, format!("\"{topic}\" cannot be the name of a topic"))
        }
        Kafka::TopicAuthorizationFailed
        | Kafka::ClusterAuthorizationFailed
        | Kafka::GroupAuthorizationFailed
        | Kafka::PolicyViolation
        | Kafka::InvalidPartitions
        | Kafka::InvalidReplicationFactor
        | Kafka::UnsupportedVersion
        | Kafka::UnsupportedFeature => {
            (ErrorKind::Setup, Code::BrokerRefused, format!("the broker refuses access to topic \"{topic}\""))
        }
        _ => {
            let context = format!("topic \"{topic}\" cannot be reached on the broker now");
            (ErrorKind::Unavailable, Code::BrokerUnavailable, context)
        }
    };
    Error::new(kind, hapax, context).because(code.to_string())
}

/// The group's offsets cannot be read.
pub(crate) fn group(group: &str, error: &KafkaError) -> Error {
    let (kind, code, context) = match error.rdkafka_error_code() {
        Some(Kafka::GroupAuthorizationFailed | Kafka::TopicAuthorizationFailed) => {
            (ErrorKind::Setup, Code::BrokerRefused, format!("the broker refuses access to group \"{group}\""))
        }
        Some(Kafka::InvalidGroupId) => {
            (ErrorKind::Setup, Code::BrokerRefused, format!("\"{group}\" cannot be the name of a group"))
        }
        Some(Kafka::UnsupportedVersion | Kafka::UnsupportedFeature) => {
            (ErrorKind::Setup, Code::BrokerRefused, "the broker is too old for consumer groups".to_owned())
        }
        _ => {
            let context = format!("the offsets of group \"{group}\" cannot be read now");
            (ErrorKind::Unavailable, Code::BrokerUnavailable, context)
        }
    };
    Error::new(kind, code, context).because(error.to_string())
}

/// The group has no valid offset, and its source was told not to choose one.
pub(crate) fn no_offset(group: &str) -> Error {
    let context = format!(
        "group \"{group}\" has no valid offset for a partition: it is new, or its offsets or the records at them \
         expired. Set its offsets, or let it begin at the earliest record"
    );
    Error::new(ErrorKind::Setup, Code::SourceUnreadable, context)
}

/// The client gave up for good.
pub(crate) fn fatal(group: &str, error: &KafkaError) -> Error {
    let context = format!("the Kafka client of group \"{group}\" cannot go on");
    Error::new(ErrorKind::Setup, Code::BrokerRefused, context).because(error.to_string())
}

/// The message itself cannot be sent, whenever and wherever it is tried.
pub(crate) fn unsendable(reason: impl Into<String>) -> Error {
    let context = format!("the message cannot be sent to Kafka: {}", reason.into());
    Error::new(ErrorKind::Statement, Code::NotPublished, context)
}

/// A publisher looked for a topic: as [`topic`], in a publisher's words.
pub(crate) fn destination(found: Error) -> Error {
    let kind = match found.code() {
        Code::QueueMissing => ErrorKind::NotFound,
        Code::BrokerRefused if found.context().contains("topic") => ErrorKind::Statement,
        _ => return found,
    };
    again_as(&found, kind, Code::NotPublished)
}

/// The broker took no responsibility for the message, or its answer did not come.
pub(crate) fn not_published(topic: &str, error: &KafkaError, trouble: &Trouble, address: &str) -> Error {
    let refused =
        |kind, context: String| Error::new(kind, Code::NotPublished, context).because(error.to_string());
    match error.rdkafka_error_code() {
        Some(
            Kafka::UnknownTopic
            | Kafka::UnknownTopicOrPartition
            | Kafka::UnknownPartition
            | Kafka::UnknownTopicId,
        ) => refused(ErrorKind::NotFound, format!("there is no topic \"{topic}\" on the broker")),
        Some(
            Kafka::MessageSizeTooLarge
            | Kafka::InvalidMessage
            | Kafka::InvalidMessageSize
            | Kafka::MessageBatchTooLarge
            | Kafka::InvalidRecord
            | Kafka::InvalidTimestamp
            | Kafka::InvalidTopic
            | Kafka::PolicyViolation
            | Kafka::TopicAuthorizationFailed
            | Kafka::InvalidArgument,
        ) => refused(ErrorKind::Statement, "the broker refused the message".to_owned()),
        _ => trouble.refusal(address).unwrap_or_else(|| {
            let context = "the broker did not confirm the message";
            refused(ErrorKind::Unavailable, context.to_owned())
        }),
    }
}

/// The same error once more, for each entry of a batch that shares its fate.
pub(crate) fn again(error: &Error) -> Error {
    again_as(error, error.kind(), error.code())
}

fn again_as(error: &Error, kind: ErrorKind, code: Code) -> Error {
    let copy = Error::new(kind, code, error.context().to_owned());
    match std::error::Error::source(error) {
        Some(source) => copy.because(source.to_string()),
        None => copy,
    }
}
