//! A message as it travels: body, headers and properties, before anybody has read them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// The header that carries a message's id wherever a broker has headers.
pub const MESSAGE_ID_HEADER: &str = "hapax-message-id";
/// The header that carries a message's type where a broker has no property for it.
pub const MESSAGE_TYPE_HEADER: &str = "hapax-message-type";
/// The header that carries the producer's `sent_at`, one value shared by all copies (RFC 3339).
pub const SENT_AT_HEADER: &str = "hapax-sent-at";
/// The header that carries a dead letter's number on the copy that is published for other tools.
pub const DEAD_LETTER_HEADER: &str = "hapax-dead-letter";

/// Headers in their order; names are compared without regard to ASCII case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The first value under a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Replaces every value under a name by one.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let name = name.into();
        self.0.retain(|(key, _)| !key.eq_ignore_ascii_case(&name));
        self.0.push((name, value.into()));
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(headers: I) -> Self {
        Self(headers.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

/// What a broker keeps beside the headers; absent where it has no such property.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Properties {
    /// The message-id property that the *producer* set (AMQP `message_id`, `Nats-Msg-Id`).
    pub message_id: Option<String>,
    /// The type property (AMQP `type`).
    pub kind: Option<String>,
    /// The correlation id: shared by related messages, therefore never an id.
    pub correlation_id: Option<String>,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// The ordering key (Kafka key, FIFO group).
    pub key: Option<String>,
    /// The broker's timestamp. Copies can differ in it, so it is used only where it is named.
    pub timestamp: Option<Timestamp>,
    /// An id that the *broker* made (offset, entry id), namespaced by cluster and topic. It changes on
    /// redrive, so it is used only where it is asked for.
    pub broker_id: Option<String>,
}

/// Where a delivery came from, as an operator will want to read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// Broker and queue, such as `rabbitmq:orders` or `file:payments.jsonl`.
    pub source: String,
    /// The place in it, such as an offset or a line number.
    pub position: Option<String>,
}

/// A whole message as a source hands it over and as the waiting room and dead letters keep it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The body, byte for byte.
    pub body: Bytes,
    /// The headers.
    pub headers: Headers,
    /// The broker's properties.
    pub properties: Properties,
    /// Where it came from.
    pub origin: Origin,
}

/// Everything of an [`Envelope`] but the body, as one JSON text: what a store keeps beside the body.
#[derive(Serialize, Deserialize)]
struct Label<'e> {
    #[serde(default)]
    headers: std::borrow::Cow<'e, Headers>,
    #[serde(default)]
    properties: std::borrow::Cow<'e, Properties>,
    #[serde(default)]
    origin: std::borrow::Cow<'e, Origin>,
}

impl Envelope {
    /// An envelope around a body.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// An envelope around an event as JSON, with its type. Give it an id that every copy will share.
    ///
    /// ```
    /// # #[derive(serde::Serialize)] struct Paid { order: i64 }
    /// # impl hapax_core::Event for Paid { const TYPE: &'static str = "Paid"; }
    /// let envelope = hapax_core::Envelope::of(&Paid { order: 7 })?.with_id("payment-1");
    /// assert_eq!(&envelope.body[..], br#"{"order":7}"#);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn of<E: crate::Event>(event: &E) -> Result<Self, serde_json::Error> {
        Ok(Self::new(serde_json::to_vec(event)?).with_type(E::TYPE))
    }

    /// Sets the producer's message id (builder style).
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.properties.message_id = Some(id.into());
        self
    }

    /// Sets the type property (builder style).
    #[must_use]
    pub fn with_type(mut self, kind: impl Into<String>) -> Self {
        self.properties.kind = Some(kind.into());
        self
    }

    /// Sets a header (builder style).
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.set(name, value);
        self
    }

    /// Everything but the body as JSON, for a store's column.
    pub fn label(&self) -> String {
        use std::borrow::Cow::Borrowed;
        let label = Label {
            headers: Borrowed(&self.headers),
            properties: Borrowed(&self.properties),
            origin: Borrowed(&self.origin),
        };
        serde_json::to_string(&label).unwrap_or_default() // strings and integers only: cannot fail
    }

    /// The inverse of [`label`](Self::label).
    pub fn from_label(label: &str, body: impl Into<Bytes>) -> Result<Self, serde_json::Error> {
        let label: Label<'_> = serde_json::from_str(label)?;
        Ok(Self {
            body: body.into(),
            headers: label.headers.into_owned(),
            properties: label.properties.into_owned(),
            origin: label.origin.into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_survives_the_store() {
        let mut envelope = Envelope::new("body").with_id("a ").with_type("T").with_header("X", "\"1\"\n");
        envelope.origin = Origin { source: "file:x".into(), position: Some("7".into()) };
        envelope.properties.timestamp = Some(Timestamp::from_micros(5));
        assert_eq!(Envelope::from_label(&envelope.label(), "body").unwrap(), envelope);
    }

    #[test]
    fn header_names_ignore_case_and_set_replaces() {
        let mut headers: Headers = [("A", "1"), ("a", "2")].into_iter().collect();
        assert_eq!(headers.get("a"), Some("1"));
        headers.set("A", "3");
        assert_eq!(headers.iter().count(), 1);
    }
}
