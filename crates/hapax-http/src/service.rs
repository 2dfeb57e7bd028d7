//! A request's way through the layer: key → tenant → body → fingerprint → record or handler → answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{BoxError, Code, Timestamp};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body as HttpBody;
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument as _;

use crate::body::{Body, Read, has_length, read};
use crate::fingerprint::fingerprint;
use crate::in_process::{Entrance, InProcess, Place};
use crate::kept::Kept;
use crate::key::RequestKey;
use crate::metrics;
use crate::mode::{Mode, Verdict, pause, reused, running};
use crate::problem::Problem;
use crate::rules::{Rules, UnknownLength};
use crate::run::{Asked, Handler, panicked};
use crate::scope::record_id;

/// A service under the layer [`Idempotency`](crate::Idempotency).
///
/// It is always ready: whether the service behind it is, matters only to a request that reaches it.
pub struct IdempotencyService<I, M> {
    inner: I,
    desk: Desk<M>,
}

/// Everything but the handler.
#[derive(Clone, Debug)]
struct Desk<M> {
    rules: Arc<Rules>,
    mode: M,
    in_process: InProcess,
}

impl<I, M> IdempotencyService<I, M> {
    pub(crate) fn new(inner: I, rules: Arc<Rules>, mode: M, in_process: InProcess) -> Self {
        Self { inner, desk: Desk { rules, mode, in_process } }
    }
}

impl<I: Clone, M: Clone> Clone for IdempotencyService<I, M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), desk: self.desk.clone() }
    }
}

impl<I, M: fmt::Debug> fmt::Debug for IdempotencyService<I, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService").field("desk", &self.desk).finish_non_exhaustive()
    }
}

impl<I, M, B, A> Service<Request<B>> for IdempotencyService<I, M>
where
    I: Service<Request<Body>, Response = Response<A>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send + 'static,
    A: HttpBody<Data = Bytes> + Send + 'static,
    A::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    M: Mode,
{
    type Response = Response<Body>;
    type Error = I::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, I::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (desk, handler) = (self.desk.clone(), self.inner.clone());
        Box::pin(async move { desk.answer(handler, request.map(Body::new)).await })
    }
}

/// What became of reading a request.
enum Received {
    Asked(Asked),
    /// It is no concern of the layer's.
    Untouched(Request<Body>),
    /// It passes without protection, since it was so configured.
    Unprotected(Request<Body>),
    Refused(Problem),
}

impl<M: Mode> Desk<M> {
    async fn answer<H: Handler>(
        &self,
        handler: H,
        request: Request<Body>,
    ) -> Result<Response<Body>, H::Error> {
        match receive(&self.rules, request).await {
            Received::Asked(asked) => self.settle(handler, Arc::new(asked)).await,
            Received::Untouched(request) => handler.handle(request).await,
            Received::Unprotected(request) => {
                metrics::request(&self.rules.consumer, "passed");
                handler.handle(request).await
            }
            Received::Refused(problem) => Ok(self.refuse(&problem)),
        }
    }

    /// Asks until there is an answer, or until a copy has waited long enough.
    async fn settle<H: Handler>(&self, handler: H, asked: Arc<Asked>) -> Result<Response<Body>, H::Error> {
        let deadline = Instant::now() + self.rules.wait;
        let mut attempt = 1;
        loop {
            let verdict = match self.in_process.enter(&asked.id, asked.digest) {
                Entrance::Reused => Verdict::Reused,
                Entrance::First(place) => self.first(handler.clone(), &asked, place).await,
                Entrance::Running(outcome) => match tokio::time::timeout_at(deadline, outcome.wait()).await {
                    Ok(Some(kept)) => Verdict::Replay(kept),
                    Ok(None) if self.rules.wait > Duration::ZERO => continue,
                    _ => Verdict::Running,
                },
            };
            if !matches!(verdict, Verdict::Running) || Instant::now() >= deadline {
                return self.respond(verdict);
            }
            tokio::time::timeout_at(deadline, pause(attempt)).await.unwrap_or_default();
            attempt += 1;
        }
    }

    /// On a task of its own, which goes on to its end if the client hangs up: the retry gets the answer.
    async fn first<H: Handler>(&self, handler: H, asked: &Arc<Asked>, place: Place) -> Verdict<H::Error> {
        let (asked, mode) = (Arc::clone(asked), self.mode.clone());
        let work = async move {
            let verdict = mode.answer(&asked, handler).await;
            place.leave(on_record(&verdict));
            verdict
        };
        let ended = tokio::spawn(work.in_current_span()).await;
        // The handler's panics are caught, so this one would be ours, or the runtime is shutting down.
        ended.unwrap_or_else(|_| Verdict::Refused(panicked()))
    }

    fn respond<E>(&self, verdict: Verdict<E>) -> Result<Response<Body>, E> {
        let consumer = &self.rules.consumer;
        match verdict {
            Verdict::First(response, None) => {
                metrics::request(consumer, "not_kept");
                Ok(response)
            }
            Verdict::First(response, Some(kept)) => {
                metrics::request(consumer, "first");
                Ok(self.dated(response, kept.at))
            }
            Verdict::Replay(kept) => {
                metrics::request(consumer, "replayed");
                let at = kept.at;
                Ok(self.dated(Kept::clone(&kept).replay(), at))
            }
            Verdict::Running => {
                metrics::request(consumer, "running");
                Ok(running().response(&self.rules.docs))
            }
            Verdict::Reused => {
                metrics::request(consumer, "reused");
                Ok(reused().response(&self.rules.docs))
            }
            Verdict::Refused(problem) => {
                metrics::request(consumer, "failed");
                Ok(problem.response(&self.rules.docs))
            }
            Verdict::Failed(error) => {
                metrics::request(consumer, "failed");
                Err(error)
            }
        }
    }

    fn dated(&self, mut response: Response<Body>, given_at: Timestamp) -> Response<Body> {
        self.rules.publish_expiry(&mut response, given_at);
        response
    }

    fn refuse(&self, problem: &Problem) -> Response<Body> {
        metrics::request(&self.rules.consumer, "refused");
        problem.response(&self.rules.docs)
    }
}

fn on_record<E>(verdict: &Verdict<E>) -> Option<Arc<Kept>> {
    match verdict {
        Verdict::First(_, kept) => kept.clone(),
        Verdict::Replay(kept) => Some(Arc::clone(kept)),
        _ => None,
    }
}

/// Reads a request as far as it must be known, and no further than it may be.
async fn receive(rules: &Arc<Rules>, request: Request<Body>) -> Received {
    let (parts, body) = request.into_parts();
    if !rules.act_on(&parts) {
        return Received::Untouched(Request::from_parts(parts, body));
    }
    let key = match RequestKey::of(&parts.headers, rules.bare) {
        Err(error) => return refused(StatusCode::BAD_REQUEST, Code::RequestKeyMalformed, error.to_string()),
        Ok(None) if rules.optional => return Received::Unprotected(Request::from_parts(parts, body)),
        Ok(None) => return refused(StatusCode::BAD_REQUEST, Code::RequestKeyMissing, KEY_MISSING.to_owned()),
        Ok(Some(key)) => key,
    };
    if key.is_bare() {
        metrics::bare_key(&rules.consumer);
    }
    let Ok(tenant) = rules.scope.tenant(&parts) else {
        let detail = "the request does not say whose it is, and keys belong to tenants";
        return refused(StatusCode::BAD_REQUEST, Code::RequestTenantUnknown, detail.to_owned());
    };
    if !has_length(&body) {
        match rules.request_streams {
            UnknownLength::Read => {}
            UnknownLength::Pass => return Received::Unprotected(Request::from_parts(parts, body)),
            UnknownLength::Refuse => {
                let detail = "the request must say how long its body is, in Content-Length";
                return refused(StatusCode::LENGTH_REQUIRED, Code::RequestLengthUnknown, detail.to_owned());
            }
        }
    }
    match whole(body, rules.body_limit).await {
        Ok(body) => Received::Asked(asked(rules, parts, &key, tenant, body)),
        Err(problem) => Received::Refused(problem),
    }
}

const KEY_MISSING: &str = "this operation is not safe to repeat, and needs the header Idempotency-Key with a key that is \
                           new for each request and the same for its retries";

fn refused(status: StatusCode, code: Code, detail: String) -> Received {
    Received::Refused(Problem::new(status, code, detail))
}

fn asked(rules: &Arc<Rules>, parts: Parts, key: &RequestKey, tenant: Option<String>, body: Bytes) -> Asked {
    Asked {
        rules: Arc::clone(rules),
        id: record_id(tenant.as_deref(), key),
        digest: fingerprint(&parts, &rules.fingerprint, &body),
        key: key.as_str().to_owned(),
        tenant,
        parts,
        body,
    }
}

/// All of a body, or the problem with it.
pub(crate) async fn whole(body: Body, limit: usize) -> Result<Bytes, Problem> {
    match read(body, limit).await {
        Read::Whole(body) => Ok(body),
        Read::TooLarge(_) => {
            let detail = format!("the body is larger than {limit} bytes");
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, Code::RequestTooLarge, detail))
        }
        Read::Broken(error) => {
            tracing::debug!("a request's body broke off: {error}");
            let detail = "the body broke off before its end";
            Err(Problem::new(StatusCode::BAD_REQUEST, Code::RequestUnreadable, detail))
        }
    }
}
