//! The layer, and what it can be told.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Code, ConsumerName, Error, ErrorKind, Inbox, Running};
use http::request::Parts;
use http::{HeaderName, Method, StatusCode};
use tower_layer::Layer;

use crate::in_process::InProcess;
use crate::mode::Mode;
use crate::problem::Docs;
use crate::recorded::Recorded;
use crate::rules::{LargeAnswer, Rules, Takeover, UnknownLength};
use crate::scope::Scope;
use crate::service::IdempotencyService;
use crate::transactional::Transactional;

/// A [`Layer`] that answers each request with an `Idempotency-Key` once, and its copies with the same answer.
///
/// Clones share what they know of the requests at work in this process. Use one value, and its clones, for
/// all routes that share a consumer name.
#[derive(Clone, Debug)]
pub struct Idempotency<M> {
    rules: Arc<Rules>,
    mode: M,
    in_process: InProcess,
}

/// An [`Idempotency`] that was not told yet whose keys are whose, and therefore is no layer yet.
///
/// ```compile_fail
/// # use hapax_http::Idempotency;
/// # let store = hapax_testkit::memory::MemoryStore::new();
/// let layer = Idempotency::recorded("http.payments", store).unwrap();
/// let app = axum::Router::<()>::new().layer(layer); // whose keys are whose?
/// ```
#[must_use = "say whose keys are whose: `tenant_by` or `one_tenant`"]
#[derive(Clone, Debug)]
pub struct Unscoped<M> {
    consumer: ConsumerName,
    mode: M,
}

impl<S: Inbox> Idempotency<Transactional<S>> {
    /// The mode *transactional*: the handler takes the request's transaction ([`Tx`](crate::Tx)), and its
    /// changes commit together with the record, the outbox and the answer, or not at all. `consumer` is the
    /// name under which requests are recorded, such as `http.payments`; it must be this service's alone.
    /// [`Code::ConfigWrongValue`] if it is no such name.
    ///
    /// A new request costs one round trip more than the bare handler in a transaction, a replay one in all.
    pub fn transactional(consumer: impl AsRef<str>, store: S) -> Result<Unscoped<Transactional<S>>, Error> {
        Ok(Unscoped { consumer: named(consumer)?, mode: Transactional::new(store) })
    }
}

impl<S: Running> Idempotency<Recorded<S>> {
    /// The mode *recorded*: any handler. The request is recorded as running under a lease, which is renewed
    /// every third of it, and as done with its answer afterwards. Between the two the process can die: see
    /// [`Takeover`]. [`Code::ConfigWrongValue`] if `consumer` is no consumer name.
    ///
    /// A new request costs two round trips beside the handler, a replay one in all.
    pub fn recorded(consumer: impl AsRef<str>, store: S) -> Result<Unscoped<Recorded<S>>, Error> {
        Ok(Unscoped { consumer: named(consumer)?, mode: Recorded::new(store) })
    }
}

fn named(consumer: impl AsRef<str>) -> Result<ConsumerName, Error> {
    ConsumerName::new(consumer)
        .map_err(|error| Error::new(ErrorKind::Setup, Code::ConfigWrongValue, error.to_string()))
}

impl<M: Mode> Unscoped<M> {
    /// Keys belong to tenants, and one key of two tenants is two keys. The function finds the tenant of a
    /// request in what authentication left there; where it finds none, the request is refused (400,
    /// `HX0084`).
    pub fn tenant_by(
        self,
        find: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Idempotency<M> {
        self.scoped(Scope::ByTenant(Arc::new(find)))
    }

    /// Everybody shares one set of keys. Whoever guesses a key, and the request made under it, reads its
    /// answer: only for services with one client, or whose keys nobody can guess.
    pub fn one_tenant(self) -> Idempotency<M> {
        self.scoped(Scope::One)
    }

    fn scoped(self, scope: Scope) -> Idempotency<M> {
        let rules = Arc::new(Rules::new(self.consumer, scope));
        Idempotency { rules, mode: self.mode, in_process: InProcess::default() }
    }
}

impl<M> Idempotency<M> {
    /// The methods that the layer acts on; requests with others pass through untouched. Default: POST and
    /// PATCH.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.told(|rules| rules.methods = methods.into_iter().collect())
    }

    /// The requests, among those with such a method, that the layer acts on; others pass through untouched.
    /// Default: all.
    #[must_use]
    pub fn routes(self, chosen: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.told(|rules| rules.routes = Some(Arc::new(chosen)))
    }

    /// Lets requests without a key pass through, *without protection* and without a transaction. Default:
    /// 400, `HX0080`.
    #[must_use]
    pub fn key_optional(self) -> Self {
        self.told(|rules| rules.optional = true)
    }

    /// Refuses keys without quotes, as the draft says (400, `HX0081`). By default they are accepted, since
    /// many clients send them, and counted (`hapax_http_bare_keys_total`).
    #[must_use]
    pub fn quoted_keys_only(self) -> Self {
        self.told(|rules| rules.bare = false)
    }

    /// The headers that belong to a request's fingerprint, beside its method, path, query and body.
    /// Default: `content-type`.
    #[must_use]
    pub fn fingerprint_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.told(|rules| rules.fingerprint = names.into_iter().collect())
    }

    /// The largest body of a request, in bytes: it is held in memory for the fingerprint. Larger ones get
    /// 413, `HX0085`, and no more than this is read. Default: 1 MiB.
    #[must_use]
    pub fn body_limit(self, bytes: usize) -> Self {
        self.told(|rules| rules.body_limit = bytes)
    }

    /// What is done with a request that does not say how long its body is. Default: [`UnknownLength::Read`].
    #[must_use]
    pub fn request_streams(self, streams: UnknownLength) -> Self {
        self.told(|rules| rules.request_streams = streams)
    }

    /// The largest body of an answer that is kept, in bytes. Default: 1 MiB.
    #[must_use]
    pub fn answer_limit(self, bytes: usize) -> Self {
        self.told(|rules| rules.answer_limit = bytes)
    }

    /// What is done with an answer that is larger. Default: [`LargeAnswer::Refuse`].
    #[must_use]
    pub fn large_answers(self, answers: LargeAnswer) -> Self {
        self.told(|rules| rules.large_answers = answers)
    }

    /// What is done with an answer that does not say how long it is. Default: [`UnknownLength::Read`],
    /// which is wrong for a stream that does not end.
    #[must_use]
    pub fn answer_streams(self, streams: UnknownLength) -> Self {
        self.told(|rules| rules.answer_streams = streams)
    }

    /// Keeps these headers of an answer, too. Those of the connection are never kept, `set-cookie` and
    /// `date` only if named here. Default: what describes the body, and `location`, `link`, `etag`, `vary`,
    /// `allow`.
    #[must_use]
    pub fn keep_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.told(|rules| rules.keep_headers.extend(names))
    }

    /// Which answers are the last word, kept and given again. Default: 200 to 499 without 408, 409, 423,
    /// 425 and 429. An answer that is not kept leaves no record, so that the key can be used again; in the
    /// mode *transactional* it rolls back.
    #[must_use]
    pub fn keep_if(self, keep: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.told(|rules| rules.keep_if = Some(Arc::new(move |status| keep(*status))))
    }

    /// Lets a copy wait so long, a day at most, for the answer of the first request, where that is still running. Default:
    /// not at all, but 409, `HX0083`, with `Retry-After`.
    #[must_use]
    pub fn wait(self, at_most: Duration) -> Self {
        self.told(|rules| rules.wait = at_most.min(Duration::from_hours(24)))
    }

    /// Publishes on every answer until when it is kept, in `Idempotency-Key-Expires`. It removes nothing:
    /// that is the [`Janitor`](https://docs.rs/hapax/latest/hapax/struct.Janitor.html)'s, which must be
    /// told to keep the records of this consumer for as long. Default: nothing is published.
    #[must_use]
    pub fn expires_after(self, keep: Duration) -> Self {
        self.told(|rules| rules.expires_after = Some(keep))
    }

    /// Where the links in problems lead: `base` with the code behind it, such as
    /// `https://example.com/errors/` and `HX0083`. Default: the pages of this release.
    #[must_use]
    pub fn docs(self, base: impl AsRef<str>) -> Self {
        self.told(|rules| rules.docs = Docs::at(base.as_ref()))
    }

    /// Waits until no request is at work. The work of a client that hung up goes on after its connection is
    /// gone, so a server that shuts down should wait for it when its connections are closed.
    pub async fn drained(&self) {
        self.in_process.drained().await;
    }

    fn told(mut self, tell: impl FnOnce(&mut Rules)) -> Self {
        tell(Arc::make_mut(&mut self.rules));
        self
    }
}

impl<S> Idempotency<Recorded<S>> {
    /// How long a request counts as running after the last sign of life of who is at it. Default: 30 s.
    /// Zero has ended when it begins.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.told(|rules| rules.lease = lease)
    }

    /// What is done with a request whose first run died with its outcome unknown. Default:
    /// [`Takeover::RunAgain`].
    #[must_use]
    pub fn takeover(self, takeover: Takeover) -> Self {
        self.told(|rules| rules.takeover = takeover)
    }
}

impl<I, M: Mode> Layer<I> for Idempotency<M> {
    type Service = IdempotencyService<I, M>;

    fn layer(&self, inner: I) -> Self::Service {
        IdempotencyService::new(inner, Arc::clone(&self.rules), self.mode.clone(), self.in_process.clone())
    }
}
