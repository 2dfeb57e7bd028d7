//! A consumer's side of a source, taken one step at a time.

use std::collections::BTreeSet;

use hapax_core::{Delivery, Envelope, Error, Fetched, Settle, Settlement, Settler as _, Source};

use super::SourceFixture;
use crate::conformance::SOON;

/// What the source under test wants to see again.
pub(in crate::conformance) type Receipt<F> = <<F as SourceFixture>::Source as Source>::Receipt;

/// A source under test and the half of it that settles.
pub(in crate::conformance) struct ByHand<F: SourceFixture> {
    pub(in crate::conformance) source: F::Source,
    pub(in crate::conformance) settler: <F::Source as Source>::Settler,
}

impl<F: SourceFixture> ByHand<F> {
    /// A source through which up to 100 deliveries are in hand at a time.
    pub(in crate::conformance) async fn open(fixture: &F) -> Self {
        Self::open_for(fixture, 100).await
    }

    pub(in crate::conformance) async fn open_for(fixture: &F, in_flight: usize) -> Self {
        let mut source = fixture.source().await;
        source.prepare(in_flight).await.expect("the source is prepared");
        let settler = source.settler();
        Self { source, settler }
    }

    /// The next batch, whenever it comes.
    pub(in crate::conformance) async fn next(&mut self, max: usize) -> Vec<Delivery<Receipt<F>>> {
        loop {
            match self.source.next(max).await.expect("the source goes on") {
                Fetched::Batch(batch) => {
                    assert!(!batch.is_empty() && batch.len() <= max, "{} of at most {max}", batch.len());
                    return batch;
                }
                Fetched::Lost(_) => {}
                _ => panic!("the source has ended"),
            }
        }
    }

    /// So many deliveries.
    pub(in crate::conformance) async fn take(&mut self, count: usize) -> Vec<Delivery<Receipt<F>>> {
        let mut taken = Vec::new();
        let all = async {
            while taken.len() < count {
                taken.extend(self.next(count - taken.len()).await);
            }
        };
        let all = tokio::time::timeout(SOON, all).await;
        assert!(all.is_ok(), "{count} deliveries should come, but only these did: {:?}", ids(&taken));
        taken
    }

    pub(in crate::conformance) async fn take_one(&mut self) -> Delivery<Receipt<F>> {
        self.take(1).await.remove(0)
    }

    /// Everything up to and including the message of this id, which is published last. Nothing is settled.
    pub(in crate::conformance) async fn take_until(&mut self, last: &str) -> Vec<Delivery<Receipt<F>>> {
        let mut taken = Vec::new();
        while !ids(&taken).contains(&last) {
            taken.push(self.take_one().await);
        }
        taken
    }

    pub(in crate::conformance) async fn ack(&mut self, deliveries: Vec<Delivery<Receipt<F>>>) {
        let acks = deliveries.into_iter().map(Delivery::ack).collect();
        self.settle(acks).await;
    }

    pub(in crate::conformance) async fn hand_back(&mut self, deliveries: Vec<Delivery<Receipt<F>>>) {
        let settlements = deliveries.into_iter().map(Delivery::hand_back).collect();
        self.settle(settlements).await;
    }

    pub(in crate::conformance) async fn settle(&mut self, settlements: Vec<Settlement<Receipt<F>>>) {
        let entries = settlements.len();
        let results = self.settler.settle(settlements).await;
        assert_eq!(results.len(), entries, "a result per entry");
        let failed: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
        assert!(failed.is_empty(), "not settled: {failed:?}");
    }

    /// Acks by a receipt that may be stale: whether that is an error is the source's to say.
    pub(in crate::conformance) async fn ack_late(&mut self, receipt: Receipt<F>) {
        let results = self.settler.settle(vec![Settlement { receipt, verdict: Settle::Ack }]).await;
        assert_eq!(results.len(), 1, "a result per entry");
    }
}

pub(in crate::conformance) fn message(id: &str) -> Envelope {
    Envelope::new(format!("payload of {id}")).with_id(id).with_type("Paid")
}

pub(in crate::conformance) async fn publish_all<F: SourceFixture>(
    fixture: &F,
    ids: impl IntoIterator<Item = &String>,
) {
    for id in ids {
        fixture.publish(message(id)).await;
    }
}

/// `message 0`, `message 1` and so on.
pub(in crate::conformance) fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("message {n:03}")).collect()
}

pub(in crate::conformance) fn id<R>(delivery: &Delivery<R>) -> &str {
    delivery.envelope.properties.message_id.as_deref().expect("the message-id property comes through")
}

/// The ids of deliveries, in their order.
pub(in crate::conformance) fn ids<R>(deliveries: &[Delivery<R>]) -> Vec<&str> {
    deliveries.iter().map(id).collect()
}

/// The ids of deliveries, each once.
pub(in crate::conformance) fn distinct<R>(deliveries: &[Delivery<R>]) -> BTreeSet<&str> {
    deliveries.iter().map(id).collect()
}
