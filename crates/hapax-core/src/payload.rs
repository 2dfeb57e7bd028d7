//! How the bytes of a payload become a handler's type.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{BoxError, Destination};

/// A type that a handler can take: anything `serde` can read from JSON, or [`Body`] for the bytes as they came.
///
/// `serde_json::Value` keeps numbers as floats, so that 2500.10 becomes 2500.1: for amounts use a
/// decimal type or `Box<serde_json::value::RawValue>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be read from a message",
    label = "not a payload",
    note = "derive `serde::Deserialize` for it, or take `hapax::Body`"
)]
pub trait Payload: Sized + Send + 'static {
    /// Reads the payload. An error makes the message a dead letter: no further attempt can mend it.
    fn decode(payload: &Bytes) -> Result<Self, BoxError>;
}

impl<T: DeserializeOwned + Send + 'static> Payload for T {
    fn decode(payload: &Bytes) -> Result<Self, BoxError> {
        Ok(serde_json::from_slice(payload)?)
    }
}

/// A payload as its bytes: for protobuf, Avro, or a body that only passes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body(pub Bytes);

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Payload for Body {
    fn decode(payload: &Bytes) -> Result<Self, BoxError> {
        Ok(Self(payload.clone()))
    }
}

/// A payload type that knows the name of its message type.
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct PaymentReceived { order_id: i64 }
///
/// impl hapax_core::Event for PaymentReceived {
///     const TYPE: &'static str = "PaymentReceived";
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name its message type",
    label = "not an event",
    note = "implement `hapax::Event` for it, or give the type's name with `.on(\"Name\", handler)`"
)]
pub trait Event: Serialize {
    /// The message type, as producers write it.
    const TYPE: &'static str;

    /// The key whose messages are published in order. Default: none.
    fn key(&self) -> Option<String> {
        None
    }

    /// Where it is published unless the publication says otherwise. Default: the queue that is named like the type.
    fn destination(&self) -> Destination {
        Destination::queue(Self::TYPE)
    }
}
