//! The outbox.

use std::time::Duration;

use hapax_core::{
    BUCKETS, Code, Error, ErrorKind, InstanceId, NotSent, OnFailure, Outbox, OutboxEntry, OutboxFilter,
    OutboxNumber, OutboxRow, OutboxState, Take, Then, Timestamp, Unsent,
};

use super::database::{Bucket, Database};
use super::faults::Op;
use super::store::MemoryStore;

impl Database {
    /// Writes rows that a transaction published.
    pub(super) fn write_outbox(&mut self, entries: &[OutboxEntry]) {
        let now = self.now();
        for entry in entries {
            let number = OutboxNumber(self.next_outbox_number());
            let row = OutboxRow {
                number,
                id: entry.id.clone(),
                producer: entry.producer.clone(),
                cause: entry.cause.clone(),
                kind: entry.kind.clone(),
                key: entry.key.clone(),
                destination: entry.destination.clone(),
                state: OutboxState::Unsent,
                attempts: 0,
                code: None,
                error: None,
                created_at: now,
                due_at: now.plus(entry.delay),
                sent_at: None,
                parked_at: None,
                envelope: entry.envelope.clone(),
            };
            self.outbox.insert(number, (entry.bucket(), row));
        }
    }

    fn keep(&mut self, relay: &InstanceId, lease: Duration) {
        let (now, until) = (self.now(), self.now().plus(lease));
        self.relays.insert(relay.0.clone(), now);
        for bucket in self.buckets.values_mut().filter(|bucket| bucket.owner == relay.0) {
            bucket.until = until;
        }
    }

    fn share(&mut self, relay: &InstanceId, lease: Duration) -> Vec<u16> {
        self.keep(relay, lease);
        let now = self.now();
        let alive = |beat: &&Timestamp| beat.plus(lease) > now;
        let relays = self.relays.values().filter(alive).count().max(1);
        let share = usize::from(BUCKETS).div_ceil(relays);
        let held = |database: &Self| -> Vec<u16> {
            let ours = database.buckets.iter().filter(|(_, bucket)| bucket.owner == relay.0);
            ours.map(|(number, _)| *number).collect()
        };
        for surplus in held(self).into_iter().skip(share) {
            self.buckets.remove(&surplus);
        }
        let missing = share.saturating_sub(held(self).len());
        let is_free = |number: &u16| self.buckets.get(number).is_none_or(|bucket| bucket.until <= now);
        let free: Vec<u16> = (0..BUCKETS).filter(is_free).take(missing).collect();
        for number in free {
            self.buckets.insert(number, Bucket { owner: relay.0.clone(), until: now.plus(lease) });
        }
        held(self)
    }

    fn unsent(&self, take: &Take<'_>) -> Vec<Unsent> {
        let now = self.now();
        let ours = |bucket: u16| {
            self.buckets.get(&bucket).is_some_and(|held| held.owner == take.relay.0 && held.until > now)
        };
        let is_blocked = |row: &OutboxRow| {
            let stands_before = |other: &OutboxRow| {
                other.key == row.key
                    && other.number < row.number
                    && other.attempts > 0
                    && other.state != OutboxState::Sent
            };
            take.on_failure == OnFailure::Block
                && row.key.is_some()
                && self.outbox.values().any(|(_, other)| stands_before(other))
        };
        let is_due = |(bucket, row): &&(u16, OutboxRow)| {
            row.state == OutboxState::Unsent
                && row.due_at <= now
                && ours(*bucket)
                && !take.away.contains(&row.destination.broker)
                && !is_blocked(row)
        };
        let unsent = |(bucket, row): &(u16, OutboxRow)| Unsent {
            number: row.number,
            bucket: *bucket,
            key: row.key.clone(),
            attempts: row.attempts,
            destination: row.destination.clone(),
            envelope: row.envelope.clone(),
        };
        let max = usize::try_from(take.max).unwrap_or(usize::MAX);
        self.outbox.values().filter(is_due).take(max).map(unsent).collect()
    }

    fn unsent_row(&mut self, number: OutboxNumber) -> Result<&mut OutboxRow, Error> {
        let row = self.outbox.get_mut(&number).map(|(_, row)| row);
        row.filter(|row| row.state != OutboxState::Sent).ok_or_else(|| {
            let context = format!("there is no unsent or parked row {number} in the outbox");
            Error::new(ErrorKind::NotFound, Code::NotFound, context)
        })
    }
}

fn matches(filter: &OutboxFilter, row: &OutboxRow) -> bool {
    filter.state.is_none_or(|state| state == row.state)
        && filter.producer.as_ref().is_none_or(|producer| *producer == row.producer)
        && filter.key.as_ref().is_none_or(|key| Some(key) == row.key.as_ref())
        && filter.id.as_ref().is_none_or(|id| *id == row.id)
        && (!filter.failing || (row.attempts > 0 && row.state != OutboxState::Sent))
}

impl Outbox for MemoryStore {
    async fn share_buckets(&self, relay: &InstanceId, lease: Duration) -> Result<Vec<u16>, Error> {
        self.call(Op::Outbox, |database| Ok(database.share(relay, lease))).await
    }

    async fn keep_buckets(&self, relay: &InstanceId, lease: Duration) -> Result<(), Error> {
        self.call(Op::Outbox, |database| {
            database.keep(relay, lease);
            Ok(())
        })
        .await
    }

    async fn leave_buckets(&self, relay: &InstanceId) -> Result<(), Error> {
        self.call(Op::Outbox, |database| {
            database.relays.remove(&relay.0);
            database.buckets.retain(|_, bucket| bucket.owner != relay.0);
            Ok(())
        })
        .await
    }

    async fn unsent(&self, take: &Take<'_>) -> Result<Vec<Unsent>, Error> {
        self.call(Op::Outbox, |database| Ok(database.unsent(take))).await
    }

    async fn sent(&self, numbers: &[OutboxNumber], keep: bool) -> Result<(), Error> {
        self.call(Op::Sent, |database| {
            let now = database.now();
            for number in numbers {
                if !keep {
                    database.outbox.remove(number);
                } else if let Some((_, row)) = database.outbox.get_mut(number) {
                    (row.state, row.sent_at, row.attempts) = (OutboxState::Sent, Some(now), 0);
                    (row.code, row.error) = (None, None);
                }
            }
            Ok(())
        })
        .await
    }

    async fn not_sent(&self, rows: &[NotSent<'_>]) -> Result<(), Error> {
        self.call(Op::Outbox, |database| {
            let now = database.now();
            for NotSent { number, code, error, then } in rows {
                let Some((_, row)) = database.outbox.get_mut(number) else { continue };
                row.code = Some(code.to_string());
                row.error = Some((*error).to_owned());
                match then {
                    Then::Wait => {}
                    Then::Retry(wait) => {
                        row.attempts += 1;
                        row.due_at = now.plus(*wait);
                    }
                    Then::Park => {
                        row.attempts += 1;
                        (row.state, row.parked_at) = (OutboxState::Parked, Some(now));
                    }
                }
            }
            Ok(())
        })
        .await
    }

    async fn purge_sent(&self, keep: Duration, max: u32) -> Result<u64, Error> {
        self.call(Op::Outbox, |database| {
            let before = database.now().minus(keep);
            let old = database.outbox.values().filter(|(_, row)| row.sent_at.is_some_and(|at| at < before));
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            let old: Vec<OutboxNumber> = old.map(|(_, row)| row.number).take(max).collect();
            for number in &old {
                database.outbox.remove(number);
            }
            Ok(old.len() as u64)
        })
        .await
    }

    async fn outbox(&self, filter: &OutboxFilter) -> Result<Vec<OutboxRow>, Error> {
        self.call(Op::Outbox, |database| {
            let after = filter.after.unwrap_or(OutboxNumber(0));
            let rows = database.outbox.values().map(|(_, row)| row);
            let found = rows.filter(|row| row.number > after && matches(filter, row));
            Ok(found.take(usize::try_from(filter.limit).unwrap_or(usize::MAX)).cloned().collect())
        })
        .await
    }

    async fn count_outbox(&self, filter: &OutboxFilter) -> Result<u64, Error> {
        self.call(Op::Outbox, |database| {
            Ok(database.outbox.values().filter(|(_, row)| matches(filter, row)).count() as u64)
        })
        .await
    }

    async fn unpark(&self, number: OutboxNumber) -> Result<(), Error> {
        self.call(Op::Outbox, |database| {
            let now = database.now();
            let row = database.unsent_row(number)?;
            (row.state, row.attempts, row.due_at) = (OutboxState::Unsent, 0, now);
            (row.code, row.error, row.parked_at) = (None, None, None);
            Ok(())
        })
        .await?;
        self.wake_relays();
        Ok(())
    }

    async fn discard_unsent(&self, number: OutboxNumber) -> Result<(), Error> {
        self.call(Op::Outbox, |database| {
            database.unsent_row(number)?;
            database.outbox.remove(&number);
            Ok(())
        })
        .await?;
        self.wake_relays();
        Ok(())
    }

    async fn outbox_changed(&self, seen: &mut u64) {
        let mut news = self.news().subscribe();
        match news.wait_for(|count| count != seen).await.map(|count| *count) {
            Ok(count) => *seen = count,
            Err(_) => std::future::pending().await, // the store outlives its relays
        }
    }

    fn wake_relays(&self) {
        self.news().send_modify(|count| *count += 1);
    }
}
