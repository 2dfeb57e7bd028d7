//! Slow fetching: when nearly everything fails, the fault lies elsewhere, and pouring the broker
//! into the waiting room would only spend every message's attempts.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Outcomes that are remembered.
const WINDOW: usize = 32;
/// Fewer outcomes than this say nothing.
const ENOUGH: usize = 16;
/// Of the remembered outcomes, so many percent failed: nearly everything.
const NEARLY_ALL: usize = 90;
/// The wait between two probes at first; it doubles with each probe that fails.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait between two probes.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Lets everything pass, or one probe at a time.
pub(crate) struct Brake {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outcomes: VecDeque<bool>,
    slow: Option<Slow>,
}

struct Slow {
    pause: Duration,
    next: Instant,
}

/// How much may be taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// As much as there is room for.
    All,
    /// One message, to see whether things are better.
    Probe,
}

impl Brake {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default() }
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.lock().slow.is_some()
    }

    /// A message took effect.
    pub(crate) fn succeeded(&self) {
        let mut state = self.lock();
        if state.slow.take().is_some() {
            info!("messages take effect again; fetching goes on at full speed");
            state.outcomes.clear();
        }
        state.remember(true);
    }

    /// A message failed, and the failure was charged.
    pub(crate) fn failed(&self) {
        let mut state = self.lock();
        state.remember(false);
        if let Some(slow) = &mut state.slow {
            slow.pause = (slow.pause * 2).min(LONGEST_PAUSE);
            return;
        }
        let failures = state.outcomes.iter().filter(|succeeded| !**succeeded).count();
        if state.outcomes.len() >= ENOUGH && failures * 100 >= state.outcomes.len() * NEARLY_ALL {
            warn!(failures, of = state.outcomes.len(), "nearly every message fails; fetching slows down");
            state.slow = Some(Slow { pause: FIRST_PAUSE, next: Instant::now() + FIRST_PAUSE });
        }
    }

    /// Waits for the turn of the next probe when slow; `None` when `stop` came first.
    pub(crate) async fn pass(&self, stop: &CancellationToken) -> Option<Pass> {
        loop {
            let Some(turn) = self.turn() else { return Some(Pass::All) };
            if Instant::now() >= turn && self.take_turn(turn) {
                return Some(Pass::Probe);
            }
            // In steps, so that the end of the slowness is noticed before a long pause is over.
            let until = turn.min(Instant::now() + FIRST_PAUSE);
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    fn turn(&self) -> Option<Instant> {
        self.lock().slow.as_ref().map(|slow| slow.next)
    }

    /// Of several that waited for one turn, one gets it.
    fn take_turn(&self, turn: Instant) -> bool {
        match &mut self.lock().slow {
            Some(slow) if slow.next == turn => {
                slow.next = Instant::now() + slow.pause;
                true
            }
            _ => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remember(&mut self, succeeded: bool) {
        if self.outcomes.len() == WINDOW {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back(succeeded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slows_when_nearly_everything_fails_and_recovers_with_the_first_success() {
        let (brake, stop) = (Brake::new(), CancellationToken::new());
        (0..ENOUGH - 1).for_each(|_| brake.failed());
        assert_eq!(brake.pass(&stop).await, Some(Pass::All));
        brake.failed();
        let begun = Instant::now();
        assert_eq!(brake.pass(&stop).await, Some(Pass::Probe));
        assert!(begun.elapsed() >= FIRST_PAUSE);
        brake.failed();
        assert_eq!(brake.pass(&stop).await, Some(Pass::Probe));
        brake.succeeded();
        assert_eq!(brake.pass(&stop).await, Some(Pass::All));
    }

    #[tokio::test]
    async fn a_minority_of_failures_slows_nothing() {
        let brake = Brake::new();
        for _ in 0..100 {
            (0..3).for_each(|_| brake.failed());
            brake.succeeded();
        }
        assert!(!brake.is_slow());
    }
}
