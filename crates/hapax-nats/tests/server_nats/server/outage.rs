//! A broker that is really stopped.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_core::{Publisher, Settler, Source};
use hapax_nats::{Nats, NatsPublisher};
use hapax_testkit::servers::{PrivateNats, Server, eventually, require};
use tokio::time::{sleep, timeout};

use crate::broker::{ACK_WAIT, CONSUMER, SOON, message};
use crate::by_hand::{acks, numbers, take};

const STREAM: &str = "orders";
const MESSAGES: u32 = 300;

/// Killed with deliveries in hand and publishes under way: what was acknowledged arrives, and copies are
/// all that an outage adds.
#[tokio::test(flavor = "multi_thread")]
async fn case_17_a_killed_private_broker_loses_nothing_that_was_acknowledged() {
    if !require(Server::PrivateNats) {
        return;
    }
    let mut server = PrivateNats::start().await.unwrap();
    let broker = Nats::new(&server.url()).unwrap();
    let mut source = broker.source(STREAM, CONSUMER).declare().ack_wait(ACK_WAIT);
    source.prepare(50).await.unwrap();

    let publishing = tokio::spawn(publish_all(broker.publisher()));
    let in_hand = take(&mut source, 20).await;
    server.stop().await.unwrap();
    eventually("the loss is noticed", SOON, async || !source.is_connected()).await;
    // The ack wait passes while there is nobody to ack to.
    let settler = source.settler();
    let told = timeout(SOON, settler.settle(acks(in_hand))).await.expect("settling ends");
    assert!(told.iter().all(Result::is_err), "no server heard it");
    server.start_again().await.unwrap();

    let mut arrived = BTreeSet::new();
    while arrived.len() < MESSAGES as usize {
        let batch = timeout(SOON, take(&mut source, 1)).await.expect("all that was acknowledged");
        arrived.extend(numbers(&batch));
        source.settler().settle(acks(batch)).await;
    }
    timeout(SOON, publishing).await.unwrap().unwrap();
    source.close().await;
}

/// As a relay does: again under the same id until it is acknowledged.
async fn publish_all(publisher: NatsPublisher) {
    for number in 0..MESSAGES {
        while publisher.publish(vec![message(STREAM, number)]).await.iter().any(Result::is_err) {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(5)).await; // so that the broker is stopped in the middle
    }
}
