//! A broker that is really stopped.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_core::{Delivery, Publisher, Settler, Source};
use hapax_rabbitmq::{RabbitMq, RabbitPublisher};
use hapax_testkit::servers::{PrivateRabbit, Server, eventually, require};
use tokio::time::{sleep, timeout};

use crate::broker::message;
use crate::by_hand::{acks, numbers, take};

const QUEUE: &str = "orders";
const MESSAGES: u32 = 300;
/// A node takes its time to start on a busy machine.
const AFTER_A_RESTART: Duration = Duration::from_mins(2);

/// Killed with deliveries in hand and publishes under way: what was confirmed arrives, and copies are
/// all that an outage adds.
#[tokio::test(flavor = "multi_thread")]
async fn case_17_a_killed_broker_loses_nothing_that_was_confirmed() {
    if !require(Server::PrivateRabbit) {
        return;
    }
    let mut node = PrivateRabbit::start().await.unwrap();
    let broker = RabbitMq::new(&node.url()).unwrap();
    let publisher = broker.publisher();
    publisher.declare_queue(QUEUE).await.unwrap();
    let mut source = broker.source(QUEUE);
    source.prepare(50).await.unwrap();

    let publishing = tokio::spawn(publish_all(publisher));
    let in_hand = take(&mut source, 20).await;
    node.stop().await.unwrap();
    eventually("the loss is noticed", AFTER_A_RESTART, async || !source.is_connected()).await;
    let stale: Vec<_> = in_hand.into_iter().map(Delivery::ack).collect();
    assert!(source.settler().settle(stale).await.iter().all(Result::is_ok), "discarded without a word");
    node.start_again().await.unwrap();

    let mut arrived = BTreeSet::new();
    while arrived.len() < MESSAGES as usize {
        let batch = timeout(AFTER_A_RESTART, take(&mut source, 1)).await.expect("all that was confirmed");
        arrived.extend(numbers(&batch));
        source.settler().settle(acks(batch)).await;
    }
    timeout(AFTER_A_RESTART, publishing).await.unwrap().unwrap();
    source.close().await;
}

/// As a relay does: again under the same id until it is confirmed.
async fn publish_all(publisher: RabbitPublisher) {
    for number in 0..MESSAGES {
        while publisher.publish(vec![message(QUEUE, number)]).await.iter().any(Result::is_err) {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(5)).await; // so that the broker is stopped in the middle
    }
}
