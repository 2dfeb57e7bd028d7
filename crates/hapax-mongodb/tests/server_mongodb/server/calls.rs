//! The record of calls.

use std::time::Duration;

use hapax_core::{
    CallRecords as _, CallRequest, CallState, ConsumerName, Fence, Inbox as _, MessageId, Retention as _,
};
use hapax_testkit::servers::{MongoDatabase, Server, eventually, require};

use super::ground::{Ground, key};

const LONG: Duration = Duration::from_mins(10);
const SHORT: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_secs(10);

/// The call `charge` of the message `m1`.
fn call<'c>(ground: &'c Ground, id: &'c MessageId) -> CallRequest<'c> {
    CallRequest {
        consumer: &ground.consumer,
        id,
        label: "charge",
        request: b"5 EUR",
        lease: LONG,
        key_valid_for: LONG,
    }
}

async fn begin(ground: &Ground, call: &CallRequest<'_>) -> CallState {
    ground.store.begin_call(call).await.expect("an answer")
}

async fn ours(ground: &Ground, call: &CallRequest<'_>) -> (Fence, bool) {
    match begin(ground, call).await {
        CallState::Ours { fence, begun_before, .. } => (fence, begun_before),
        other => panic!("it is not ours but {other:?}"),
    }
}

/// Begins a call from many sides at once, and says how many got it.
async fn winners(ground: &Ground, label: &'static str) -> usize {
    let rivals = (0..12).map(|_| {
        let (store, consumer) = (ground.store.clone(), ground.consumer.clone());
        tokio::spawn(async move {
            let id = key("m1").id;
            let (lease, key_valid_for) = (LONG, LONG);
            let call =
                CallRequest { consumer: &consumer, id: &id, label, request: b"r", lease, key_valid_for };
            store.begin_call(&call).await
        })
    });
    let mut ours = 0;
    for rival in rivals.collect::<Vec<_>>() {
        match rival.await.expect("no panic").expect("an answer") {
            CallState::Ours { .. } => ours += 1,
            CallState::Running { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    ours
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_rivals_makes_a_call_and_one_of_many_repeats_it() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    assert_eq!(winners(&ground, "charge").await, 1);

    let id = key("m1").id;
    let ended = CallRequest { label: "mail", request: b"r", lease: Duration::ZERO, ..call(&ground, &id) };
    let (first, _) = ours(&ground, &ended).await;
    assert_eq!(winners(&ground, "mail").await, 1);
    assert!(!ground.store.end_call(&ended, first, b"late").await.expect("an answer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_made_is_answered_from_the_record() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let id = key("m1").id;
    let charge = call(&ground, &id);
    let other = CallRequest { request: b"7 EUR", ..charge };
    let (fence, begun_before) = ours(&ground, &charge).await;
    assert!(!begun_before);
    let CallState::Running { ends_in } = begin(&ground, &charge).await else { panic!("somebody is at it") };
    assert!(ends_in <= LONG && ends_in > LONG / 2, "{ends_in:?}");
    assert_eq!(begin(&ground, &other).await, CallState::OtherRequest);
    assert!(ground.store.renew_call(&charge, fence).await.expect("an answer"));

    assert!(ground.store.end_call(&charge, fence, b"paid").await.expect("an answer"));
    assert_eq!(begin(&ground, &charge).await, CallState::Finished("paid".into()));
    assert_eq!(begin(&ground, &other).await, CallState::OtherRequest);
    assert!(!ground.store.end_call(&charge, fence, b"twice").await.expect("an answer"));
    assert!(!ground.store.renew_call(&charge, fence).await.expect("an answer"));
    ground.store.release_call(&charge, fence).await.expect("an answer");
    assert_eq!(begin(&ground, &charge).await, CallState::Finished("paid".into()), "what is made stays made");

    // Under its other labels the message has other calls.
    ours(&ground, &CallRequest { label: "a later one", ..charge }).await;
    let rows = ground.store.calls(&ground.consumer, &id).await.expect("they are listed");
    let labels: Vec<&str> = rows.iter().map(|row| row.label.as_str()).collect();
    assert_eq!(labels, ["charge", "a later one"], "in the order in which they were made");
    assert_eq!((rows[0].request.as_ref(), rows[0].result.as_deref()), (&b"5 EUR"[..], Some(&b"paid"[..])));
    assert!(rows[0].finished_at.is_some() && rows[0].lease_until.is_none());
    assert!(rows[0].started_at.until(rows[0].key_valid_until) >= LONG);
    assert!(rows[1].finished_at.is_none() && rows[1].result.is_none() && rows[1].lease_until.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_result_is_repeated_as_long_as_its_key_is_known() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let id = key("m1").id;
    let charge = CallRequest { lease: Duration::ZERO, key_valid_for: SHORT, ..call(&ground, &id) };
    let (first, _) = ours(&ground, &charge).await;
    // How long the key is known is counted from the first time.
    let again = CallRequest { lease: LONG, key_valid_for: LONG, ..charge };
    let (second, begun_before) = ours(&ground, &again).await;
    assert!(begun_before && second > first);
    assert!(!ground.store.end_call(&charge, first, b"late").await.expect("an answer"));
    ground.store.release_call(&charge, first).await.expect("an answer");
    assert!(
        matches!(begin(&ground, &again).await, CallState::Running { .. }),
        "a late loser releases nothing"
    );

    ground.store.release_call(&again, second).await.expect("an answer");
    tokio::time::sleep(SHORT + SHORT / 4).await; // the key has to become invalid
    assert_eq!(begin(&ground, &again).await, CallState::Expired);
    assert_eq!(begin(&ground, &CallRequest { request: b"7 EUR", ..again }).await, CallState::OtherRequest);
    assert!(
        ground.store.end_call(&again, second, b"paid").await.expect("an answer"),
        "nobody has taken it over"
    );
    assert_eq!(begin(&ground, &again).await, CallState::Finished("paid".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_where_their_message_goes() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let mut ground = Ground::new(database.url()).await;
    let (first, other) = (key("m1").id, key("m2").id);
    for id in [&first, &other] {
        ours(&ground, &call(&ground, id)).await;
    }
    let sales = ConsumerName::new("sales").expect("a name");
    ground.store.rename(&ground.consumer, &sales).await.expect("it is renamed");
    assert!(ground.store.calls(&ground.consumer, &first).await.expect("they are listed").is_empty());
    let taken = ground.store.rename(&ConsumerName::new("third").expect("a name"), &sales).await;
    taken.expect_err("the new name has calls");
    ground.consumer = sales;
    let calls = async |id| ground.store.calls(&ground.consumer, id).await.expect("they are listed").len();
    assert_eq!((calls(&first).await, calls(&other).await), (1, 1));

    assert!(ground.store.record(&ground.consumer, &key("m1")).await.expect("it is recorded"));
    eventually("it is purged", SOON, async || {
        ground.store.purge(&ground.consumer, Duration::ZERO, 10).await.expect("a purge").rows == 1
    })
    .await;
    assert_eq!((calls(&first).await, calls(&other).await), (0, 1));
}
