//! What a memory store keeps, and how a transaction's changes get into it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hapax_core::{
    Code, ConsumerName, DeadLetter, DeadNumber, Envelope, InboxRow, InstanceId, MessageId, OutboxNumber,
    OutboxRow, Place, Timestamp,
};
use serde_json::Value;

use super::calls::CallEntry;
use super::faults::Faults;

/// A message's id in the scope of its consumer.
pub(super) type Scoped<T> = (ConsumerName, T);

/// Tells open transactions apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TxId(u64);

/// All tables, behind one lock: whatever holds it is serialised with everything else.
#[derive(Debug, Default)]
pub(super) struct Database {
    pub(super) faults: Faults,
    /// The table of the handler's own.
    pub(super) rows: BTreeMap<String, Value>,
    pub(super) inbox: BTreeMap<Scoped<MessageId>, InboxRow>,
    /// Which open transaction holds a message.
    pub(super) held: HashMap<Scoped<MessageId>, TxId>,
    pub(super) waiting: BTreeMap<Place, WaitingEntry>,
    pub(super) dead: BTreeMap<DeadNumber, DeadEntry>,
    /// Who redrove a dead letter, and when.
    pub(super) redriven: BTreeMap<DeadNumber, (String, Timestamp)>,
    /// The latest fence of each message.
    pub(super) fences: BTreeMap<Scoped<MessageId>, i64>,
    pub(super) calls: BTreeMap<Scoped<(MessageId, String)>, CallEntry>,
    pub(super) starts: BTreeMap<Scoped<MessageId>, u32>,
    pub(super) instances: BTreeMap<Scoped<String>, Timestamp>,
    pub(super) horizons: BTreeMap<ConsumerName, Timestamp>,
    pub(super) versions: BTreeMap<Scoped<String>, i64>,
    /// Which open transaction has taken note of an entity's version.
    pub(super) noted: HashMap<Scoped<String>, TxId>,
    /// Rows of the outbox with their buckets.
    pub(super) outbox: BTreeMap<OutboxNumber, (u16, OutboxRow)>,
    /// The buckets that somebody holds.
    pub(super) buckets: BTreeMap<u16, Bucket>,
    /// The latest signs of life of relays.
    pub(super) relays: BTreeMap<String, Timestamp>,
    /// How often all connections were cut: transactions from before are gone.
    pub(super) outages: u64,
    ahead: Duration,
    transactions: u64,
    places: i64,
    numbers: i64,
    outbox_numbers: i64,
    fences_given: i64,
}

/// A part of the outbox in a relay's hands.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub(super) owner: String,
    pub(super) until: Timestamp,
}

/// A row of the waiting room.
#[derive(Clone, Debug)]
pub(super) struct WaitingEntry {
    pub(super) consumer: ConsumerName,
    pub(super) id: MessageId,
    pub(super) envelope: Envelope,
    pub(super) order: Option<String>,
    pub(super) failures: u32,
    pub(super) code: Option<Code>,
    pub(super) error: String,
    pub(super) due_at: Timestamp,
    pub(super) parked_at: Timestamp,
    pub(super) first_failed_at: Option<Timestamp>,
    /// The end of the latest lease; none once it was given back or the message came in again.
    pub(super) leased_until: Option<Timestamp>,
}

/// A dead letter and its place among the messages of its key.
#[derive(Clone, Debug)]
pub(super) struct DeadEntry {
    pub(super) letter: DeadLetter,
    pub(super) place: Place,
}

impl Database {
    /// The database's clock.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::now().plus(self.ahead)
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.ahead = self.ahead.saturating_add(by);
    }

    pub(super) fn next_transaction(&mut self) -> TxId {
        self.transactions += 1;
        TxId(self.transactions)
    }

    pub(super) fn next_place(&mut self) -> Place {
        self.places += 1;
        Place(self.places)
    }

    pub(super) fn next_number(&mut self) -> DeadNumber {
        self.numbers += 1;
        DeadNumber(self.numbers)
    }

    pub(super) fn next_outbox_number(&mut self) -> i64 {
        self.outbox_numbers += 1;
        self.outbox_numbers
    }

    pub(super) fn next_fence(&mut self) -> i64 {
        self.fences_given += 1;
        self.fences_given
    }

    /// Whether a dead letter ever had this number.
    pub(super) fn had_number(&self, number: DeadNumber) -> bool {
        (1..=self.numbers).contains(&number.0)
    }

    /// Ends all open transactions, as a server does that stops.
    pub(super) fn cut_connections(&mut self) {
        self.outages += 1;
        self.held.clear();
        self.noted.clear();
    }

    /// Lets go of everything that a transaction holds.
    pub(super) fn release(&mut self, tx: TxId) {
        self.held.retain(|_, holder| *holder != tx);
        self.noted.retain(|_, holder| *holder != tx);
    }

    /// The waiting row of a message.
    pub(super) fn waiting_of(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
    ) -> Option<(Place, &WaitingEntry)> {
        self.waiting
            .iter()
            .find(|(_, entry)| entry.consumer == *consumer && entry.id == *id)
            .map(|(place, entry)| (*place, entry))
    }

    /// Whether a waiting or dead message of the key stands before this place; before all of them, if there is
    /// none.
    pub(super) fn is_blocked(
        &self,
        consumer: &ConsumerName,
        order: Option<&str>,
        place: Option<Place>,
    ) -> bool {
        let Some(order) = order else { return false };
        let before = |other: Place| place.is_none_or(|own| other < own);
        let waits = |(other, entry): (&Place, &WaitingEntry)| {
            entry.consumer == *consumer && entry.order.as_deref() == Some(order) && before(*other)
        };
        let is_dead = |entry: &DeadEntry| {
            entry.letter.consumer == *consumer
                && entry.letter.order.as_deref() == Some(order)
                && before(entry.place)
        };
        self.waiting.iter().any(waits) || self.dead.values().any(is_dead)
    }
}

/// The key of an instance's row.
pub(super) fn instance_key(consumer: &ConsumerName, instance: &InstanceId) -> Scoped<String> {
    (consumer.clone(), instance.0.clone())
}
