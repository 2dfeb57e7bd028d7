//! Webhooks as Stripe sends them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{Error, Pointer, Timestamp};
use http::HeaderMap;

use super::clock::{Freshness, unix_seconds};
use super::secret::{Secret, Signature, fits, hex_signature, several};
use super::{NotVerified, Webhook, WebhookEvent, event_id, header, pointer, string_at};

const SIGNATURE: &str = "stripe-signature";

/// Webhooks as Stripe sends them: `Stripe-Signature: t=…,v1=…` holds a timestamp and HMAC-SHA256 signatures
/// of timestamp and body, in hex; the id is at `/id` in the body, the type at `/type`.
#[derive(Clone, Debug)]
pub struct Stripe {
    secrets: Arc<[Secret]>,
    freshness: Freshness,
    id: Pointer,
    kind: Pointer,
}

impl Stripe {
    /// With these secrets, as the dashboard shows them (`whsec_…`; the prefix belongs to them): several
    /// while one is changed for another. [`Code::ConfigWrongValue`](hapax_core::Code::ConfigWrongValue) if
    /// one is empty, or there is none.
    pub fn new<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Result<Self, Error> {
        let secrets = several(secrets.into_iter().map(Secret::bytes))?;
        Ok(Self { secrets, freshness: Freshness::default(), id: pointer("/id"), kind: pointer("/type") })
    }

    /// How far from now the timestamp may lie, both ways. Default: 5 min.
    #[must_use]
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.freshness.tolerance = tolerance;
        self
    }

    /// The clock; for tests. Default: the process's.
    #[must_use]
    pub fn clock(mut self, now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.freshness.now = Arc::new(now);
        self
    }
}

impl Webhook for Stripe {
    fn name(&self) -> &'static str {
        "stripe"
    }

    fn verify(&self, headers: &HeaderMap, body: &Bytes) -> Result<WebhookEvent, NotVerified> {
        let (seconds, signatures) =
            parts(header(headers, SIGNATURE)?).ok_or(NotVerified::Header(SIGNATURE))?;
        let signed_at = unix_seconds(seconds).ok_or(NotVerified::Header(SIGNATURE))?;
        if !fits(&self.secrets, &[seconds.as_bytes(), b".", body], &signatures) {
            return Err(NotVerified::Signature);
        }
        self.freshness.check(signed_at)?;
        let id =
            string_at(&self.id, body).ok_or_else(|| NotVerified::Id("there is no string at /id".into()))?;
        Ok(WebhookEvent {
            id: event_id(&id)?,
            kind: string_at(&self.kind, body),
            timestamp: Some(signed_at),
            body: body.clone(),
        })
    }
}

/// The timestamp, of which there is one, and the signatures of the scheme `v1`; others are passed over.
fn parts(value: &str) -> Option<(&str, Vec<Signature>)> {
    let (mut seconds, mut signatures, mut any) = (None, Vec::new(), false);
    for (name, value) in value.split(',').filter_map(|part| part.trim().split_once('=')) {
        match name {
            "t" if seconds.is_some() => return None,
            "t" => seconds = Some(value),
            "v1" => {
                any = true;
                signatures.extend(hex_signature(value));
            }
            _ => {}
        }
    }
    if any { Some((seconds?, signatures)) } else { None }
}
