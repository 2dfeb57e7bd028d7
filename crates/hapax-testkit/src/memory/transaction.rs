//! A transaction: the handler's changes and the store's own, staged until they are committed together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hapax_core::{
    ConsumerName, Digest, Error, ErrorKind, InboxRow, InboxState, MessageId, Place, Publishable, Settled,
    Timestamp, Transaction, TxMeta,
};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::database::{Database, DeadEntry, Scoped, TxId, WaitingEntry};
use super::faults::{MemoryError, Op};

/// A transaction of a [`MemoryStore`](super::MemoryStore) over a table of named values.
///
/// It reads what is committed plus its own changes. As on PostgreSQL, a statement that fails breaks it: a
/// handler that carries on and returns success is found out at commit ([`ErrorKind::Broken`]).
pub struct MemoryTx {
    database: Arc<Mutex<Database>>,
    id: TxId,
    outages: u64,
    broken: bool,
    pub(super) consumer: ConsumerName,
    meta: TxMeta,
    changes: BTreeMap<String, Change>,
    pub(super) taken: BTreeMap<MessageId, Taken>,
    pub(super) parked: Vec<(Place, WaitingEntry)>,
    pub(super) buried: Vec<DeadEntry>,
    pub(super) unparked: Vec<Place>,
    pub(super) noted: BTreeMap<Scoped<String>, i64>,
    _connection: OwnedSemaphorePermit,
}

/// A change of the handler's table.
#[derive(Debug)]
enum Change {
    Put(Value),
    /// Relative, so that two transactions that are open at once lose neither's.
    Add(i64),
    Delete,
}

/// An inbox row that this transaction holds, as it will be committed.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) digest: Digest,
    pub(super) sent_at: Option<Timestamp>,
    pub(super) state: InboxState,
}

impl MemoryTx {
    pub(super) fn begin(
        database: &mut Database,
        shared: Arc<Mutex<Database>>,
        connection: OwnedSemaphorePermit,
        consumer: &ConsumerName,
    ) -> Self {
        Self {
            id: database.next_transaction(),
            outages: database.outages,
            database: shared,
            broken: false,
            consumer: consumer.clone(),
            meta: TxMeta::new(consumer.clone()),
            changes: BTreeMap::new(),
            taken: BTreeMap::new(),
            parked: Vec::new(),
            buried: Vec::new(),
            unparked: Vec::new(),
            noted: BTreeMap::new(),
            _connection: connection,
        }
    }

    pub(super) fn id(&self) -> TxId {
        self.id
    }

    /// Writes a value under a key.
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Result<(), MemoryError> {
        self.statement(|_| ())?;
        self.changes.insert(key.into(), Change::Put(value.into()));
        Ok(())
    }

    /// Adds to the number under a key; what is missing, or no number, counts as zero.
    pub fn add(&mut self, key: impl Into<String>, n: i64) -> Result<(), MemoryError> {
        self.statement(|_| ())?;
        let key = key.into();
        let change = match self.changes.remove(&key) {
            None => Change::Add(n),
            Some(Change::Add(before)) => Change::Add(before.saturating_add(n)),
            Some(Change::Put(before)) => Change::Put(sum(Some(&before), n)),
            Some(Change::Delete) => Change::Put(n.into()),
        };
        self.changes.insert(key, change);
        Ok(())
    }

    /// Reads the value under a key: this transaction's own, else the committed one.
    pub fn get(&mut self, key: &str) -> Result<Option<Value>, MemoryError> {
        let committed = self.statement(|database| database.rows.get(key).cloned())?;
        Ok(match self.changes.get(key) {
            None => committed,
            Some(Change::Put(value)) => Some(value.clone()),
            Some(Change::Add(n)) => Some(sum(committed.as_ref(), *n)),
            Some(Change::Delete) => None,
        })
    }

    /// Removes a key.
    pub fn delete(&mut self, key: impl Into<String>) -> Result<(), MemoryError> {
        self.statement(|_| ())?;
        self.changes.insert(key.into(), Change::Delete);
        Ok(())
    }

    /// Publishes a message if and when this transaction commits: an [`Event`](hapax_core::Event), or a
    /// [`Publication`](hapax_core::Publication) that says more.
    pub fn publish(&mut self, message: impl Publishable) -> hapax_core::Result {
        Transaction::publish(self, message)
    }

    /// Breaks the transaction, as a handler does that runs COMMIT, DDL on MySQL, or swallows an SQL error on
    /// PostgreSQL: [`Store::finish`](hapax_core::Store::finish) finds it out and nothing is committed.
    pub fn break_transaction(&mut self) {
        self.broken = true;
    }

    /// A statement of the handler, which breaks the transaction if it fails.
    fn statement<T>(&mut self, run: impl FnOnce(&Database) -> T) -> Result<T, MemoryError> {
        if self.broken {
            return Err(MemoryError::new(ErrorKind::Statement, "the transaction is aborted"));
        }
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = database.faults.check(Op::Statement).and_then(|()| self.check_connection(&database));
        self.broken = checked.is_err();
        checked.map(|()| run(&database))
    }

    fn check_connection(&self, database: &Database) -> Result<(), MemoryError> {
        if self.outages == database.outages {
            return Ok(());
        }
        Err(MemoryError::new(ErrorKind::Unavailable, "the transaction's connection is gone"))
    }

    /// Fails unless the transaction is still what it was when it began.
    pub(super) fn check_intact(&self, database: &Database) -> Result<(), MemoryError> {
        self.check_connection(database)?;
        if self.broken {
            return Err(MemoryError::new(ErrorKind::Broken, "the transaction was broken"));
        }
        Ok(())
    }

    /// Applies every change, or none.
    pub(super) fn commit(&mut self, database: &mut Database) -> Result<(), Error> {
        self.check_intact(database)?;
        self.apply_changes(database);
        self.apply_inbox(database);
        self.apply_waiting_room(database);
        self.settle(database);
        database.write_outbox(self.meta.outbox.entries());
        database.release(self.id);
        Ok(())
    }

    fn apply_changes(&mut self, database: &mut Database) {
        for (key, change) in std::mem::take(&mut self.changes) {
            let value = match change {
                Change::Put(value) => value,
                Change::Add(n) => sum(database.rows.get(&key), n),
                Change::Delete => {
                    database.rows.remove(&key);
                    continue;
                }
            };
            database.rows.insert(key, value);
        }
        database.versions.extend(std::mem::take(&mut self.noted));
    }

    fn apply_inbox(&mut self, database: &mut Database) {
        let processed_at = database.now();
        let results = std::mem::take(&mut self.meta.results);
        for (id, Taken { digest, sent_at, state }) in std::mem::take(&mut self.taken) {
            let kept = results.iter().find(|(of, _)| *of == id);
            let result = kept.map(|(_, result)| result.clone());
            let row =
                InboxRow { id: id.clone(), state, digest, sent_at, processed_at, lease_until: None, result };
            database.inbox.insert((self.consumer.clone(), id), row);
        }
    }

    fn apply_waiting_room(&mut self, database: &mut Database) {
        for place in std::mem::take(&mut self.unparked) {
            database.waiting.remove(&place);
        }
        database.waiting.extend(std::mem::take(&mut self.parked));
        let buried = std::mem::take(&mut self.buried);
        database.dead.extend(buried.into_iter().map(|entry| (entry.letter.number, entry)));
    }

    fn settle(&mut self, database: &mut Database) {
        for settled in std::mem::take(&mut self.meta.settled) {
            if let Settled::Waiting(place) = settled {
                database.waiting.remove(&place);
            }
        }
        for id in std::mem::take(&mut self.meta.erased_starts) {
            database.starts.remove(&(self.consumer.clone(), id));
        }
    }
}

/// What is there plus `n`.
fn sum(there: Option<&Value>, n: i64) -> Value {
    there.and_then(Value::as_i64).unwrap_or(0).saturating_add(n).into()
}

impl Transaction for MemoryTx {
    fn meta(&mut self) -> &mut TxMeta {
        &mut self.meta
    }
}

impl Drop for MemoryTx {
    /// Whatever was not committed is rolled back.
    fn drop(&mut self) {
        self.database.lock().unwrap_or_else(PoisonError::into_inner).release(self.id);
    }
}

impl fmt::Debug for MemoryTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTx")
            .field("consumer", &self.consumer)
            .field("taken", &self.taken)
            .field("changes", &self.changes)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}
