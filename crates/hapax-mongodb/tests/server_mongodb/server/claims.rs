//! Claims among rivals.

use std::time::Duration;

use hapax_core::{Claim, Instances as _, Key, Settled, Store as _, Transaction as _, WaitingRoom as _};
use hapax_mongodb::mongodb::Client;
use hapax_mongodb::mongodb::bson::{Document, doc};
use hapax_mongodb::mongodb::options::ClientOptions;
use hapax_testkit::servers::{MongoDatabase, Server, eventually, require};
use tokio::time::timeout;

use super::ground::{ACCOUNTS, Ground, insert, key};

/// Longer than an answer that waits for nobody takes.
const AT_ONCE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_a_rivals_hands_is_busy_at_once_and_never_a_duplicate() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let (rival, _) = ground.claim(&[key("m1")]).await;
    let (tx, claims) = timeout(AT_ONCE, ground.claim(&[key("m1")])).await.expect("nobody is waited for");
    assert_eq!(claims, [Claim::Busy]);
    ground.store.roll_back(tx).await;
    ground.store.finish(rival).await.expect("the first one commits");
    assert_eq!(ground.claim(&[key("m1")]).await.1, [Claim::Duplicate { other_payload: false }]);
}

/// The transaction in which a claim is Busy is a good one.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_takes_all_but_those_that_rivals_hold() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let held = [3, 31, 32, 49].map(|n| format!("m{n}"));
    let keys: Vec<Key> = (0..50).map(|n| key(&format!("m{n}"))).collect();
    let done = ground.claim(&[key("m7")]).await.0;
    ground.store.finish(done).await.expect("one is done");
    let (rival, _) = ground.claim(&held.each_ref().map(|id| key(id))).await;

    let (mut tx, claims) = timeout(AT_ONCE, ground.claim(&keys)).await.expect("nobody is waited for");
    for (key, claim) in keys.iter().zip(&claims) {
        let expected = match key.id.as_str() {
            "m7" => Claim::Duplicate { other_payload: false },
            id if held.iter().any(|held| held == id) => Claim::Busy,
            _ => Claim::New,
        };
        assert_eq!(*claim, expected, "{}", key.id);
    }
    insert(&mut tx, "effect").await.expect("the transaction is open");
    ground.store.finish(tx).await.expect("it commits");
    assert_eq!(ground.count().await, 1);
    ground.store.roll_back(rival).await;
    let claims = ground.claim(&keys).await.1;
    assert_eq!(claims.iter().filter(|claim| **claim == Claim::New).count(), held.len());
}

/// The same where rivals hold every one of many.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_rivals_hold_whole_ends_all_the_same() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let keys: Vec<Key> = (0..200).map(|n| key(&format!("m{n}"))).collect();
    let (rival, _) = ground.claim(&keys).await;
    let (mut tx, claims) = timeout(AT_ONCE, ground.claim(&keys)).await.expect("nobody is waited for");
    assert!(claims.iter().all(|claim| *claim == Claim::Busy));
    insert(&mut tx, "effect").await.expect("the transaction is open");
    ground.store.finish(tx).await.expect("it commits");
    ground.store.roll_back(rival).await;
}

/// As a process does that is killed: its connections close, and nobody ends its transaction.
#[tokio::test(flavor = "multi_thread")]
async fn case_05_a_transaction_whose_process_is_gone_holds_up_nobody_for_long() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let mut options = ClientOptions::parse(database.url()).await.expect("a URL");
    options.app_name = Some("hapax".to_owned());
    let gone = Client::with_options(options).expect("a client");
    let mut session = gone.start_session().await.expect("a session");
    session.start_transaction().await.expect("it begins");
    let inbox = gone.database(database.name()).collection::<Document>("hapax_inbox");
    let held = doc! { "_id": { "consumer": "orders", "message": "m1" } };
    inbox.insert_one(held).session(&mut session).await.expect("it is claimed");

    let (tx, claims) = ground.claim(&[key("m1")]).await;
    assert_eq!(claims, [Claim::Busy], "as long as its process may live");
    ground.store.roll_back(tx).await;
    std::mem::forget(session);
    gone.shutdown().immediate(true).await;
    eventually("the message is free", AT_ONCE, async || {
        let (tx, claims) = ground.claim(&[key("m1")]).await;
        ground.store.roll_back(tx).await;
        claims == [Claim::New]
    })
    .await;
}

/// Renewing a lease writes nothing that the handler's transaction writes, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_renewed_while_the_handler_runs_stops_no_commit() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let place = ground.park("m1", None).await;
    let (mut tx, claims) = ground.claim(&[Key { place: Some(place), ..key("m1") }]).await;
    assert_eq!(claims, [Claim::New]);
    insert(&mut tx, "effect").await.expect("it is inserted");
    ground.store.renew(&ground.consumer, &[place], AT_ONCE).await.expect("the lease is renewed");
    tx.meta().settled.push(Settled::Waiting(place));
    ground.store.finish(tx).await.expect("it commits");
    let left = ground.database.collection::<Document>("hapax_leases").count_documents(doc! {}).await;
    assert_eq!(left.expect("it counts"), 0, "the lease goes with the message");
}

/// A lease that was left behind, as by a process that died after its commit, is void when its place is used again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_an_earlier_turn_counts_for_nothing() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let place = ground.park("m1", None).await;
    let (mut tx, _) = ground.claim(&[Key { place: Some(place), ..key("m1") }]).await;
    ground.park_in(&mut tx, "m1", None).await;
    ground.store.finish(tx).await.expect("it is parked again, under the lease that it has");
    let leased = ground.store.lease(&ground.consumer, 10, AT_ONCE).await.expect("the room answers");
    assert_eq!(leased.len(), 1);
    assert_eq!((leased[0].place, leased[0].leased_before), (place, false));
}

/// Texts that MongoDB could take for the name of a field are texts.
#[tokio::test(flavor = "multi_thread")]
async fn case_36_texts_that_look_like_operators_are_kept_as_they_are() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    for id in ["$state", "$$NOW", "a.b", "{\"$gt\": \"\"}"] {
        ground.park(id, None).await;
        let row = ground.store.waiting(&ground.consumer, &key(id).id).await.expect("the room answers");
        assert_eq!(row.expect("it waits").error, "$error");
        let claims = ground.claim(&[key(id)]).await.1;
        assert_eq!(claims, [Claim::Waiting { other_payload: false }], "{id}");
        let charged = ground.store.charge_start(&ground.consumer, &key(&format!("{id}?")), 3).await;
        assert_eq!(charged.expect("an answer"), hapax_core::Start::Charged);
    }
    assert_eq!(ground.database.collection::<Document>(ACCOUNTS).name(), ACCOUNTS);
}
