//! What holds in both modes.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method};
use hapax_testkit::conformance::store::StoreFixture;
use hapax_testkit::servers::eventually;
use serde_json::json;
use tower::ServiceExt as _;

use crate::service::{Service, Told, order};

fn reused() -> (u16, String) {
    (422, "HX0082".into())
}

fn running() -> (u16, String) {
    (409, "HX0083".into())
}

pub(crate) async fn case_31_another_body_is_422_when_the_first_has_finished<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    let first = app.pay("k", &json!({"n": 25})).await;
    assert_eq!(first.status, 201);
    assert_eq!(app.pay("k", &json!({"n": 26})).await.problem(), reused());
    assert_eq!(app.pay("k", &json!({"n": 25})).await.body, first.body, "the first one's answer stands");
    assert_eq!(service.effects().await, 25);
}

pub(crate) async fn case_31_another_body_is_422_while_the_first_runs<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    let first = app.paying("k", &json!({"n": 25, "hold": true}));
    service.runs_come_to(1).await;
    assert_eq!(app.pay("k", &json!({"n": 26})).await.problem(), reused());
    service.open_the_gate();
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(service.effects().await, 25);
}

pub(crate) async fn case_31_another_body_is_422_while_a_copy_waits_for_the_answer<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.told(&Told { wait: Duration::from_secs(20), ..Told::default() });
    let slow = json!({"n": 25, "hold": true});
    let first = app.paying("k", &slow);
    service.runs_come_to(1).await;
    let copy = app.paying("k", &slow);
    assert_eq!(app.pay("k", &json!({"n": 26})).await.problem(), reused());
    service.open_the_gate();
    assert_eq!(copy.await.unwrap().body, first.await.unwrap().body);
    assert_eq!(service.runs(), 1);
}

pub(crate) async fn case_31_another_method_query_or_content_type_is_422<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    let body = || Body::from(json!({"n": 25}).to_string());
    assert_eq!(app.pay("k", &json!({"n": 25})).await.status, 201);
    let others = [
        order("k").method(Method::PATCH).body(body()),
        order("k").uri("/pay?dry=1").body(body()),
        order("k").header("content-type", "application/json").body(body()),
    ];
    for other in others {
        assert_eq!(app.send(other.unwrap()).await.problem(), reused());
    }
    assert_eq!(service.runs(), 1);
}

pub(crate) async fn case_32_a_copy_is_409_while_the_first_runs_and_gets_its_answer_afterwards<
    F: StoreFixture,
>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    let slow = json!({"n": 25, "hold": true});
    let first = app.paying("k", &slow);
    service.runs_come_to(1).await;
    let copy = app.pay("k", &slow).await;
    assert_eq!(copy.problem(), running());
    assert_eq!(copy.headers["retry-after"], "1");
    service.open_the_gate();
    let first = first.await.unwrap();
    assert_eq!(first.status, 201);
    assert!(!first.is_replay());
    let again = app.pay("k", &slow).await;
    assert!(again.is_replay());
    assert_eq!((again.status, &again.body), (201, &first.body));
    for name in ["location", "content-type", "idempotency-key-expires"] {
        assert_eq!(again.headers[name], first.headers[name], "{name}");
    }
    assert!(first.headers.contains_key("set-cookie") && !again.headers.contains_key("set-cookie"));
    assert_eq!((service.runs(), service.effects().await), (1, 25));
}

pub(crate) async fn case_32_a_refusal_is_given_again<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.app();
    for status in [404, 422] {
        let order = json!({"n": 1, "status": status});
        let key = status.to_string();
        let first = app.pay(&key, &order).await;
        let again = app.pay(&key, &order).await;
        assert_eq!((first.status, again.status), (status, status));
        assert_eq!(again.body, first.body);
        assert!(again.is_replay());
    }
    assert_eq!(service.runs(), 2);
}

pub(crate) async fn case_32_a_failure_is_not_kept_and_the_key_can_be_used_again<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    for status in [500, 503, 429] {
        let order = json!({"n": 1, "status": status});
        let key = status.to_string();
        let first = app.pay(&key, &order).await;
        let again = app.pay(&key, &order).await;
        assert_eq!((first.status, again.status), (status, status));
        assert_ne!(again.body, first.body, "the handler ran again");
        assert!(!again.is_replay());
        assert!(!first.headers.contains_key("idempotency-key-expires"));
    }
    assert_eq!(service.runs(), 6);
}

pub(crate) async fn case_32_a_copy_can_wait_for_the_answer<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.told(&Told { wait: Duration::from_secs(20), ..Told::default() });
    let slow = json!({"n": 25, "hold": true});
    let first = app.paying("k", &slow);
    service.runs_come_to(1).await;
    let copies = [app.paying("k", &slow), app.paying("k", &slow)];
    service.open_the_gate();
    let first = first.await.unwrap();
    for copy in copies {
        let copy = copy.await.unwrap();
        assert_eq!((copy.status, copy.is_replay(), &copy.body), (201, true, &first.body));
    }
    assert_eq!(service.runs(), 1);
}

pub(crate) async fn case_32_a_copy_that_waits_in_vain_gets_409<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.told(&Told { wait: Duration::from_millis(100), ..Told::default() });
    let slow = json!({"n": 25, "hold": true});
    let first = app.paying("k", &slow);
    service.runs_come_to(1).await;
    assert_eq!(app.pay("k", &slow).await.problem(), running());
    service.open_the_gate();
    assert_eq!(first.await.unwrap().status, 201);
}

pub(crate) async fn case_32_a_second_process_does_not_run_it_again<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let first = service.app().pay("k", &json!({"n": 25})).await;
    let elsewhere = service.second_process(&Told::default()).await;
    let again = elsewhere.pay("k", &json!({"n": 25})).await;
    assert_eq!((again.is_replay(), &again.body), (true, &first.body));
    assert_eq!(elsewhere.pay("k", &json!({"n": 26})).await.problem(), reused());
    assert_eq!((service.runs(), service.effects().await), (1, 25));
}

pub(crate) async fn case_33_a_request_without_a_key_is_400<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.app();
    for _ in 0..2 {
        let mut request = order("k").body(Body::from(json!({"n": 25}).to_string())).unwrap();
        request.headers_mut().remove("idempotency-key");
        let got = app.send(request).await;
        assert_eq!(got.problem(), (400, "HX0080".into()));
        assert!(got.headers["link"].to_str().unwrap().contains("HX0080"), "a link to what is the matter");
    }
    assert_eq!(service.runs(), 0);
}

pub(crate) async fn case_33_what_is_not_one_quoted_string_is_400_and_never_treated_as_one<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.told(&Told { quoted_only: true, ..Told::default() });
    let too_long = format!("\"{}\"", "k".repeat(256));
    let bad: Vec<&[u8]> = vec![
        b"",
        b"\"\"",
        b"k",
        b"42",
        b"\"k",
        b"\"a\", \"b\"",
        b"\"k\\n\"",
        "\"schl\u{fc}ssel\"".as_bytes(),
        too_long.as_bytes(),
    ];
    for value in bad {
        for _ in 0..2 {
            let mut request = order("k").body(Body::from(json!({"n": 25}).to_string())).unwrap();
            request.headers_mut().insert("idempotency-key", HeaderValue::from_bytes(value).unwrap());
            let got = app.send(request).await;
            assert_eq!(got.problem(), (400, "HX0081".into()), "{}", String::from_utf8_lossy(value));
        }
    }
    let two = order("k").header("idempotency-key", "\"k\"").body(Body::from(json!({"n": 25}).to_string()));
    assert_eq!(app.send(two.unwrap()).await.problem(), (400, "HX0081".into()));
    assert_eq!(service.runs(), 0);
    assert_eq!(app.pay("k;a=1", &json!({"n": 25})).await.status, 201, "a quoted one is a key");
}

pub(crate) async fn case_34_one_key_of_two_tenants_is_two_requests<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.told(&Told { tenants: true, ..Told::default() });
    let of = |tenant: &str, n: i64| {
        order("k").header("x-tenant", tenant).body(Body::from(json!({ "n": n }).to_string())).unwrap()
    };
    let north = app.send(of("north", 1)).await;
    let south = app.send(of("south", 2)).await;
    assert_eq!((north.status, south.status), (201, 201));
    let again = app.send(of("north", 1)).await;
    assert_eq!((again.is_replay(), &again.body), (true, &north.body), "each has its own answer");
    assert_eq!((service.runs(), service.effects().await), (2, 3));
    let run = service.world.last_run.lock().await.clone().unwrap();
    assert_eq!((run.tenant.as_deref(), run.key.as_str(), run.id.as_str()), (Some("south"), "k", "5:south:k"));
}

pub(crate) async fn case_34_who_is_nobody_is_400<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.told(&Told { tenants: true, ..Told::default() });
    let nobody = order("k").body(Body::from(json!({"n": 1}).to_string())).unwrap();
    assert_eq!(app.send(nobody).await.problem(), (400, "HX0084".into()));
    let empty = order("k").header("x-tenant", "").body(Body::from(json!({"n": 1}).to_string())).unwrap();
    assert_eq!(app.send(empty).await.problem(), (400, "HX0084".into()));
    assert_eq!(service.runs(), 0);
}

pub(crate) async fn a_hundred_copies_at_once_run_the_handler_once<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.told(&Told { wait: Duration::from_secs(20), ..Told::default() });
    let elsewhere = service.second_process(&Told { wait: Duration::from_secs(20), ..Told::default() }).await;
    let pay =
        |copy: usize| if copy.is_multiple_of(2) { &app } else { &elsewhere }.paying("k", &json!({"n": 25}));
    let copies: Vec<_> = (0..100).map(pay).collect();
    let mut answers = Vec::new();
    for copy in copies {
        answers.push(copy.await.unwrap());
    }
    assert!(answers.iter().all(|got| got.status == 201 && got.body == answers[0].body), "{answers:?}");
    assert_eq!(answers.iter().filter(|got| !got.is_replay()).count(), 1);
    assert_eq!((service.runs(), service.effects().await), (1, 25));
}

pub(crate) async fn a_client_that_hangs_up_gets_the_answer_when_it_asks_again<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    let slow = json!({"n": 25, "hold": true});
    let request = order("k").body(Body::from(slow.to_string())).unwrap();
    let first = tokio::spawn(app.0.clone().oneshot(request));
    service.runs_come_to(1).await;
    first.abort(); // as a server does when the connection is gone
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(app.pay("k", &slow).await.problem(), running(), "it is still at work");
    service.open_the_gate();
    eventually("the answer is there", Duration::from_secs(10), async || {
        let again = app.pay("k", &slow).await;
        again.status == 201 && again.is_replay()
    })
    .await;
    assert_eq!((service.runs(), service.effects().await), (1, 25));
}

pub(crate) async fn a_panic_is_500_and_leaves_no_record<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.app();
    let bad = json!({"n": 25, "panic": true});
    assert_eq!(app.pay("k", &bad).await.problem(), (500, "HX0051".into()));
    assert_eq!(app.pay("k", &bad).await.problem(), (500, "HX0051".into()));
    assert_eq!(service.runs(), 2);
    assert_eq!(app.pay("k", &json!({"n": 26})).await.status, 201, "not even the fingerprint is left");
}

pub(crate) async fn a_key_of_255_bytes_works_with_a_long_tenant<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.told(&Told { tenants: true, ..Told::default() });
    let of = |tenant: String| {
        let body = Body::from(json!({"n": 1}).to_string());
        order(&"k".repeat(255)).header("x-tenant", tenant).body(body).unwrap()
    };
    assert_eq!(app.send(of("t".repeat(300))).await.status, 201);
    assert!(app.send(of("t".repeat(300))).await.is_replay());
    assert_eq!(app.send(of("t".repeat(301))).await.status, 201);
    assert_eq!(service.runs(), 2);
}

pub(crate) async fn whoever_shuts_down_can_wait_for_what_is_at_work<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let (app, drained) = service.drainable();
    let request = order("k").body(Body::from(json!({"n": 25, "hold": true}).to_string())).unwrap();
    let first = tokio::spawn(app.0.clone().oneshot(request));
    service.runs_come_to(1).await;
    first.abort();
    let drained = tokio::spawn(drained);
    tokio::time::sleep(Duration::from_millis(50)).await; // nothing is to happen, so there is nothing to wait for
    assert!(!drained.is_finished());
    service.open_the_gate();
    drained.await.unwrap();
    assert_eq!(service.effects().await, 25);
}
