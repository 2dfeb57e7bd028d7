//! Webhooks as GitHub sends them.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::Error;
use http::HeaderMap;

use super::secret::{Secret, fits, hex_signature, several};
use super::{NotVerified, Webhook, WebhookEvent, event_id, header};

const SIGNATURE: &str = "x-hub-signature-256";
const DELIVERY: &str = "x-github-delivery";
const EVENT: &str = "x-github-event";

/// Webhooks as GitHub sends them: `X-Hub-Signature-256` is an HMAC-SHA256 of the body, in hex; the id is in
/// `X-GitHub-Delivery`, the type in `X-GitHub-Event`.
///
/// The signature covers the body and nothing else, and has no timestamp: whoever has recorded a delivery
/// can play it back under another id, at any time. Make what such an event does safe to repeat, or compare
/// it with what GitHub's API says.
///
/// ```
/// use axum::http::HeaderMap;
/// use hapax_http::webhook::{GitHub, Webhook};
///
/// let pushes = GitHub::new(["It's a Secret to Everybody"])?;
///
/// let mut headers = HeaderMap::new();
/// let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
/// headers.insert("x-hub-signature-256", signature.parse()?);
/// headers.insert("x-github-delivery", "72d3162e".parse()?);
/// headers.insert("x-github-event", "push".parse()?);
///
/// let event = pushes.verify(&headers, &"Hello, World!".into())?;
/// assert_eq!((event.id.as_str(), event.kind.as_deref()), ("72d3162e", Some("push")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GitHub {
    secrets: Arc<[Secret]>,
}

impl GitHub {
    /// With these secrets: several while one is changed for another.
    /// [`Code::ConfigWrongValue`](hapax_core::Code::ConfigWrongValue) if one is empty, or there is none.
    pub fn new<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Result<Self, Error> {
        Ok(Self { secrets: several(secrets.into_iter().map(Secret::bytes))? })
    }
}

impl Webhook for GitHub {
    fn name(&self) -> &'static str {
        "github"
    }

    fn verify(&self, headers: &HeaderMap, body: &Bytes) -> Result<WebhookEvent, NotVerified> {
        let hex =
            header(headers, SIGNATURE)?.strip_prefix("sha256=").ok_or(NotVerified::Header(SIGNATURE))?;
        let signature = hex_signature(hex).ok_or(NotVerified::Header(SIGNATURE))?;
        if !fits(&self.secrets, &[body], &[signature]) {
            return Err(NotVerified::Signature);
        }
        if !headers.contains_key(DELIVERY) {
            return Err(NotVerified::Id(format!("the header {DELIVERY} is missing")));
        }
        Ok(WebhookEvent {
            id: event_id(header(headers, DELIVERY)?)?,
            kind: Some(header(headers, EVENT)?.to_owned()),
            timestamp: None,
            body: body.clone(),
        })
    }
}
