//! One run of the handler, and what it says to the record.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use hapax_core::{BoxError, Code, Digest, MessageId, Timestamp};
use http::request::Parts;
use http::response;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use tower_service::Service;

use crate::body::{Body, Read, has_length, read};
use crate::kept::Kept;
use crate::problem::Problem;
use crate::rules::{LargeAnswer, Rules, UnknownLength};

/// What a handler may want to know of its run; a request extension.
///
/// ```
/// use axum::extract::Extension;
/// use hapax_http::Run;
///
/// async fn charge(Extension(run): Extension<Run>) -> String {
///     format!("to be charged under {}, perhaps again: {}", run.key, run.taken_over)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The client's key: the one to hand on to whoever the handler calls.
    pub key: String,
    /// Whose request it is, where there are tenants.
    pub tenant: Option<String>,
    /// The id under which it is on record.
    pub id: MessageId,
    /// An earlier run died, and what it did outside is unknown. Never so in the mode *transactional*.
    pub taken_over: bool,
}

/// Put into an answer's extensions in the mode *transactional*, it says that the database undid the
/// transaction (a deadlock, a serialization failure): all is rolled back and the handler runs again, five
/// times in all, then the client gets a problem (503, `HX0022`). In the mode *recorded* it is an answer
/// that is not kept.
///
/// ```
/// use axum::extract::Extension;
/// use axum::http::StatusCode;
/// use hapax_http::RunAgain;
///
/// fn deadlocked() -> (StatusCode, Extension<RunAgain>) {
///     (StatusCode::SERVICE_UNAVAILABLE, Extension(RunAgain))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAgain;

/// A request that was read and whose key is known.
#[derive(Debug)]
pub struct Asked {
    pub(crate) rules: Arc<Rules>,
    pub(crate) id: MessageId,
    pub(crate) digest: Digest,
    pub(crate) key: String,
    pub(crate) tenant: Option<String>,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
}

impl Asked {
    /// The request as it came, for one more run.
    pub(crate) fn request(&self, taken_over: bool) -> Request<Body> {
        let mut parts = self.parts.clone();
        parts.extensions.insert(Run {
            key: self.key.clone(),
            tenant: self.tenant.clone(),
            id: self.id.clone(),
            taken_over,
        });
        Request::from_parts(parts, Body::full(self.body.clone()))
    }

    pub(crate) fn hapax_key(&self) -> hapax_core::Key {
        hapax_core::Key::new(self.id.clone(), self.digest)
    }
}

/// The service behind the layer.
pub trait Handler: Clone + Send + 'static {
    /// Its error, which is passed on.
    type Error: Send + 'static;

    /// Handles one request.
    fn handle(
        self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Body>, Self::Error>> + Send;
}

impl<I, B> Handler for I
where
    I: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Error = I::Error;

    async fn handle(mut self, request: Request<Body>) -> Result<Response<Body>, I::Error> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        Ok(self.call(request).await?.map(Body::new))
    }
}

/// What the handler answered.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The request's last word.
    Kept(Response<Body>, Kept),
    /// The last word, but too large to be kept; the first client gets it, if it may.
    TooLarge(Option<Response<Body>>),
    /// Not the last word.
    NotKept(Response<Body>),
    /// The database undid the transaction.
    Undone(Response<Body>),
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer<E> {
    Panicked,
    Failed(E),
}

/// Runs the handler to the end of its answer, also if that panics.
pub(crate) async fn run<H: Handler>(
    handler: H,
    request: Request<Body>,
    rules: &Rules,
) -> Result<Answer, NoAnswer<H::Error>> {
    let work = async { Ok(judge(handler.handle(request).await?, rules).await) };
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(ended) => ended.map_err(NoAnswer::Failed),
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(ToString::to_string);
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            tracing::error!(consumer = %rules.consumer, "{}: the handler panicked: {said}", Code::HandlerPanicked);
            Err(NoAnswer::Panicked)
        }
    }
}

async fn judge(response: Response<Body>, rules: &Rules) -> Answer {
    if response.extensions().get::<RunAgain>().is_some() {
        return Answer::Undone(response);
    }
    if !rules.keeps(response.status()) {
        return Answer::NotKept(response);
    }
    let (parts, body) = response.into_parts();
    let too_large =
        |body, parts, passes: bool| Answer::TooLarge(passes.then(|| Response::from_parts(parts, body)));
    if !has_length(&body) && rules.answer_streams != UnknownLength::Read {
        return too_large(body, parts, rules.answer_streams == UnknownLength::Pass);
    }
    match read(body, rules.answer_limit).await {
        Read::Whole(body) => kept(parts, body, rules),
        Read::TooLarge(body) => too_large(body, parts, rules.large_answers == LargeAnswer::Pass),
        Read::Broken(error) => {
            tracing::error!(consumer = %rules.consumer, "{}: the answer broke off: {error}", Code::HandlerFailed);
            Answer::NotKept(broken().response(&rules.docs))
        }
    }
}

fn kept(parts: response::Parts, body: Bytes, rules: &Rules) -> Answer {
    let kept = Kept {
        status: parts.status,
        at: Timestamp::now(),
        headers: rules.kept_of(&parts.headers),
        body: body.clone(),
    };
    Answer::Kept(Response::from_parts(parts, Body::full(body)), kept)
}

/// A problem that stands on record in the place of an answer.
pub(crate) fn kept_problem(problem: &Problem, rules: &Rules) -> Kept {
    let (parts, _) = problem.response(&rules.docs).into_parts();
    let headers: HeaderMap = parts.headers;
    Kept { status: parts.status, at: Timestamp::now(), headers, body: problem.body(&rules.docs) }
}

pub(crate) fn panicked() -> Problem {
    let detail = "the handler panicked; nothing is on record, and the key can be used again";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::HandlerPanicked, detail)
}

fn broken() -> Problem {
    let detail = "the handler's answer broke off; nothing is on record, and the key can be used again";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::HandlerFailed, detail)
}

/// The request took effect, and this is what its retries are told.
pub(crate) fn not_on_record() -> Problem {
    let detail = "the request took effect, but its answer cannot be given again";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::AnswerNotKept, detail)
}

/// The answer is too large, and therefore all was rolled back.
pub(crate) fn too_large() -> Problem {
    let detail = "the answer is larger than may be kept; all was rolled back, and the key can be used again";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::AnswerTooLarge, detail)
}
