//! FIFO queues: groups are lanes.

use std::time::Duration;

use hapax_core::{
    Code, DEAD_LETTER_HEADER, Delivery, Envelope, ErrorKind, Outgoing, Publisher as _, Settler as _,
    Source as _,
};
use hapax_sqs::SqsSource;
use hapax_testkit::conformance::source::{SourceFixture, lanes, run};
use hapax_testkit::servers::{Server, require};

use crate::broker::{Queue, SMALL, keyed, kind_and_code, message, sqs};
use crate::by_hand::{acks, nothing_comes, numbers, settle_all, source, take};

/// A FIFO queue for the suite's case about lanes; its other cases want messages without a key to come side by side,
/// which in one group they do not.
struct OnFifo(Queue);

impl SourceFixture for OnFifo {
    type Source = SqsSource;

    async fn fresh() -> Option<Self> {
        if !require(Server::Sqs) {
            return None;
        }
        Some(Self(Queue::fifo("lanes", 30).await))
    }

    async fn publish(&self, envelope: Envelope) {
        sqs().publisher().publish_all(vec![Outgoing::to_queue(&self.0.name, envelope)]).await.unwrap();
    }

    async fn source(&self) -> SqsSource {
        sqs().source(&self.0.name).wait_time(Duration::from_secs(1))
    }
}

impl Drop for OnFifo {
    fn drop(&mut self) {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(self.0.delete()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_messages_of_a_group_come_in_order_and_in_a_lane() {
    Box::pin(run(async |fixture: &OnFifo| lanes::the_messages_of_a_lane_come_in_order(fixture).await)).await;
}

#[tokio::test]
async fn a_message_that_is_not_taken_is_not_overtaken_by_those_behind_it() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::fifo_of_small_messages("not_overtaken").await;
    let mut messages: Vec<_> =
        [(0, "a"), (1, "a"), (2, "b"), (3, "a"), (4, "b")].map(|(n, key)| keyed(&queue.name, n, key)).into();
    messages[1].envelope.body = "x".repeat(SMALL + 1).into();
    let results = sqs().publisher().publish(messages).await;
    let failed: Vec<_> = results
        .iter()
        .enumerate()
        .filter_map(|(n, result)| result.as_ref().err().map(|error| (n, kind_and_code(error))))
        .collect();
    assert_eq!(
        failed,
        [(1, (ErrorKind::Statement, Code::NotPublished)), (3, (ErrorKind::Unavailable, Code::NotPublished))]
    );
    let mut source = source(&sqs(), &queue, 10).await;
    let mut came = numbers(&take(&mut source, 3).await);
    came.sort_unstable();
    assert_eq!(came, [0, 2, 4]);
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn what_goes_back_takes_those_behind_it_along() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::fifo("goes_back", 30).await;
    let messages = [(0, "a"), (1, "a"), (2, "a"), (3, "b")].map(|(n, key)| keyed(&queue.name, n, key));
    sqs().publisher().publish_all(messages.into()).await.unwrap();
    let mut source = source(&sqs(), &queue, 10).await;
    let settler = source.settler();
    let mut deliveries = take(&mut source, 4).await;
    deliveries.sort_by_key(|delivery| numbers([delivery]));
    let first = deliveries.remove(0);
    assert_eq!(first.lane.as_ref().map(|lane| &*lane.0), Some("a"));
    assert!(deliveries.iter().all(|delivery| settler.holds(delivery.receipt())));
    settle_all(&source, vec![first.hand_back()]).await;
    let held: Vec<u32> = numbers(deliveries.iter().filter(|delivery| settler.holds(delivery.receipt())));
    assert_eq!(held, [3], "the other group goes on");

    let rest = deliveries.into_iter().map(Delivery::hand_back).collect();
    settle_all(&source, rest).await;
    let mut again = take(&mut source, 4).await;
    again.retain(|delivery| delivery.envelope.properties.key.as_deref() == Some("a"));
    assert_eq!(numbers(&again), [0, 1, 2], "in order, again");
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_copy_is_dropped_by_sqs_and_a_dead_letter_that_returns_is_not() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::fifo("copies", 30).await;
    let copy = || message(&queue.name, 7);
    let mut returned = copy();
    returned.envelope.headers.set(DEAD_LETTER_HEADER, "1");
    sqs().publisher().publish_all(vec![copy(), copy(), returned]).await.unwrap();
    let mut source = source(&sqs(), &queue, 10).await;
    let deliveries = take(&mut source, 2).await;
    assert!(
        deliveries
            .iter()
            .all(|delivery| delivery.envelope.properties.key.is_none() && delivery.lane.is_some())
    );
    settle_all(&source, acks(deliveries)).await;
    assert!(nothing_comes(&mut source, Duration::from_secs(1)).await);
    source.close().await;
    queue.delete().await;
}
