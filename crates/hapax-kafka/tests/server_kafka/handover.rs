//! One member's partitions become another's.

use std::collections::BTreeMap;
use std::time::Duration;

use hapax_core::{Envelope, Fetched, Outgoing, Publisher, Source};
use hapax_kafka::{Kafka, KafkaSource};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::broker::SOON;
use crate::by_hand::{acks, numbers, settle, take};

/// Publishes numbers, each under a key of its own, so that they spread over the partitions.
pub(crate) async fn spread(kafka: &Kafka, topic: &str, numbers: std::ops::Range<u32>) {
    let message = |number: u32| Outgoing {
        envelope: Envelope::new(number.to_string()).with_id(number.to_string()),
        destination: topic.into(),
        routing_key: number.to_string(),
    };
    for result in kafka.publisher().publish(numbers.map(message).collect()).await {
        result.unwrap();
    }
}

/// A second member that acks whatever it gets, and tells.
fn acking(kafka: &Kafka, topic: &str) -> mpsc::UnboundedReceiver<u32> {
    let mut source = kafka.source([topic], topic);
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(fetched) = source.next(10).await {
            let Fetched::Batch(batch) = fetched else { continue };
            if numbers(&batch).into_iter().any(|number| tell.send(number).is_err()) {
                return;
            }
            settle(&source, acks(batch)).await;
        }
    });
    told
}

/// Goes on taking and acking until `done`, and counts how often each number came.
async fn go_on(
    source: &mut KafkaSource,
    other: &mut mpsc::UnboundedReceiver<u32>,
    came: &mut BTreeMap<u32, usize>,
    total: usize,
) {
    let all = async {
        while came.len() < total {
            tokio::select! {
                fetched = source.next(10) => {
                    let Fetched::Batch(batch) = fetched.unwrap() else { continue };
                    numbers(&batch).into_iter().for_each(|number| *came.entry(number).or_default() += 1);
                    settle(source, acks(batch)).await;
                }
                Some(number) = other.recv() => *came.entry(number).or_default() += 1,
            }
        }
    };
    let all = timeout(SOON, all).await;
    assert!(all.is_ok(), "only these came: {came:?}");
}

/// The story of case 18, on a topic of several partitions: a second member joins while the first has deliveries in
/// hand.
pub(crate) async fn a_revoked_partition_is_finished_and_committed_first(kafka: &Kafka, topic: &str) {
    spread(kafka, topic, 0..60).await;
    let mut first = kafka.source([topic], topic);
    first.prepare(100).await.unwrap();
    let mut in_hand = take(&mut first, 30).await;
    let mut came: BTreeMap<u32, usize> = numbers(&in_hand).into_iter().map(|number| (number, 1)).collect();

    let mut second = acking(kafka, topic);
    // The group now waits for the first member, whose handlers go on one by one.
    while let Some(delivery) = in_hand.pop() {
        settle(&first, vec![delivery.ack()]).await;
        sleep(Duration::from_millis(50)).await; // a handler's work
    }
    go_on(&mut first, &mut second, &mut came, 60).await;
    assert!(came.values().all(|times| *times == 1), "none doubled: {came:?}");
}
