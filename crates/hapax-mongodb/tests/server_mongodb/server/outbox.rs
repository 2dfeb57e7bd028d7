//! The outbox: what it costs to write into it, and in whose order it is read.

use std::time::Duration;

use hapax_core::{
    BUCKETS, Code, InstanceId, NotSent, OnFailure, Outbox as _, OutboxFilter, OutboxNumber, Publication,
    Store as _, Take, Then, Unsent,
};
use hapax_mongodb::MongoStore;
use hapax_mongodb::mongodb::bson::{Bson, doc};
use hapax_testkit::servers::{MongoDatabase, PrivateMongo, Server, require};

use super::ground::{Ground, key};

const LONG: Duration = Duration::from_mins(1);

/// How many commands the server was given that read, write or end a transaction.
async fn commands(ground: &Ground) -> i64 {
    let status = doc! { "serverStatus": 1 };
    let status = ground.database.client().database("admin").run_command(status).await.expect("it answers");
    let counts = status.get_document("metrics").and_then(|metrics| metrics.get_document("commands"));
    let counts = counts.expect("commands are counted");
    let count = |name: &str| match counts.get_document(name).ok().and_then(|count| count.get("total")) {
        Some(Bson::Int64(count)) => *count,
        _ => 0,
    };
    let names = ["aggregate", "find", "getMore", "insert", "update", "delete", "findAndModify"];
    names.iter().chain(&["commitTransaction", "abortTransaction"]).map(|name| count(name)).sum()
}

/// What a message's transaction costs that publishes so many: the least of some, since the server has commands of its
/// own at times.
async fn cost(ground: &Ground, published: usize) -> i64 {
    let mut least = i64::MAX;
    for run in 0..5 {
        let before = commands(ground).await;
        let (mut tx, _) = ground.claim(&[key(&format!("{published} {run}"))]).await;
        for number in 0..published {
            let id = key(&format!("{published} {run} {number}")).id;
            tx.publish(Publication::bytes("Paid", "1").id(id)).expect("it can be published");
        }
        ground.store.finish(tx).await.expect("it commits");
        least = least.min(commands(ground).await - before);
    }
    least
}

#[tokio::test(flavor = "multi_thread")]
async fn to_publish_is_one_command_more_on_a_private_server() {
    if !require(Server::PrivateMongo) {
        return;
    }
    let server = PrivateMongo::start().await.expect("a server of its own");
    let ground = Ground::new(&server.url("shop")).await;
    let nothing = cost(&ground, 0).await;
    assert_eq!(cost(&ground, 1).await, nothing + 1);
    assert_eq!(cost(&ground, 100).await, nothing + 1);
    assert_eq!(cost(&ground, 2_000).await, nothing + 2, "each of these takes numbers, too");
    let counted = ground.store.count_outbox(&OutboxFilter::default()).await;
    assert_eq!(counted.expect("a count"), 5 * (1 + 100 + 2_000), "none was given twice");
}

/// Publishes a message of the key `k` in a transaction of its own.
async fn publish(ground: &Ground, store: &MongoStore, body: &'static str) {
    let request = hapax_core::ClaimRequest::none(&ground.consumer);
    let (mut tx, _) = store.begin_claim(&request).await.expect("it begins");
    let publication = Publication::bytes("Paid", body).key("k").id(key(body).id);
    tx.publish(publication).expect("it can be published");
    store.finish(tx).await.expect("it commits");
}

async fn unsent(ground: &Ground, relay: &InstanceId) -> Vec<Unsent> {
    let take = Take { relay, max: 10, on_failure: OnFailure::Block, away: &[] };
    ground.store.unsent(&take).await.expect("the outbox is read")
}

async fn retried_later(ground: &Ground, number: OutboxNumber) {
    let then = Then::Retry(LONG);
    let rows = [NotSent { number, code: Code::NotPublished, error: "routed nowhere", then }];
    ground.store.not_sent(&rows).await.expect("the reason is noted");
}

/// Each process takes numbers for many rows at once: their order says nothing about that of the transactions.
#[tokio::test(flavor = "multi_thread")]
async fn case_28_messages_of_a_key_come_in_the_order_of_their_transactions_whatever_their_numbers() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let other = MongoStore::connect(database.url()).await.expect("the store opens");
    let relay = InstanceId("relay 1".into());
    let buckets = ground.store.share_buckets(&relay, LONG).await.expect("buckets are shared");
    assert_eq!(buckets.len(), usize::from(BUCKETS));

    publish(&ground, &ground.store, "1").await;
    publish(&ground, &other, "2").await;
    publish(&ground, &ground.store, "3").await;
    publish(&ground, &other, "4").await;
    let rows = unsent(&ground, &relay).await;
    let bodies: Vec<&[u8]> = rows.iter().map(|row| &row.envelope.body[..]).collect();
    assert_eq!(bodies, [b"1", b"2", b"3", b"4"]);
    let numbers: Vec<OutboxNumber> = rows.iter().map(|row| row.number).collect();
    assert!(numbers[1] > numbers[2], "not the order of their numbers: {numbers:?}");

    retried_later(&ground, numbers[1]).await;
    let rows = unsent(&ground, &relay).await;
    assert_eq!(
        rows.iter().map(|row| row.number).collect::<Vec<_>>(),
        numbers[..1],
        "the rest stands behind it"
    );
}
