//! Events on their way into a queue, and into a handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRef, State};
use axum::http::{HeaderMap, Request};
use axum::response::Response;
use axum::routing::post;
use hapax::{Body as Raw, Consumer, Message};
use hapax_core::{
    Claim, ClaimRequest, ConsumerName, Error, Fetched, Outgoing, Publisher, Source as _, Store as _,
};
use hapax_http::webhook::{StandardWebhooks, Verified, WebhookQueue};
use hapax_sqlx::{SqliteStore, SqliteTx};
use hapax_testkit::memory::MemoryStore;
use http_body_util::BodyExt as _;
use tempfile::TempDir;
use tower::ServiceExt as _;

use crate::sent::{receiver, standard};

const PAID: &[u8] = br#"{"type":"invoice.paid","cents":2500}"#;

async fn sqlite() -> (TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store =
        SqliteStore::connect(&format!("sqlite:{}", folder.path().join("hapax.db").display())).await.unwrap();
    store.migrate().await.unwrap();
    (folder, store)
}

async fn send(app: &Router, headers: HeaderMap, body: impl Into<Body>) -> Response {
    let mut request =
        Request::post("/").header("content-type", "application/json").body(body.into()).unwrap();
    request.headers_mut().extend(headers);
    app.clone().oneshot(request).await.unwrap()
}

async fn code(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    (status, problem["code"].as_str().unwrap().to_owned())
}

fn to_queue(store: &SqliteStore) -> Router {
    let service = WebhookQueue::new(receiver(), store.queues(), "payments").body_limit(1_000);
    Router::new().route_service("/", service)
}

async fn paid(tx: &mut SqliteTx, message: Message<Raw>) -> hapax::Result {
    assert_eq!(message.id().as_str(), "msg_1");
    hapax_sqlx::sqlx::query("UPDATE paid SET times = times + 1").execute(tx.conn()).await?;
    Ok(())
}

#[tokio::test]
async fn an_event_that_is_sent_twice_takes_effect_once() {
    use hapax_sqlx::sqlx::{self, Connection as _, SqliteConnection};

    let (folder, store) = sqlite().await;
    let mut database =
        SqliteConnection::connect(&format!("sqlite:{}", folder.path().join("hapax.db").display()))
            .await
            .unwrap();
    sqlx::query("CREATE TABLE paid (times INTEGER)").execute(&mut database).await.unwrap();
    sqlx::query("INSERT INTO paid VALUES (0)").execute(&mut database).await.unwrap();
    let app = to_queue(&store);
    for seconds in [0, 5, 60] {
        // A sender that retries signs anew, with a later timestamp.
        assert_eq!(send(&app, standard("msg_1", seconds, PAID), PAID).await.status(), 202);
    }
    let summary = Consumer::new("payments", store.clone(), store.queue("payments"))
        .unwrap()
        .on("invoice.paid", paid)
        .until_idle(Duration::from_millis(300))
        .run_until(std::future::pending())
        .await
        .unwrap();
    assert_eq!((summary.handled, summary.duplicates), (1, 2));
    let times: i64 = sqlx::query_scalar("SELECT times FROM paid").fetch_one(&mut database).await.unwrap();
    assert_eq!(times, 1);
}

#[tokio::test]
async fn an_event_is_queued_under_its_id_and_type_with_its_exact_body() {
    let (_folder, store) = sqlite().await;
    assert_eq!(send(&to_queue(&store), standard("msg_1", 0, PAID), PAID).await.status(), 202);
    let Fetched::Batch(batch) = store.queue("payments").next(10).await.unwrap() else { panic!("a message") };
    let envelope = &batch[0].envelope;
    assert_eq!(envelope.properties.message_id.as_deref(), Some("msg_1"));
    assert_eq!(envelope.properties.kind.as_deref(), Some("invoice.paid"));
    assert_eq!(envelope.properties.content_type.as_deref(), Some("application/json"));
    assert_eq!(envelope.headers.get("hapax-sent-at"), None, "the timestamp is that of one copy");
    assert_eq!(envelope.body, PAID);
}

#[tokio::test]
async fn what_is_refused_is_not_queued() {
    let (_folder, store) = sqlite().await;
    let app = to_queue(&store);
    let changed = send(&app, standard("msg_1", 0, PAID), "{}").await;
    assert!(changed.headers().contains_key("www-authenticate"));
    assert_eq!(code(changed).await, (401, "HX0090".into()));
    assert_eq!(code(send(&app, standard("msg_1", -400, PAID), PAID).await).await, (401, "HX0091".into()));
    assert_eq!(code(send(&app, HeaderMap::new(), PAID).await).await, (400, "HX0093".into()));
    let large = vec![b'x'; 1_001];
    assert_eq!(
        code(send(&app, standard("msg_1", 0, &large), large.clone()).await).await,
        (413, "HX0085".into())
    );
    let mut queue = store.queue("payments");
    let nothing = tokio::time::timeout(Duration::from_millis(200), queue.next(10)).await;
    assert!(!matches!(nothing, Ok(Ok(Fetched::Batch(batch))) if !batch.is_empty()));
}

/// A publisher that fails as it is told, and counts.
struct Failing {
    error: fn() -> Option<Error>,
    published: Arc<AtomicUsize>,
}

impl Publisher for Failing {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        self.published.fetch_add(messages.len(), Ordering::SeqCst);
        messages.iter().map(|_| (self.error)().map_or(Ok(()), Err)).collect()
    }
}

#[tokio::test]
async fn the_answer_is_a_success_only_after_the_publisher_has_confirmed() {
    use hapax_core::{Code, ErrorKind};

    let with = |error| {
        let published = Arc::new(AtomicUsize::new(0));
        let failing = Failing { error, published: Arc::clone(&published) };
        (Router::new().route_service("/", WebhookQueue::new(receiver(), failing, "q")), published)
    };
    let (app, published) = with(|| None);
    assert_eq!(send(&app, standard("msg_1", 0, PAID), PAID).await.status(), 202);
    assert_eq!(published.load(Ordering::SeqCst), 1);
    let (app, _) = with(|| Some(Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, "away")));
    let away = send(&app, standard("msg_1", 0, PAID), PAID).await;
    assert_eq!(away.headers()["retry-after"], "1");
    assert_eq!(code(away).await, (503, "HX0015".into()));
    let (app, _) = with(|| Some(Error::new(ErrorKind::Setup, Code::QueueMissing, "no such queue")));
    assert_eq!(code(send(&app, standard("msg_1", 0, PAID), PAID).await).await, (500, "HX0017".into()));
    let (app, _) = with(|| panic!("a publisher that panics"));
    assert_eq!(code(send(&app, standard("msg_1", 0, PAID), PAID).await).await, (503, "HX0019".into()));
}

#[derive(Clone)]
struct Shop {
    webhook: StandardWebhooks,
    store: MemoryStore,
}

impl FromRef<Shop> for StandardWebhooks {
    fn from_ref(shop: &Shop) -> Self {
        shop.webhook.clone()
    }
}

/// A handler that uses the inbox itself.
async fn note(State(shop): State<Shop>, event: Verified<StandardWebhooks>) -> &'static str {
    let consumer = ConsumerName::new("webhooks").unwrap();
    let keys = [event.key()];
    let claiming = ClaimRequest { keys: &keys, ..ClaimRequest::none(&consumer) };
    let (mut tx, claims) = shop.store.begin_claim(&claiming).await.unwrap();
    if claims[0] != Claim::New {
        shop.store.roll_back(tx).await;
        return "copy";
    }
    tx.add("paid", 1).unwrap();
    shop.store.finish(tx).await.unwrap();
    "new"
}

#[tokio::test]
async fn a_handler_gets_what_was_verified_and_nothing_else() {
    let shop = Shop { webhook: receiver(), store: MemoryStore::new() };
    let app = Router::new().route("/", post(note)).with_state(shop.clone());
    for answer in ["new", "copy"] {
        let response = send(&app, standard("msg_1", 0, PAID), PAID).await;
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), answer);
    }
    assert_eq!(code(send(&app, standard("msg_2", 0, PAID), "{}").await).await, (401, "HX0090".into()));
    let large = vec![b'x'; 3 * 1024 * 1024];
    assert_eq!(
        code(send(&app, standard("msg_3", 0, &large), large.clone()).await).await,
        (413, "HX0085".into())
    );
    assert_eq!(shop.store.number("paid"), 1);
}
