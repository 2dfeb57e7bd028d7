//! What holds in the mode *transactional*: all commits together, or nothing.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use hapax_core::{Inbox as _, InboxState, Outbox as _, OutboxFilter, Retention as _};
use hapax_http::LargeAnswer;
use hapax_testkit::conformance::store::StoreFixture;
use hapax_testkit::servers::eventually;
use serde_json::json;

use crate::service::{CONSUMER, Client, Got, Service, Told, order};

async fn post(app: &Client, path: &str) -> Got {
    app.send(order("k").uri(path).body(Body::empty()).unwrap()).await
}

async fn published<F: StoreFixture>(service: &Service<'_, F>) -> Vec<String> {
    let rows = service.fixture.store().outbox(&OutboxFilter::default()).await.unwrap();
    rows.iter().map(|row| row.cause.as_ref().unwrap().to_string()).collect()
}

pub(crate) async fn key_change_outbox_and_answer_commit_together<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.app();
    assert_eq!(app.pay("k", &json!({"n": 25})).await.status, 201);
    assert!(app.pay("k", &json!({"n": 25})).await.is_replay());
    assert_eq!(service.effects().await, 25);
    assert_eq!(published(service).await, [":k"], "caused by the request");
    let id = hapax_core::MessageId::new(":k").unwrap();
    let consumer = hapax_core::ConsumerName::new(CONSUMER).unwrap();
    let row = service.fixture.store().look(&consumer, &[id]).await.unwrap().remove(0).unwrap();
    assert_eq!(row.state, InboxState::Done);
    assert!(row.result.is_some());
}

/// Its record was purged: what it publishes now is no copy of what it published then.
pub(crate) async fn a_key_that_is_free_again_publishes_under_ids_of_its_own<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let (app, store) = (service.app(), service.fixture.store());
    let consumer = hapax_core::ConsumerName::new(CONSUMER).unwrap();
    for _ in 0..2 {
        assert_eq!(app.pay("k", &json!({"n": 25})).await.status, 201);
        eventually("the record is purged", Duration::from_secs(10), async || {
            store.purge(&consumer, Duration::ZERO, 10).await.unwrap().rows == 1
        })
        .await;
    }
    let rows = store.outbox(&OutboxFilter::default()).await.unwrap();
    assert_eq!((rows.len(), service.effects().await), (2, 50));
    assert_ne!(rows[0].id, rows[1].id);
}

pub(crate) async fn an_answer_that_is_not_kept_rolls_back<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.app();
    assert_eq!(app.pay("k", &json!({"n": 25, "status": 500})).await.status, 500);
    assert_eq!(app.pay("l", &json!({"n": 25, "panic": true})).await.status, 500);
    assert_eq!(service.effects().await, 0);
    assert!(published(service).await.is_empty());
    assert_eq!(app.pay("m", &json!({"n": 25, "status": 422})).await.status, 422);
    assert_eq!(service.effects().await, 25, "a refusal that is kept commits what the handler wrote");
}

pub(crate) async fn a_handler_that_keeps_its_transaction_is_rolled_back<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    assert_eq!(post(&app, "/keep").await.problem(), (500, "HX0094".into()));
    service.open_the_gate();
    eventually("the task has let it go", Duration::from_secs(10), async || service.world_outside() == 1)
        .await;
    eventually("the key can be used again", Duration::from_secs(10), async || {
        app.pay("k", &json!({"n": 25})).await.status == 201
    })
    .await;
    assert_eq!(service.effects().await, 25, "of the first run nothing is left");
}

pub(crate) async fn a_transaction_is_taken_once_at_a_time<F: StoreFixture>(service: &Service<'_, F>) {
    assert_eq!(post(&service.app(), "/twice").await.problem(), (500, "HX0094".into()));
}

pub(crate) async fn a_handler_that_never_takes_its_transaction_is_on_record_all_the_same<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let app = service.app();
    assert_eq!(post(&app, "/idle").await.body, "idle");
    assert!(post(&app, "/idle").await.is_replay());
    assert_eq!(service.runs(), 1);
}

pub(crate) async fn a_route_without_the_layer_has_no_transaction<F: StoreFixture>(service: &Service<'_, F>) {
    assert_eq!(post(&service.app(), "/bare").await.problem(), (500, "HX0094".into()));
    let get = Request::get("/pay")
        .header("content-type", "application/json")
        .body(Body::from("{\"n\":1}"))
        .unwrap();
    assert_eq!(service.app().send(get).await.status, 500, "methods that are safe to repeat pass untouched");
}

pub(crate) async fn what_the_database_undid_runs_again<F: StoreFixture>(service: &Service<'_, F>) {
    let app = service.app();
    assert_eq!(app.pay("k", &json!({"n": 25, "undone": 2})).await.status, 201);
    assert_eq!((service.runs(), service.effects().await), (3, 25));
    let never = app.pay("l", &json!({"n": 25, "undone": 99})).await;
    assert_eq!(never.problem(), (503, "HX0022".into()));
    assert_eq!((service.runs(), service.effects().await), (8, 25), "five times in all");
}

pub(crate) async fn an_answer_that_is_too_large_rolls_back_or_passes<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let large = json!({"n": 25, "padding": 2_000});
    let limit = Told { answer_limit: Some(1_000), ..Told::default() };
    let app = service.told(&limit);
    assert_eq!(app.pay("k", &large).await.problem(), (500, "HX0095".into()));
    assert_eq!(service.effects().await, 0);

    let app = service.told(&Told { large_answers: LargeAnswer::Pass, ..limit });
    assert_eq!(app.pay("k", &large).await.status, 201, "the key can be used again");
    assert_eq!(app.pay("k", &large).await.problem(), (500, "HX0088".into()));
    assert_eq!(service.effects().await, 25);
}

pub(crate) async fn case_32_a_copy_is_409_while_the_first_is_uncommitted_in_another_process<
    F: StoreFixture,
>(
    service: &Service<'_, F>,
) {
    let elsewhere = service.second_process(&Told::default()).await;
    let slow = json!({"n": 25, "hold": true});
    let first = service.app().paying("k", &slow);
    service.runs_come_to(1).await;
    if service.locks_everybody_out() {
        let copy = elsewhere.paying("k", &slow);
        tokio::time::sleep(Duration::from_millis(50)).await; // it waits for a lock, which shows nowhere
        service.open_the_gate();
        assert!(copy.await.unwrap().is_replay(), "it waits for the one writer, and then finds the answer");
        return;
    }
    assert_eq!(elsewhere.pay("k", &slow).await.problem(), (409, "HX0083".into()));
    // Nobody can see yet what it was that was asked for.
    assert_eq!(elsewhere.pay("k", &json!({"n": 26})).await.problem(), (409, "HX0083".into()));
    service.open_the_gate();
    let first = first.await.unwrap();
    assert_eq!(elsewhere.pay("k", &slow).await.body, first.body);
    assert_eq!(elsewhere.pay("k", &json!({"n": 26})).await.problem(), (422, "HX0082".into()));
    assert_eq!(service.world.last_run.lock().await.as_ref().map(|run| run.taken_over), Some(false));
}

pub(crate) async fn a_lease_of_the_other_mode_that_has_ended_is_no_obstacle<F: StoreFixture>(
    service: &Service<'_, F>,
) {
    let recorded = crate::service::recorded(service.fixture).await;
    let told = Told { lease: Some(Duration::ZERO), ..Told::default() };
    let slow = json!({"n": 25, "hold": true});
    let stands_still = recorded.told(&told).paying("k", &slow);
    recorded.runs_come_to(1).await;
    tokio::time::sleep(Duration::from_millis(5)).await; // the store's clock must move past the lease
    assert_eq!(service.app().pay("k", &json!({"n": 26})).await.problem(), (422, "HX0082".into()));
    service.open_the_gate();
    let patient = service.told(&Told { wait: Duration::from_secs(20), ..Told::default() });
    assert_eq!(patient.pay("k", &slow).await.status, 201);
    recorded.open_the_gate();
    let late = stands_still.await.unwrap();
    assert_eq!((late.is_replay(), late.json()["run"].as_i64()), (true, Some(1)));
    assert_eq!(service.effects().await, 25);
}
