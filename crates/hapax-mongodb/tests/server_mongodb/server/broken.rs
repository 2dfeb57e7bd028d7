//! Errors that end a transaction, and handlers that swallow them.

use hapax_core::{Code, ErrorKind, Parking, RawMessage, Store as _, WaitingRoom as _};
use hapax_mongodb::MongoTx;
use hapax_mongodb::mongodb::bson::{Document, doc};
use hapax_mongodb::mongodb::error::Error as Driver;
use hapax_testkit::servers::{MongoDatabase, Server, require};

use super::ground::{ACCOUNTS, Ground, insert, key};

async fn update(tx: &mut MongoTx, id: &str) -> Result<(), Driver> {
    let add = doc! { "$inc": { "total": 1_i64 } };
    tx.collection::<Document>(ACCOUNTS).update_one(doc! { "_id": id }, add).await.map(drop)
}

fn kind(ground: &Ground, error: &Driver) -> (ErrorKind, Code) {
    ground.store.kind_of(error).expect("an error of the driver's")
}

#[tokio::test(flavor = "multi_thread")]
async fn case_03_a_swallowed_duplicate_key_commits_nothing() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    ground.accounts().insert_one(doc! { "_id": "taken" }).await.expect("it is inserted");

    let (mut tx, claims) = ground.claim(&[key("m1")]).await;
    assert!(claims[0].is_ours());
    insert(&mut tx, "before").await.expect("it is inserted");
    let error = insert(&mut tx, "taken").await.expect_err("the key is taken");
    assert_eq!(kind(&ground, &error), (ErrorKind::Statement, Code::StoreFailed), "{error}");
    let error = insert(&mut tx, "after").await.expect_err("the transaction is over");
    assert!(error.to_string().contains("11000"), "the cause is answered again: {error}");

    let error = ground.store.finish(tx).await.expect_err("nothing is committed");
    assert_eq!((error.kind(), error.code()), (ErrorKind::Broken, Code::TransactionBroken), "{error}");
    assert_eq!(ground.count().await, 1, "neither before nor after");
    assert!(ground.claim(&[key("m1")]).await.1[0].is_ours(), "the message is new again");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_03_a_swallowed_write_conflict_commits_nothing() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    ground.accounts().insert_one(doc! { "_id": "shared", "total": 0_i64 }).await.expect("it is inserted");

    let mut rival = ground.begin().await;
    update(&mut rival, "shared").await.expect("the first one writes");
    let (mut tx, _) = ground.claim(&[key("m1")]).await;
    insert(&mut tx, "before").await.expect("it is inserted");
    let error = update(&mut tx, "shared").await.expect_err("the second one conflicts, at once");
    assert_eq!(kind(&ground, &error), (ErrorKind::Conflict, Code::StoreConflict), "{error}");
    let again = insert(&mut tx, "after").await.expect_err("the transaction is over");
    assert_eq!(kind(&ground, &again), (ErrorKind::Conflict, Code::StoreConflict), "{again}");
    let error = ground.store.finish(tx).await.expect_err("nothing is committed");
    assert_eq!((error.kind(), error.code()), (ErrorKind::Broken, Code::TransactionBroken), "{error}");

    ground.store.finish(rival).await.expect("the first one commits");
    assert_eq!(ground.count().await, 1);
    assert!(ground.claim(&[key("m1")]).await.1[0].is_ours());
}

/// An error of Hapax's own in the handler's transaction ends it just the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_parking_that_conflicts_is_nobodys_attempt() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let (mut tx, _) = ground.claim(&[key("m1")]).await;
    let other_place = doc! { "_id": 7_i64, "consumer": "orders", "message": "m1" };
    let waiting = ground.database.collection::<Document>("hapax_waiting");
    waiting.insert_one(other_place).await.expect("somebody parks it meanwhile");

    let message = RawMessage {
        id: key("m1").id,
        kind: String::new(),
        key: None,
        sent_at: None,
        digest: key("m1").digest,
        payload: "m1".into(),
        envelope: hapax_core::Envelope::new("m1"),
    };
    let parking = Parking {
        message: &message,
        failures: 0,
        error: "",
        code: None,
        wait: std::time::Duration::ZERO,
        order: None,
    };
    let error = ground.store.park(&mut tx, &ground.consumer, &parking).await.expect_err("it conflicts");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(ground.store.finish(tx).await.expect_err("it is over").kind(), ErrorKind::Broken);
}

/// An operation whose future a handler drops may have run or not: nobody knows, so nothing is committed.
#[tokio::test(flavor = "multi_thread")]
async fn case_43_a_handler_that_drops_an_operation_commits_nothing() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let (mut tx, _) = ground.claim(&[key("m1")]).await;
    {
        let mut dropped = std::pin::pin!(insert(&mut tx, "dropped"));
        let first =
            std::future::poll_fn(|context| std::task::Poll::Ready(dropped.as_mut().poll(context))).await;
        assert!(first.is_pending(), "an answer takes longer than one poll");
    }
    let error = insert(&mut tx, "after").await.expect_err("nobody knows");
    assert_eq!(kind(&ground, &error), (ErrorKind::Broken, Code::TransactionBroken), "{error}");
    let error = ground.store.finish(tx).await.expect_err("nothing is committed");
    assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    assert_eq!(ground.count().await, 0);
}

/// Not what the accounts look like.
#[derive(Debug, serde::Deserialize)]
struct Owned {
    #[expect(dead_code, reason = "it is not there")]
    owner: String,
}

/// What went wrong on our own side has not touched the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_the_driver_refuses_harms_nothing() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let mut tx = ground.begin().await;
    let replacement = doc! { "total": 1_i64 };
    let refused = tx.collection::<Document>(ACCOUNTS).update_one(doc! { "_id": "a" }, replacement).await;
    refused.expect_err("an update has operators");
    insert(&mut tx, "a").await.expect("it is inserted");
    let unread = tx.collection::<Owned>(ACCOUNTS).find_one(doc! { "_id": "a" }).await;
    unread.expect_err("the document has no owner");
    ground.store.finish(tx).await.expect("the transaction commits");
    assert_eq!(ground.count().await, 1);
}
