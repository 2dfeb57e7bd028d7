//! What a request costs: the store's calls, each of which is one round trip where it has SQL.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use hapax_core::{
    Claim, ClaimRequest, Code, ConsumerName, Error, ErrorKind, Fence, Grip, Inbox, InboxRow, Key, MessageId,
    Running, Store,
};
use hapax_http::{Idempotency, Tx};
use hapax_testkit::memory::{MemoryStore, MemoryTx};

use crate::service::Client;

/// A store that writes down what is asked of it.
#[derive(Clone)]
struct Watched {
    store: MemoryStore,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

impl Watched {
    fn new() -> Self {
        Self { store: MemoryStore::new(), calls: Arc::default() }
    }

    fn note(&self, call: &'static str) -> &MemoryStore {
        self.calls.lock().unwrap().push(call);
        &self.store
    }

    fn taken(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Store for Watched {
    type Tx = MemoryTx;

    async fn begin_claim(&self, request: &ClaimRequest<'_>) -> Result<(MemoryTx, Vec<Claim>), Error> {
        self.note("begin_claim").begin_claim(request).await
    }

    async fn finish(&self, tx: MemoryTx) -> Result<(), Error> {
        self.note("finish").finish(tx).await
    }

    async fn roll_back(&self, tx: MemoryTx) {
        self.note("roll_back").roll_back(tx).await;
    }

    async fn abort(&self, tx: MemoryTx) {
        self.note("abort").abort(tx).await;
    }

    fn kind_of(&self, error: &(dyn StdError + 'static)) -> Option<(ErrorKind, Code)> {
        self.store.kind_of(error)
    }

    async fn ping(&self) -> Result<(), Error> {
        self.note("ping").ping().await
    }

    async fn check(&self) -> Result<(), Error> {
        self.note("check").check().await
    }

    fn capacity(&self) -> usize {
        self.store.capacity()
    }

    fn instance(&self) -> u64 {
        self.store.instance()
    }
}

impl Inbox for Watched {
    async fn look(&self, consumer: &ConsumerName, ids: &[MessageId]) -> Result<Vec<Option<InboxRow>>, Error> {
        self.note("look").look(consumer, ids).await
    }

    async fn record(&self, consumer: &ConsumerName, key: &Key) -> Result<bool, Error> {
        self.note("record").record(consumer, key).await
    }

    async fn record_in(&self, tx: &mut MemoryTx, consumer: &ConsumerName, key: &Key) -> Result<bool, Error> {
        self.note("record_in").record_in(tx, consumer, key).await
    }

    async fn rename(&self, from: &ConsumerName, to: &ConsumerName) -> Result<u64, Error> {
        self.note("rename").rename(from, to).await
    }
}

impl Running for Watched {
    async fn begin_running(
        &self,
        consumer: &ConsumerName,
        key: &Key,
        lease: Duration,
        slack: Duration,
    ) -> Result<Grip, Error> {
        self.note("begin_running").begin_running(consumer, key, lease, slack).await
    }

    async fn renew_running(
        &self,
        consumer: &ConsumerName,
        running: &[(MessageId, Fence)],
        lease: Duration,
    ) -> Result<Vec<bool>, Error> {
        self.note("renew_running").renew_running(consumer, running, lease).await
    }

    async fn end_running(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
        result: Option<&[u8]>,
    ) -> Result<bool, Error> {
        self.note("end_running").end_running(consumer, id, fence, result).await
    }

    async fn drop_running(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
    ) -> Result<bool, Error> {
        self.note("drop_running").drop_running(consumer, id, fence).await
    }
}

fn request(key: &str, body: &'static str) -> Request<Body> {
    Request::post("/").header("idempotency-key", format!("\"{key}\"")).body(Body::from(body)).unwrap()
}

#[tokio::test]
async fn a_new_request_costs_two_calls_beside_the_handler_and_a_replay_one() {
    let store = Watched::new();
    let layer = Idempotency::recorded("http.trips", store.clone()).unwrap().one_tenant();
    let app = Client(Router::new().route("/", post(async || "done")).layer(layer));
    app.send(request("k", "")).await;
    assert_eq!(store.taken(), ["begin_running", "end_running"]);
    assert!(app.send(request("k", "")).await.is_replay());
    assert_eq!(store.taken(), ["begin_running"]);
    assert_eq!(app.send(request("k", "other")).await.status, 422);
    assert_eq!(store.taken(), ["begin_running"]);
    app.send(request("", "")).await;
    assert!(store.taken().is_empty(), "what is refused costs nothing");
}

#[tokio::test]
async fn a_new_transactional_request_costs_one_call_more_than_its_transaction_and_a_replay_one() {
    async fn pay(mut tx: Tx<Watched>) -> &'static str {
        tx.add("paid", 1).unwrap();
        "paid"
    }

    let store = Watched::new();
    let layer = Idempotency::transactional("http.trips", store.clone()).unwrap().one_tenant();
    let app = Client(Router::new().route("/", post(pay)).layer(layer));
    app.send(request("k", "")).await;
    assert_eq!(store.taken(), ["look", "begin_claim", "finish"]);
    assert!(app.send(request("k", "")).await.is_replay());
    assert_eq!(store.taken(), ["look"]);
    assert_eq!(app.send(request("k", "other")).await.status, 422);
    assert_eq!(store.taken(), ["look"]);
}
