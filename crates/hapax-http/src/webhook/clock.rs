//! Whether a timestamp is near enough to now.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::Timestamp;

use super::NotVerified;

/// A clock and how far from it a timestamp may lie, both ways.
#[derive(Clone)]
pub(super) struct Freshness {
    pub(super) tolerance: Duration,
    pub(super) now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Default for Freshness {
    fn default() -> Self {
        Self { tolerance: Duration::from_mins(5), now: Arc::new(Timestamp::now) }
    }
}

impl Freshness {
    pub(super) fn check(&self, signed_at: Timestamp) -> Result<(), NotVerified> {
        let now = (self.now)();
        let near = now.minus(self.tolerance)..=now.plus(self.tolerance);
        if near.contains(&signed_at) { Ok(()) } else { Err(NotVerified::Timestamp) }
    }
}

impl fmt::Debug for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Freshness").field("tolerance", &self.tolerance).finish_non_exhaustive()
    }
}

/// Whole seconds since the epoch, as senders write them: digits, and nothing else.
pub(super) fn unix_seconds(text: &str) -> Option<Timestamp> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(Timestamp::from_micros(text.parse::<i64>().ok()?.checked_mul(1_000_000)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_digits_and_nothing_else() {
        assert_eq!(unix_seconds("1674087231").unwrap().as_micros(), 1_674_087_231_000_000);
        for bad in ["", "+1", "-1", "1.5", " 1", "99999999999999999999", "9223372036854775807"] {
            assert_eq!(unix_seconds(bad), None, "{bad}");
        }
    }
}
