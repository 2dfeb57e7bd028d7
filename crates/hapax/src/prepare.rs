//! What goes before the transaction: the record of a message in progress, and its prepare step.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use hapax_core::{
    Code, ConsumerStore, Error, Failure, Fault, Grip, InboxRow, InboxState, Prepared, Settler, crash_point,
};
use tracing::{info, warn};

use crate::attempt::{End, Setback, of_store, panic_text};
use crate::janitor::AmbiguousPolicy;
use crate::job::{Held, Job};
use crate::metrics;
use crate::shared::{Shared, Strategy};
use crate::worker::{Segment, Worker};

/// What came of a segment: `None` if its messages have all come to their ends already.
pub(crate) type Ran<R> = Option<(Segment<R>, Result<Vec<End>, Setback>)>;

impl<S: ConsumerStore, T: Settler<R>, R: Clone + Send + Sync + 'static> Shared<S, T, R> {
    /// Runs a segment: what goes before its transaction, then the transaction.
    pub(crate) async fn run(&self, worker: &mut Worker<R>, mut segment: Segment<R>) -> Ran<R> {
        match self.begin(&mut segment.jobs).await {
            Ok(true) => {}
            Ok(false) => return Some((segment, Ok(vec![End::Busy]))),
            Err(setback) => return Some((segment, Err(setback))),
        }
        if let Err(setback) = self.prepare(worker, &mut segment.jobs).await {
            return Some((segment, Err(setback)));
        }
        if segment.jobs.is_empty() {
            return None;
        }
        let outcome = self.attempt(&segment.jobs).await;
        Some((segment, outcome))
    }

    /// Under the eager strategy: puts the message of a segment, which stands alone, under a lease. False if
    /// somebody else is at it.
    async fn begin(&self, jobs: &mut [Job<R>]) -> Result<bool, Setback> {
        let (Some(lease), [job]) = (self.settings.lease(), jobs) else { return Ok(true) };
        let Some(key) =
            job.key(self.settings.order).filter(|_| job.grip.is_none() && self.is_for_a_handler(job))
        else {
            return Ok(true);
        };
        crash_point!("before-begin");
        let slack = self.settings.keep.slack;
        let begun = self.store.begin_running(&self.consumer, &key, lease, slack).await;
        match begun.map_err(|error| of_store(&error).unwrap_or_else(|| error.into()))? {
            Grip::Ours { fence, taken_over, ambiguous, other_payload } => {
                crash_point!("after-begin");
                if other_payload {
                    self.tell_of_other_payload(job);
                }
                if taken_over {
                    metrics::taken_over(&self.consumer);
                    info!(consumer = %self.consumer, message_id = job.id_text(), "taken over: its lease had ended");
                }
                let kept = self.hands.keep_running(key.id.clone(), fence);
                job.grip = Some(Held { fence, taken_over, used: false, _kept: kept });
                if ambiguous {
                    self.settle_ambiguity(job).await;
                }
                Ok(true)
            }
            Grip::Running { .. } | Grip::Busy => Ok(false),
            _ => Ok(true), // the claim finds the same, and says what is to become of it
        }
    }

    /// What may have been handled and forgotten is let go again if it is to be set aside.
    async fn settle_ambiguity(&self, job: &mut Job<R>) {
        if self.settings.keep.ambiguous == AmbiguousPolicy::DeadLetter {
            self.let_go(std::slice::from_ref(job)).await;
            job.grip = None;
        } else {
            job.ambiguous = true;
        }
    }

    /// Ends the leases of messages that are given up. One whose prepare step was begun may have called somebody:
    /// whoever handles it next takes it over, and so is told.
    pub(crate) async fn let_go(&self, jobs: &[Job<R>]) {
        for job in jobs {
            let (Some(grip), Some(id)) = (&job.grip, job.id()) else { continue };
            let given_up = if grip.used {
                let running = [(id.clone(), grip.fence)];
                self.store.renew_running(&self.consumer, &running, Duration::ZERO).await.map(drop)
            } else {
                self.store.drop_running(&self.consumer, id, grip.fence).await.map(drop)
            };
            if let Err(error) = given_up {
                warn!(%error, message_id = %id, "a lease was not given up; it ends by itself");
            }
        }
    }

    fn is_for_a_handler(&self, job: &Job<R>) -> bool {
        job.message().is_some() && self.handlers.contains_key(job.kind())
    }

    /// Whether something that has to go before a message's handler has not been done.
    pub(crate) fn is_unready(&self, job: &Job<R>) -> bool {
        let wants_grip = job.grip.is_none() && self.settings.lease().is_some();
        (wants_grip || self.wants_prepare(job)) && self.is_for_a_handler(job)
    }

    fn wants_prepare(&self, job: &Job<R>) -> bool {
        job.prepared.is_none() && !self.prepares.is_empty() && self.prepares.contains_key(job.kind())
    }

    /// Runs the prepare steps of those that have one and have not been handled. Messages whose step
    /// fails come to their ends here and leave the segment.
    async fn prepare(&self, worker: &mut Worker<R>, jobs: &mut Vec<Job<R>>) -> Result<(), Setback> {
        if !jobs.iter().any(|job| self.wants_prepare(job)) {
            return Ok(());
        }
        let seen = self.seen(jobs).await?;
        let mut seen = seen.into_iter();
        let mut rest = std::mem::take(jobs).into_iter();
        while let Some(mut job) = rest.next() {
            let skip = !self.wants_prepare(&job) || job.id().is_none() || seen.next().unwrap_or_default();
            if !skip {
                if let Some(grip) = &mut job.grip {
                    grip.used = true;
                }
                match self.prepare_one(&job).await.map_err(|failure| self.setback(0..1, failure)) {
                    Ok(prepared) => job.prepared = prepared,
                    Err(Setback::Failed { failure, .. }) => {
                        self.charge_all(worker, vec![job], failure).await;
                        continue;
                    }
                    Err(setback) => {
                        jobs.push(job);
                        jobs.extend(rest);
                        return Err(setback);
                    }
                }
            }
            jobs.push(job);
        }
        Ok(())
    }

    /// Which of those that want to be prepared need not be, since they are somebody's or known. One round trip,
    /// none for messages under a lease.
    async fn seen(&self, jobs: &[Job<R>]) -> Result<Vec<bool>, Error> {
        let wanting = || jobs.iter().filter(|job| self.wants_prepare(job) && job.id().is_some());
        if self.settings.lease().is_some() {
            return Ok(wanting().map(|job| job.grip.is_none()).collect());
        }
        if self.settings.strategy == Strategy::Natural {
            return Ok(wanting().map(|_| false).collect());
        }
        let ids: Vec<_> = wanting().filter_map(|job| job.id().cloned()).collect();
        let rows = self.store.look(&self.consumer, &ids).await?;
        // A running one's lease may have ended.
        let is_free = |row: &InboxRow, job: &Job<R>| {
            row.state == InboxState::Running || row.state == InboxState::Waiting && job.place().is_some()
        };
        Ok(wanting().zip(rows).map(|(job, row)| row.is_some_and(|row| !is_free(&row, job))).collect())
    }

    async fn prepare_one(&self, job: &Job<R>) -> Result<Option<Prepared>, Failure> {
        let (Some(step), Some(message)) = (self.prepares.get(job.kind()), job.message()) else {
            return Ok(None);
        };
        let limit = self.settings.timeout.unwrap_or(Duration::MAX);
        let begun = Instant::now();
        let guarded = AssertUnwindSafe(step.run(message, job.circumstances())).catch_unwind();
        let stepped = tokio::select! {
            () = self.abort.cancelled() => return Err(Failure::Defer(Duration::ZERO)),
            stepped = tokio::time::timeout(limit, guarded) => stepped,
        };
        metrics::prepared(&self.consumer, begun.elapsed());
        crash_point!("after-prepare");
        match stepped {
            Ok(Ok(Ok(prepared))) => prepared.map(Some),
            Ok(Ok(Err(error))) => Err(Failure::Reject(Fault::new(Code::PayloadUndecodable, error))),
            Ok(Err(panic)) => {
                Err(Failure::Retry(Fault::new(Code::HandlerPanicked, panic_text(panic.as_ref()))))
            }
            Err(_) => {
                let text = format!("the prepare step did not finish within {limit:?}");
                Err(Failure::Retry(Fault::new(Code::HandlerTimedOut, text)))
            }
        }
    }
}
