//! Messages that may have ended a process run alone, with their start on record.

use hapax_core::{ClaimRequest, Code, ConsumerStore, Error, Settler, Start, Transaction as _, crash_point};
use tracing::{info, warn};

use crate::attempt::{End, Setback};
use crate::job::{Flaw, Job, Suspect};
use crate::sentence::Sentence;
use crate::shared::Shared;
use crate::worker::{Segment, Worker};

impl<S: ConsumerStore, T: Settler<R>, R: Clone + Send + Sync + 'static> Shared<S, T, R> {
    /// Suspects run alone, one by one; the rest of their segment afterwards as usual.
    pub(crate) async fn run_suspects(
        &self,
        worker: &mut Worker<R>,
        mut segment: Segment<R>,
        stack: &mut Vec<Segment<R>>,
    ) -> Option<(Segment<R>, Result<Vec<End>, Setback>)> {
        if let Err(setback) = self.settle_suspicions(&mut segment.jobs).await {
            return Some((segment, Err(setback)));
        }
        let Some(index) = segment.jobs.iter().position(|job| job.suspect == Suspect::Yes) else {
            stack.push(segment);
            return None;
        };
        if segment.jobs.len() > 1 {
            let mut before = segment.jobs;
            let after = before.split_off(index + 1);
            let suspect = before.split_off(index);
            let parts = [after, suspect, before];
            stack.extend(parts.into_iter().filter(|part| !part.is_empty()).map(Segment::of));
            return None;
        }
        let _alone = self.alone.write().await;
        match self.charge_start(&mut segment.jobs[0]).await {
            Ok(Start::Spent(crashes)) => {
                let sentence = crashed_too_often(&segment.jobs[0], crashes);
                self.carry_out_all(worker, segment.jobs, sentence).await;
                None
            }
            Ok(_) => {
                crash_point!("after-start");
                self.run(worker, segment).await
            }
            Err(error) => Some((segment, Err(error.into()))),
        }
    }

    /// Where the source cannot tell what it delivered before, the store can: what it has seen is no suspect.
    pub(crate) async fn settle_suspicions(&self, jobs: &mut [Job<R>]) -> Result<(), Setback> {
        let doubtful: Vec<usize> =
            (0..jobs.len()).filter(|index| jobs[*index].suspect == Suspect::IfNew).collect();
        let ids: Vec<_> = doubtful.iter().filter_map(|index| jobs[*index].id().cloned()).collect();
        if doubtful.is_empty() {
            return Ok(());
        }
        let mut rows = self.store.look(&self.consumer, &ids).await?.into_iter();
        for index in doubtful {
            let job = &mut jobs[index];
            let known = job.id().is_none() || rows.next().flatten().is_some();
            job.suspect = if !known && self.suspicion.spend() { Suspect::Yes } else { Suspect::No };
        }
        Ok(())
    }

    /// Records a suspect's start once, however often its transaction has to be run.
    pub(crate) async fn charge_start(&self, job: &mut Job<R>) -> Result<Start, Error> {
        let Some(key) = job.key(self.settings.order).filter(|_| !job.start_charged) else {
            return Ok(Start::NotNeeded);
        };
        let start = self.store.charge_start(&self.consumer, &key, self.settings.retry.limit()).await?;
        job.start_charged = start == Start::Charged;
        if job.start_charged {
            info!(consumer = %self.consumer, message_id = job.id_text(), "runs alone: it may have ended a process");
        }
        Ok(start)
    }

    /// A suspect that is handed back did not end the process.
    pub(crate) async fn erase_starts(&self, ids: Vec<hapax_core::MessageId>) {
        let erased = async {
            let (mut tx, _) = self.store.begin_claim(&ClaimRequest::none(&self.consumer)).await?;
            tx.meta().erased_starts = ids;
            self.store.finish(tx).await
        };
        if let Err(error) = erased.await {
            warn!(%error, "recorded starts were not erased; they count as crashes");
        }
    }
}

fn crashed_too_often<R>(job: &Job<R>, crashes: u32) -> Sentence {
    let reason = format!("the process ended {crashes} times while it ran alone");
    Sentence::Bury { flaw: Flaw { code: Code::CrashedTooOften, reason }, failures: job.failures, crashes }
}
