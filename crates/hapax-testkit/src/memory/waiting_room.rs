//! The waiting room.

use std::time::Duration;

use hapax_core::{
    Code, ConsumerName, Error, InboxState, MessageId, Parking, Place, Timestamp, Waiting, WaitingDepth,
    WaitingRoom, WaitingRow,
};

use super::database::{Database, WaitingEntry};
use super::faults::Op;
use super::store::MemoryStore;
use super::transaction::MemoryTx;

impl WaitingRoom for MemoryStore {
    async fn park(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerName,
        parking: &Parking<'_>,
    ) -> Result<(), Error> {
        self.call(Op::Park, |database| {
            tx.check_intact(database)?;
            tx.park(database, consumer, parking)
        })
        .await
    }

    async fn lease(
        &self,
        consumer: &ConsumerName,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Waiting>, Error> {
        self.call(Op::Lease, |database| Ok(database.lease(consumer, max, lease))).await
    }

    async fn renew(&self, consumer: &ConsumerName, places: &[Place], lease: Duration) -> Result<(), Error> {
        self.call(Op::Renew, |database| {
            let until = database.now().plus(lease);
            database.for_leased(consumer, places, |entry| entry.leased_until = Some(until));
            Ok(())
        })
        .await
    }

    async fn give_back(&self, consumer: &ConsumerName, places: &[Place]) -> Result<(), Error> {
        self.call(Op::GiveBack, |database| {
            database.for_leased(consumer, places, |entry| entry.leased_until = None);
            Ok(())
        })
        .await
    }

    async fn depth(&self, consumer: &ConsumerName) -> Result<WaitingDepth, Error> {
        self.call(Op::Depth, |database| Ok(database.depth(consumer))).await
    }

    async fn waiting(&self, consumer: &ConsumerName, id: &MessageId) -> Result<Option<WaitingRow>, Error> {
        self.call(Op::Waiting, |database| {
            Ok(database.waiting_of(consumer, id).map(|(place, entry)| entry.row(place)))
        })
        .await
    }
}

impl MemoryTx {
    fn park(
        &mut self,
        database: &mut Database,
        consumer: &ConsumerName,
        parking: &Parking<'_>,
    ) -> Result<(), Error> {
        let id = &parking.message.id;
        self.turn(consumer, id, InboxState::Waiting)?;
        let now = database.now();
        let failed_now = parking.code.map(|_| now);
        let (place, parked_at, first_failed_at) = match database.waiting_of(consumer, id) {
            Some((place, before)) => (place, before.parked_at, before.first_failed_at.or(failed_now)),
            None => (database.next_place(), now, failed_now),
        };
        let entry = WaitingEntry {
            consumer: consumer.clone(),
            id: id.clone(),
            envelope: parking.message.envelope.clone(),
            order: parking.order.map(str::to_owned),
            failures: parking.failures,
            code: parking.code,
            error: parking.error.to_owned(),
            due_at: now.plus(parking.wait),
            parked_at,
            first_failed_at,
            leased_until: None,
        };
        self.parked.push((place, entry));
        Ok(())
    }
}

impl WaitingEntry {
    fn is_leased(&self, now: Timestamp) -> bool {
        self.leased_until.is_some_and(|until| now < until)
    }

    fn row(&self, place: Place) -> WaitingRow {
        WaitingRow {
            place,
            failures: self.failures,
            code: self.code.map(Code::as_str).map(str::to_owned),
            error: self.error.clone(),
            due_at: self.due_at,
            parked_at: self.parked_at,
        }
    }
}

impl Database {
    /// The rows of a consumer that nothing of their key stands before.
    fn heads(&self, consumer: &ConsumerName) -> impl Iterator<Item = (Place, &WaitingEntry)> {
        self.waiting
            .iter()
            .map(|(place, entry)| (*place, entry))
            .filter(|(_, entry)| entry.consumer == *consumer)
            .filter(|(place, entry)| !self.is_blocked(consumer, entry.order.as_deref(), Some(*place)))
    }

    fn lease(&mut self, consumer: &ConsumerName, max: usize, lease: Duration) -> Vec<Waiting> {
        let now = self.now();
        let mut due: Vec<(Timestamp, Place)> = self
            .heads(consumer)
            .filter(|(_, entry)| entry.due_at <= now && !entry.is_leased(now))
            .map(|(place, entry)| (entry.due_at, place))
            .collect();
        due.sort_unstable();
        let until = now.plus(lease);
        due.into_iter().take(max).filter_map(|(_, place)| self.lease_one(place, until)).collect()
    }

    fn lease_one(&mut self, place: Place, until: Timestamp) -> Option<Waiting> {
        let entry = self.waiting.get_mut(&place)?;
        let leased_before = entry.leased_until.replace(until).is_some();
        Some(Waiting {
            place,
            id: entry.id.clone(),
            envelope: entry.envelope.clone(),
            order: entry.order.clone(),
            failures: entry.failures,
            leased_before,
        })
    }

    fn for_leased(&mut self, consumer: &ConsumerName, places: &[Place], change: impl Fn(&mut WaitingEntry)) {
        for place in places {
            let entry = self.waiting.get_mut(place).filter(|entry| entry.consumer == *consumer);
            entry.filter(|entry| entry.leased_until.is_some()).into_iter().for_each(&change);
        }
    }

    fn depth(&self, consumer: &ConsumerName) -> WaitingDepth {
        let now = self.now();
        let total = self.waiting.values().filter(|entry| entry.consumer == *consumer).count();
        let (due, later): (Vec<_>, Vec<_>) =
            self.heads(consumer).partition(|(_, entry)| entry.due_at <= now || entry.is_leased(now));
        let next = later.into_iter().map(|(_, entry)| now.until(entry.due_at)).min();
        WaitingDepth { total: total as u64, due: due.len() as u64, next }
    }
}
