//! Removes inbox rows that no copy can ask for any more.

use std::time::Duration;

use hapax_core::{ConsumerName, Error, Retention, Timestamp};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::keeper::wait;
use crate::metrics;

/// How long inbox rows are kept, and what becomes of messages older than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    pub(crate) age: Duration,
    pub(crate) slack: Duration,
    pub(crate) every: Duration,
    pub(crate) batch: u32,
    pub(crate) ambiguous: AmbiguousPolicy,
}

/// What becomes of a message that may have been handled before its record was purged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AmbiguousPolicy {
    /// Set it aside for somebody to judge.
    #[default]
    DeadLetter,
    /// Handle it: a second effect is the lesser evil.
    Process,
}

impl Keep {
    /// The least time that rows can be kept. A claim relies on it: younger messages cannot have been purged.
    pub const LEAST: Duration = Duration::from_mins(1);

    /// Keeps rows this long after the later of `sent_at` and handling; at least [`Keep::LEAST`].
    ///
    /// As long as a redelivery is possible, which includes a message resubmitted by hand days later.
    pub fn for_at_least(keep: Duration) -> Self {
        Self { age: keep.max(Self::LEAST), ..Self::default() }
    }

    /// How far producers' clocks may run behind. Default 1 h.
    #[must_use]
    pub const fn slack(mut self, slack: Duration) -> Self {
        self.slack = slack;
        self
    }

    /// How often the janitor looks. Default 1 min.
    #[must_use]
    pub const fn every(mut self, period: Duration) -> Self {
        self.every = period;
        self
    }

    /// Rows removed in one transaction. Default 1,000.
    #[must_use]
    pub const fn batch(mut self, rows: u32) -> Self {
        self.batch = rows;
        self
    }

    /// What becomes of a message that may have been handled before its record was purged.
    #[must_use]
    pub const fn ambiguous(mut self, policy: AmbiguousPolicy) -> Self {
        self.ambiguous = policy;
        self
    }
}

impl Default for Keep {
    /// 14 days, slack 1 h, every minute, 1,000 rows at a time, ambiguous ones to the dead letters.
    fn default() -> Self {
        Self {
            age: Duration::from_hours(14 * 24),
            slack: Duration::from_hours(1),
            every: Duration::from_mins(1),
            batch: 1_000,
            ambiguous: AmbiguousPolicy::default(),
        }
    }
}

/// Purges a consumer's inbox on a schedule of its own; safe on many instances at once.
///
/// A [`Consumer`](crate::Consumer) starts one by default.
#[derive(Clone, Debug)]
pub struct Janitor<S> {
    store: S,
    consumer: ConsumerName,
    keep: Keep,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Rows removed.
    pub rows: u64,
    /// The consumer's horizon afterwards: the newest `sent_at` that was ever purged.
    pub horizon: Option<Timestamp>,
}

impl<S: Retention> Janitor<S> {
    /// A janitor for one consumer's records.
    pub fn new(store: S, consumer: ConsumerName, keep: Keep) -> Self {
        Self { store, consumer, keep }
    }

    /// Removes everything that is due now, in batches: one transaction each, with a breath between
    /// them so that claims do not queue up behind it. Stops early when `stop` is cancelled.
    pub async fn sweep(&self, stop: &CancellationToken) -> Result<Sweep, Error> {
        let mut sweep = Sweep::default();
        loop {
            let purged = self.store.purge(&self.consumer, self.keep.age, self.keep.batch).await?;
            sweep.rows += purged.rows;
            sweep.horizon = purged.horizon;
            metrics::purged(&self.consumer, purged.rows);
            if purged.rows < u64::from(self.keep.batch) || wait(Duration::from_millis(10), stop).await {
                return Ok(sweep);
            }
        }
    }

    /// Sweeps on schedule until `stop` is cancelled. An error is logged and tried again next time.
    pub async fn run_until(self, stop: CancellationToken) {
        while !wait(self.keep.every.mul_f64(0.75 + fastrand::f64() / 2.0), &stop).await {
            match self.sweep(&stop).await {
                Ok(sweep) if sweep.rows > 0 => debug!(consumer = %self.consumer, rows = sweep.rows, "purged"),
                Ok(_) => {}
                Err(error) => warn!(consumer = %self.consumer, %error, "the inbox could not be purged"),
            }
        }
    }
}
