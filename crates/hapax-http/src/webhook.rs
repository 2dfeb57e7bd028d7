//! Webhooks: verified over the raw body, then handed in under the event's id.
//!
//! [`WebhookQueue`] is the service for most: it verifies an event, publishes it to a queue under its id and
//! type, and answers when that is confirmed. A consumer reads the queue, and its inbox removes what the
//! sender sends again. A handler that uses the inbox itself takes `Verified`, an extractor (feature
//! `axum`).
//!
//! Failures are answered with a problem, and nothing is published: 401 for a wrong signature (`HX0090`) or
//! one out of its time (`HX0091`), 400 for a header that is missing or malformed (`HX0092`) or an event
//! without an id (`HX0093`), 413 for a body that is too large (`HX0085`), 503 while the queue cannot be
//! reached.

mod clock;
mod github;
mod queue;
mod secret;
mod standard;
mod stripe;
#[cfg(feature = "axum")]
mod verified;

use bytes::Bytes;
use hapax_core::{Code, MessageId, Pointer, Timestamp};
use http::{HeaderMap, StatusCode};

use crate::problem::Problem;

pub use github::GitHub;
pub use queue::WebhookQueue;
pub use secret::Secret;
pub use standard::StandardWebhooks;
pub use stripe::Stripe;
#[cfg(feature = "axum")]
pub use verified::Verified;

/// A kind of webhook: how it is signed, and where its id and type are.
pub trait Webhook: Clone + Send + Sync + 'static {
    /// Its name, for metrics and as the origin of its messages.
    fn name(&self) -> &'static str;

    /// Verifies the signature over the exact bytes of the body, and reads the event's id and type.
    fn verify(&self, headers: &HeaderMap, body: &Bytes) -> Result<WebhookEvent, NotVerified>;
}

/// An event whose signature was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookEvent {
    /// The id that the sender gave it, shared by all its copies.
    pub id: MessageId,
    /// Its type, if it has one.
    pub kind: Option<String>,
    /// When *this copy* was signed, if the sender says so. Copies differ in it.
    pub timestamp: Option<Timestamp>,
    /// The body, byte for byte.
    pub body: Bytes,
}

/// Why a request is no webhook that we take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotVerified {
    /// A header is missing, there twice, or not text.
    #[error("the header {0} is missing, there more than once, or malformed")]
    Header(&'static str),
    /// No secret fits the signature.
    #[error("no secret fits the signature")]
    Signature,
    /// The timestamp is too old, or lies too far ahead.
    #[error("the signature's timestamp is too far from now")]
    Timestamp,
    /// The event has no usable id.
    #[error("the event has no usable id: {0}")]
    Id(String),
}

impl NotVerified {
    /// The code to look up under `docs/errors/`.
    pub fn code(&self) -> Code {
        match self {
            Self::Header(_) => Code::WebhookMalformed,
            Self::Signature => Code::SignatureWrong,
            Self::Timestamp => Code::SignatureExpired,
            Self::Id(_) => Code::EventIdMissing,
        }
    }
}

impl From<NotVerified> for Problem {
    fn from(error: NotVerified) -> Self {
        // Out of its time is answered as a wrong signature is: what proves who sent it does not hold.
        let status = match error {
            NotVerified::Signature | NotVerified::Timestamp => StatusCode::UNAUTHORIZED,
            NotVerified::Header(_) | NotVerified::Id(_) => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.code(), error.to_string())
    }
}

/// The text of a header that is there once.
fn header<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<&'h str, NotVerified> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map_err(|_| NotVerified::Header(name)),
        _ => Err(NotVerified::Header(name)),
    }
}

fn event_id(text: &str) -> Result<MessageId, NotVerified> {
    MessageId::new(text).map_err(|error| NotVerified::Id(error.to_string()))
}

/// A pointer that stands in this crate.
fn pointer(text: &str) -> Pointer {
    text.parse().expect("it begins with a slash")
}

/// A string in a JSON body; none if it is not there, is no string, or the body is not JSON.
fn string_at(pointer: &Pointer, body: &[u8]) -> Option<String> {
    serde_json::from_str(pointer.find(body).ok()??.get()).ok()
}
