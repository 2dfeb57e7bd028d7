//! What was received and not handed over yet, and how much more is wanted.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hapax_core::Delivery;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::SourceMetrics;
use crate::receipt::Receipt;

/// Shared by the task that receives and the source that hands over. Nothing is received that nobody asked for: it
/// would lie here while its visibility passes.
pub(crate) struct Shelf {
    content: Mutex<Content>,
    arrived: Notify,
    wanted: Notify,
    pub(crate) metrics: SourceMetrics,
}

struct Content {
    deliveries: VecDeque<Delivery<Receipt>>,
    demand: usize,
    connected: bool,
    closed: bool,
}

/// What a source has to hand over.
pub(crate) enum Supply {
    Batch(Vec<Delivery<Receipt>>),
    Nothing,
    Closed,
}

impl Shelf {
    pub(crate) fn new(metrics: SourceMetrics) -> Self {
        let content = Content { deliveries: VecDeque::new(), demand: 0, connected: false, closed: false };
        Self { content: Mutex::new(content), arrived: Notify::new(), wanted: Notify::new(), metrics }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over at most `max` of what is there and still ours; if there is nothing, so many are wanted.
    pub(crate) fn take(&self, max: usize) -> Supply {
        let mut content = self.content();
        if content.closed {
            return Supply::Closed;
        }
        self.drop_expired(&mut content);
        let count = content.deliveries.len().min(max.max(1));
        if count > 0 {
            content.demand = 0;
            return Supply::Batch(content.deliveries.drain(..count).collect());
        }
        content.demand = max.max(1);
        drop(content);
        self.wanted.notify_one();
        Supply::Nothing
    }

    /// Somebody else has them, or will have.
    fn drop_expired(&self, content: &mut Content) {
        let (now, before) = (Instant::now(), content.deliveries.len());
        content.deliveries.retain(|delivery| delivery.receipt().holds(now));
        self.metrics.expired.increment((before - content.deliveries.len()) as u64);
    }

    /// How many more are wanted than are here.
    pub(crate) fn shortage(&self) -> usize {
        let mut content = self.content();
        self.drop_expired(&mut content);
        content.demand.saturating_sub(content.deliveries.len())
    }

    pub(crate) fn put(&self, deliveries: Vec<Delivery<Receipt>>) {
        self.metrics.deliveries.increment(deliveries.len() as u64);
        self.content().deliveries.extend(deliveries);
        self.arrived.notify_one();
    }

    /// Waits until [`take`](Self::take) may have something. One waiter at a time.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }

    /// Waits until there may be a shortage. One waiter at a time.
    pub(crate) async fn demand(&self) {
        self.wanted.notified().await;
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        self.content().connected = connected;
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.content().connected
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.content().closed
    }

    /// Ends it, and answers with what was not handed over.
    pub(crate) fn close(&self) -> Vec<Delivery<Receipt>> {
        let mut content = self.content();
        content.closed = true;
        content.connected = false;
        let rest = content.deliveries.drain(..).collect();
        drop(content);
        self.arrived.notify_one();
        rest
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hapax_core::Envelope;

    use super::*;

    fn delivery(seconds: u64) -> Delivery<Receipt> {
        let now = Instant::now();
        let until = now + Duration::from_secs(seconds);
        Delivery::new(Envelope::new(""), Receipt::new(String::new(), now, until, None))
    }

    #[test]
    fn only_what_is_asked_for_is_wanted() {
        let shelf = Shelf::new(SourceMetrics::of("q"));
        assert_eq!(shelf.shortage(), 0);
        assert!(matches!(shelf.take(12), Supply::Nothing));
        assert_eq!(shelf.shortage(), 12);
        shelf.put(vec![delivery(30), delivery(30)]);
        assert_eq!(shelf.shortage(), 10);
        assert!(matches!(shelf.take(12), Supply::Batch(batch) if batch.len() == 2));
        assert_eq!(shelf.shortage(), 0, "whoever wants more asks again");
    }

    #[test]
    fn case_14_what_ran_out_is_not_handed_over() {
        let shelf = Shelf::new(SourceMetrics::of("q"));
        shelf.put(vec![delivery(0), delivery(30), delivery(0)]);
        assert!(matches!(shelf.take(9), Supply::Batch(batch) if batch.len() == 1));
        assert!(matches!(shelf.take(9), Supply::Nothing));
        assert_eq!(shelf.close().len(), 0);
        assert!(matches!(shelf.take(9), Supply::Closed));
    }
}
