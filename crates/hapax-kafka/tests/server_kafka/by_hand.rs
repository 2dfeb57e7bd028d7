//! Consuming by hand.

use std::time::Duration;

use hapax_core::{Delivery, Fetched, Lane, Settlement, Settler, Source};
use hapax_kafka::{KafkaSource, Receipt};
use tokio::time::timeout;

use crate::broker::SOON;

/// Long enough for a delivery to arrive that should not.
const A_MOMENT: Duration = Duration::from_millis(500);

/// Waits until so many deliveries have come.
pub(crate) async fn take(source: &mut KafkaSource, count: usize) -> Vec<Delivery<Receipt>> {
    let mut deliveries = Vec::new();
    while deliveries.len() < count {
        let fetched = timeout(SOON, source.next(count - deliveries.len())).await;
        let fetched = fetched.unwrap_or_else(|_| panic!("only {:?} came", numbers(&deliveries)));
        if let Fetched::Batch(batch) = fetched.unwrap() {
            deliveries.extend(batch);
        }
    }
    deliveries
}

/// Waits until lanes are lost.
pub(crate) async fn loss(source: &mut KafkaSource) -> Vec<Lane> {
    loop {
        match timeout(SOON, source.next(1)).await.expect("a loss").unwrap() {
            Fetched::Lost(lanes) => return lanes,
            Fetched::Batch(_) => {}
            _ => panic!("the source has ended"),
        }
    }
}

pub(crate) async fn nothing_comes(source: &mut KafkaSource) -> bool {
    timeout(A_MOMENT, source.next(1)).await.is_err()
}

pub(crate) fn numbers<'d>(deliveries: impl IntoIterator<Item = &'d Delivery<Receipt>>) -> Vec<u32> {
    let number =
        |delivery: &Delivery<Receipt>| String::from_utf8_lossy(&delivery.envelope.body).parse().unwrap();
    deliveries.into_iter().map(number).collect()
}

pub(crate) fn acks(deliveries: Vec<Delivery<Receipt>>) -> Vec<Settlement<Receipt>> {
    deliveries.into_iter().map(Delivery::ack).collect()
}

pub(crate) async fn settle(source: &KafkaSource, settlements: Vec<Settlement<Receipt>>) {
    for result in source.settler().settle(settlements).await {
        result.unwrap();
    }
}
