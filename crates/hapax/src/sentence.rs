//! A message that failed, deferred or is beyond help: parked or buried, in a transaction of its own.

use std::time::Duration;

use hapax_core::{
    Claim, ClaimRequest, Code, ConsumerStore, Failure, Fault, Parking, Settler, Verdict, crash_point,
};
use tracing::warn;

use crate::attempt::{Connection, End, Setback};
use crate::job::{Flaw, Job, Order};
use crate::shared::Shared;
use crate::worker::{Segment, Worker};

/// What to do with a message that failed, deferred or is beyond help.
pub(crate) enum Sentence {
    Park { failures: u32, fault: Option<Fault>, wait: Duration },
    Bury { flaw: Flaw, failures: u32, crashes: u32 },
}

impl<S: ConsumerStore, T: Settler<R>, R: Clone + Send + Sync + 'static> Shared<S, T, R> {
    /// Charges a failure to messages that ran alone.
    pub(crate) async fn charge_all(&self, worker: &mut Worker<R>, jobs: Vec<Job<R>>, failure: Failure) {
        let Some(job) = jobs.first() else { return };
        let sentence = self.judge(job, self.reclassify(failure));
        self.carry_out_all(worker, jobs, sentence).await;
    }

    /// Lets the user's classifiers speak about an error that was let through with `?`.
    fn reclassify(&self, failure: Failure) -> Failure {
        let Failure::Retry(fault) = failure else { return failure };
        match self.classify.iter().find_map(|classify| classify(fault.error())) {
            Some(Verdict::Reject) => Failure::Reject(fault),
            Some(Verdict::Defer(wait)) => Failure::Defer(wait),
            _ => Failure::Retry(fault),
        }
    }

    fn judge(&self, job: &Job<R>, failure: Failure) -> Sentence {
        match failure {
            Failure::Defer(wait) => Sentence::Park { failures: job.failures, fault: None, wait },
            Failure::Reject(fault) => {
                let flaw = Flaw { code: fault.code(), reason: fault.to_string() };
                Sentence::Bury { flaw, failures: job.failures, crashes: 0 }
            }
            Failure::Retry(fault) => {
                self.brake.failed();
                let failures = job.failures + 1;
                warn!(consumer = %self.consumer, message_id = job.id_text(), kind = job.kind(), code = %fault.code(),
                    failures, error = %fault, "a message failed");
                if let Some(wait) = self.settings.retry.after(failures) {
                    let wait = wait.max(fault.wait());
                    return Sentence::Park { failures, fault: Some(fault), wait };
                }
                let flaw = Flaw { code: Code::AttemptsSpent, reason: fault.with_code() };
                Sentence::Bury { flaw, failures, crashes: 0 }
            }
            _ => Sentence::Park { failures: job.failures, fault: None, wait: Duration::ZERO },
        }
    }

    /// Parks or buries messages, each in a transaction of its own, and settles them.
    pub(crate) async fn carry_out_all(&self, worker: &mut Worker<R>, jobs: Vec<Job<R>>, sentence: Sentence) {
        for job in jobs {
            let mut segment = Segment::of(vec![job]);
            let end = loop {
                if self.abort.is_cancelled() {
                    return self.hand_back(segment.jobs).await;
                }
                match self.carry_out(&segment.jobs[0], &sentence).await {
                    Ok(end) => break end,
                    Err(Setback::Away(error) | Setback::Unknown { error, .. } | Setback::Broken(error)) => {
                        segment.lost += 1;
                        self.outage.wait_until_back(&self.store, &error, segment.lost, &self.abort).await;
                    }
                    Err(_) => self.pause(&mut segment).await,
                }
            };
            self.conclude(worker, segment.jobs, vec![end]).await;
        }
    }

    pub(crate) async fn carry_out(&self, job: &Job<R>, sentence: &Sentence) -> Result<End, Setback> {
        let keys: Vec<_> = job.key(Order::None).into_iter().collect();
        let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(&self.consumer) };
        let (mut tx, claims) = self.store.begin_claim(&request).await?;
        if let Some(claim) = claims.first().filter(|claim| !claim.is_ours()) {
            self.store.roll_back(tx).await;
            return match claim {
                Claim::Busy if job.grip.is_some() => Ok(End::Busy), // taken over: it is theirs to fail
                Claim::Busy => Err(Setback::Locked),
                _ => Ok(End::Duplicate),
            };
        }
        crash_point!("before-set-aside");
        match self.set_aside(&mut tx, job, sentence).await {
            Ok(end) => {
                self.settle_inside(&mut tx, std::slice::from_ref(job), std::slice::from_ref(&end));
                self.store.finish(tx).await?;
                crash_point!("after-set-aside");
                Ok(end)
            }
            Err((setback, connection)) => {
                match connection {
                    Connection::Usable => self.store.roll_back(tx).await,
                    Connection::Lost => self.store.abort(tx).await,
                }
                Err(setback)
            }
        }
    }

    pub(crate) async fn set_aside(
        &self,
        tx: &mut S::Tx,
        job: &Job<R>,
        sentence: &Sentence,
    ) -> Result<End, (Setback, Connection)> {
        match (sentence, job.message()) {
            (Sentence::Park { failures, fault, wait }, Some(message)) => {
                let error = fault.as_ref().map(ToString::to_string).unwrap_or_default();
                let parking = Parking {
                    message,
                    failures: *failures,
                    error: &error,
                    code: fault.as_ref().map(Fault::code),
                    wait: *wait,
                    order: job.order_key(self.settings.order),
                };
                let parked = self.store.park(tx, &self.consumer, &parking).await;
                parked.map_err(|error| (Setback::from(error), Connection::Usable))?;
                Ok(End::Parked { wait: *wait })
            }
            (Sentence::Bury { flaw, failures, crashes }, _) => {
                self.bury_as(tx, job, flaw, *failures, *crashes).await
            }
            (Sentence::Park { .. }, None) => Ok(End::Busy),
        }
    }
}
