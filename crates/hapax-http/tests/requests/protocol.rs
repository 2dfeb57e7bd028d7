//! The layer as a whole, where the store does not matter.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Request, StatusCode};
use axum::routing::{any, post};
use futures::{StreamExt as _, stream};
use hapax_core::{ConsumerName, Digest, Inbox as _, Key, MessageId};
use hapax_http::{Idempotency, LargeAnswer, Recorded, UnknownLength};
use hapax_testkit::memory::MemoryStore;
use tower::ServiceExt as _;

use crate::service::{CONSUMER, Client};

type Layer = Idempotency<Recorded<MemoryStore>>;

fn layer() -> Layer {
    Idempotency::recorded(CONSUMER, MemoryStore::new()).unwrap().one_tenant()
}

/// Answers with the number of the run and the body that it got.
fn counting(layer: Layer) -> Client {
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = any(async move |body: Bytes| {
        let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
        format!("{run}:{}", body.len())
    });
    Client(Router::new().fallback(handler).layer(layer))
}

fn request(method: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder().method(method).uri("/").header("idempotency-key", "\"k\"").body(body.into()).unwrap()
}

fn chunked(chunks: usize, size: usize) -> Body {
    let chunk = Bytes::from(vec![b'x'; size]);
    Body::from_stream(stream::iter((0..chunks).map(move |_| Ok::<_, Infallible>(chunk.clone()))))
}

#[tokio::test]
async fn methods_that_are_safe_to_repeat_pass_untouched() {
    let app = counting(layer());
    for (run, method) in ["GET", "PUT", "DELETE", "HEAD", "OPTIONS"].into_iter().enumerate() {
        let got = app.send(request(method, "")).await;
        assert!(method == "HEAD" || got.body == format!("{}:0", run + 1), "{method} {got:?}");
        assert!(!got.is_replay());
    }
    assert_eq!(app.send(request("PATCH", "")).await.body, "6:0");
    assert!(app.send(request("PATCH", "")).await.is_replay());
}

#[tokio::test]
async fn the_methods_and_routes_it_acts_on_can_be_chosen() {
    let app = counting(layer().methods([http::Method::PUT]).routes(|parts| parts.uri.path() != "/other"));
    assert!(!app.send(request("POST", "")).await.is_replay());
    assert!(!app.send(request("PUT", "")).await.is_replay());
    assert!(app.send(request("PUT", "")).await.is_replay());
    let other = || Request::put("/other").body(Body::empty()).unwrap();
    assert_eq!(app.send(other()).await.status, 200, "no key is asked for");
}

#[tokio::test]
async fn an_optional_key_lets_requests_without_one_pass_unprotected() {
    let app = counting(layer().key_optional());
    let without = || Request::post("/").body(Body::empty()).unwrap();
    assert_eq!(app.send(without()).await.body, "1:0");
    assert_eq!(app.send(without()).await.body, "2:0");
    assert_eq!(app.send(request("POST", "")).await.body, "3:0");
    assert!(app.send(request("POST", "")).await.is_replay());
    let empty = Request::post("/").header("idempotency-key", "\"\"").body(Body::empty()).unwrap();
    assert_eq!(app.send(empty).await.problem(), (400, "HX0081".into()), "an empty one is not none");
}

#[tokio::test]
async fn bare_keys_are_accepted_by_default_and_are_the_same_as_quoted_ones() {
    let app = counting(layer());
    let bare = Request::post("/").header("idempotency-key", "k").body(Body::empty()).unwrap();
    assert_eq!(app.send(bare).await.body, "1:0");
    assert!(app.send(request("POST", "")).await.is_replay());
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_whether_it_says_so_or_not() {
    let app = counting(layer().body_limit(1_000));
    assert_eq!(app.send(request("POST", vec![b'x'; 1_001])).await.problem(), (413, "HX0085".into()));
    assert_eq!(app.send(request("POST", chunked(11, 100))).await.problem(), (413, "HX0085".into()));
    assert_eq!(
        app.send(request("POST", chunked(10, 100))).await.body,
        "1:1000",
        "nothing was recorded before"
    );
    assert!(app.send(request("POST", vec![b'x'; 1_000])).await.is_replay(), "the same bytes");
}

#[tokio::test]
async fn a_body_over_the_limit_is_not_read_to_its_end() {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&read);
    let endless = stream::repeat(Bytes::from(vec![b'x'; 1_000])).map(move |chunk| {
        counted.fetch_add(chunk.len(), Ordering::SeqCst);
        Ok::<_, Infallible>(chunk)
    });
    let app = counting(layer().body_limit(10_000));
    assert_eq!(app.send(request("POST", Body::from_stream(endless))).await.status, 413);
    assert!(read.load(Ordering::SeqCst) <= 12_000, "{read:?}");
}

#[tokio::test]
async fn a_body_of_unknown_length_can_be_refused_or_passed() {
    let app = counting(layer().request_streams(UnknownLength::Refuse));
    assert_eq!(app.send(request("POST", chunked(1, 10))).await.problem(), (411, "HX0086".into()));
    let app = counting(layer().request_streams(UnknownLength::Pass));
    assert_eq!(app.send(request("POST", chunked(1, 10))).await.body, "1:10");
    assert_eq!(app.send(request("POST", chunked(1, 10))).await.body, "2:10", "without protection");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_400_and_leaves_nothing() {
    let app = counting(layer());
    let broken = stream::iter([Ok(Bytes::from("half")), Err(std::io::Error::other("gone"))]);
    assert_eq!(app.send(request("POST", Body::from_stream(broken))).await.problem(), (400, "HX0087".into()));
    assert_eq!(app.send(request("POST", "whole")).await.body, "1:5");
}

fn streaming(layer: Layer, chunks: usize) -> Client {
    Client(Router::new().route("/", post(async move || chunked(chunks, 1_000))).layer(layer))
}

#[tokio::test]
async fn an_answer_of_unknown_length_is_read_up_to_the_limit() {
    let app = streaming(layer().answer_limit(5_000), 5);
    assert_eq!(app.send(request("POST", "")).await.body.len(), 5_000);
    let again = app.send(request("POST", "")).await;
    assert_eq!((again.is_replay(), again.body.len()), (true, 5_000));
    let app = streaming(layer().answer_limit(5_000).large_answers(LargeAnswer::Pass), 6);
    assert_eq!(app.send(request("POST", "")).await.body.len(), 6_000, "also what was read of it before");
    assert_eq!(app.send(request("POST", "")).await.problem(), (500, "HX0088".into()));
}

#[tokio::test]
async fn an_answer_of_unknown_length_can_be_refused_or_passed() {
    let app = streaming(layer().answer_streams(UnknownLength::Refuse), 1);
    assert_eq!(app.send(request("POST", "")).await.problem(), (500, "HX0088".into()));
    let app = streaming(layer().answer_streams(UnknownLength::Pass), 1);
    assert_eq!(app.send(request("POST", "")).await.body.len(), 1_000);
    assert_eq!(app.send(request("POST", "")).await.problem(), (500, "HX0088".into()));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_500_and_not_kept() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = post(async move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Body::from_stream(stream::iter([Ok(Bytes::from("half")), Err(std::io::Error::other("gone"))]))
    });
    let app = Client(Router::new().route("/", handler).layer(layer()));
    for _ in 0..2 {
        assert_eq!(app.send(request("POST", "")).await.problem(), (500, "HX0053".into()));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_is_kept_can_be_chosen() {
    let handler =
        post(async || (StatusCode::SERVICE_UNAVAILABLE, [("x-request-id", "1"), ("x-other", "2")], "no"));
    let told = layer().keep_if(|_| true).keep_headers([HeaderName::from_static("x-request-id")]);
    let app = Client(Router::new().route("/", handler).layer(told));
    app.send(request("POST", "")).await;
    let again = app.send(request("POST", "")).await;
    assert_eq!((again.status, again.is_replay()), (503, true));
    assert!(again.headers.contains_key("x-request-id") && !again.headers.contains_key("x-other"));
}

#[tokio::test]
async fn the_headers_of_the_fingerprint_can_be_chosen() {
    let app = counting(layer().fingerprint_headers([HeaderName::from_static("x-version")]));
    let of = |version: &str, kind: &str| {
        let mut request = request("POST", "");
        request.headers_mut().insert("x-version", version.parse().unwrap());
        request.headers_mut().insert("content-type", kind.parse().unwrap());
        request
    };
    assert_eq!(app.send(of("1", "text/plain")).await.status, 200);
    assert!(app.send(of("1", "text/html")).await.is_replay());
    assert_eq!(app.send(of("2", "text/plain")).await.problem(), (422, "HX0082".into()));
}

#[tokio::test]
async fn routes_that_end_alike_below_nested_routers_are_not_one() {
    let layer = layer();
    let inner =
        |name: &'static str| Router::new().route("/pay", post(async move || name)).layer(layer.clone());
    let app = Client(Router::new().nest("/v1", inner("v1")).nest("/v2", inner("v2")));
    let to = |path: &str| {
        let mut request = request("POST", "");
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    assert_eq!(app.send(to("/v1/pay")).await.body, "v1");
    assert_eq!(app.send(to("/v2/pay")).await.problem(), (422, "HX0082".into()));
}

#[tokio::test]
async fn problems_link_to_the_services_own_pages_if_it_has_some() {
    let app = counting(layer().docs("https://example.com/errors/"));
    let got = app.send(Request::post("/").body(Body::empty()).unwrap()).await;
    assert_eq!(got.json()["type"], "https://example.com/errors/HX0080");
    assert_eq!(got.json()["title"], "The request has no Idempotency-Key");
    assert_eq!(got.headers["content-language"], "en");
}

#[tokio::test]
async fn a_record_that_is_none_of_the_layers_is_not_taken_for_an_answer() {
    let store = MemoryStore::new();
    let app = counting(Idempotency::recorded(CONSUMER, store.clone()).unwrap().one_tenant());
    let first = app.send(request("POST", "")).await;
    assert_eq!(first.status, 200);
    let consumer = ConsumerName::new(CONSUMER).unwrap();
    let row = store.look(&consumer, &[MessageId::new(":k").unwrap()]).await.unwrap().remove(0).unwrap();
    store.record(&consumer, &Key::new(MessageId::new(":foreign").unwrap(), row.digest)).await.unwrap();
    let foreign = Request::post("/").header("idempotency-key", "\"foreign\"").body(Body::empty()).unwrap();
    assert_eq!(app.send(foreign).await.problem(), (500, "HX0088".into()));
    store.record(&consumer, &Key::new(MessageId::new(":other").unwrap(), Digest::of(b""))).await.unwrap();
    let other = Request::post("/").header("idempotency-key", "\"other\"").body(Body::empty()).unwrap();
    assert_eq!(app.send(other).await.problem(), (422, "HX0082".into()));
}

/// A service of tower's, without axum.
#[tokio::test]
async fn it_is_a_layer_for_any_service() {
    use http_body_util::{BodyExt as _, Full};
    use tower_layer::Layer as _;

    let service = layer().layer(tower::service_fn(async |request: http::Request<hapax_http::Body>| {
        let body = request.into_body().collect().await.map_err(|_| "broken")?.to_bytes();
        if body == "bad" { Err("bad") } else { Ok(http::Response::new(Full::new(body))) }
    }));
    let ask = |body: &'static str| {
        let request = http::Request::post("/").header("idempotency-key", "\"k\"");
        service.clone().oneshot(request.body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap())
    };
    assert_eq!(ask("bad").await.unwrap_err(), "bad", "its errors are passed on, and leave no record");
    let first = ask("good").await.unwrap();
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "good");
    let again = ask("good").await.unwrap();
    assert_eq!(again.headers()["idempotency-replayed"], "true");
}

#[test]
fn a_name_that_is_none_is_a_mistake_of_the_setup() {
    let error = Idempotency::recorded("http payments", MemoryStore::new()).unwrap_err();
    assert_eq!(error.code(), hapax_core::Code::ConfigWrongValue);
}
