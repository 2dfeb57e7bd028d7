//! The inbox.

use std::collections::BTreeMap;

use hapax_core::{Code, ConsumerName, Error, ErrorKind, Inbox, InboxRow, InboxState, Key, MessageId};

use super::database::{Database, Scoped};
use super::faults::{MemoryError, Op};
use super::store::MemoryStore;
use super::transaction::MemoryTx;

impl Inbox for MemoryStore {
    async fn look(&self, consumer: &ConsumerName, ids: &[MessageId]) -> Result<Vec<Option<InboxRow>>, Error> {
        self.call(Op::Look, |database| {
            let row = |id: &MessageId| database.inbox.get(&(consumer.clone(), id.clone())).cloned();
            Ok(ids.iter().map(row).collect())
        })
        .await
    }

    async fn record(&self, consumer: &ConsumerName, key: &Key) -> Result<bool, Error> {
        self.call(Op::Record, |database| database.record(consumer, key)).await
    }

    async fn record_in(&self, tx: &mut MemoryTx, consumer: &ConsumerName, key: &Key) -> Result<bool, Error> {
        self.call(Op::Record, |database| {
            tx.check_intact(database)?;
            let is_free = database.is_free(consumer, key)?;
            if is_free {
                tx.take(database, key);
                tx.unparked.extend(key.place);
            }
            Ok(is_free)
        })
        .await
    }

    async fn rename(&self, from: &ConsumerName, to: &ConsumerName) -> Result<u64, Error> {
        self.call(Op::Rename, |database| database.rename(from, to)).await
    }
}

impl Database {
    /// Whether the message has no row, or waits at the place it comes from; a rival who holds it may yet roll
    /// back.
    fn is_free(&self, consumer: &ConsumerName, key: &Key) -> Result<bool, MemoryError> {
        let scoped = (consumer.clone(), key.id.clone());
        if self.held.contains_key(&scoped) {
            return Err(MemoryError::new(ErrorKind::Busy, "somebody holds the message"));
        }
        Ok(self
            .inbox
            .get(&scoped)
            .is_none_or(|row| row.state == InboxState::Waiting && self.is_at_its_place(consumer, key)))
    }

    fn record(&mut self, consumer: &ConsumerName, key: &Key) -> Result<bool, Error> {
        if !self.is_free(consumer, key)? {
            return Ok(false);
        }
        if let Some(place) = key.place {
            self.waiting.remove(&place);
        }
        let row = InboxRow {
            id: key.id.clone(),
            state: InboxState::Done,
            digest: key.digest,
            sent_at: key.sent_at,
            processed_at: self.now(),
            lease_until: None,
            result: None,
        };
        self.inbox.insert((consumer.clone(), key.id.clone()), row);
        Ok(true)
    }

    fn rename(&mut self, from: &ConsumerName, to: &ConsumerName) -> Result<u64, Error> {
        if self.has_records(to) {
            return Err(Error::new(ErrorKind::Setup, Code::NameTaken, format!("`{to}` has records")));
        }
        if self.held.keys().any(|(consumer, _)| consumer == from) {
            return Err(MemoryError::new(ErrorKind::Busy, "the consumer is at work").into());
        }
        let moved = rescope(&mut self.inbox, from, to);
        rescope(&mut self.starts, from, to);
        rescope(&mut self.fences, from, to);
        rescope(&mut self.calls, from, to);
        rescope(&mut self.versions, from, to);
        rescope(&mut self.instances, from, to);
        if let Some(horizon) = self.horizons.remove(from) {
            self.horizons.insert(to.clone(), horizon);
        }
        for entry in self.waiting.values_mut().filter(|entry| entry.consumer == *from) {
            entry.consumer = to.clone();
        }
        for entry in self.dead.values_mut().filter(|entry| entry.letter.consumer == *from) {
            entry.letter.consumer = to.clone();
        }
        Ok(moved)
    }

    fn has_records(&self, consumer: &ConsumerName) -> bool {
        self.inbox.keys().any(|(name, _)| name == consumer)
            || self.held.keys().any(|(name, _)| name == consumer)
            || self.waiting.values().any(|entry| entry.consumer == *consumer)
            || self.dead.values().any(|entry| entry.letter.consumer == *consumer)
            || self.versions.keys().any(|(name, _)| name == consumer)
            || self.horizons.contains_key(consumer)
    }
}

/// Moves the rows of one consumer to another and counts them.
fn rescope<K: Ord, V>(rows: &mut BTreeMap<Scoped<K>, V>, from: &ConsumerName, to: &ConsumerName) -> u64 {
    let mut moved = 0;
    for ((consumer, key), value) in std::mem::take(rows) {
        let ours = consumer == *from;
        moved += u64::from(ours);
        rows.insert((if ours { to.clone() } else { consumer }, key), value);
    }
    moved
}
