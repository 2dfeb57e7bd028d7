//! A server that is really stopped.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_core::{Publisher, Settler, Source};
use hapax_redis::{Redis, RedisPublisher};
use hapax_testkit::servers::{PrivateRedis, Server, eventually, require};
use tokio::time::{sleep, timeout};

use crate::broker::{GROUP, LEASE, SOON, message};
use crate::by_hand::{acks, numbers, take};

const STREAM: &str = "orders";
const MESSAGES: u32 = 300;

/// Killed with deliveries in hand and publishes under way: with `appendfsync always`, what was confirmed arrives,
/// and copies are all that an outage adds.
#[tokio::test(flavor = "multi_thread")]
async fn case_17_a_killed_private_server_loses_nothing_that_was_confirmed() {
    if !require(Server::PrivateRedis) {
        return;
    }
    let mut server = PrivateRedis::start().await.unwrap();
    let broker = Redis::new(&server.url()).unwrap();
    let mut source = broker.source(STREAM, GROUP).declare().lease(LEASE);
    source.prepare(50).await.unwrap();

    let publishing = tokio::spawn(publish_all(broker.publisher()));
    let in_hand = take(&mut source, 20).await;
    server.stop().await.unwrap();
    eventually("the loss is noticed", SOON, async || !source.is_connected()).await;
    let settler = source.settler();
    let told = timeout(SOON, settler.settle(acks(in_hand))).await.expect("settling ends");
    assert!(told.iter().all(Result::is_err), "no server heard it");
    server.start_again().await.unwrap();

    let mut arrived = BTreeSet::new();
    while arrived.len() < MESSAGES as usize {
        let batch = timeout(SOON, take(&mut source, 1)).await.expect("all that was confirmed");
        arrived.extend(numbers(&batch));
        source.settler().settle(acks(batch)).await;
    }
    timeout(SOON, publishing).await.unwrap().unwrap();
    source.close().await;
}

/// As a relay does: again under the same id until it is confirmed.
async fn publish_all(publisher: RedisPublisher) {
    for number in 0..MESSAGES {
        while publisher.publish(vec![message(STREAM, number)]).await.iter().any(Result::is_err) {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(5)).await; // so that the server is stopped in the middle
    }
}
