//! Consuming by hand.

use std::time::Duration;

use hapax_core::{Delivery, Fetched, Settlement, Settler, Source};
use hapax_redis::{Receipt, Redis, RedisSource};
use tokio::time::timeout;

use crate::broker::{SOON, Stream, source_of};

/// Long enough for a delivery to arrive that should not.
const A_MOMENT: Duration = Duration::from_millis(300);

pub(crate) async fn source(broker: &Redis, stream: &Stream, in_flight: usize) -> RedisSource {
    let mut source = source_of(broker, stream);
    source.prepare(in_flight).await.unwrap();
    source
}

/// Waits until so many deliveries have come.
pub(crate) async fn take(source: &mut RedisSource, count: usize) -> Vec<Delivery<Receipt>> {
    let mut deliveries = Vec::new();
    while deliveries.len() < count {
        let fetched = timeout(SOON, source.next(count - deliveries.len())).await.expect("deliveries");
        let Fetched::Batch(batch) = fetched.unwrap() else { panic!("deliveries, not the end") };
        deliveries.extend(batch);
    }
    deliveries
}

pub(crate) async fn nothing_comes(source: &mut RedisSource) -> bool {
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

pub(crate) async fn settle(source: &RedisSource, settlements: Vec<Settlement<Receipt>>) {
    for result in source.settler().settle(settlements).await {
        result.unwrap();
    }
}
