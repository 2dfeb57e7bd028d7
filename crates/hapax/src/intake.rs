//! Between the source and the workers: who gets which message, and in which order.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::Lane;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::job::{Job, Order};

/// Messages that were taken from the source or the waiting room and that no worker has begun.
///
/// Messages of one key, or of one lane, always go to the same worker, in order: two workers that
/// update the rows of one key would lock each other out, and in batches deadlock.
pub(crate) struct Intake<R> {
    order: Order,
    queues: Mutex<Queues<R>>,
    /// Each worker's own, rung when there is something that only it may take.
    bells: Vec<Notify>,
    /// Rung for whoever waits, once for each message that anybody may take: to wake all workers for one
    /// message costs as much as a small message does.
    bell: Notify,
}

struct Queues<R> {
    shared: VecDeque<Job<R>>,
    own: Vec<VecDeque<Job<R>>>,
    closed: bool,
}

impl<R> Intake<R> {
    pub(crate) fn new(workers: usize, order: Order) -> Self {
        let own = (0..workers).map(|_| VecDeque::new()).collect();
        let queues = Queues { shared: VecDeque::new(), own, closed: false };
        let bells = (0..workers).map(|_| Notify::new()).collect();
        Self { order, queues: Mutex::new(queues), bells, bell: Notify::new() }
    }

    /// Hands messages to the workers. After `close` they come back.
    pub(crate) fn push(&self, jobs: Vec<Job<R>>) -> Vec<Job<R>> {
        let mut queues = self.lock();
        if queues.closed {
            return jobs;
        }
        let mut shared = 0;
        let mut own = vec![false; self.bells.len()];
        for job in jobs {
            if let Some(worker) = job.route(self.order).map(|route| self.worker_of(route)) {
                queues.own[worker].push_back(job);
                own[worker] = true;
            } else {
                queues.shared.push_back(job);
                shared += 1;
            }
        }
        drop(queues);
        self.bells.iter().zip(own).filter(|(_, own)| *own).for_each(|(bell, _)| bell.notify_one());
        (0..shared.min(self.bells.len())).for_each(|_| self.bell.notify_one());
        Vec::new()
    }

    /// Waits until there is something for this worker and takes at most `max` of it. `None` when there
    /// will be nothing more. Nothing is lost when this is dropped before it is ready.
    pub(crate) async fn take(&self, worker: usize, max: usize) -> Option<Vec<Job<R>>> {
        loop {
            match self.try_take(worker, max) {
                Ok(jobs) if jobs.is_empty() => tokio::select! {
                    () = self.bells[worker].notified() => {}
                    () = self.bell.notified() => {}
                },
                Ok(jobs) => return Some(jobs),
                Err(Closed) => return None,
            }
        }
    }

    /// Waits for more, until the batch is full or the time is over. To be run to its end: it holds the batch.
    pub(crate) async fn fill(&self, worker: usize, max: usize, wait: Duration, jobs: &mut Vec<Job<R>>) {
        let until = Instant::now() + wait;
        while jobs.len() < max && Instant::now() < until {
            match tokio::time::timeout_at(until, self.take(worker, max - jobs.len())).await {
                Ok(Some(more)) => jobs.extend(more),
                Ok(None) | Err(_) => break,
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
        if !queues.shared.is_empty() {
            // A bell that rings while nobody waits yet rings once, however often it was struck.
            self.bell.notify_one();
        }
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
        let intake = Intake::new(4, Order::None);
        intake.push((0..20).map(|n| job(&n.to_string(), Some("k"))).collect());
        let owner = intake.worker_of("k");
        let taken = intake.take(owner, 100).await.unwrap();
        assert_eq!(ids(&taken), (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
        assert!((0..4).all(|worker| intake.try_take(worker, 100).unwrap().is_empty()));
    }

    #[tokio::test]
    async fn one_lane_stays_with_one_worker_where_its_order_is_kept_whatever_the_keys() {
        let intake = Intake::new(4, Order::Lane);
        let keyed = (0..20).map(|n| {
            let mut job = job(&n.to_string(), Some(&format!("key {n}")));
            job.lane = Some(lane_of("p0"));
            job
        });
        intake.push(keyed.collect());
        let taken = intake.take(intake.worker_of("p0"), 100).await.unwrap();
        assert_eq!(ids(&taken), (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_batch_is_what_is_there() {
        let intake = Intake::new(2, Order::None);
        intake.push(vec![job("a", None), job("b", None), job("c", None)]);
        assert_eq!(ids(&intake.take(0, 2).await.unwrap()), ["a", "b"]);
        assert_eq!(ids(&intake.take(1, 2).await.unwrap()), ["c"]);
        assert!(intake.close().is_empty());
        assert!(intake.take(1, 2).await.is_none());
        assert_eq!(intake.push(vec![job("d", None)]).len(), 1);
    }

    #[test]
    fn a_lost_lane_is_forgotten() {
        let intake = Intake::new(1, Order::None);
        let mut lost = job("a", None);
        lost.lane = Some(lane_of("p0"));
        intake.push(vec![lost, job("b", None)]);
        intake.forget(&[lane_of("p0")]);
        assert_eq!(ids(&intake.try_take(0, 9).unwrap()), ["b"]);
    }
}
