//! What librdkafka reports beside its answers: logs, and errors that belong to no call.

use std::sync::{Arc, Mutex, PoisonError};

use hapax_core::{Code, Error, ErrorKind};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// The last trouble that a client reported, for whoever waits for it in vain: a refused login is told here
/// and nowhere else.
#[derive(Clone, Default)]
pub(crate) struct Trouble {
    last: Arc<Mutex<Option<(RDKafkaErrorCode, String)>>>,
}

impl Trouble {
    pub(crate) fn note(&self, code: RDKafkaErrorCode, reason: &str) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // A refusal says more than that nobody is there afterwards.
        if last.as_ref().is_none_or(|(known, _)| !is_refusal(*known) || is_refusal(code)) {
            *last = Some((code, reason.to_owned()));
        }
    }

    pub(crate) fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The reason why nothing will come, if there is one that no waiting mends.
    pub(crate) fn refusal(&self, address: &str) -> Option<Error> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, reason) = last.as_ref().filter(|(code, _)| is_refusal(*code))?;
        let context = format!("Kafka at {address} refused the connection");
        Some(Error::new(ErrorKind::Setup, Code::BrokerRefused, context).because(reason.clone()))
    }

    /// The last report, to explain a silence.
    pub(crate) fn reason(&self) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|(_, reason)| reason.clone())
    }
}

fn is_refusal(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Kafka;
    matches!(
        code,
        Kafka::Authentication
            | Kafka::SaslAuthenticationFailed
            | Kafka::UnsupportedSASLMechanism
            | Kafka::ClusterAuthorizationFailed
            | Kafka::UnsupportedFeature
            | Kafka::UnsupportedVersion
    )
}

/// The context of a client that consumes nothing.
#[derive(Clone, Default)]
pub(crate) struct PlainContext {
    pub(crate) trouble: Trouble,
}

impl ClientContext for PlainContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        note(&self.trouble, &error, reason);
    }
}

pub(crate) fn note(trouble: &Trouble, error: &KafkaError, reason: &str) {
    if let Some(code) = error.rdkafka_error_code() {
        trouble.note(code, reason);
    }
    tracing::debug!(%error, reason, "the Kafka client reports");
}

/// What matters of librdkafka's log comes as errors, too; so its own words are for those who look closely.
pub(crate) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::error!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Debug => tracing::trace!(target: "librdkafka", facility, "{message}"),
        _ => tracing::debug!(target: "librdkafka", facility, "{message}"),
    }
}
