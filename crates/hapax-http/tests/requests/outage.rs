//! What goes wrong in the store, on the one that goes wrong on request.

use hapax_core::ErrorKind;
use hapax_testkit::conformance::store::StoreFixture as _;
use hapax_testkit::memory::Op;
use serde_json::json;

use crate::service::{Service, recorded, transactional};
use crate::stores::InMemory;

async fn fresh() -> InMemory {
    InMemory::fresh().await.unwrap()
}

async fn is_503_until_the_store_is_back(service: &Service<'_, InMemory>) {
    let (app, store) = (service.app(), service.fixture.store());
    store.go_away();
    let got = app.pay("k", &json!({"n": 25})).await;
    assert_eq!(got.problem(), (503, "HX0010".into()));
    assert_eq!(got.headers["retry-after"], "1");
    assert_eq!(service.runs(), 0);
    store.come_back();
    assert_eq!(app.pay("k", &json!({"n": 25})).await.status, 201);
    assert_eq!(service.effects().await, 25);
}

#[tokio::test]
async fn a_store_that_is_away_is_503_and_no_handler_runs() {
    let fixture = fresh().await;
    is_503_until_the_store_is_back(&recorded(&fixture).await).await;
    let fixture = fresh().await;
    is_503_until_the_store_is_back(&transactional(&fixture).await).await;
}

#[tokio::test]
async fn a_conflict_at_commit_runs_the_handler_again_with_the_same_body() {
    let fixture = fresh().await;
    let service = transactional(&fixture).await;
    service.fixture.store().fail_next(Op::Finish, ErrorKind::Conflict);
    let got = service.app().pay("k", &json!({"n": 25})).await;
    assert_eq!((got.status, got.json()["n"].as_i64()), (201, Some(25)));
    assert_eq!((service.runs(), service.effects().await), (2, 25));
}

#[tokio::test]
async fn a_commit_without_an_answer_is_looked_up() {
    let fixture = fresh().await;
    let service = transactional(&fixture).await;
    let app = service.app();
    service.fixture.store().unknown_next_commit(true);
    let got = app.pay("k", &json!({"n": 25})).await;
    assert_eq!((got.status, service.runs(), service.effects().await), (201, 1, 25), "it had taken effect");
    service.fixture.store().unknown_next_commit(false);
    let got = app.pay("l", &json!({"n": 25})).await;
    assert_eq!((got.status, service.runs(), service.effects().await), (201, 3, 50), "it had not");
}

#[tokio::test]
async fn a_transaction_that_the_handler_broke_is_500_and_not_kept() {
    let fixture = fresh().await;
    let service = transactional(&fixture).await;
    let app = service.app();
    service.fixture.store().fail_next(Op::Finish, ErrorKind::Broken);
    assert_eq!(app.pay("k", &json!({"n": 25})).await.problem(), (500, "HX0050".into()));
    assert_eq!(service.effects().await, 0);
    assert_eq!(app.pay("k", &json!({"n": 25})).await.status, 201);
}

#[tokio::test]
async fn a_refusal_after_a_statement_that_failed_is_on_record_alone() {
    let fixture = fresh().await;
    let service = transactional(&fixture).await;
    let app = service.app();
    service.fixture.store().fail_next(Op::Finish, ErrorKind::Broken);
    let refused = json!({"n": 25, "status": 422});
    let first = app.pay("k", &refused).await;
    assert_eq!((first.status, first.is_replay()), (422, false));
    let again = app.pay("k", &refused).await;
    assert_eq!((again.status, again.is_replay(), &again.body), (422, true, &first.body));
    assert_eq!((service.runs(), service.effects().await), (1, 0), "nothing else is left of it");
}

mod server {
    use super::*;

    use axum::Router;
    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use axum::routing::post;
    use hapax_http::{Idempotency, Tx};
    use hapax_sqlx::{PgStore, sqlx};

    use crate::service::Client;
    use crate::stores::OnPostgres;

    /// An error that PostgreSQL answers ends the transaction, whatever the handler makes of it.
    async fn refuse(mut tx: Tx<PgStore>, status: String) -> StatusCode {
        sqlx::query("INSERT INTO accounts VALUES ('a', 1)").execute(tx.conn()).await.unwrap();
        let twice = sqlx::query("INSERT INTO accounts VALUES ('a', 1)").execute(tx.conn()).await;
        assert!(twice.is_err());
        status.parse().unwrap()
    }

    #[tokio::test]
    async fn an_sql_error_that_is_answered_as_a_refusal_is_kept_and_as_a_success_is_500() {
        let Some(fixture) = OnPostgres::fresh().await else { return };
        let layer = Idempotency::transactional("http.refuses", fixture.store()).unwrap().one_tenant();
        let app = Client(Router::new().route("/", post(refuse)).layer(layer));
        let ask = |status: &'static str| {
            let key = format!("\"{status}\"");
            Request::post("/").header("idempotency-key", key).body(Body::from(status)).unwrap()
        };
        assert_eq!(app.send(ask("422")).await.status, 422);
        assert!(app.send(ask("422")).await.is_replay());
        for _ in 0..2 {
            assert_eq!(app.send(ask("201")).await.problem(), (500, "HX0050".into()));
        }
        assert_eq!(fixture.total("a").await, 0);
    }
}

#[tokio::test]
async fn the_end_of_a_recorded_request_outlasts_a_short_outage() {
    let fixture = fresh().await;
    let service = recorded(&fixture).await;
    let app = service.app();
    let slow = json!({"n": 25, "hold": true});
    let first = app.paying("k", &slow);
    service.runs_come_to(1).await;
    service.fixture.store().fail_next(Op::Running, ErrorKind::Unavailable);
    service.open_the_gate();
    assert_eq!(first.await.unwrap().status, 201);
    assert!(app.pay("k", &slow).await.is_replay());
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_is_given_all_the_same() {
    let fixture = fresh().await;
    let service = recorded(&fixture).await;
    let (app, store) = (service.app(), service.fixture.store());
    let slow = json!({"n": 25, "hold": true});
    let first = app.paying("k", &slow);
    service.runs_come_to(1).await;
    store.go_away();
    service.open_the_gate();
    assert_eq!(first.await.unwrap().status, 201, "the work is done");
    store.come_back();
    assert_eq!(app.pay("k", &slow).await.problem(), (409, "HX0083".into()));
    store.advance(std::time::Duration::from_secs(31));
    assert_eq!(app.pay("k", &slow).await.status, 201);
    assert!(service.world.last_run.lock().await.as_ref().unwrap().taken_over);
}
