//! The message a handler sees, and the names it is known by.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Code, Digest, Envelope, Headers, Timestamp};

/// The id that a message's producer assigned and that every copy of it shares.
///
/// 1 to 255 bytes of UTF-8 without NUL, compared byte for byte: case, trailing spaces and accents
/// distinguish. What does not fit is refused, never cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// The longest id, in bytes.
    pub const MAX: usize = 255;

    /// Checks a text.
    pub fn new(text: impl AsRef<str>) -> Result<Self, NotAnId> {
        let text = text.as_ref();
        match text.len() {
            0 => Err(NotAnId::Missing),
            length if length > Self::MAX => Err(NotAnId::TooLong(length)),
            _ if text.contains('\0') => Err(NotAnId::Nul),
            _ => Ok(Self(text.into())),
        }
    }

    /// An id that was made by a rule, and needs no check.
    pub(crate) fn of_hash(hex: &str) -> Self {
        Self(hex.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no message id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAnId {
    /// Absent, empty or null.
    #[error("the id is missing, empty or null")]
    Missing,
    /// Longer than [`MessageId::MAX`] bytes.
    #[error("the id is {0} bytes long; at most 255 are allowed")]
    TooLong(usize),
    /// Contains a NUL character, which PostgreSQL cannot store.
    #[error("the id contains a NUL character")]
    Nul,
    /// A JSON value that is neither a string nor a number.
    #[error("the id is neither a string nor a number")]
    NotScalar,
    /// Two places that must agree carry different ids.
    #[error("{first_place} says `{first}` but {second_place} says `{second}`")]
    Disagree {
        /// The place that is looked at first.
        first_place: String,
        /// What it says.
        first: String,
        /// The place that contradicts it.
        second_place: String,
        /// What that says.
        second: String,
    },
    /// The id lies in the body and the body is not JSON.
    #[error("the id is in the body, and the body is not JSON: {0}")]
    NotJson(String),
}

impl NotAnId {
    /// The code under which such a message is set aside.
    pub fn code(&self) -> Code {
        match self {
            Self::Missing => Code::IdMissing,
            Self::Disagree { .. } => Code::IdsDisagree,
            Self::NotJson(_) => Code::PayloadUndecodable,
            Self::TooLong(_) | Self::Nul | Self::NotScalar => Code::IdMalformed,
        }
    }
}

/// A consumer's logical name: the scope in which a message takes effect once.
///
/// Two consumers of one message each keep their own record. 1 to 64 characters of `A–Z a–z 0–9 . _ -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerName(Arc<str>);

impl ConsumerName {
    /// Checks a name.
    pub fn new(name: impl AsRef<str>) -> Result<Self, NotAConsumerName> {
        let name = name.as_ref();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
            return Err(NotAConsumerName(name.to_owned()));
        }
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a consumer name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a consumer name: 1 to 64 characters of A-Z, a-z, 0-9, `.`, `_` and `-`")]
pub struct NotAConsumerName(String);

/// A message whose id, type and payload have been found in its envelope; the payload is still bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawMessage {
    /// The id that its producer assigned.
    pub id: MessageId,
    /// Its type; empty when it has none.
    pub kind: String,
    /// Messages of one key are handled by one worker, in order.
    pub key: Option<String>,
    /// When the producer sent it, if it says so: one value shared by all copies.
    pub sent_at: Option<Timestamp>,
    /// Fingerprint of the payload.
    pub digest: Digest,
    /// The payload: the whole body, or the part of it that is configured.
    pub payload: Bytes,
    /// The message as it came.
    pub envelope: Envelope,
}

/// What a prepare step handed in.
pub type Prepared = Arc<dyn Any + Send + Sync>;

/// A message as a handler sees it; dereferences to its payload.
#[derive(Clone)]
pub struct Message<T> {
    payload: T,
    id: MessageId,
    kind: String,
    key: Option<String>,
    sent_at: Option<Timestamp>,
    headers: Headers,
    correlation_id: Option<String>,
    attempt: u32,
    taken_over: bool,
    prepared: Option<Prepared>,
}

impl<T> Message<T> {
    /// A message with a decoded payload; `attempt` counts from 1.
    pub fn new(raw: &RawMessage, payload: T, attempt: u32, prepared: Option<Prepared>) -> Self {
        Self {
            payload,
            id: raw.id.clone(),
            kind: raw.kind.clone(),
            key: raw.key.clone(),
            sent_at: raw.sent_at,
            headers: raw.envelope.headers.clone(),
            correlation_id: raw.envelope.properties.correlation_id.clone(),
            attempt,
            taken_over: false,
            prepared,
        }
    }

    /// The same message, taken over from somebody who began it.
    #[must_use]
    pub fn with_taken_over(self, taken_over: bool) -> Self {
        Self { taken_over, ..self }
    }

    /// Under the eager strategy: whether it was begun before by somebody whose lease ended, so that what that one
    /// did outside the database is unknown.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }

    /// The id that the producer assigned.
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// The type.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The key, if the consumer takes one from its messages.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// When the producer sent it, if it says so.
    pub fn sent_at(&self) -> Option<Timestamp> {
        self.sent_at
    }

    /// The headers as they came.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The correlation id, if the broker carries one.
    pub fn correlation_id(&self) -> Option<&str> {
        self.correlation_id.as_deref()
    }

    /// Which attempt this is, from 1. A batch that is run again does not count as another attempt.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The decoded payload.
    pub fn payload(&self) -> &T {
        &self.payload
    }

    /// The decoded payload, by value.
    pub fn into_payload(self) -> T {
        self.payload
    }

    /// What the type's prepare step returned, if it has one that returns a `P`.
    pub fn prepared<P: Any>(&self) -> Option<&P> {
        self.prepared.as_deref().and_then(|prepared| (prepared as &dyn Any).downcast_ref())
    }
}

impl<T> Deref for Message<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.payload
    }
}

impl<T: fmt::Debug> fmt::Debug for Message<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id.as_str())
            .field("kind", &self.kind)
            .field("attempt", &self.attempt)
            .field("payload", &self.payload)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn case_36_an_id_is_kept_whole_or_refused() {
        for id in ["abc", "ABC", "abc ", "abć", r"a\b", &"x".repeat(255)] {
            assert_eq!(MessageId::new(id).unwrap().as_str(), id);
        }
        assert_eq!(MessageId::new("x".repeat(256)), Err(NotAnId::TooLong(256)));
        assert_eq!(MessageId::new("é".repeat(128)), Err(NotAnId::TooLong(256)));
        assert_eq!(MessageId::new("a\0"), Err(NotAnId::Nul));
        assert_eq!(MessageId::new(""), Err(NotAnId::Missing));
    }

    proptest! {
        #[test]
        fn two_ids_are_equal_only_if_their_bytes_are(a in "\\PC{1,20}", b in "\\PC{1,20}") {
            let same = MessageId::new(&a).unwrap() == MessageId::new(&b).unwrap();
            prop_assert_eq!(same, a.as_bytes() == b.as_bytes());
        }
    }

    #[test]
    fn consumer_names_are_plain() {
        assert!(ConsumerName::new("orders.v2-eu_1").is_ok());
        for bad in ["", "a b", "ä", &"x".repeat(65)] {
            assert!(ConsumerName::new(bad).is_err(), "{bad}");
        }
    }
}
