//! Consuming from a queue of the memory broker.

use std::time::Duration;

use hapax_core::{Capabilities, Delivery, Error, Fetched, Lane, Origin, Settle, Settlement, Settler, Source};
use tokio::time::{Instant, sleep_until};

use super::broker::MemoryBroker;
use super::queue::{Demand, Handed, Offer};

/// Consumes from one queue of a [`MemoryBroker`]. Dropping it is a lost connection: what it has in flight
/// comes back redelivered.
#[derive(Debug)]
pub struct MemorySource {
    settler: MemorySettler,
    id: u64,
    in_flight: usize,
    capabilities: Capabilities,
}

/// A delivery's tag, which no other delivery will ever have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryReceipt(u64);

impl MemorySource {
    pub(super) fn new(broker: MemoryBroker, queue: &str, id: u64) -> Self {
        Self {
            settler: MemorySettler { broker, queue: queue.to_owned(), visibility: None },
            id,
            in_flight: usize::MAX,
            capabilities: Capabilities::none().knowing_redelivered(),
        }
    }

    /// Makes a lane of each `properties.key`, as Kafka and FIFO queues do.
    #[must_use]
    pub fn with_lanes(mut self) -> Self {
        self.capabilities = self.capabilities.ordered();
        self
    }

    /// Takes a delivery away that is neither settled nor extended within this time, as SQS does.
    #[must_use]
    pub fn with_visibility(mut self, visibility: Duration) -> Self {
        self.settler.visibility = Some(visibility);
        self.capabilities = self.capabilities.extending_every(visibility / 3);
        self
    }

    /// Ends once the queue is empty and nothing is in flight, as a file does.
    #[must_use]
    pub fn ending(mut self) -> Self {
        self.capabilities = self.capabilities.ending();
        self
    }

    /// Does not say which deliveries are not the first of their message, as Kafka does not.
    #[must_use]
    pub fn forgetting_redelivered(mut self) -> Self {
        self.capabilities.knows_redelivered = false;
        self
    }

    fn delivery(&self, handed: Handed) -> Delivery<MemoryReceipt> {
        let Handed { tag, number, mut envelope, redelivered } = handed;
        let key = envelope.properties.key.as_deref().filter(|_| self.capabilities.ordered);
        let lane = key.map(|key| Lane(key.into()));
        envelope.origin = Origin { source: self.name(), position: Some(number.to_string()) };
        let mut delivery = Delivery::new(envelope, MemoryReceipt(tag));
        delivery.lane = lane;
        delivery.redelivered = redelivered && self.capabilities.knows_redelivered;
        delivery
    }
}

impl Source for MemorySource {
    type Receipt = MemoryReceipt;
    type Settler = MemorySettler;

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn settler(&self) -> MemorySettler {
        self.settler.clone()
    }

    fn name(&self) -> String {
        format!("memory:{}", self.settler.queue)
    }

    async fn prepare(&mut self, in_flight: usize) -> Result<(), Error> {
        self.in_flight = in_flight;
        Ok(())
    }

    /// Waits also while as many deliveries are in flight as [`prepare`](Source::prepare) allowed.
    async fn next(&mut self, max: usize) -> Result<Fetched<MemoryReceipt>, Error> {
        tokio::task::yield_now().await;
        let MemorySettler { broker, queue, visibility } = &self.settler;
        let demand = Demand { source: self.id, max, in_flight: self.in_flight, visibility: *visibility };
        loop {
            let mut changed = std::pin::pin!(broker.changed());
            changed.as_mut().enable();
            // What is handed over is handed over without a further await, so that dropping this call loses
            // nothing.
            match broker.offer(queue, demand) {
                Offer::Messages(handed) => {
                    return Ok(Fetched::Batch(
                        handed.into_iter().map(|handed| self.delivery(handed)).collect(),
                    ));
                }
                Offer::Lost(lanes) => return Ok(Fetched::Lost(lanes)),
                Offer::Empty if self.capabilities.ends => return Ok(Fetched::Ended),
                Offer::Empty => changed.await,
                Offer::Nothing(until) => wait(changed, until).await,
            }
        }
    }

    fn is_connected(&self) -> bool {
        !self.settler.broker.is_away()
    }

    /// Whatever was not settled comes back.
    async fn close(&mut self) {
        self.settler.broker.detach(&self.settler.queue, self.id);
    }
}

/// Until something has changed, at most until then.
async fn wait(changed: impl Future<Output = ()>, until: Option<Instant>) {
    let timeout = async {
        match until {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = changed => {}
        () = timeout => {}
    }
}

impl Drop for MemorySource {
    fn drop(&mut self) {
        self.settler.broker.detach(&self.settler.queue, self.id);
    }
}

/// Settles and extends the deliveries of a [`MemorySource`]. A receipt that is no longer in flight is
/// refused, and nothing happens.
#[derive(Clone, Debug)]
pub struct MemorySettler {
    broker: MemoryBroker,
    queue: String,
    visibility: Option<Duration>,
}

impl Settler<MemoryReceipt> for MemorySettler {
    async fn settle(&self, settlements: Vec<Settlement<MemoryReceipt>>) -> Vec<Result<(), Error>> {
        tokio::task::yield_now().await;
        let settle = |Settlement { receipt, verdict }: Settlement<MemoryReceipt>| {
            self.broker.settle(&self.queue, receipt.0, verdict != Settle::HandBack)
        };
        settlements.into_iter().map(settle).collect()
    }

    async fn extend(&self, receipts: Vec<MemoryReceipt>) -> Vec<Result<(), Error>> {
        tokio::task::yield_now().await;
        let extend = |receipt: MemoryReceipt| self.broker.extend(&self.queue, receipt.0, self.visibility);
        receipts.into_iter().map(extend).collect()
    }

    fn holds(&self, receipt: &MemoryReceipt) -> bool {
        self.visibility.is_none() || self.broker.holds(&self.queue, receipt.0)
    }
}
