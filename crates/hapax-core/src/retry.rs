//! When a failed message is tried again, and when it is set aside.

use std::time::Duration;

/// The retry policy of a consumer.
///
/// `attempts` bounds failures and crashes separately: a message is set aside after that many of
/// either kind.
///
/// ```
/// use hapax_core::Retry;
/// use std::time::Duration;
///
/// let retry = Retry::exponential().attempts(3).first(Duration::from_secs(2)).jitter(false);
/// assert_eq!(retry.after(1), Some(Duration::from_secs(2)));
/// assert_eq!(retry.after(2), Some(Duration::from_secs(4)));
/// assert_eq!(retry.after(3), None);                 // the third failure was the last attempt
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    attempts: u32,
    first: Duration,
    max: Duration,
    factor: u32,
    jitter: bool,
}

impl Retry {
    /// Each wait twice as long as the one before: 5 attempts, first wait 1 s, at most 5 min, with jitter.
    pub const fn exponential() -> Self {
        Self {
            attempts: 5,
            first: Duration::from_secs(1),
            max: Duration::from_mins(5),
            factor: 2,
            jitter: true,
        }
    }

    /// The same wait each time, with jitter; 5 attempts.
    pub const fn fixed(wait: Duration) -> Self {
        Self { attempts: 5, first: wait, max: wait, factor: 1, jitter: true }
    }

    /// The first failure is the last: the message is set aside at once.
    pub const fn never() -> Self {
        Self { attempts: 1, first: Duration::ZERO, max: Duration::ZERO, factor: 1, jitter: false }
    }

    /// How often a message may fail before it is set aside; at least 1.
    #[must_use]
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = if attempts == 0 { 1 } else { attempts };
        self
    }

    /// The wait after the first failure.
    #[must_use]
    pub const fn first(mut self, wait: Duration) -> Self {
        self.first = wait;
        self
    }

    /// The longest wait.
    #[must_use]
    pub const fn max(mut self, wait: Duration) -> Self {
        self.max = wait;
        self
    }

    /// Whether a wait is drawn between half of it and the whole, so that messages that failed
    /// together do not come back together.
    #[must_use]
    pub const fn jitter(mut self, jitter: bool) -> Self {
        self.jitter = jitter;
        self
    }

    /// How often a message may fail, and how often it may be in hand when the process ends.
    pub const fn limit(&self) -> u32 {
        self.attempts
    }

    /// How long to wait after failure number `failures` (from 1); `None` when that was the last attempt.
    pub fn after(&self, failures: u32) -> Option<Duration> {
        if failures >= self.attempts {
            return None;
        }
        let doublings = failures.saturating_sub(1).min(62);
        let factor = u32::try_from(u64::from(self.factor).saturating_pow(doublings)).unwrap_or(u32::MAX);
        let wait = self.first.saturating_mul(factor).min(self.max);
        Some(if self.jitter { wait.mul_f64(0.5 + fastrand::f64() / 2.0) } else { wait })
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::exponential()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_wait_lies_between_half_and_the_whole(failures in 1u32..200, first in 0u64..10_000, max in 0u64..100_000) {
            let policy = Retry::exponential().attempts(1_000)
                .first(Duration::from_millis(first)).max(Duration::from_millis(max));
            let whole = policy.jitter(false).after(failures).unwrap();
            let drawn = policy.after(failures).unwrap();
            prop_assert!(whole <= Duration::from_millis(max));
            prop_assert!(drawn <= whole && drawn >= whole.mul_f64(0.499));
        }
    }

    #[test]
    fn never_means_one_attempt() {
        assert_eq!(Retry::never().after(1), None);
    }
}
