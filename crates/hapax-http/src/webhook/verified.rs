//! A verified event as an argument of a handler.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRef, FromRequest, Request};
use bytes::Bytes;
use hapax_core::{Code, Digest, Key};
use http::StatusCode;

use super::{Webhook, WebhookEvent};
use crate::metrics;
use crate::problem::Problem;

/// An extractor: the event of a webhook whose signature was verified, by the `W` that is part of the
/// router's state. The largest body is axum's `DefaultBodyLimit`.
///
/// It dereferences to the [`WebhookEvent`]. A handler that takes effect by it must claim its id first.
///
/// ```
/// use axum::{Router, routing::post};
/// use hapax_http::webhook::{GitHub, Verified};
///
/// async fn pushed(event: Verified<GitHub>) -> String {
///     format!("{} of {} bytes", event.id, event.body.len())
/// }
/// let github = GitHub::new(["It's a Secret to Everybody"])?;
/// let app: Router = Router::new().route("/hooks/github", post(pushed)).with_state(github);
/// # Ok::<(), hapax_core::Error>(())
/// ```
pub struct Verified<W>(pub WebhookEvent, PhantomData<fn() -> W>);

impl<W> Verified<W> {
    /// What to claim in the inbox.
    pub fn key(&self) -> Key {
        Key::new(self.0.id.clone(), Digest::of(&self.0.body))
    }
}

impl<W, T> FromRequest<T> for Verified<W>
where
    W: Webhook + FromRef<T>,
    T: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &T) -> Result<Self, Problem> {
        let webhook = W::from_ref(state);
        let headers = request.headers().clone();
        let verified = match Bytes::from_request(request, state).await {
            Ok(body) => webhook.verify(&headers, &body).map_err(Problem::from),
            Err(rejection) => Err(unread(&rejection)),
        };
        let outcome = verified.as_ref().map_or_else(|problem| problem.code().as_str(), |_| "verified");
        metrics::webhook(webhook.name(), outcome);
        verified.map(|event| Self(event, PhantomData))
    }
}

fn unread(rejection: &BytesRejection) -> Problem {
    let status = rejection.status();
    let code =
        if status == StatusCode::PAYLOAD_TOO_LARGE { Code::RequestTooLarge } else { Code::RequestUnreadable };
    Problem::new(status, code, "the body is larger than allowed, or broke off")
}

impl<W> Deref for Verified<W> {
    type Target = WebhookEvent;

    fn deref(&self) -> &WebhookEvent {
        &self.0
    }
}

impl<W> fmt::Debug for Verified<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verified").field(&self.0).finish()
    }
}
