//! How long inbox rows are kept.

use std::time::Duration;

use hapax_core::{ConsumerName, Error, InboxState, MessageId, Purged, Retention, Timestamp};

use super::database::Database;
use super::faults::Op;
use super::store::MemoryStore;

impl Retention for MemoryStore {
    async fn purge(&self, consumer: &ConsumerName, keep: Duration, max: u32) -> Result<Purged, Error> {
        self.call(Op::Purge, |database| Ok(database.purge(consumer, keep, max))).await
    }

    async fn horizon(&self, consumer: &ConsumerName) -> Result<Option<Timestamp>, Error> {
        self.call(Op::Horizon, |database| Ok(database.horizons.get(consumer).copied())).await
    }
}

impl Database {
    fn purge(&mut self, consumer: &ConsumerName, keep: Duration, max: u32) -> Purged {
        let mut old = self.older_than(consumer, self.now().minus(keep));
        old.sort_unstable();
        old.truncate(max as usize);
        let rows = old.len() as u64;
        for (_, id) in old {
            self.forget_calls(consumer, &id);
            let removed = self.inbox.remove(&(consumer.clone(), id));
            self.move_horizon(consumer, removed.and_then(|row| row.sent_at));
        }
        Purged { rows, horizon: self.horizons.get(consumer).copied() }
    }

    /// The rows that are done since before `since`, with what they are ordered by.
    fn older_than(&self, consumer: &ConsumerName, since: Timestamp) -> Vec<(Timestamp, MessageId)> {
        self.inbox
            .iter()
            .filter(|((name, _), row)| name == consumer && row.state == InboxState::Done)
            .map(|((_, id), row)| {
                (row.sent_at.map_or(row.processed_at, |sent| sent.max(row.processed_at)), id)
            })
            .filter(|(latest, _)| *latest < since)
            .map(|(latest, id)| (latest, id.clone()))
            .collect()
    }

    fn move_horizon(&mut self, consumer: &ConsumerName, sent_at: Option<Timestamp>) {
        let Some(sent_at) = sent_at else { return };
        let horizon = self.horizons.entry(consumer.clone()).or_insert(sent_at);
        *horizon = sent_at.max(*horizon);
    }
}
