//! A worker: takes what is there, runs it, and settles what came of it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use hapax_core::{Code, ConsumerStore, Error, Failure, Fault, Settler};
use tracing::{debug, warn};

use crate::attempt::{End, Setback};
use crate::job::{Hold, Job, Order, Suspect};
use crate::metrics;
use crate::shared::Shared;

/// The first wait before something busy is claimed again, doubled each time.
const FIRST_BUSY: Duration = Duration::from_millis(10);
/// The longest such wait.
const LONGEST_BUSY: Duration = Duration::from_secs(1);
/// After so long without a conflict a batch may be larger by one.
const CALM: Duration = Duration::from_secs(5);
/// How often a worker tells of conflicts.
const TELL_EVERY: Duration = Duration::from_mins(1);
/// How often a handler may say that a connection is lost while the store answers: then it is not the
/// store's, and the failure is the handler's.
const LOST_ELSEWHERE: u32 = 3;

/// Messages that run in one transaction, and how often that met a setback.
pub(crate) struct Segment<R> {
    pub(crate) jobs: Vec<Job<R>>,
    pub(crate) setbacks: u32,
    pub(crate) lost: u32,
}

impl<R> Segment<R> {
    pub(crate) fn of(jobs: Vec<Job<R>>) -> Self {
        Self { jobs, setbacks: 0, lost: 0 }
    }
}

/// One of a consumer's workers.
pub(crate) struct Worker<R> {
    number: usize,
    /// What somebody else holds; claimed again when its time has come.
    pub(crate) busy: Vec<Job<R>>,
    /// The batch's present size: halved by a conflict, grown back with the time.
    max: usize,
    /// When that last changed.
    since: Instant,
    /// When it last told of conflicts.
    told: Option<Instant>,
}

impl<R> Worker<R> {
    pub(crate) fn new(number: usize, max: usize) -> Self {
        Self { number, busy: Vec::new(), max, since: Instant::now(), told: None }
    }

    /// A transaction was undone for the sake of another one. On PostgreSQL a deadlock costs both a second, so
    /// that a size which met one is not tried again soon.
    fn shrink(&mut self, batch: usize) {
        self.max = (batch / 2).max(1);
        self.since = Instant::now();
    }

    fn grow(&mut self, limit: usize) {
        if self.max < limit && self.since.elapsed() >= CALM {
            self.max += 1;
            self.since = Instant::now();
        }
    }

    /// Whether to tell of conflicts: now and then, since where there is one there are more.
    fn is_to_tell(&mut self) -> bool {
        let is_new = self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        if is_new {
            self.told = Some(Instant::now());
        }
        is_new
    }
}

impl<S: ConsumerStore, T: Settler<R>, R: Clone + Send + Sync + 'static> Shared<S, T, R> {
    /// Works until there is nothing more to take and nothing busy is left, or until draining is over.
    pub(crate) async fn work(&self, mut worker: Worker<R>) {
        while let Some(jobs) = self.next_jobs(&mut worker).await {
            if !jobs.is_empty() {
                self.process(&mut worker, jobs).await;
            }
        }
        self.hand_back(worker.busy).await;
    }

    /// What to run next: busy messages whose time has come, else what the intake has.
    async fn next_jobs(&self, worker: &mut Worker<R>) -> Option<Vec<Job<R>>> {
        if self.abort.is_cancelled() {
            return None;
        }
        let now = Instant::now();
        let due: Vec<Job<R>> =
            worker.busy.extract_if(.., |job| job.ready_at.is_none_or(|ready| ready <= now)).collect();
        if !due.is_empty() {
            return Some(due);
        }
        let next_busy = worker.busy.iter().filter_map(|job| job.ready_at).min();
        let busy_again = async {
            match next_busy {
                Some(ready) => tokio::time::sleep_until(ready.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(busy_again);
        let jobs = tokio::select! {
            biased;
            () = self.abort.cancelled() => return None,
            jobs = self.intake.take(worker.number, worker.max) => jobs,
            () = &mut busy_again => return Some(Vec::new()),
        };
        match jobs {
            Some(mut jobs) => {
                self.intake.fill(worker.number, worker.max, self.settings.batch.wait, &mut jobs).await;
                Some(self.behind_busy(worker, jobs))
            }
            None if worker.busy.is_empty() => None,
            None => {
                busy_again.await;
                Some(Vec::new())
            }
        }
    }

    /// Where order is kept, messages of a key wait behind one of it that is busy.
    fn behind_busy(&self, worker: &mut Worker<R>, jobs: Vec<Job<R>>) -> Vec<Job<R>> {
        if self.settings.order == Order::None || worker.busy.is_empty() {
            return jobs;
        }
        let keys: HashSet<String> = worker
            .busy
            .iter()
            .filter_map(|job| job.order_key(self.settings.order))
            .map(str::to_owned)
            .collect();
        let (behind, free) = jobs
            .into_iter()
            .partition(|job| job.order_key(self.settings.order).is_some_and(|key| keys.contains(key)));
        worker.busy.extend::<Vec<_>>(behind);
        free
    }

    /// Brings messages to their ends, in delivery order. The stack holds what is still to run, the
    /// first at the top; a batch that met a setback comes back in parts.
    async fn process(&self, worker: &mut Worker<R>, jobs: Vec<Job<R>>) {
        let mut stack: Vec<Segment<R>> = Self::segments(jobs).into_iter().rev().map(Segment::of).collect();
        while let Some(segment) = stack.pop() {
            if self.abort.is_cancelled() {
                stack.push(segment);
                break;
            }
            self.show();
            let Some(segment) = self.still_held(segment).await else { continue };
            let outcome = if segment.jobs.iter().any(|job| job.suspect != Suspect::No) {
                self.run_suspects(worker, segment, &mut stack).await
            } else {
                let _running = self.alone.read().await;
                self.run(worker, segment).await
            };
            if let Some((segment, outcome)) = outcome {
                self.after(worker, segment, outcome, &mut stack).await;
            }
        }
        self.hand_back(stack.into_iter().rev().flat_map(|segment| segment.jobs).collect()).await;
    }

    /// Leaves out what waited here for longer than its broker keeps it for us: it is somebody else's by now, or
    /// will be, and is not to be started. What is left runs; nothing if nothing is.
    async fn still_held(&self, segment: Segment<R>) -> Option<Segment<R>> {
        let Segment { jobs, setbacks, lost } = segment;
        let (jobs, expired): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| match &job.hold {
            Hold::Delivery(delivery) => self.settler.holds(delivery.receipt()),
            Hold::Waiting(_) => true,
        });
        if !expired.is_empty() {
            metrics::expired(&self.consumer, expired.len());
            debug!(consumer = %self.consumer, deliveries = expired.len(), "not started: their time with the broker has passed");
            self.hand_back(expired).await;
        }
        (!jobs.is_empty()).then_some(Segment { jobs, setbacks, lost })
    }

    /// Splits messages so that no segment holds an id twice: a second copy is settled after the first
    /// committed.
    fn segments(jobs: Vec<Job<R>>) -> Vec<Vec<Job<R>>> {
        let mut segments = Vec::with_capacity(1);
        let mut rest = jobs;
        while !rest.is_empty() {
            let mut seen = HashSet::with_capacity(rest.len());
            let (first, again): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|job| job.id().is_none_or(|id| seen.insert(id.clone())));
            segments.push(first);
            rest = again;
        }
        segments
    }

    /// Decides what comes of a transaction: ends, or what runs again.
    async fn after(
        &self,
        worker: &mut Worker<R>,
        mut segment: Segment<R>,
        outcome: Result<Vec<End>, Setback>,
        stack: &mut Vec<Segment<R>>,
    ) {
        let setback = match outcome {
            Ok(ends) => {
                worker.grow(self.settings.batch.max);
                return self.conclude(worker, segment.jobs, ends).await;
            }
            Err(setback) => setback,
        };
        metrics::rolled_back(&self.consumer, setback.cause());
        debug!(consumer = %self.consumer, messages = segment.jobs.len(), cause = setback.cause(), "rolled back");
        match setback {
            Setback::Failed { range, failure } => {
                self.after_failure(worker, segment, range, failure, stack).await;
            }
            Setback::Broken(error) if segment.jobs.len() == 1 => {
                let failure = Failure::Retry(Fault::new(error.code(), error));
                self.charge_all(worker, segment.jobs, failure).await;
            }
            Setback::Broken(_) => push_halves(segment, stack),
            Setback::Conflict => {
                worker.shrink(segment.jobs.len());
                if segment.jobs.len() > 1 && worker.is_to_tell() {
                    warn!(consumer = %self.consumer, code = %Code::StoreConflict, batch = worker.max,
                        "batches of different workers touch the same rows and undo each other: batches are smaller \
                         now; give the consumer a key, such as the row's, and one worker gets all its messages");
                }
                self.pause(&mut segment).await;
                push_halves(segment, stack);
            }
            Setback::Locked => {
                self.pause(&mut segment).await;
                push_halves(segment, stack);
            }
            Setback::Unknown { error, ends } => {
                // A copy that was a duplicate then is one when it is claimed again.
                for (job, end) in segment.jobs.iter_mut().zip(ends) {
                    job.uncertain |= matches!(end, End::Handled { .. });
                }
                self.outage.wait_until_back(&self.store, &error, 1, &self.abort).await;
                stack.push(segment);
            }
            Setback::Away(error) => self.after_loss(worker, segment, error, stack).await,
            Setback::Aborted => stack.push(segment),
        }
    }

    /// A handler failed. Alone, it is charged; in a batch, those before it, itself, and those after it
    /// run again by themselves, since the batch's fault need not be its own.
    async fn after_failure(
        &self,
        worker: &mut Worker<R>,
        segment: Segment<R>,
        range: std::ops::Range<usize>,
        failure: Failure,
        stack: &mut Vec<Segment<R>>,
    ) {
        if segment.jobs.len() == 1 {
            return self.charge_all(worker, segment.jobs, failure).await;
        }
        if range.len() == segment.jobs.len() {
            return push_halves(segment, stack);
        }
        let mut before = segment.jobs;
        let after = before.split_off(range.end);
        let failed = before.split_off(range.start);
        let parts = [after, failed, before];
        stack.extend(parts.into_iter().filter(|part| !part.is_empty()).map(Segment::of));
    }

    /// A connection was lost. If the store answers and the same happens again and again, the handler
    /// means some other server, and the failure is its own.
    async fn after_loss(
        &self,
        worker: &mut Worker<R>,
        mut segment: Segment<R>,
        error: Error,
        stack: &mut Vec<Segment<R>>,
    ) {
        let from_handler = segment.lost >= LOST_ELSEWHERE && error.code() == Code::StoreUnavailable;
        if from_handler && segment.jobs.len() == 1 && self.store.ping().await.is_ok() {
            let failure = Failure::Retry(Fault::new(Code::HandlerFailed, error));
            return self.charge_all(worker, segment.jobs, failure).await;
        }
        if from_handler && segment.jobs.len() > 1 {
            return push_halves(segment, stack);
        }
        segment.lost += 1;
        self.outage.wait_until_back(&self.store, &error, segment.lost, &self.abort).await;
        stack.push(segment);
    }

    /// Waits before a transaction is run again, longer each time, at random within bounds so that two
    /// that met do not meet again.
    pub(crate) async fn pause(&self, segment: &mut Segment<R>) {
        segment.setbacks += 1;
        let wait = busy_wait(segment.setbacks);
        tokio::select! {
            () = self.abort.cancelled() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl Setback {
    fn cause(&self) -> &'static str {
        match self {
            Self::Failed { .. } => "handler",
            Self::Broken(_) => "broken",
            Self::Conflict => "conflict",
            Self::Unknown { .. } => "unknown",
            Self::Away(_) => "away",
            Self::Locked => "locked",
            Self::Aborted => "aborted",
        }
    }
}

/// Runs a segment again in two halves, the first half first; one message runs again as it is.
fn push_halves<R>(segment: Segment<R>, stack: &mut Vec<Segment<R>>) {
    let Segment { jobs: mut first, setbacks, lost } = segment;
    let second = first.split_off(first.len().div_ceil(2));
    for jobs in [second, first].into_iter().filter(|jobs| !jobs.is_empty()) {
        stack.push(Segment { jobs, setbacks, lost });
    }
}

pub(crate) fn busy_wait(times: u32) -> Duration {
    let longest = FIRST_BUSY.saturating_mul(1 << times.saturating_sub(1).min(10)).min(LONGEST_BUSY);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}
