//! What a relay says of itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::health::Pulse;

/// What a relay did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySummary {
    /// Messages that a broker took.
    pub published: u64,
    /// Attempts that a broker refused.
    pub refused: u64,
    /// Messages that were parked.
    pub parked: u64,
}

#[derive(Debug, Default)]
pub(super) struct Vitals {
    published: AtomicU64,
    refused: AtomicU64,
    parked: AtomicU64,
    running: AtomicBool,
    store_away: AtomicBool,
    brokers_away: Mutex<Vec<String>>,
    pub(super) pulse: Pulse,
}

impl Vitals {
    pub(super) fn summary(&self) -> RelaySummary {
        RelaySummary {
            published: self.published.load(Ordering::SeqCst),
            refused: self.refused.load(Ordering::SeqCst),
            parked: self.parked.load(Ordering::SeqCst),
        }
    }

    pub(super) fn count(&self, published: u64, refused: u64, parked: u64) {
        self.published.fetch_add(published, Ordering::SeqCst);
        self.refused.fetch_add(refused, Ordering::SeqCst);
        self.parked.fetch_add(parked, Ordering::SeqCst);
    }

    pub(super) fn running(&self, running: bool) {
        self.running.store(running, Ordering::SeqCst);
    }

    /// Notes whether the store is away, and says whether it was before.
    pub(super) fn store_is_away(&self, away: bool) -> bool {
        self.store_away.swap(away, Ordering::SeqCst)
    }

    pub(super) fn brokers_are_away(&self, brokers: Vec<String>) {
        *self.brokers_away.lock().unwrap_or_else(PoisonError::into_inner) = brokers;
    }
}

/// A handle on a relay that can be asked while it runs, see [`Relay::health`](crate::Relay::health).
#[derive(Clone, Debug)]
pub struct RelayHealth(pub(super) Arc<Vitals>);

impl RelayHealth {
    /// The counts so far.
    pub fn summary(&self) -> RelaySummary {
        self.0.summary()
    }

    /// Whether the relay's loop has turned within the last `within`. A broker that does not confirm can hold it
    /// up for as long as its publisher waits.
    pub fn is_live(&self, within: Duration) -> bool {
        self.0.pulse.is_within(within)
    }

    /// Why messages stay in the outbox; empty when the relay is ready.
    pub fn impediments(&self) -> Vec<String> {
        if !self.0.running.load(Ordering::SeqCst) {
            return vec!["not running".to_owned()];
        }
        let store = self.0.store_away.load(Ordering::SeqCst).then(|| "the store is away".to_owned());
        let away = self.0.brokers_away.lock().unwrap_or_else(PoisonError::into_inner);
        let broker = |name: &String| match name.as_str() {
            "" => "the broker is away".to_owned(),
            name => format!("the broker `{name}` is away"),
        };
        store.into_iter().chain(away.iter().map(broker)).collect()
    }
}
