//! Reads the waiting room beside the source.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax_core::{ConsumerStore, Format, Settler, Waiting};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::warn;

use crate::brake::Pass;
use crate::fetch::{free_room, read_known};
use crate::job::{Hold, Job, Order, Slot, lane_of};
use crate::keeper::WAITING_LEASE;
use crate::metrics;
use crate::shared::Shared;

/// How often the waiting room is read when nothing this process knows of is due: for messages that
/// other instances parked or an operator redrove.
const POLL: Duration = Duration::from_secs(1);

/// Rings when a message that this process parked is due, so that exact waits need no fast polling.
#[derive(Default)]
pub(crate) struct Alarm {
    due: Mutex<BinaryHeap<Reverse<Instant>>>,
    changed: Notify,
}

impl Alarm {
    /// A message is due after `wait`.
    pub(crate) fn set(&self, wait: Duration) {
        let due = Instant::now() + wait;
        self.due.lock().unwrap_or_else(PoisonError::into_inner).push(Reverse(due));
        self.changed.notify_one();
    }

    /// Waits until a message is due, at most `longest`.
    async fn ring(&self, longest: Duration) {
        let last = Instant::now() + longest;
        loop {
            let next = self.next();
            if next.is_some_and(|due| due <= Instant::now()) {
                return self.forget_passed();
            }
            let until = next.unwrap_or(last).min(last);
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(until) => if Instant::now() >= last { return },
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).peek().map(|Reverse(due)| *due)
    }

    fn forget_passed(&self) {
        let now = Instant::now();
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        while due.peek().is_some_and(|Reverse(next)| *next <= now) {
            due.pop();
        }
    }
}

impl<S: ConsumerStore, T: Settler<R>, R: Clone + Send + Sync + 'static> Shared<S, T, R> {
    /// Hands due messages to the workers until no new ones are to be begun. The waiting room has a
    /// limit of its own, so that neither a full broker nor a full waiting room starves the other.
    pub(crate) async fn read_waiting_room(&self, format: &Format, room: Arc<Semaphore>) {
        while let Some(max) = self.room_to_wait_for(&room).await {
            let leased = match self.store.lease(&self.consumer, max, WAITING_LEASE).await {
                Ok(leased) => leased,
                Err(error) => {
                    warn!(consumer = %self.consumer, %error, "the waiting room could not be read");
                    Vec::new()
                }
            };
            if leased.is_empty() {
                tokio::select! {
                    () = self.stop.cancelled() => return,
                    () = self.alarm.ring(POLL) => continue,
                }
            }
            let jobs = leased.into_iter().map(|waiting| {
                let permit = Arc::clone(&room).try_acquire_owned().ok();
                self.waiting_job(format, waiting, permit)
            });
            let late = self.intake.push(jobs.collect());
            self.hand_back(late).await;
        }
    }

    /// Waits until there is room, the store is there and the brake lets something pass; answers with how
    /// much.
    async fn room_to_wait_for(&self, room: &Semaphore) -> Option<usize> {
        let free = free_room(room, &self.stop).await?;
        if !self.outage.wait(&self.stop).await {
            return None;
        }
        let pass = self.brake.pass(&self.stop).await?;
        Some(if pass == Pass::Probe {
            1
        } else {
            free.min(self.settings.batch.max * self.settings.concurrency)
        })
    }

    fn waiting_job(&self, format: &Format, waiting: Waiting, permit: Option<OwnedSemaphorePermit>) -> Job<R> {
        let kept = self.hands.keep_waiting(waiting.place);
        let slot = Slot { _permit: permit, _kept: Some(kept) };
        let content = read_known(format, waiting.id, waiting.envelope);
        let mut job = Job::new(content, Hold::Waiting(waiting.place), slot);
        job.failures = waiting.failures;
        job.lane = waiting.order.filter(|_| self.settings.order == Order::Lane).map(|lane| lane_of(&lane));
        job.suspect = self.suspicion.judge_waiting(waiting.leased_before);
        if waiting.failures > 0 {
            self.vitals.retried.fetch_add(1, Ordering::SeqCst);
            metrics::retried(&self.consumer);
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rings_when_the_first_is_due_and_no_later_than_the_poll() {
        let alarm = Alarm::default();
        let begun = Instant::now();
        alarm.set(Duration::from_millis(300));
        alarm.set(Duration::from_millis(200));
        alarm.ring(POLL).await;
        assert_eq!(begun.elapsed().as_millis(), 200);
        alarm.ring(POLL).await;
        assert_eq!(begun.elapsed().as_millis(), 300);
        alarm.ring(POLL).await;
        assert_eq!(begun.elapsed().as_millis(), 1_300);
    }
}
