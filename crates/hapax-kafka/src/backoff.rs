//! How long to wait before the next attempt to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Doubles from 100 ms to 5 s. Half of every wait is random, so that the clients of a broker that
/// comes back do not all arrive at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new() -> Self {
        Self { next: FIRST }
    }

    /// The wait before the next attempt, which the attempt after that will double.
    pub(crate) fn wait(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST);
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_five_seconds_and_varies_by_half() {
        let mut backoff = Backoff::new();
        for whole in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.wait();
            let whole = Duration::from_millis(whole);
            assert!(wait >= whole / 2 && wait <= whole, "{wait:?} of {whole:?}");
        }
    }
}
