//! Webhooks by the specification Standard Webhooks, 1.0.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use hapax_core::{Error, Pointer, Timestamp};
use http::HeaderMap;

use super::clock::{Freshness, unix_seconds};
use super::secret::{BASE64, Secret, Signature, fits, several, signature};
use super::{NotVerified, Webhook, WebhookEvent, event_id, header, pointer, string_at};

const ID: &str = "webhook-id";
const TIMESTAMP: &str = "webhook-timestamp";
const SIGNATURE: &str = "webhook-signature";

/// Webhooks by [Standard Webhooks](https://www.standardwebhooks.com): `webhook-id`, `webhook-timestamp`,
/// and in `webhook-signature` a list of HMAC-SHA256 signatures (`v1`) of id, timestamp and body. The type
/// is at `/type` in the body.
///
/// Asymmetric signatures (`v1a`) are passed over.
///
/// ```
/// use axum::http::HeaderMap;
/// use hapax_core::Timestamp;
/// use hapax_http::webhook::{StandardWebhooks, Webhook};
///
/// let payments = StandardWebhooks::new(["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"])?
///     .clock(|| Timestamp::from_micros(1_649_367_553_000_000)); // for this example only
///
/// let mut headers = HeaderMap::new();
/// headers.insert("webhook-id", "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk".parse()?);
/// headers.insert("webhook-timestamp", "1649367553".parse()?);
/// headers.insert("webhook-signature", "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=".parse()?);
/// let body = r#"{"email":"test@example.com","username":"test_user"}"#.into();
///
/// let event = payments.verify(&headers, &body)?;
/// assert_eq!(event.id.as_str(), "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StandardWebhooks {
    secrets: Arc<[Secret]>,
    freshness: Freshness,
    kind: Pointer,
}

impl StandardWebhooks {
    /// With these secrets (`whsec_…`): several while one is changed for another. For a secret of another
    /// form, see [`with`](Self::with). [`Code::ConfigWrongValue`](hapax_core::Code::ConfigWrongValue) if
    /// one is no secret, or there is none.
    pub fn new<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Result<Self, Error> {
        Ok(Self::of(several(secrets.into_iter().map(Secret::standard))?))
    }

    /// With secrets of any form.
    pub fn with(secrets: impl IntoIterator<Item = Secret>) -> Result<Self, Error> {
        Ok(Self::of(several(secrets.into_iter().map(Ok))?))
    }

    fn of(secrets: Arc<[Secret]>) -> Self {
        Self { secrets, freshness: Freshness::default(), kind: pointer("/type") }
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

    /// Where the type is in the body. Default: `/type`.
    #[must_use]
    pub fn type_at(mut self, pointer: Pointer) -> Self {
        self.kind = pointer;
        self
    }
}

impl Webhook for StandardWebhooks {
    fn name(&self) -> &'static str {
        "standard-webhooks"
    }

    fn verify(&self, headers: &HeaderMap, body: &Bytes) -> Result<WebhookEvent, NotVerified> {
        if !headers.contains_key(ID) {
            return Err(NotVerified::Id(format!("the header {ID} is missing")));
        }
        let (id, seconds) = (header(headers, ID)?, header(headers, TIMESTAMP)?);
        // A full stop parts what is signed: one inside the id would let parts be moved from one to the other.
        if id.contains('.') {
            return Err(NotVerified::Header(ID));
        }
        let signed_at = unix_seconds(seconds).ok_or(NotVerified::Header(TIMESTAMP))?;
        let signatures = signatures(header(headers, SIGNATURE)?)?;
        let signed: [&[u8]; 5] = [id.as_bytes(), b".", seconds.as_bytes(), b".", body];
        if !fits(&self.secrets, &signed, &signatures) {
            return Err(NotVerified::Signature);
        }
        self.freshness.check(signed_at)?;
        Ok(WebhookEvent {
            id: event_id(id)?,
            kind: string_at(&self.kind, body),
            timestamp: Some(signed_at),
            body: body.clone(),
        })
    }
}

/// Those of the list that we can check. What is of another version, or cannot be read, fits nothing.
fn signatures(list: &str) -> Result<Vec<Signature>, NotVerified> {
    if !list.contains(',') {
        return Err(NotVerified::Header(SIGNATURE));
    }
    let ours = list.split(' ').filter_map(|one| one.strip_prefix("v1,"));
    Ok(ours.filter_map(|encoded| signature(&BASE64.decode(encoded).ok()?)).collect())
}
