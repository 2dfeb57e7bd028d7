//! Messages in progress.

use std::time::Duration;

use hapax_core::{
    Claim, ConsumerName, Error, Fence, Grip, InboxRow, InboxState, Key, MessageId, Running, Timestamp,
};

use super::database::{Database, Scoped};
use super::faults::Op;
use super::store::MemoryStore;

impl Running for MemoryStore {
    async fn begin_running(
        &self,
        consumer: &ConsumerName,
        key: &Key,
        lease: Duration,
        slack: Duration,
    ) -> Result<Grip, Error> {
        self.call(Op::Running, |database| Ok(database.begin_running(consumer, key, lease, slack))).await
    }

    async fn renew_running(
        &self,
        consumer: &ConsumerName,
        running: &[(MessageId, Fence)],
        lease: Duration,
    ) -> Result<Vec<bool>, Error> {
        self.call(Op::Running, |database| {
            let until = database.now().plus(lease);
            let renew = |(id, fence): &(MessageId, Fence)| {
                let row = database.running(&(consumer.clone(), id.clone()), *fence);
                row.map(|row| row.lease_until = Some(until)).is_some()
            };
            Ok(running.iter().map(renew).collect())
        })
        .await
    }

    async fn end_running(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
        result: Option<&[u8]>,
    ) -> Result<bool, Error> {
        self.call(Op::Running, |database| {
            let processed_at = database.now();
            let row = database.running(&(consumer.clone(), id.clone()), fence);
            let ended = row.map(|row| {
                let result = result.map(|result| result.to_vec().into());
                let (state, lease_until) = (InboxState::Done, None);
                *row = InboxRow { id: id.clone(), state, processed_at, lease_until, result, ..row.clone() };
            });
            Ok(ended.is_some())
        })
        .await
    }

    async fn drop_running(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
    ) -> Result<bool, Error> {
        self.call(Op::Running, |database| {
            let scoped = (consumer.clone(), id.clone());
            let waits = database.waiting_of(consumer, id).is_some();
            let Some(row) = database.running(&scoped, fence) else { return Ok(false) };
            if waits {
                (row.state, row.lease_until) = (InboxState::Waiting, None);
            } else {
                database.inbox.remove(&scoped);
            }
            Ok(true)
        })
        .await
    }
}

impl Database {
    fn begin_running(
        &mut self,
        consumer: &ConsumerName,
        key: &Key,
        lease: Duration,
        slack: Duration,
    ) -> Grip {
        let scoped = (consumer.clone(), key.id.clone());
        let before = self.inbox.get(&scoped).cloned();
        let other_payload = before.as_ref().is_some_and(|row| row.digest != key.digest);
        let claim = self.claim_of(consumer, &Key { fence: None, ..key.clone() }, slack);
        match claim {
            Claim::Duplicate { .. } => {
                Grip::Done { other_payload, result: before.and_then(|row| row.result) }
            }
            Claim::Waiting { .. } => Grip::Waiting { other_payload },
            Claim::Dead { .. } => Grip::Dead { other_payload },
            Claim::Held => Grip::Held,
            Claim::New | Claim::Ambiguous => {
                let died = before.filter(|row| row.state == InboxState::Running);
                let digest = died.as_ref().map_or(key.digest, |row| row.digest);
                let fence = self.run(scoped, &Key { digest, ..key.clone() }, lease);
                let ambiguous = claim == Claim::Ambiguous;
                Grip::Ours {
                    fence,
                    taken_over: died.is_some(),
                    ambiguous,
                    other_payload: digest != key.digest,
                }
            }
            _ => self.running_elsewhere(&scoped, before, other_payload),
        }
    }

    fn running_elsewhere(
        &self,
        scoped: &Scoped<MessageId>,
        row: Option<InboxRow>,
        other_payload: bool,
    ) -> Grip {
        match row.and_then(|row| row.lease_until) {
            Some(until) if !self.held.contains_key(scoped) => {
                Grip::Running { other_payload, ends_in: until.since(self.now()) }
            }
            _ => Grip::Busy,
        }
    }

    fn run(&mut self, scoped: Scoped<MessageId>, key: &Key, lease: Duration) -> Fence {
        let now = self.now();
        let row = InboxRow {
            id: key.id.clone(),
            state: InboxState::Running,
            digest: key.digest,
            sent_at: key.sent_at,
            processed_at: now,
            lease_until: Some(now.plus(lease)),
            result: None,
        };
        self.inbox.insert(scoped.clone(), row);
        let fence = self.next_fence();
        self.fences.insert(scoped, fence);
        Fence(fence)
    }

    /// The row of a message that is running under this fence, unless a transaction holds it.
    fn running(&mut self, scoped: &Scoped<MessageId>, fence: Fence) -> Option<&mut InboxRow> {
        if self.held.contains_key(scoped) || self.fences.get(scoped) != Some(&fence.0) {
            return None;
        }
        self.inbox.get_mut(scoped).filter(|row| row.state == InboxState::Running)
    }

    /// Whether a claim with this fence, or with none, may take a running row.
    pub(super) fn may_be_taken(
        &self,
        scoped: &Scoped<MessageId>,
        row: &InboxRow,
        fence: Option<Fence>,
    ) -> bool {
        match fence {
            Some(fence) => self.fences.get(scoped) == Some(&fence.0),
            None => row.lease_until.is_some_and(|until| until <= self.now()),
        }
    }
}

/// When a call's or a message's lease ends, from now.
pub(super) trait Since {
    fn since(self, now: Timestamp) -> Duration;
}

impl Since for Timestamp {
    fn since(self, now: Timestamp) -> Duration {
        let micros = self.as_micros().saturating_sub(now.as_micros());
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}
