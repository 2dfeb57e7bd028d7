//! A service that pays, as an axum application under the layer, and a client for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, StatusCode, request};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use hapax_core::{Publication, Store, Transaction as _};
use hapax_http::{Idempotency, Recorded, Run, RunAgain, Transactional, Tx};
use hapax_testkit::conformance::store::StoreFixture;
use hapax_testkit::servers::eventually;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tower::ServiceExt as _;

/// The consumer name of every service.
pub(crate) const CONSUMER: &str = "http.test";

/// What the handlers share with the test.
#[derive(Debug)]
pub(crate) struct World {
    runs: AtomicUsize,
    /// The effects of the mode *recorded*, which lie outside of the store.
    outside: AtomicI64,
    gate: watch::Sender<bool>,
    pub(crate) last_run: Mutex<Option<Run>>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            runs: AtomicUsize::new(0),
            outside: AtomicI64::new(0),
            gate: watch::Sender::new(false),
            last_run: Mutex::new(None),
        })
    }
}

/// What a layer is told beside the defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) wait: Duration,
    pub(crate) lease: Option<Duration>,
    pub(crate) takeover: hapax_http::Takeover,
    pub(crate) tenants: bool,
    pub(crate) quoted_only: bool,
    pub(crate) answer_limit: Option<usize>,
    pub(crate) large_answers: hapax_http::LargeAnswer,
}

/// A way of building the application on a store.
type Build<S> = fn(S, &Told, Arc<World>) -> (Router, Drained);
type Drained = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// The service under test: one process of it, and the means to start more.
pub(crate) struct Service<'f, F: StoreFixture> {
    pub(crate) fixture: &'f F,
    pub(crate) world: Arc<World>,
    is_recorded: bool,
    build: Build<F::Store>,
}

pub(crate) async fn recorded<F: StoreFixture>(fixture: &F) -> Service<'_, F> {
    Service { fixture, world: World::new(), is_recorded: true, build: build_recorded::<F> }
}

pub(crate) async fn transactional<F: StoreFixture>(fixture: &F) -> Service<'_, F> {
    Service { fixture, world: World::new(), is_recorded: false, build: build_transactional::<F> }
}

impl<F: StoreFixture> Service<'_, F> {
    /// The application on the store.
    pub(crate) fn app(&self) -> Client {
        self.told(&Told::default())
    }

    pub(crate) fn told(&self, told: &Told) -> Client {
        Client((self.build)(self.fixture.store(), told, Arc::clone(&self.world)).0)
    }

    pub(crate) fn drainable(&self) -> (Client, Drained) {
        let (app, drained) = (self.build)(self.fixture.store(), &Told::default(), Arc::clone(&self.world));
        (Client(app), drained)
    }

    /// The same in another process: nothing is shared but the database.
    pub(crate) async fn second_process(&self, told: &Told) -> Client {
        Client((self.build)(self.fixture.reopened().await, told, Arc::clone(&self.world)).0)
    }

    pub(crate) fn runs(&self) -> usize {
        self.world.runs.load(Ordering::SeqCst)
    }

    /// What took effect.
    pub(crate) async fn effects(&self) -> i64 {
        if self.is_recorded {
            self.world.outside.load(Ordering::SeqCst)
        } else {
            self.fixture.total("paid").await
        }
    }

    /// What tasks that outlive their request have done.
    pub(crate) fn world_outside(&self) -> i64 {
        self.world.outside.load(Ordering::SeqCst)
    }

    /// Whether a transaction that is open keeps all others out.
    pub(crate) fn locks_everybody_out(&self) -> bool {
        F::ONE_WRITER && !self.is_recorded
    }

    pub(crate) async fn runs_come_to(&self, runs: usize) {
        eventually("the handler runs", Duration::from_secs(10), async || self.runs() == runs).await;
    }

    /// Lets those go on whose order says `hold`.
    pub(crate) fn open_the_gate(&self) {
        self.world.gate.send_replace(true);
    }
}

fn build_recorded<F: StoreFixture>(store: F::Store, told: &Told, world: Arc<World>) -> (Router, Drained) {
    let unscoped = Idempotency::recorded(CONSUMER, store).unwrap();
    let layer = if told.tenants { unscoped.tenant_by(tenant) } else { unscoped.one_tenant() };
    let layer: Idempotency<Recorded<F::Store>> = general(layer, told).takeover(told.takeover);
    let layer = if let Some(lease) = told.lease { layer.lease(lease) } else { layer };
    let drained = layer.clone();
    let app = Router::new().route("/pay", any(pay_outside)).layer(layer).with_state(world);
    (app, Box::pin(async move { drained.drained().await }))
}

fn build_transactional<F: StoreFixture>(
    store: F::Store,
    told: &Told,
    world: Arc<World>,
) -> (Router, Drained) {
    let unscoped = Idempotency::transactional(CONSUMER, store).unwrap();
    let layer = if told.tenants { unscoped.tenant_by(tenant) } else { unscoped.one_tenant() };
    let layer: Idempotency<Transactional<F::Store>> = general(layer, told);
    let drained = layer.clone();
    let app = Router::new()
        .route("/pay", any(pay::<F>))
        .route("/idle", post(idle))
        .route("/twice", post(twice::<F::Store>))
        .route("/keep", post(keep::<F>))
        .layer(layer)
        .route("/bare", post(bare::<F::Store>))
        .with_state(world);
    (app, Box::pin(async move { drained.drained().await }))
}

fn general<M>(layer: Idempotency<M>, told: &Told) -> Idempotency<M> {
    let layer =
        layer.wait(told.wait).large_answers(told.large_answers).expires_after(Duration::from_hours(24));
    let layer = if told.quoted_only { layer.quoted_keys_only() } else { layer };
    if let Some(limit) = told.answer_limit { layer.answer_limit(limit) } else { layer }
}

fn tenant(parts: &request::Parts) -> Option<String> {
    parts.headers.get("x-tenant")?.to_str().ok().map(str::to_owned)
}

/// What is asked for.
#[derive(Clone, Debug, serde::Deserialize)]
struct Order {
    n: i64,
    status: Option<u16>,
    /// It waits until the gate is open.
    #[serde(default)]
    hold: bool,
    #[serde(default)]
    panic: bool,
    /// So many runs end as if the database had undone them.
    #[serde(default)]
    undone: usize,
    /// The answer is so much longer.
    #[serde(default)]
    padding: usize,
}

impl World {
    /// Begins a run and, if so ordered, waits.
    async fn begin(&self, order: &Order, run: Run) -> usize {
        *self.last_run.lock().await = Some(run);
        let number = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        if order.hold {
            self.gate.subscribe().wait_for(|open| *open).await.unwrap();
        }
        number
    }
}

fn answer(order: &Order, run: usize) -> Response {
    assert!(!order.panic, "as ordered");
    let status = StatusCode::from_u16(order.status.unwrap_or(201)).unwrap();
    let headers = [("location", format!("/payments/{run}")), ("set-cookie", "a=b".into())];
    let body = json!({ "run": run, "n": order.n, "padding": " ".repeat(order.padding) });
    (status, headers, axum::Json(body)).into_response()
}

async fn pay_outside(
    State(world): State<Arc<World>>,
    Extension(run): Extension<Run>,
    axum::Json(order): axum::Json<Order>,
) -> Response {
    let number = world.begin(&order, run).await;
    world.outside.fetch_add(order.n, Ordering::SeqCst);
    answer(&order, number)
}

async fn pay<F: StoreFixture>(
    State(world): State<Arc<World>>,
    Extension(run): Extension<Run>,
    mut tx: Tx<F::Store>,
    axum::Json(order): axum::Json<Order>,
) -> Response {
    let number = world.begin(&order, run).await;
    F::add(&mut tx, "paid", order.n).await.unwrap();
    tx.publish(Publication::bytes("Paid", "x")).unwrap();
    let mut response = answer(&order, number);
    if number <= order.undone {
        response.extensions_mut().insert(RunAgain);
    }
    response
}

async fn idle(State(world): State<Arc<World>>) -> String {
    world.runs.fetch_add(1, Ordering::SeqCst);
    "idle".into()
}

async fn twice<S: Store>(one: Tx<S>, another: Result<Tx<S>, hapax_http::Problem>) -> Response {
    let refused = another.expect_err("taken");
    drop(one);
    refused.into_response()
}

/// Gives its transaction to a task that outlives it.
async fn keep<F: StoreFixture>(State(world): State<Arc<World>>, mut tx: Tx<F::Store>) -> &'static str {
    world.runs.fetch_add(1, Ordering::SeqCst);
    tokio::spawn(async move {
        F::add(&mut tx, "paid", 1).await.unwrap();
        world.gate.subscribe().wait_for(|open| *open).await.unwrap();
        F::add(&mut tx, "paid", 1).await.unwrap();
        drop(tx);
        world.outside.fetch_add(1, Ordering::SeqCst);
    });
    "gone"
}

async fn bare<S: Store>(_: Tx<S>) {}

/// Whoever asks.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) Router);

/// What they are answered.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The code of a problem.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let document = self.json();
        assert_eq!(document["status"], self.status);
        document["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
    }

    /// The problem's status and code.
    pub(crate) fn problem(&self) -> (u16, String) {
        (self.status, self.code())
    }
}

pub(crate) fn order(key: &str) -> request::Builder {
    Request::post("/pay")
        .header("content-type", "application/json")
        .header("idempotency-key", format!("\"{key}\""))
}

impl Client {
    pub(crate) async fn send(&self, request: Request) -> Got {
        let response = self.0.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Got { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Asks for an order under a key.
    pub(crate) async fn pay(&self, key: &str, body: &Value) -> Got {
        self.send(order(key).body(Body::from(body.to_string())).unwrap()).await
    }

    /// The same on a task of its own.
    pub(crate) fn paying(&self, key: &str, body: &Value) -> tokio::task::JoinHandle<Got> {
        let (client, key, body) = (self.clone(), key.to_owned(), body.clone());
        tokio::spawn(async move { client.pay(&key, &body).await })
    }
}
