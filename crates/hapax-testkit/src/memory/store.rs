//! The store itself: connections, clock, faults and transactions.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::{
    Claim, ClaimRequest, Code, DeadNumber, Error, ErrorKind, Outbox as _, Store, Transaction as _,
};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use super::database::Database;
use super::faults::{LostAnswer, MemoryError, Op};
use super::transaction::MemoryTx;

/// Numbers the stores of the process.
static STORES: AtomicU64 = AtomicU64::new(1);

/// How many transactions can be open at once, unless told otherwise.
const CAPACITY: usize = 64;

/// A store in memory. Clones share its connections; [`reopen`](Self::reopen) makes new ones to the same
/// tables.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    database: Arc<Mutex<Database>>,
    connections: Arc<Semaphore>,
    capacity: usize,
    instance: u64,
    /// Counts commits with messages to publish in them.
    news: Arc<watch::Sender<u64>>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store in which 64 transactions can be open at once.
    pub fn new() -> Self {
        Self::with_capacity(CAPACITY)
    }

    /// An empty store in which so many transactions can be open at once; further ones wait.
    pub fn with_capacity(capacity: usize) -> Self {
        Self::open(Arc::default(), Arc::default(), capacity)
    }

    /// A second store on the same tables, as another process would have.
    #[must_use]
    pub fn reopen(&self) -> Self {
        Self::open(Arc::clone(&self.database), Arc::clone(&self.news), self.capacity)
    }

    fn open(database: Arc<Mutex<Database>>, news: Arc<watch::Sender<u64>>, capacity: usize) -> Self {
        let instance = STORES.fetch_add(1, Ordering::Relaxed);
        Self { database, connections: Arc::new(Semaphore::new(capacity)), capacity, instance, news }
    }

    /// Sets the store's clock ahead, so that leases end, messages fall due and records grow old at once.
    pub fn advance(&self, by: Duration) {
        self.lock().advance(by);
    }

    /// Lets the next call of an operation fail with an error of this kind; calls add up.
    pub fn fail_next(&self, op: Op, kind: ErrorKind) {
        self.lock().faults.fail_next(op, kind);
    }

    /// Loses the answer to the next commit, which was applied or was not: [`ErrorKind::Unknown`].
    pub fn unknown_next_commit(&self, applied: bool) {
        let answer = if applied { LostAnswer::Applied } else { LostAnswer::RolledBack };
        self.lock().faults.lose_next_answer(answer);
    }

    /// Stops the server: open transactions are gone, and everything is [`ErrorKind::Unavailable`].
    pub fn go_away(&self) {
        let mut database = self.lock();
        database.faults.away = true;
        database.cut_connections();
    }

    /// Starts the server again, with all that was committed.
    pub fn come_back(&self) {
        self.lock().faults.away = false;
    }

    /// A committed row of the handler's table.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.lock().rows.get(key).cloned()
    }

    /// A committed number of the handler's table; zero if there is none.
    pub fn number(&self, key: &str) -> i64 {
        self.get(key).as_ref().and_then(Value::as_i64).unwrap_or(0)
    }

    /// All committed rows of the handler's table.
    pub fn rows(&self) -> BTreeMap<String, Value> {
        self.lock().rows.clone()
    }

    /// Who redrove a dead letter.
    pub fn redriven_by(&self, number: DeadNumber) -> Option<String> {
        self.lock().redriven.get(&number).map(|(by, _)| by.clone())
    }

    pub(super) fn news(&self) -> &watch::Sender<u64> {
        &self.news
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Database> {
        // A test that panicked in between has not left a table half written: every change is one call.
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One round trip: the scheduler may run others before it, and a fault may take its place.
    pub(super) async fn call<T>(
        &self,
        op: Op,
        run: impl FnOnce(&mut Database) -> Result<T, Error>,
    ) -> Result<T, Error> {
        tokio::task::yield_now().await;
        let mut database = self.lock();
        database.faults.check(op)?;
        run(&mut database)
    }
}

impl Store for MemoryStore {
    type Tx = MemoryTx;

    async fn begin_claim(&self, request: &ClaimRequest<'_>) -> Result<(MemoryTx, Vec<Claim>), Error> {
        let connection = Arc::clone(&self.connections).acquire_owned().await;
        // The semaphore is never closed, so there is always a permit.
        let connection =
            connection.map_err(|_| MemoryError::new(ErrorKind::Unavailable, "the store is closed"))?;
        let (tx, claims) = self
            .call(Op::BeginClaim, |database| {
                let mut tx =
                    MemoryTx::begin(database, Arc::clone(&self.database), connection, request.consumer);
                let claims = request.keys.iter().map(|key| tx.claim(database, key, request.slack)).collect();
                Ok((tx, claims))
            })
            .await?;
        Ok((tx, claims))
    }

    async fn finish(&self, mut tx: MemoryTx) -> Result<(), Error> {
        let publishes = !tx.meta().outbox.entries().is_empty();
        let finished = self.call(Op::Finish, |database| {
            let lost = database.faults.lost_answer();
            if lost != Some(LostAnswer::RolledBack) {
                tx.commit(database)?;
            }
            match lost {
                Some(_) => Err(MemoryError::new(ErrorKind::Unknown, "the answer was lost").into()),
                None => Ok(()),
            }
        });
        finished.await?;
        if publishes {
            self.wake_relays();
        }
        Ok(())
    }

    async fn roll_back(&self, tx: MemoryTx) {
        drop(tx);
    }

    async fn abort(&self, tx: MemoryTx) {
        drop(tx);
    }

    fn kind_of(&self, error: &(dyn StdError + 'static)) -> Option<(ErrorKind, Code)> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(ours) = error.downcast_ref::<MemoryError>() {
                return Some((ours.kind(), ours.code()));
            }
            next = error.source();
        }
        None
    }

    async fn ping(&self) -> Result<(), Error> {
        self.call(Op::Ping, |_| Ok(())).await
    }

    async fn check(&self) -> Result<(), Error> {
        self.call(Op::Check, |_| Ok(())).await.map_err(|error| match error.kind() {
            ErrorKind::Setup => {
                Error::new(ErrorKind::Setup, Code::SchemaMissing, "the schema was to be missing")
            }
            _ => error,
        })
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn instance(&self) -> u64 {
        self.instance
    }
}
