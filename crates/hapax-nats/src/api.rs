//! `JetStream`'s own subjects, and what is asked of them.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{ErrorCode, stream};
use hapax_core::Error;
use serde_json::{Value, json};

use crate::error;
use crate::link::Link;

/// How long the server may take to answer a question about a stream or a consumer.
const ANSWER: Duration = Duration::from_secs(5);

/// The subjects of `JetStream`, which a domain moves.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    prefix: String,
}

impl Default for Api {
    fn default() -> Self {
        Self { prefix: "$JS.API".into() }
    }
}

/// What is to be created if it is missing.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) subjects: Vec<String>,
    pub(crate) ack_wait: Duration,
    pub(crate) max_ack_pending: i64,
}

impl Api {
    pub(crate) fn of_domain(domain: &str) -> Self {
        Self { prefix: format!("$JS.{domain}.API") }
    }

    /// Where a consumer's messages are asked for.
    pub(crate) fn next(&self, stream: &str, consumer: &str) -> String {
        format!("{}.CONSUMER.MSG.NEXT.{stream}.{consumer}", self.prefix)
    }

    /// What the server knows of a consumer.
    pub(crate) async fn consumer(
        &self,
        link: &Link,
        stream: &str,
        consumer: &str,
    ) -> Result<consumer::Info, Error> {
        let what = format!("consumer \"{consumer}\" of stream \"{stream}\"");
        self.ask(link, &format!("CONSUMER.INFO.{stream}.{consumer}"), &Value::Null, &what).await
    }

    /// The number of a stream's first message, or of the next one if there is none.
    pub(crate) async fn first_sequence(&self, link: &Link, stream: &str) -> Result<u64, Error> {
        let what = format!("stream \"{stream}\"");
        let info: stream::Info =
            self.ask(link, &format!("STREAM.INFO.{stream}"), &Value::Null, &what).await?;
        Ok(info.state.first_sequence)
    }

    /// Creates the stream and the consumer where they are missing, and leaves them alone where they are not.
    pub(crate) async fn declare(
        &self,
        link: &Link,
        stream: &str,
        consumer: &str,
        declared: &Declared,
    ) -> Result<(), Error> {
        self.declare_stream(link, stream, &declared.subjects).await?;
        match self.consumer(link, stream, consumer).await {
            Err(error) if error::is_missing(&error) => {}
            found => return found.map(drop),
        }
        let what = format!("consumer \"{consumer}\" of stream \"{stream}\"");
        let config = consumer::Config {
            durable_name: Some(consumer.to_owned()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: declared.ack_wait,
            max_ack_pending: declared.max_ack_pending,
            ..consumer::Config::default()
        };
        let request = json!({ "stream_name": stream, "config": config });
        let subject = format!("CONSUMER.DURABLE.CREATE.{stream}.{consumer}");
        self.ask::<consumer::Info>(link, &subject, &request, &what).await.map(drop)
    }

    /// Creates a stream on disk if it is missing.
    pub(crate) async fn declare_stream(
        &self,
        link: &Link,
        stream: &str,
        subjects: &[String],
    ) -> Result<(), Error> {
        let what = format!("stream \"{stream}\"");
        let found = self.ask::<Value>(link, &format!("STREAM.INFO.{stream}"), &Value::Null, &what).await;
        match found {
            Err(error) if error::is_missing(&error) => {}
            found => return found.map(drop),
        }
        let config = stream::Config {
            name: stream.to_owned(),
            subjects: subjects.to_vec(),
            ..stream::Config::default()
        };
        let subject = format!("STREAM.CREATE.{stream}");
        self.ask::<Value>(link, &subject, &json!(config), &what).await.map(drop)
    }

    /// Deletes a stream with its messages and consumers; no change if there is none.
    pub(crate) async fn delete_stream(&self, link: &Link, stream: &str) -> Result<(), Error> {
        let what = format!("stream \"{stream}\"");
        match self.ask::<Value>(link, &format!("STREAM.DELETE.{stream}"), &Value::Null, &what).await {
            Err(error) if error::is_missing(&error) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        link: &Link,
        subject: &str,
        request: &Value,
        what: &str,
    ) -> Result<T, Error> {
        let subject = format!("{}.{subject}", self.prefix);
        let payload = if request.is_null() { Vec::new() } else { request.to_string().into_bytes() };
        let answer = link.ask(&subject, HeaderMap::new(), payload.into(), ANSWER).await;
        let answer = answer.map_err(|cause| error::unanswered(what, cause))?;
        match serde_json::from_slice(&answer.payload) {
            Ok(Response::Ok(found)) => Ok(found),
            Ok(Response::Err { error }) => Err(error::refused(what, &error)),
            Err(cause) => Err(error::garbled(what, cause)),
        }
    }
}

/// What these codes name is not there.
pub(crate) const MISSING: [ErrorCode; 2] = [ErrorCode::CONSUMER_NOT_FOUND, ErrorCode::STREAM_NOT_FOUND];

/// A stream's or consumer's name. It is one token of a subject, so that another one would ask for something else.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '.' | '*' | '>' | '/' | '\\');
    if !name.is_empty() && name.len() <= 255 && name.chars().all(fits) {
        return Ok(());
    }
    Err(error::misconfigured(format!(
        "the name of a {what} has 1 to 255 printable ASCII characters, without space, `.`, `*`, `>`, `/` and `\\`"
    )))
}

/// A subject that a message can be published to: tokens between dots, no wildcard.
pub(crate) fn is_subject(subject: &str) -> bool {
    let token = |token: &str| {
        !token.is_empty()
            && !matches!(token, "*" | ">")
            && !token.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    subject.split('.').all(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_tokens_and_no_wildcards() {
        for subject in ["orders", "orders.paid", "a.ü"] {
            assert!(is_subject(subject), "{subject}");
        }
        for subject in ["", ".", "a.", "a..b", "a.*", "a.>", "a b", "a\n"] {
            assert!(!is_subject(subject), "{subject}");
        }
    }

    #[test]
    fn a_name_is_one_token() {
        assert!(check_name("stream", "ORDERS_1-a").is_ok());
        for name in ["", "a.b", "a b", "*", "a>", "ü"] {
            assert!(check_name("stream", name).is_err(), "{name}");
        }
    }
}
