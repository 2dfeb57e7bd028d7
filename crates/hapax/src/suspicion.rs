//! Which messages may have ended a process.
//!
//! A crash leaves no one to charge it: the process that would is gone. What it leaves is the row of an
//! instance that never said goodbye. While there is one, messages that come again are suspects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hapax_core::{
    ConsumerName, ConsumerStore, DeadFilter, ErrorKind, InstanceBeat, InstanceId, Instances, Timestamp,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::job::Suspect;
use crate::keeper::wait;
use crate::metrics;
use crate::shared::Shared;

/// How often an instance gives a sign of life.
const BEAT: Duration = Duration::from_secs(2);
/// Waiting and dead messages are counted once in so many beats.
const COUNT_EVERY: u32 = 5;
/// An instance whose sign of life was seen to change within this time is alive.
const ALIVE: Duration = Duration::from_secs(10);
/// How long an unclean end makes suspects: longer than brokers take to deliver again.
pub(crate) const FORGET: Duration = Duration::from_hours(1);

/// What is known of the consumer's other instances.
pub(crate) struct Suspicion {
    others: Mutex<HashMap<InstanceId, Sighting>>,
    /// How many New messages may still be suspects where the source cannot tell.
    budget: AtomicI64,
    source_knows: bool,
}

struct Sighting {
    beat_at: Timestamp,
    /// When the sign of life was last seen to *change*: one that was only found there proves nothing.
    advanced: Option<Instant>,
}

impl Suspicion {
    pub(crate) fn new(source_knows: bool, in_flight: usize) -> Self {
        let budget = i64::try_from(in_flight).unwrap_or(i64::MAX);
        Self { others: Mutex::default(), budget: AtomicI64::new(budget), source_knows }
    }

    /// Notes the other instances' signs of life.
    pub(crate) fn note(&self, beats: Vec<InstanceBeat>) {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *others);
        for InstanceBeat { instance, beat_at } in beats {
            let advanced = before
                .get(&instance)
                .and_then(|seen| if seen.beat_at == beat_at { seen.advanced } else { Some(Instant::now()) });
            others.insert(instance, Sighting { beat_at, advanced });
        }
    }

    /// Whether some other instance may have ended uncleanly.
    fn is_raised(&self) -> bool {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.values().any(|seen| seen.advanced.is_none_or(|at| at.elapsed() > ALIVE))
    }

    /// Judges a delivery.
    pub(crate) fn judge(&self, redelivered: bool) -> Suspect {
        match (self.source_knows, redelivered) {
            (true, true) if self.is_raised() => Suspect::Yes,
            (false, _) if self.budget.load(Ordering::Relaxed) > 0 && self.is_raised() => Suspect::IfNew,
            _ => Suspect::No,
        }
    }

    /// Judges a message of the waiting room, which always knows.
    pub(crate) fn judge_waiting(&self, leased_before: bool) -> Suspect {
        if leased_before && self.is_raised() { Suspect::Yes } else { Suspect::No }
    }

    /// Takes one from the budget of New messages; false when it is spent.
    pub(crate) fn spend(&self) -> bool {
        self.budget.fetch_sub(1, Ordering::Relaxed) > 0
    }
}

impl<S: ConsumerStore, T, R> Shared<S, T, R> {
    /// Gives signs of life and notes the others', until `done`. A store that takes none is away, even if
    /// no message shows it: a database that was made read-only must not be fetched for.
    pub(crate) async fn beat(&self, instance: InstanceId, done: CancellationToken) {
        for beats in 1_u32.. {
            if wait(BEAT, &done).await {
                return;
            }
            if beats % COUNT_EVERY == 0 {
                self.count_kept().await;
            }
            match self.store.beat(&self.consumer, &instance, FORGET).await {
                Ok(beats) => self.suspicion.note(beats),
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    self.outage.wait_until_back(&self.store, &error, 1, &done).await;
                }
                Err(error) => warn!(%error, "the sign of life could not be given"),
            }
        }
    }

    /// Shows what the store keeps of this consumer. Two round trips.
    async fn count_kept(&self) {
        let filter = DeadFilter { consumer: Some(self.consumer.clone()), ..DeadFilter::default() };
        let kept = (self.store.depth(&self.consumer).await, self.store.count_dead(&filter).await);
        if let (Ok(depth), Ok(dead)) = kept {
            metrics::kept(&self.consumer, depth.total, dead);
        }
    }
}

/// Enlists an instance and takes a first look at the others.
pub(crate) async fn enlist<S: Instances>(
    store: &S,
    consumer: &ConsumerName,
    instance: &InstanceId,
    suspicion: &Suspicion,
) -> Result<(), hapax_core::Error> {
    store.enlist(consumer, instance).await?;
    suspicion.note(store.beat(consumer, instance, FORGET).await?);
    if suspicion.is_raised() {
        info!(%consumer, "another instance is running or ended uncleanly; redelivered messages run alone until that is known");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(name: &str, at: i64) -> InstanceBeat {
        InstanceBeat { instance: InstanceId(name.into()), beat_at: Timestamp::from_micros(at) }
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_is_alive_only_while_it_is_seen_to_advance() {
        let suspicion = Suspicion::new(true, 10);
        assert_eq!(suspicion.judge(true), Suspect::No);
        suspicion.note(vec![beat("other", 1)]);
        assert_eq!(suspicion.judge(true), Suspect::Yes);
        assert_eq!(suspicion.judge(false), Suspect::No);
        suspicion.note(vec![beat("other", 2)]);
        assert_eq!(suspicion.judge(true), Suspect::No);
        tokio::time::advance(ALIVE + Duration::from_secs(1)).await;
        suspicion.note(vec![beat("other", 2)]);
        assert_eq!(suspicion.judge(true), Suspect::Yes);
        suspicion.note(vec![]);
        assert_eq!(suspicion.judge(true), Suspect::No);
    }

    #[test]
    fn where_the_source_cannot_tell_only_so_many_new_ones_are_suspects() {
        let suspicion = Suspicion::new(false, 2);
        suspicion.note(vec![beat("other", 1)]);
        assert_eq!(suspicion.judge(false), Suspect::IfNew);
        assert!(suspicion.spend() && suspicion.spend());
        assert_eq!(suspicion.judge(false), Suspect::No);
    }
}
