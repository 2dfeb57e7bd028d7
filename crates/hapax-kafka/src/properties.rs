//! Which of librdkafka's settings a user may choose.

use hapax_core::Error;
use rdkafka::ClientConfig;

use crate::error;

/// What must be said of a setting that is refused.
struct Refusal {
    names: &'static [&'static str],
    /// The values that change nothing of what Hapax promises. None: it is set here, whatever the value.
    harmless: &'static [&'static str],
    reason: &'static str,
}

/// The settings that the promises rest on.
const REFUSED: &[Refusal] = &[
    Refusal {
        names: &["bootstrap.servers", "metadata.broker.list"],
        harmless: &[],
        reason: "the servers are given to `Kafka::new`",
    },
    Refusal { names: &["group.id"], harmless: &[], reason: "the group is given to `Kafka::source`" },
    Refusal {
        names: &["enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store"],
        harmless: &["false"],
        reason: "offsets would be committed before their messages took effect",
    },
    Refusal {
        names: &["auto.offset.reset"],
        harmless: &[],
        reason: "it would skip what is in the topic; choose with `KafkaSource::offset_reset`",
    },
    Refusal {
        names: &["isolation.level"],
        harmless: &["read_committed"],
        reason: "messages of transactions that were rolled back would be handled",
    },
    Refusal {
        names: &["acks", "request.required.acks"],
        harmless: &["all", "-1"],
        reason: "a published message could be lost with one broker",
    },
    Refusal {
        names: &["enable.idempotence"],
        harmless: &["true"],
        reason: "published messages could change their order",
    },
    Refusal {
        names: &["transactional.id"],
        harmless: &[],
        reason: "the outbox makes publishing part of the database's transaction, not of Kafka's",
    },
    Refusal {
        names: &["allow.auto.create.topics"],
        harmless: &["false"],
        reason: "a misspelt topic would be created; use `KafkaPublisher::create_topic`",
    },
    Refusal { names: &["enable.partition.eof"], harmless: &["false"], reason: "it is not an error" },
    Refusal {
        names: &["message.timeout.ms", "delivery.timeout.ms"],
        harmless: &[],
        reason: "it is `KafkaPublisher::confirm_timeout`",
    },
];

/// Refuses what librdkafka does not know and what the promises rest on. No error shows a value.
pub(crate) fn check(name: &str, value: &str) -> Result<(), Error> {
    for Refusal { names, harmless, reason } in REFUSED {
        if names.contains(&name) && !harmless.contains(&value.trim()) {
            return Err(error::misconfigured(format!("Kafka's property \"{name}\" cannot be set: {reason}")));
        }
    }
    let known = ClientConfig::new().set(name, value).create_native_config();
    known.map(drop).map_err(|_| {
        let cause = "librdkafka does not know it, or not with this value (which is not shown)";
        error::misconfigured(format!("Kafka's property \"{name}\" cannot be set: {cause}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{Code, ErrorKind};

    #[test]
    fn what_the_promises_rest_on_is_refused() {
        for (name, value) in [
            ("enable.auto.commit", "true"),
            ("enable.auto.offset.store", "true"),
            ("auto.offset.reset", "latest"),
            ("isolation.level", "read_uncommitted"),
            ("acks", "1"),
            ("request.required.acks", "0"),
            ("enable.idempotence", "false"),
            ("group.id", "orders"),
            ("bootstrap.servers", "elsewhere"),
            ("allow.auto.create.topics", "true"),
            ("no.such.property", "1"),
            ("session.timeout.ms", "soon"),
        ] {
            let error = check(name, value).unwrap_err();
            assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::ConfigWrongValue), "{name}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn what_changes_nothing_may_be_said() {
        for (name, value) in [
            ("acks", "all"),
            ("enable.auto.commit", "false"),
            ("sasl.password", "hunter2"),
            ("partition.assignment.strategy", "range"),
            ("session.timeout.ms", "6000"),
        ] {
            check(name, value).unwrap();
        }
    }

    #[test]
    fn a_refused_value_is_not_shown() {
        let error = check("security.protocol", "hunter2").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}
