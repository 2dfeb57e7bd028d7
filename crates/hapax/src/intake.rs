//! Between the source and the workers: who gets which message, and in which order.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::Lane;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::job::Job;

/// Messages that were taken from the source or the waiting room and that no worker has begun.
///
/// Messages of one key, or of one lane, always go to the same worker, in order: two workers that
/// update the rows of one key would lock each other out, and in batches deadlock.
pub(crate) struct Intake<R> {
    queues: Mutex<Queues<R>>,
    bells: Vec<Notify>,
}

struct Queues<R> {
    shared: VecDeque<Job<R>>,
    own: Vec<VecDeque<Job<R>>>,
    closed: bool,
}

impl<R> Intake<R> {
    pub(crate) fn new(workers: usize) -> Self {
        let own = (0..workers).map(|_| VecDeque::new()).collect();
        let queues = Queues { shared: VecDeque::new(), own, closed: false };
        Self { queues: Mutex::new(queues), bells: (0..workers).map(|_| Notify::new()).collect() }
    }

    /// Hands messages to the workers. After `close` they come back.
    pub(crate) fn push(&self, jobs: Vec<Job<R>>) -> Vec<Job<R>> {
        let mut queues = self.lock();
        if queues.closed {
            return jobs;
        }
        for job in jobs {
            match job.route().map(|route| self.worker_of(route)) {
                Some(worker) => queues.own[worker].push_back(job),
                None => queues.shared.push_back(job),
            }
        }
        drop(queues);
        self.bells.iter().for_each(Notify::notify_one);
        Vec::new()
    }

    /// Waits until there is something for this worker and takes at most `max` of it; waits `linger`
    /// for more only if told to. `None` when there will be nothing more.
    pub(crate) async fn take(&self, worker: usize, max: usize, linger: Duration) -> Option<Vec<Job<R>>> {
        let mut jobs = self.take_some(worker, max).await?;
        let until = Instant::now() + linger;
        while jobs.len() < max && Instant::now() < until {
            let more = tokio::time::timeout_at(until, self.take_some(worker, max - jobs.len())).await;
            match more {
                Ok(Some(more)) => jobs.extend(more),
                Ok(None) | Err(_) => break,
            }
        }
        Some(jobs)
    }

    async fn take_some(&self, worker: usize, max: usize) -> Option<Vec<Job<R>>> {
        loop {
            match self.try_take(worker, max) {
                Ok(jobs) if jobs.is_empty() => self.bells[worker].notified().await,
                Ok(jobs) => return Some(jobs),
                Err(Closed) => return None,
            }
        }
    }

    /// Takes what is there without waiting.
    pub(crate) fn try_take(&self, worker: usize, max: usize) -> Result<Vec<Job<R>>, Closed> {
        let mut queues = self.lock();
        if queues.closed {
            return Err(Closed);
        }
        let from_own = max.min(queues.own[worker].len());
        let mut jobs: Vec<_> = queues.own[worker].drain(..from_own).collect();
        let from_shared = (max - from_own).min(queues.shared.len());
        jobs.extend(queues.shared.drain(..from_shared));
        Ok(jobs)
    }

    /// Ends it and answers with what nobody has begun.
    pub(crate) fn close(&self) -> Vec<Job<R>> {
        let mut queues = self.lock();
        queues.closed = true;
        let mut rest: Vec<_> = queues.shared.drain(..).collect();
        rest.extend(queues.own.iter_mut().flat_map(|own| own.drain(..)));
        drop(queues);
        self.bells.iter().for_each(Notify::notify_one);
        rest
    }

    /// Drops what nobody has begun of lanes that belong to somebody else now.
    pub(crate) fn forget(&self, lanes: &[Lane]) {
        let lost = |job: &Job<R>| job.lane.as_ref().is_some_and(|lane| lanes.contains(lane));
        let mut queues = self.lock();
        queues.shared.retain(|job| !lost(job));
        queues.own.iter_mut().for_each(|own| own.retain(|job| !lost(job)));
    }

    fn worker_of(&self, route: &str) -> usize {
        let mut hasher = DefaultHasher::new();
        route.hash(&mut hasher);
        // The remainder is smaller than the number of workers, which is a usize.
        usize::try_from(hasher.finish() % self.bells.len() as u64).unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, Queues<R>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// There will be nothing more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Content, Hold, Slot, lane_of};
    use hapax_core::{Envelope, Format, Part, Place};

    fn job(id: &str, key: Option<&str>) -> Job<()> {
        let mut envelope = Envelope::new("").with_id(id);
        envelope.properties.key = key.map(str::to_owned);
        let message = Format::default().key(Part::KeyProperty).read(envelope).unwrap();
        Job::new(Content::Message(message), Hold::Waiting(Place(0)), Slot { _permit: None, _kept: None })
    }

    fn ids(jobs: &[Job<()>]) -> Vec<&str> {
        jobs.iter().map(Job::id_text).collect()
    }

    #[tokio::test]
    async fn one_key_stays_with_one_worker_in_order() {
        let intake = Intake::new(4);
        intake.push((0..20).map(|n| job(&n.to_string(), Some("k"))).collect());
        let owner = intake.worker_of("k");
        let taken = intake.take(owner, 100, Duration::ZERO).await.unwrap();
        assert_eq!(ids(&taken), (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
        assert!((0..4).all(|worker| intake.try_take(worker, 100).unwrap().is_empty()));
    }

    #[tokio::test]
    async fn a_batch_is_what_is_there() {
        let intake = Intake::new(2);
        intake.push(vec![job("a", None), job("b", None), job("c", None)]);
        assert_eq!(ids(&intake.take(0, 2, Duration::ZERO).await.unwrap()), ["a", "b"]);
        assert_eq!(ids(&intake.take(1, 2, Duration::ZERO).await.unwrap()), ["c"]);
        assert!(intake.close().is_empty());
        assert!(intake.take(1, 2, Duration::ZERO).await.is_none());
        assert_eq!(intake.push(vec![job("d", None)]).len(), 1);
    }

    #[test]
    fn a_lost_lane_is_forgotten() {
        let intake = Intake::new(1);
        let mut lost = job("a", None);
        lost.lane = Some(lane_of("p0"));
        intake.push(vec![lost, job("b", None)]);
        intake.forget(&[lane_of("p0")]);
        assert_eq!(ids(&intake.try_take(0, 9).unwrap()), ["b"]);
    }
}
