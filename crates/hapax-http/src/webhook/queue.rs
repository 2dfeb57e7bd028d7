//! A webhook's events into a queue: stored first, answered at once, handled by a consumer.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_core::{BoxError, Code, Envelope, Error, Origin, Outgoing, Publisher};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use tower_service::Service;
use tracing::Instrument as _;

use super::{Webhook, WebhookEvent};
use crate::body::Body;
use crate::metrics;
use crate::problem::{Docs, Problem};
use crate::service::whole;

/// What AMQP holds of a type.
const LONGEST_TYPE: usize = 255;

/// A service that verifies webhooks and publishes their events to a queue, each under its id and type. 202
/// when the publisher has confirmed it, and not before.
///
/// A sender that gets no answer sends again: the queue then holds two copies under one id, and the inbox of
/// the consumer that reads it lets one take effect.
///
/// ```no_run
/// # async fn example() -> Result<(), hapax_core::Error> {
/// use axum::Router;
/// use hapax_http::webhook::{Stripe, WebhookQueue};
/// use hapax_sqlx::SqliteStore;
///
/// let store = SqliteStore::connect("sqlite:shop.db").await?;
/// let charges = WebhookQueue::new(Stripe::new(["whsec_…"])?, store.queues(), "charges");
/// let app: Router = Router::new().route_service("/hooks/stripe", charges);
/// # Ok(()) }
/// ```
pub struct WebhookQueue<W, P> {
    webhook: W,
    publisher: Arc<P>,
    queue: Arc<str>,
    limit: usize,
    docs: Docs,
}

impl<W: Webhook, P: Publisher> WebhookQueue<W, P> {
    /// Events of this kind go to this queue.
    pub fn new(webhook: W, publisher: P, queue: impl Into<Arc<str>>) -> Self {
        let limit = 1024 * 1024;
        Self { webhook, publisher: Arc::new(publisher), queue: queue.into(), limit, docs: Docs::default() }
    }

    /// The largest body, in bytes; larger ones get 413, `HX0085`. Default: 1 MiB.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Where the links in problems lead, as in [`Idempotency::docs`](crate::Idempotency::docs).
    #[must_use]
    pub fn docs(mut self, base: impl AsRef<str>) -> Self {
        self.docs = Docs::at(base.as_ref());
        self
    }

    async fn take(&self, headers: &HeaderMap, body: Body) -> Result<(), Problem> {
        let body = whole(body, self.limit).await?;
        let event = self.webhook.verify(headers, &body)?;
        if event.kind.as_ref().is_some_and(|kind| kind.len() > LONGEST_TYPE) {
            // A broker would refuse it each time, and the sender repeat it each time.
            let detail = format!("the event's type is longer than {LONGEST_TYPE} bytes");
            return Err(Problem::new(StatusCode::BAD_REQUEST, Code::WebhookMalformed, detail));
        }
        let message = Outgoing::to_queue(&*self.queue, envelope(&self.webhook, headers, event));
        self.publish(message).await.map_err(|error| {
            tracing::error!(queue = %self.queue, "a webhook's event was not published: {error}");
            Problem::of(&error)
        })
    }

    /// On a task of its own: a store's calls are not cut off by a sender that hangs up.
    async fn publish(&self, message: Outgoing) -> Result<(), Error> {
        let publisher = Arc::clone(&self.publisher);
        let work = async move { publisher.publish_all(vec![message]).await };
        match tokio::spawn(work.in_current_span()).await {
            Ok(ended) => ended,
            Err(error) => Err(Error::new(
                hapax_core::ErrorKind::Unknown,
                Code::NotPublished,
                "the publisher did not come to an end",
            )
            .because(error)),
        }
    }
}

/// An event as a message. Its timestamp is that of this copy, so it is not the `sent_at` that all copies share.
fn envelope(webhook: &impl Webhook, headers: &HeaderMap, event: WebhookEvent) -> Envelope {
    let mut envelope = Envelope::new(event.body).with_id(event.id.as_str());
    envelope.properties.kind = event.kind;
    envelope.properties.timestamp = event.timestamp;
    envelope.properties.content_type =
        headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    envelope.origin = Origin { source: format!("webhook:{}", webhook.name()), position: None };
    envelope
}

impl<W: Webhook, P: Publisher, B> Service<Request<B>> for WebhookQueue<W, P>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let taken = this.take(&parts.headers, Body::new(body)).await;
            let outcome = taken.as_ref().map_or_else(|problem| problem.code().as_str(), |()| "published");
            metrics::webhook(this.webhook.name(), outcome);
            Ok(match taken {
                Ok(()) => accepted(),
                Err(problem) => problem.response(&this.docs),
            })
        })
    }
}

fn accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

impl<W: Clone, P> Clone for WebhookQueue<W, P> {
    fn clone(&self) -> Self {
        Self {
            webhook: self.webhook.clone(),
            publisher: Arc::clone(&self.publisher),
            queue: Arc::clone(&self.queue),
            limit: self.limit,
            docs: self.docs.clone(),
        }
    }
}

impl<W: fmt::Debug, P> fmt::Debug for WebhookQueue<W, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookQueue")
            .field("webhook", &self.webhook)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
