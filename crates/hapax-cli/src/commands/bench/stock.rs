//! A source in memory that ends by itself, and hands out to unprotected workers as well.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use std::vec;

use hapax::{Capabilities, Delivery, Envelope, Error, Fetched, Settle, Settlement, Settler, Source};

use super::pace::Pace;

/// The messages of one pass. Clones share them.
#[derive(Clone)]
pub(super) struct Stock(Arc<Shelf>);

struct Shelf {
    left: Mutex<vec::IntoIter<Envelope>>,
    pace: Mutex<Pace>,
}

impl Stock {
    /// Messages that are ready to be handed out.
    pub(super) fn new(envelopes: Vec<Envelope>) -> Self {
        Self(Arc::new(Shelf { left: Mutex::new(envelopes.into_iter()), pace: Mutex::default() }))
    }

    /// Hands out one message, with the time, which is its receipt.
    pub(super) fn take(&self) -> Option<(Envelope, Instant)> {
        self.take_some(1).pop()
    }

    /// Settles messages by their receipts.
    pub(super) fn settle(&self, handed_out: impl Iterator<Item = Instant>) {
        self.0.pace.lock().unwrap_or_else(PoisonError::into_inner).end(handed_out);
    }

    /// How it went so far.
    pub(super) fn pace(&self) -> Pace {
        self.0.pace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take_some(&self, max: usize) -> Vec<(Envelope, Instant)> {
        let now = self.0.pace.lock().unwrap_or_else(PoisonError::into_inner).begin();
        let mut left = self.0.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.by_ref().take(max).map(|envelope| (envelope, now)).collect()
    }
}

impl Source for Stock {
    type Receipt = Instant;
    type Settler = Self;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().knowing_redelivered().ending()
    }

    fn settler(&self) -> Self {
        self.clone()
    }

    fn name(&self) -> String {
        "bench".to_owned()
    }

    async fn next(&mut self, max: usize) -> Result<Fetched<Instant>, Error> {
        let taken = self.take_some(max);
        if taken.is_empty() {
            return Ok(Fetched::Ended);
        }
        Ok(Fetched::Batch(taken.into_iter().map(|(envelope, now)| Delivery::new(envelope, now)).collect()))
    }
}

impl Settler<Instant> for Stock {
    async fn settle(&self, settlements: Vec<Settlement<Instant>>) -> Vec<Result<(), Error>> {
        let results = settlements.iter().map(|_| Ok(())).collect();
        let acked = settlements.into_iter().filter(|settlement| settlement.verdict == Settle::Ack);
        Self::settle(self, acked.map(|settlement| settlement.receipt));
        results
    }
}
