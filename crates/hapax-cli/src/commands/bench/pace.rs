//! How fast messages were handled.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// When a pass began and ended, and how long each message was in hand.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    begun: Option<Instant>,
    ended: Option<Instant>,
    waits: Waits,
}

impl Pace {
    /// A message is handed out.
    pub(super) fn begin(&mut self) -> Instant {
        let now = Instant::now();
        self.begun.get_or_insert(now);
        now
    }

    /// Messages that were handed out at these times are settled.
    pub(super) fn end(&mut self, handed_out: impl Iterator<Item = Instant>) {
        let now = Instant::now();
        self.ended = Some(now);
        handed_out.for_each(|since| self.waits.note(now - since));
    }

    /// From the first message handed out to the last one settled.
    pub(super) fn took(&self) -> Duration {
        self.begun.zip(self.ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun)
    }

    /// How long each message was in hand.
    pub(super) fn waits(&self) -> &Waits {
        &self.waits
    }
}

/// How long messages were in hand, from handing out to settling.
#[derive(Clone, Debug)]
pub(super) struct Waits(Histogram<u32>);

impl Waits {
    /// Takes one down.
    pub(super) fn note(&mut self, wait: Duration) {
        self.0.saturating_record(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds another pass's.
    pub(super) fn merge(&mut self, other: &Self) {
        // Both have the same bounds, and so it cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// What 99 of 100 did not exceed, in milliseconds.
    pub(super) fn p99_ms(&self) -> f64 {
        self.quantile_ms(0.99)
    }

    /// What half of them did not exceed, in milliseconds.
    pub(super) fn p50_ms(&self) -> f64 {
        self.quantile_ms(0.5)
    }

    fn quantile_ms(&self, quantile: f64) -> f64 {
        f64::from(u32::try_from(self.0.value_at_quantile(quantile)).unwrap_or(u32::MAX)) / 1_000.0
    }
}

impl Default for Waits {
    fn default() -> Self {
        // Microseconds up to ten minutes, to a tenth of a per cent: bounds that are known to be right.
        Self(Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds are in order"))
    }
}
