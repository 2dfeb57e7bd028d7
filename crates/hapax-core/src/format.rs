//! How a message is read from an envelope: id, type, key, `sent_at` and payload.

use std::borrow::Cow;

use bytes::Bytes;

use crate::identity::cloudevents_attribute;
use crate::{
    Code, Digest, Envelope, Identity, MESSAGE_TYPE_HEADER, MessageId, NotAnId, Part, Pointer, RawMessage,
    SENT_AT_HEADER, Timestamp,
};

/// Where a message's type is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypeRule {
    /// The broker's type property, then the header `hapax-message-type`.
    #[default]
    Standard,
    /// One place.
    Part(Part),
    /// The same type for all.
    Always(String),
    /// The CloudEvents attribute `type`.
    CloudEvents,
}

/// Where a message's `sent_at` is found: one value that all its copies share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SentAtRule {
    /// The header `hapax-sent-at`.
    #[default]
    Standard,
    /// One place, holding an RFC 3339 time.
    Part(Part),
    /// The broker's timestamp: named by a user who knows that copies share it.
    Timestamp,
    /// The CloudEvents attribute `time`.
    CloudEvents,
}

/// How to read a message from an envelope.
///
/// ```
/// use hapax_core::{Envelope, Format, Identity};
///
/// let format = Format::default().identity("json:/id".parse::<Identity>()?);
/// let message = format.read(Envelope::new(r#"{"id":"m1"}"#).with_type("Paid"))?;
/// assert_eq!((message.id.as_str(), message.kind.as_str()), ("m1", "Paid"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Format {
    identity: Identity,
    kind: TypeRule,
    key: Option<Part>,
    sent_at: SentAtRule,
    payload: Option<Pointer>,
    max_payload: Option<usize>,
}

/// A message that cannot be read, whole, with the reason; it becomes a dead letter.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{code}: {reason}")]
pub struct Unreadable {
    /// Why, as a code.
    pub code: Code,
    /// Why, in words.
    pub reason: String,
    /// Its id, if that at least is usable.
    pub id: Option<MessageId>,
    /// Its type, if that is known.
    pub kind: String,
    /// The message as it came.
    pub envelope: Box<Envelope>,
}

impl Format {
    /// Where the id is.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Where the type is.
    #[must_use]
    pub fn kind(mut self, rule: TypeRule) -> Self {
        self.kind = rule;
        self
    }

    /// Where the key is: messages of one key are handled by one worker, in order.
    #[must_use]
    pub fn key(mut self, part: Part) -> Self {
        self.key = Some(part);
        self
    }

    /// Whether messages have keys.
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Where `sent_at` is.
    #[must_use]
    pub fn sent_at(mut self, rule: SentAtRule) -> Self {
        self.sent_at = rule;
        self
    }

    /// The part of a JSON body that is the payload. Default: the whole body.
    #[must_use]
    pub fn payload(mut self, pointer: Pointer) -> Self {
        self.payload = Some(pointer);
        self
    }

    /// The largest body, in bytes. Default: no limit but the broker's.
    #[must_use]
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = Some(bytes);
        self
    }

    /// Reads a message. What cannot be read comes back whole.
    pub fn read(&self, envelope: Envelope) -> Result<RawMessage, Unreadable> {
        self.read_as(None, envelope)
    }

    /// Reads a message of the waiting room, which is known by the id it was parked under: an operator
    /// may have given it one that it does not carry.
    pub fn read_known(&self, id: MessageId, envelope: Envelope) -> Result<RawMessage, Unreadable> {
        self.read_as(Some(id), envelope)
    }

    fn read_as(&self, known: Option<MessageId>, envelope: Envelope) -> Result<RawMessage, Unreadable> {
        // A body that is too large is not parsed: its id is known only if it lies outside the body.
        let too_large = self.max_payload.is_some_and(|max| envelope.body.len() > max);
        let kind = self.find_kind(&envelope, too_large);
        let fail = |code, reason: String, id, envelope| {
            Err(Unreadable {
                code,
                reason,
                id,
                kind: kind.clone().unwrap_or_default(),
                envelope: Box::new(envelope),
            })
        };
        if too_large {
            let id = known.or_else(|| Identity::standard().of(&envelope).ok());
            let reason = format!("the body is {} bytes long", envelope.body.len());
            return fail(Code::PayloadTooLarge, reason, id, envelope);
        }
        let id = match known.map_or_else(|| self.identity.of(&envelope), Ok) {
            Ok(id) => id,
            Err(error) => return fail(error.code(), error.to_string(), None, envelope),
        };
        let payload = match self.find_payload(&envelope) {
            Ok(payload) => payload,
            Err(reason) => return fail(Code::PayloadUndecodable, reason, Some(id), envelope),
        };
        let sent_at = match self.find_sent_at(&envelope) {
            Ok(sent_at) => sent_at,
            Err(reason) => return fail(Code::PayloadUndecodable, reason, Some(id), envelope),
        };
        let key = match self.key.as_ref().map_or(Ok(None), |part| part.find(&envelope)) {
            Ok(key) => key.map(Cow::into_owned),
            Err(error) => {
                return fail(Code::PayloadUndecodable, format!("the key: {error}"), Some(id), envelope);
            }
        };
        let digest = Digest::of(&payload);
        Ok(RawMessage { id, kind: kind.unwrap_or_default(), key, sent_at, digest, payload, envelope })
    }

    fn find_kind(&self, envelope: &Envelope, too_large: bool) -> Option<String> {
        let properties = &envelope.properties;
        match &self.kind {
            TypeRule::Standard => properties
                .kind
                .as_deref()
                .filter(|kind| !kind.is_empty())
                .or_else(|| envelope.headers.get(MESSAGE_TYPE_HEADER))
                .map(str::to_owned),
            TypeRule::Always(kind) => Some(kind.clone()),
            TypeRule::Part(Part::Json(_)) | TypeRule::CloudEvents if too_large => None,
            TypeRule::Part(part) => part.find(envelope).ok().flatten().map(Cow::into_owned),
            TypeRule::CloudEvents => {
                cloudevents_attribute(envelope, "type").ok().flatten().map(Cow::into_owned)
            }
        }
    }

    fn find_payload(&self, envelope: &Envelope) -> Result<Bytes, String> {
        let Some(pointer) = &self.payload else { return Ok(envelope.body.clone()) };
        match pointer.find(&envelope.body) {
            Ok(Some(raw)) => Ok(envelope.body.slice_ref(raw.get().as_bytes())),
            Ok(None) => Err(format!("the body has nothing at {pointer}")),
            Err(error) => Err(format!("the body is not JSON: {error}")),
        }
    }

    fn find_sent_at(&self, envelope: &Envelope) -> Result<Option<Timestamp>, String> {
        let found = match &self.sent_at {
            SentAtRule::Standard => Ok(envelope.headers.get(SENT_AT_HEADER).map(Cow::Borrowed)),
            SentAtRule::Part(part) => part.find(envelope),
            SentAtRule::Timestamp => return Ok(envelope.properties.timestamp),
            SentAtRule::CloudEvents => cloudevents_attribute(envelope, "time"),
        };
        match found {
            Ok(Some(text)) => text.parse().map(Some).map_err(|error| format!("sent_at is `{text}`: {error}")),
            Ok(None) => Ok(None),
            Err(NotAnId::NotScalar) => Err("sent_at is neither a string nor a number".to_owned()),
            Err(error) => Err(format!("sent_at: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_39_what_cannot_be_read_keeps_its_reason_and_its_bytes() {
        let format = Format::default().identity("json:/id".parse().unwrap()).max_payload(20);
        let broken = format.read(Envelope::new("{oops")).unwrap_err();
        assert_eq!((broken.code, &broken.envelope.body[..]), (Code::PayloadUndecodable, &b"{oops"[..]));
        let large = format.read(Envelope::new("x".repeat(21)).with_id("m")).unwrap_err();
        assert_eq!(large.code, Code::PayloadTooLarge);
        assert_eq!(large.id.unwrap().as_str(), "m");
    }

    #[test]
    fn a_payload_inside_an_envelope_keeps_its_digits() {
        let format = Format::default()
            .identity("json:/id".parse().unwrap())
            .payload("/payload".parse().unwrap())
            .key("json:/payload/order".parse().unwrap())
            .sent_at(SentAtRule::Part("json:/at".parse().unwrap()));
        let body =
            r#"{"id":"m","at":"2026-01-01T00:00:00Z","payload":{"order":9007199254740993,"a":2500.10}}"#;
        let message = format.read(Envelope::new(body)).unwrap();
        assert_eq!(&message.payload[..], br#"{"order":9007199254740993,"a":2500.10}"#);
        assert_eq!(message.key.as_deref(), Some("9007199254740993"));
        assert!(message.sent_at.is_some());
        assert!(format.read(Envelope::new(r#"{"id":"m"}"#)).is_err());
    }
}
