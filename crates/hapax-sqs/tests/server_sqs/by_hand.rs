//! Consuming by hand.

use std::time::Duration;

use hapax_core::{Delivery, Error, Fetched, Settlement, Settler as _, Source as _};
use hapax_sqs::{Receipt, Sqs, SqsSource};
use tokio::time::timeout;

use crate::broker::{Queue, SOON};

pub(crate) async fn source(broker: &Sqs, queue: &Queue, in_flight: usize) -> SqsSource {
    let mut source = broker.source(&queue.name).wait_time(Duration::from_secs(1));
    source.prepare(in_flight).await.unwrap();
    source
}

/// Waits until so many deliveries have come.
pub(crate) async fn take(source: &mut SqsSource, count: usize) -> Vec<Delivery<Receipt>> {
    let mut deliveries = Vec::new();
    while deliveries.len() < count {
        let fetched = timeout(SOON, source.next(count - deliveries.len())).await.expect("deliveries");
        let Fetched::Batch(batch) = fetched.unwrap() else { panic!("deliveries, not the end") };
        deliveries.extend(batch);
    }
    deliveries
}

pub(crate) async fn nothing_comes(source: &mut SqsSource, within: Duration) -> bool {
    timeout(within, source.next(10)).await.is_err()
}

pub(crate) fn numbers<'d>(deliveries: impl IntoIterator<Item = &'d Delivery<Receipt>>) -> Vec<u32> {
    let number =
        |delivery: &Delivery<Receipt>| String::from_utf8_lossy(&delivery.envelope.body).parse().unwrap();
    deliveries.into_iter().map(number).collect()
}

pub(crate) fn acks(deliveries: Vec<Delivery<Receipt>>) -> Vec<Settlement<Receipt>> {
    deliveries.into_iter().map(Delivery::ack).collect()
}

pub(crate) async fn settle(
    source: &SqsSource,
    settlements: Vec<Settlement<Receipt>>,
) -> Vec<Result<(), Error>> {
    source.settler().settle(settlements).await
}

pub(crate) async fn settle_all(source: &SqsSource, settlements: Vec<Settlement<Receipt>>) {
    settle(source, settlements).await.into_iter().for_each(|result| result.unwrap());
}
