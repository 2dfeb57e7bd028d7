//! The step before the transaction.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use hapax_core::{Code, ConsumerStore, Failure, Fault, Prepared, Settler};

use crate::attempt::panic_text;
use crate::job::Job;
use crate::shared::Shared;
use crate::worker::{Segment, Worker};

impl<S: ConsumerStore, T: Settler<R>, R: Clone + Send + Sync + 'static> Shared<S, T, R> {
    /// Runs the prepare steps of those that have one and have not been handled. Messages whose step
    /// fails leave the segment. `None` when the store is away and the segment has to wait.
    pub(crate) async fn prepare(&self, worker: &mut Worker<R>, segment: &mut Segment<R>) -> Option<()> {
        let wanting = |job: &Job<R>| job.prepared.is_none() && self.prepares.contains_key(job.kind());
        if self.prepares.is_empty() || !segment.jobs.iter().any(wanting) {
            return Some(());
        }
        let ids: Vec<_> =
            segment.jobs.iter().filter(|job| wanting(job)).filter_map(|job| job.id().cloned()).collect();
        let rows = match self.store.look(&self.consumer, &ids).await {
            Ok(rows) => rows,
            Err(error) => {
                segment.lost += 1;
                self.outage.wait_until_back(&self.store, &error, segment.lost, &self.abort).await;
                return None;
            }
        };
        let mut rows = rows.into_iter();
        for mut job in std::mem::take(&mut segment.jobs) {
            if !wanting(&job) || job.id().is_none() {
                segment.jobs.push(job);
                continue;
            }
            let seen = rows.next().flatten().is_some();
            match if seen && job.place().is_none() { Ok(None) } else { self.prepare_one(&job).await } {
                Ok(prepared) => {
                    job.prepared = prepared;
                    segment.jobs.push(job);
                }
                Err(failure) => self.charge_all(worker, vec![job], failure).await,
            }
        }
        Some(())
    }

    pub(crate) async fn prepare_one(&self, job: &Job<R>) -> Result<Option<Prepared>, Failure> {
        let (Some(step), Some(message)) = (self.prepares.get(job.kind()), job.message()) else {
            return Ok(None);
        };
        let limit = self.settings.timeout.unwrap_or(Duration::MAX);
        let guarded = AssertUnwindSafe(step.run(message, job.failures + 1)).catch_unwind();
        match tokio::time::timeout(limit, guarded).await {
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
