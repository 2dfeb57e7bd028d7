//! What holds in the mode *recorded*: leases, and those who let them end.

use std::time::Duration;

use hapax_core::{ConsumerName, Inbox as _, Key, MessageId, Running as _};
use hapax_http::{LargeAnswer, Takeover};
use hapax_testkit::conformance::store::StoreFixture;
use serde_json::json;

use crate::service::{CONSUMER, Service, Told};

/// A process began the request of 25 and died: its lease ends at once. What the request's fingerprint is, one that
/// was handled under another key tells.
async fn died<F: StoreFixture>(service: &Service<'_, F>, key: &str) {
    let (consumer, store) = (ConsumerName::new(CONSUMER).unwrap(), service.fixture.store());
    let id = |key: &str| MessageId::new(format!(":{key}")).unwrap();
    assert_eq!(service.app().pay("another", &json!({"n": 25})).await.status, 201);
    let rows = store.look(&consumer, &[id("another")]).await.unwrap();
    let key = Key::new(id(key), rows[0].as_ref().unwrap().digest);
    store.begin_running(&consumer, &key, Duration::ZERO, Duration::ZERO).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await; // the store's clock must move past the lease
}

pub(crate) async fn case_31_another_body_is_422_when_the_process_of_the_first_has_died<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    died(service, "k").await;
    for _ in 0..2 {
        assert_eq!(app.pay("k", &json!({"n": 26})).await.problem(), (422, "HX0082".into()));
    }
    assert_eq!(app.pay("k", &json!({"n": 25})).await.status, 201, "its own retry need not wait");
    assert_eq!((service.runs(), service.effects().await), (2, 50));
}

pub(crate) async fn a_request_whose_process_died_runs_again_and_is_told_so<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    died(service, "k").await;
    assert_eq!(app.pay("k", &json!({"n": 25})).await.status, 201);
    assert!(service.world.last_run.lock().await.as_ref().unwrap().taken_over);
    assert!(app.pay("k", &json!({"n": 25})).await.is_replay());
    assert_eq!(app.pay("l", &json!({"n": 25})).await.status, 201);
    assert!(!service.world.last_run.lock().await.as_ref().unwrap().taken_over);
}

pub(crate) async fn a_request_whose_process_died_is_refused_if_so_configured<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.told(&Told { takeover: Takeover::Refuse, ..Told::default() });
    died(service, "k").await;
    for _ in 0..3 {
        assert_eq!(app.pay("k", &json!({"n": 25})).await.problem(), (500, "HX0089".into()));
    }
    assert_eq!(service.runs(), 1, "of the other key");
}

pub(crate) async fn a_handler_that_runs_for_three_leases_is_not_taken_over<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let told = Told { lease: Some(Duration::from_millis(600)), ..Told::default() };
    let (app, elsewhere) = (service.told(&told), service.second_process(&told).await);
    let slow = json!({"n": 25, "hold": true});
    let first = app.paying("k", &slow);
    service.runs_come_to(1).await;
    tokio::time::sleep(Duration::from_millis(1_800)).await; // three leases: the time itself is tested
    assert_eq!(elsewhere.pay("k", &slow).await.problem(), (409, "HX0083".into()));
    service.open_the_gate();
    let first = first.await.unwrap();
    assert_eq!(elsewhere.pay("k", &slow).await.body, first.body);
    assert_eq!(service.runs(), 1);
}

pub(crate) async fn who_was_taken_over_answers_with_what_the_other_one_recorded<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    // Its lease has always ended, as that of a process that stood still.
    let app = service.told(&Told { lease: Some(Duration::ZERO), ..Told::default() });
    let elsewhere = service.second_process(&Told { wait: Duration::from_secs(20), ..Told::default() }).await;
    let slow = json!({"n": 25, "hold": true});
    let first = app.paying("k", &slow);
    service.runs_come_to(1).await;
    tokio::time::sleep(Duration::from_millis(5)).await; // the store's clock must move past the lease
    let second = elsewhere.paying("k", &slow);
    service.runs_come_to(2).await;
    assert!(service.world.last_run.lock().await.as_ref().unwrap().taken_over);
    service.open_the_gate();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let again = elsewhere.pay("k", &slow).await;
    assert_eq!(again.body, second.body, "the one with the higher fence is on record");
    assert!(first.status == 409 || first.body == second.body, "{first:?}");
}

pub(crate) async fn case_31_another_body_is_422_while_the_first_runs_in_another_process<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let elsewhere = service.second_process(&Told::default()).await;
    let first = service.app().paying("k", &json!({"n": 25, "hold": true}));
    service.runs_come_to(1).await;
    assert_eq!(elsewhere.pay("k", &json!({"n": 26})).await.problem(), (422, "HX0082".into()));
    service.open_the_gate();
    assert_eq!(first.await.unwrap().status, 201);
}

pub(crate) async fn case_32_a_copy_is_409_while_the_first_runs_in_another_process<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let elsewhere = service.second_process(&Told::default()).await;
    let patient = service.second_process(&Told { wait: Duration::from_secs(20), ..Told::default() }).await;
    let slow = json!({"n": 25, "hold": true});
    let first = service.app().paying("k", &slow);
    service.runs_come_to(1).await;
    assert_eq!(elsewhere.pay("k", &slow).await.problem(), (409, "HX0083".into()));
    let waiting = patient.paying("k", &slow);
    service.open_the_gate();
    let first = first.await.unwrap();
    assert_eq!(waiting.await.unwrap().body, first.body);
    assert_eq!(service.runs(), 1);
}

pub(crate) async fn an_answer_that_is_too_large_leaves_a_record_without_it<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let large = json!({"n": 25, "padding": 2_000});
    let limit = Told { answer_limit: Some(1_000), ..Told::default() };
    let app = service.told(&limit);
    assert_eq!(app.pay("k", &large).await.problem(), (500, "HX0088".into()));
    assert_eq!(app.pay("k", &large).await.problem(), (500, "HX0088".into()));
    assert_eq!((service.runs(), service.effects().await), (1, 25), "it took effect, and does so once");

    let app = service.told(&Told { large_answers: LargeAnswer::Pass, ..limit });
    assert_eq!(app.pay("l", &large).await.status, 201);
    assert_eq!(app.pay("l", &large).await.problem(), (500, "HX0088".into()));
    assert_eq!(service.runs(), 2);
}
