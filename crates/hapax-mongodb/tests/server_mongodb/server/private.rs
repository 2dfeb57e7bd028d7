//! What needs a server of its own: one without transactions, one that ends them soon, one that does not answer.

use std::time::Duration;

use hapax_core::{Claim, ClaimRequest, Code, ErrorKind, Store as _};
use hapax_mongodb::MongoStore;
use hapax_mongodb::mongodb::bson::{Bson, Document, doc};
use hapax_testkit::conformance::cancelled_after;
use hapax_testkit::servers::{PrivateMongo, Server, eventually, require};

use super::ground::{Ground, insert, key};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_private_server_without_a_replica_set_is_refused_with_the_cure() {
    if !require(Server::PrivateMongo) {
        return;
    }
    let server = PrivateMongo::start_alone().await.expect("a server of its own");
    for form in ["", "?directConnection=true", "?replicaSet=rs0", "?replicaSet=rs0&directConnection=true"] {
        let url = format!("mongodb://{}/shop{form}", server.addr());
        let store = MongoStore::builder(&url).connect_within(Duration::from_secs(1)).connect().await;
        let error = store.expect_err("it has no transactions");
        assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::NotAvailable), "{form}: {error}");
        assert!(error.to_string().contains("rs.initiate()"), "{form}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_server_that_ends_transactions_soon_makes_handlers_late() {
    if !require(Server::PrivateMongo) {
        return;
    }
    let short = [("transactionLifetimeLimitSeconds", "1")];
    let server = PrivateMongo::start_with(&short).await.expect("a server of its own");
    let ground = Ground::new(&server.url("shop")).await;

    let (mut late, _) = ground.claim(&[key("late")]).await;
    let (idle, _) = ground.claim(&[key("idle")]).await;
    let rival = async || {
        let (tx, claims) = ground.claim(&[key("late"), key("idle")]).await;
        ground.store.roll_back(tx).await;
        claims == [Claim::New, Claim::New]
    };
    eventually("the server ends them", SOON, rival).await;
    let error = insert(&mut late, "late").await.expect_err("it is over");
    let expected = (ErrorKind::Statement, Code::HandlerTimedOut);
    assert_eq!(ground.store.kind_of(&error), Some(expected), "{error}");
    ground.store.roll_back(late).await;
    let error = ground.store.finish(idle).await.expect_err("it is over");
    assert_eq!((error.kind(), error.code()), expected, "{error}");
    assert_eq!(ground.count().await, 0);
}

/// Sets what becomes of commits: the server's own means for tests.
async fn fail_commits(ground: &Ground, mode: impl Into<Bson>, data: Document) {
    let mut all = doc! { "failCommands": ["commitTransaction"] };
    all.extend(data);
    let point = doc! { "configureFailPoint": "failCommand", "mode": mode.into(), "data": all };
    ground.database.client().database("admin").run_command(point).await.expect("it is set");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_server_that_hangs_up_on_commits_leaves_each_whole_or_undone() {
    if !require(Server::PrivateMongo) {
        return;
    }
    let server = PrivateMongo::start_with(&[("enableTestCommands", "1")]).await.expect("a server of its own");
    let url = server.url("shop");
    let ground = Ground::with(MongoStore::builder(&url).answer_within(Duration::from_secs(5)), &url).await;

    // The driver repeats a commit once, we do after that.
    fail_commits(&ground, doc! { "times": 3 }, doc! { "closeConnection": true }).await;
    let (mut tx, _) = ground.claim(&[key("m1")]).await;
    insert(&mut tx, "m1").await.expect("it is inserted");
    ground.store.finish(tx).await.expect("it is committed in the end");
    assert_eq!(ground.count().await, 1);

    // What is committed, but not by a majority in time, is not known to be so.
    let slow = doc! { "writeConcernError": { "code": 64, "errmsg": "no majority", "errInfo": { "wtimeout": true } } };
    fail_commits(&ground, "alwaysOn", slow).await;
    let (mut tx, _) = ground.claim(&[key("m2")]).await;
    insert(&mut tx, "m2").await.expect("it is inserted");
    let error = ground.store.finish(tx).await.expect_err("nobody knows");
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unknown, Code::OutcomeUnknown), "{error}");
    fail_commits(&ground, "off", doc! {}).await;
    assert_eq!(ground.claim(&[key("m2")]).await.1, [Claim::Duplicate { other_payload: false }]);
    assert_eq!(ground.count().await, 2);

    // What never arrives is undone, and holds up nobody for longer than that takes.
    fail_commits(&ground, "alwaysOn", doc! { "closeConnection": true }).await;
    let (mut tx, _) = ground.claim(&[key("m3")]).await;
    insert(&mut tx, "m3").await.expect("it is inserted");
    let error = ground.store.finish(tx).await.expect_err("nobody knows");
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unknown, Code::OutcomeUnknown), "{error}");
    fail_commits(&ground, "off", doc! {}).await;
    let is_new = async || {
        let (tx, claims) = ground.claim(&[key("m3")]).await;
        ground.store.roll_back(tx).await;
        claims == [Claim::New]
    };
    eventually("the message is new again", SOON, is_new).await;
    assert_eq!(ground.count().await, 2);

    // A commit that the server refuses because it knows no such transaction any more is nobody's attempt.
    fail_commits(
        &ground,
        doc! { "times": 1 },
        doc! { "errorCode": 251, "errorLabels": ["TransientTransactionError"] },
    )
    .await;
    let (tx, _) = ground.claim(&[key("m4")]).await;
    let error = ground.store.finish(tx).await.expect_err("it is refused");
    assert_eq!((error.kind(), error.code()), (ErrorKind::Conflict, Code::StoreConflict), "{error}");
}

/// How many transactions are open on the server.
async fn open(ground: &Ground) -> i64 {
    let status = doc! { "serverStatus": 1 };
    let status = ground.database.client().database("admin").run_command(status).await.expect("it answers");
    status.get_document("transactions").expect("transactions").get_i64("currentOpen").expect("a number")
}

/// The driver alone would leave them open for a minute: that of a first operation, and that of a commit.
#[tokio::test(flavor = "multi_thread")]
async fn case_43_whatever_is_dropped_leaves_no_transaction_open_on_a_private_server() {
    if !require(Server::PrivateMongo) {
        return;
    }
    let server = PrivateMongo::start().await.expect("a server of its own");
    let ground = Ground::new(&server.url("shop")).await;
    let keys = [key("m1"), key("m2")];
    let none_open = async || open(&ground).await == 0;
    for polls in 0.. {
        let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(&ground.consumer) };
        let begun = cancelled_after(polls, ground.store.begin_claim(&request)).await;
        let done = begun.is_some();
        drop(begun);
        eventually(&format!("nothing is open after {polls} polls of a claim"), SOON, none_open).await;
        if done {
            break;
        }
    }
    for polls in 0.. {
        let mut tx = ground.begin().await;
        let inserted = cancelled_after(polls, insert(&mut tx, "dropped")).await;
        ground.store.abort(tx).await;
        assert_eq!(open(&ground).await, 0, "abort waits for it, after {polls} polls of a first operation");
        if inserted.is_some() {
            break;
        }
    }
    for polls in 0.. {
        let (tx, _) = ground.claim(&[key(&format!("m{polls}"))]).await;
        let finished = cancelled_after(polls, ground.store.finish(tx)).await;
        eventually(&format!("nothing is open after {polls} polls of a commit"), SOON, none_open).await;
        if finished.is_some() {
            break;
        }
    }
    assert_eq!(ground.count().await, 0);
}
