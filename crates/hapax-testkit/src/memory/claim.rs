//! The attempt to take a message.

use std::time::Duration;

use hapax_core::{Claim, ConsumerName, InboxState, Key};

use super::database::Database;
use super::transaction::{MemoryTx, Taken};

impl MemoryTx {
    /// Takes a key if it can be taken, and says what it found.
    pub(super) fn claim(&mut self, database: &mut Database, key: &Key, slack: Duration) -> Claim {
        let claim = database.claim_of(&self.consumer, key, slack);
        if claim.is_ours() {
            self.take(database, key);
        }
        claim
    }

    /// Writes the key's row as `done`, and keeps rivals off until the transaction ends.
    pub(super) fn take(&mut self, database: &mut Database, key: &Key) {
        let taken = Taken { digest: key.digest, sent_at: key.sent_at, state: InboxState::Done };
        self.taken.insert(key.id.clone(), taken);
        database.held.insert((self.consumer.clone(), key.id.clone()), self.id());
    }
}

impl Database {
    /// What a claim of the key would be answered.
    pub(super) fn claim_of(&self, consumer: &ConsumerName, key: &Key, slack: Duration) -> Claim {
        let scoped = (consumer.clone(), key.id.clone());
        if self.held.contains_key(&scoped) {
            return Claim::Busy;
        }
        let Some(row) = self.inbox.get(&scoped) else {
            return self.claim_of_unseen(consumer, key, slack);
        };
        let other_payload = row.digest != key.digest;
        match row.state {
            InboxState::Done => Claim::Duplicate { other_payload },
            InboxState::Dead => Claim::Dead { other_payload },
            InboxState::Waiting if self.is_at_its_place(consumer, key) => self.free_or_held(consumer, key),
            InboxState::Waiting => Claim::Waiting { other_payload },
            InboxState::Running if self.may_be_taken(&scoped, row, key.fence) => {
                self.free_or_held(consumer, key)
            }
            _ => Claim::Busy,
        }
    }

    /// Ambiguity comes before order: a message that is parked loses it, since it is no longer unseen.
    fn claim_of_unseen(&self, consumer: &ConsumerName, key: &Key, slack: Duration) -> Claim {
        let horizon = self.horizons.get(consumer).map(|horizon| horizon.plus(slack));
        match (key.sent_at, horizon) {
            (Some(sent_at), Some(horizon)) if sent_at <= horizon => Claim::Ambiguous,
            _ => self.free_or_held(consumer, key),
        }
    }

    fn free_or_held(&self, consumer: &ConsumerName, key: &Key) -> Claim {
        let blocked = self.is_blocked(consumer, key.order.as_deref(), key.place);
        if blocked { Claim::Held } else { Claim::New }
    }

    pub(super) fn is_at_its_place(&self, consumer: &ConsumerName, key: &Key) -> bool {
        let entry = key.place.and_then(|place| self.waiting.get(&place));
        entry.is_some_and(|entry| entry.consumer == *consumer && entry.id == key.id)
    }
}
