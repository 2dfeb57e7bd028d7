//! What a consumer says of itself: counts, readiness, liveness.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What became of the messages a run saw. Each ends as exactly one of handled, duplicate or dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Took effect.
    pub handled: u64,
    /// Copies of a message that is handled, waiting or set aside: acked without effect.
    pub duplicates: u64,
    /// Extra attempts.
    pub retried: u64,
    /// Set aside.
    pub dead: u64,
    /// Of the dead (or, under `process`, of the handled): may have been handled before its record was purged.
    pub ambiguous: u64,
    /// Left in the waiting room, to be tried again later.
    pub waiting: u64,
}

/// Shared counters behind [`Summary`], and the flags behind [`Health`].
#[derive(Debug)]
pub(crate) struct Vitals {
    pub(crate) handled: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) ambiguous: AtomicU64,
    pub(crate) running: AtomicBool,
    pub(crate) store_away: AtomicBool,
    pub(crate) source_connected: AtomicBool,
    pub(crate) slow: AtomicBool,
    pub(crate) pulse: Pulse,
}

/// When a loop last turned.
#[derive(Debug)]
pub(crate) struct Pulse {
    started: Instant,
    /// In milliseconds after `started`.
    turned: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { started: Instant::now(), turned: AtomicU64::new(0) }
    }
}

impl Pulse {
    pub(crate) fn turn(&self) {
        self.turned.store(self.millis(), Ordering::Relaxed);
    }

    /// Whether it has turned within so long.
    pub(crate) fn is_within(&self, within: Duration) -> bool {
        let silent = self.millis().saturating_sub(self.turned.load(Ordering::Relaxed));
        Duration::from_millis(silent) <= within
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Vitals {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            handled: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            ambiguous: AtomicU64::new(0),
            running: AtomicBool::new(false),
            store_away: AtomicBool::new(false),
            source_connected: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            pulse: Pulse::default(),
        })
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            handled: self.handled.load(Ordering::SeqCst),
            duplicates: self.duplicates.load(Ordering::SeqCst),
            retried: self.retried.load(Ordering::SeqCst),
            dead: self.dead.load(Ordering::SeqCst),
            ambiguous: self.ambiguous.load(Ordering::SeqCst),
            waiting: 0,
        }
    }
}

/// A handle on a consumer that can be asked while it runs, see [`Consumer::health`](crate::Consumer::health).
#[derive(Clone, Debug)]
pub struct Health(pub(crate) Arc<Vitals>);

impl Health {
    /// The counts so far.
    pub fn summary(&self) -> Summary {
        self.0.summary()
    }

    /// Whether the consumer's loops have turned within the last `within`: what `/live` answers by.
    pub fn is_live(&self, within: Duration) -> bool {
        self.0.pulse.is_within(within)
    }

    /// Why the consumer takes no messages, or takes them slowly; empty when it is ready.
    pub fn impediments(&self) -> Vec<&'static str> {
        let flag = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let mut found = Vec::new();
        if !flag(&self.0.running) {
            found.push("not running");
            return found;
        }
        if flag(&self.0.store_away) {
            found.push("the store is away");
        }
        if !flag(&self.0.source_connected) {
            found.push("the source is not connected");
        }
        if flag(&self.0.slow) {
            found.push("nearly every message fails: fetching is slowed down");
        }
        found
    }
}
