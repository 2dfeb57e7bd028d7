//! Warm connections: as many as there may be transactions, and a few for side work.
//!
//! A connection is put back only after a clean end of its transaction. Dropped anywhere else, as when
//! a future is cancelled, it is closed, so that none is left idle in a transaction.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hapax_core::{Code, Error, ErrorKind};
use sqlx::{Connection, SqlStr};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::dialect::{Dialect, Options, Raw};
use crate::error::{Result, failed, no_answer};
use crate::value::Value;

/// Connections for what goes on beside the transactions: waiting-room leases, instances, purges,
/// looks, messages in progress. Reserved, or N handlers on N connections would wait for one that only they could
/// free. Opened when they are needed, so that a consumer that has little to do beside has two.
fn side(size: usize) -> usize {
    (size / 2).max(2)
}
/// A side connection that idled longer is asked whether it still lives.
const STALE: Duration = Duration::from_secs(1);
/// A roll-back that takes longer is not worth waiting for: closing the connection does the same.
const ROLL_BACK: Duration = Duration::from_secs(5);

/// How long to wait before a file that is locked is opened again.
const OPEN_AGAIN: Duration = Duration::from_millis(20);

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connect: Duration,
    pub(crate) answer: Duration,
    pub(crate) busy: Duration,
}

/// A store's connections.
pub(crate) struct Connections<D: Dialect> {
    options: Options<D>,
    place: String,
    limits: Limits,
    /// What a session for transactions must know by name.
    named: SqlStr,
    main: Arc<Lane<D>>,
    side: Arc<Lane<D>>,
    /// Taken by every writing transaction where the database has one writer: waiting here is fair,
    /// while the database's own busy handler polls.
    writer: Arc<tokio::sync::Mutex<()>>,
}

/// Connections of one purpose.
struct Lane<D: Dialect> {
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<(Raw<D>, Instant)>>,
}

impl<D: Dialect> Lane<D> {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { permits: Arc::new(Semaphore::new(size)), idle: Mutex::new(Vec::with_capacity(size)) })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(Raw<D>, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let closed = || Error::new(ErrorKind::Unavailable, Code::StoreUnavailable, "the store is closed");
        Arc::clone(&self.permits).acquire_owned().await.map_err(|_| closed())
    }
}

impl<D: Dialect> Connections<D> {
    pub(crate) fn new(options: Options<D>, size: usize, limits: Limits, named: SqlStr) -> Self {
        Self {
            place: D::describe(&options),
            options,
            limits,
            named,
            main: Lane::new(size),
            side: Lane::new(side(size)),
            writer: Arc::default(),
        }
    }

    /// Where the connections lead, without secrets.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// How to connect, for a connection beside these.
    pub(crate) fn options(&self) -> &Options<D> {
        &self.options
    }

    /// A connection for a transaction, warm if there is one.
    pub(crate) async fn main(&self) -> Result<Held<D>> {
        let permit = self.main.permit().await?;
        let writer = self.turn().await;
        let warm = self.main.idle().pop();
        let raw = match warm {
            Some((raw, _)) => raw,
            None => self.open_guarded().await?,
        };
        Ok(self.hold(raw, &self.main, permit, writer))
    }

    /// A fresh connection in place of a stale one. The others idled through the same outage.
    pub(crate) async fn replace(&self, mut stale: Held<D>) -> Result<Held<D>> {
        tracing::debug!(store = %self.place, "a connection was lost, connecting again");
        self.main.idle().clear();
        drop(stale.raw.take());
        stale.raw = Some(self.open_guarded().await?);
        Ok(stale)
    }

    /// A side connection for statements that only read, or that are a transaction each.
    pub(crate) async fn side(&self) -> Result<Held<D>> {
        let permit = self.side.permit().await?;
        let raw = self.alive().await?;
        Ok(self.hold(raw, &self.side, permit, None))
    }

    /// A side connection for statements that write.
    pub(crate) async fn side_writer(&self) -> Result<Held<D>> {
        let permit = self.side.permit().await?;
        let writer = self.turn_in_time().await?;
        let raw = self.alive().await?;
        Ok(self.hold(raw, &self.side, permit, writer))
    }

    /// A side connection for statements that write, unless another transaction of this process does.
    pub(crate) async fn idle_writer(&self) -> Result<Option<Held<D>>> {
        let permit = self.side.permit().await?;
        let Ok(writer) = Arc::clone(&self.writer).try_lock_owned() else { return Ok(None) };
        let raw = self.alive().await?;
        Ok(Some(self.hold(raw, &self.side, permit, Some(writer))))
    }

    /// A side connection in a writing transaction.
    pub(crate) async fn side_transaction(&self) -> Result<Held<D>> {
        let mut held = self.side_writer().await?;
        held.run(SqlStr::from_static(D::BEGIN)).await.map_err(failed::<D>("cannot begin a transaction"))?;
        Ok(held)
    }

    async fn turn(&self) -> Option<OwnedMutexGuard<()>> {
        if D::ONE_WRITER { Some(Arc::clone(&self.writer).lock_owned().await) } else { None }
    }

    /// Bounded: side work inside a handler would otherwise wait for that handler's own transaction.
    async fn turn_in_time(&self) -> Result<Option<OwnedMutexGuard<()>>> {
        tokio::time::timeout(self.limits.busy, self.turn()).await.map_err(|_| {
            let context = "another transaction of this process holds the database";
            Error::new(ErrorKind::Busy, Code::StoreBusy, context)
        })
    }

    fn hold(
        &self,
        raw: Raw<D>,
        lane: &Arc<Lane<D>>,
        permit: OwnedSemaphorePermit,
        writer: Option<OwnedMutexGuard<()>>,
    ) -> Held<D> {
        let lane = Arc::clone(lane);
        Held { raw: Some(raw), lane, answer: self.limits.answer, _writer: writer, _permit: permit }
    }

    /// An idle side connection that answers, else a fresh one.
    async fn alive(&self) -> Result<Raw<D>> {
        loop {
            let Some((mut raw, since)) = self.side.idle().pop() else { return self.open().await };
            if since.elapsed() < STALE {
                return Ok(raw);
            }
            let ping = raw.conn.ping();
            if answered(self.limits.connect, ping).await.is_ok() {
                return Ok(raw);
            }
        }
    }

    /// A connection on which nothing commits but `finish`.
    async fn open_guarded(&self) -> Result<Raw<D>> {
        let mut raw = self.open().await?;
        let guarded = answered(self.limits.connect, D::guard(&mut raw, self.named.clone())).await;
        if guarded.map_err(failed::<D>("cannot set up a connection"))? {
            return Ok(raw);
        }
        let context = format!("the {} takes no writes", self.place);
        Err(Error::new(ErrorKind::Unavailable, Code::StoreReadOnly, context))
    }

    /// SQLite does not wait for its lock while another process switches the file to WAL, so it is asked again.
    async fn open(&self) -> Result<Raw<D>> {
        let begun = Instant::now();
        loop {
            // Boxed, since opening is rare, and every claim's future would carry it.
            match Box::pin(self.try_open()).await {
                Err(error) if error.kind() == ErrorKind::Busy && begun.elapsed() < self.limits.busy => {
                    tokio::time::sleep(OPEN_AGAIN).await;
                }
                opened => return opened,
            }
        }
    }

    async fn try_open(&self) -> Result<Raw<D>> {
        let opened = answered(self.limits.connect, D::open(&self.options)).await;
        opened.map_err(|error| {
            let (kind, code) = match &error {
                // A listener that hangs up at once, as one does that starts or has no server behind it.
                sqlx::Error::Protocol(_) => (ErrorKind::Unavailable, Code::StoreUnavailable),
                error => crate::error::meaning::<D>(error),
            };
            Error::new(kind, code, format!("cannot connect to the {}", self.place)).because(error)
        })
    }
}

/// A connection in use.
pub(crate) struct Held<D: Dialect> {
    /// Always there but in `replace` and `drop`.
    raw: Option<Raw<D>>,
    lane: Arc<Lane<D>>,
    answer: Duration,
    // After the connection, since fields are dropped in order and its turn ends with it.
    _writer: Option<OwnedMutexGuard<()>>,
    _permit: OwnedSemaphorePermit,
}

impl<D: Dialect> Held<D> {
    fn raw(&mut self) -> &mut Raw<D> {
        self.raw.as_mut().expect("taken only where `self` is consumed or replaced at once")
    }

    /// The connection itself.
    pub(crate) fn conn(&mut self) -> &mut D::Connection {
        &mut self.raw().conn
    }

    /// Runs a text, in time.
    pub(crate) async fn run(&mut self, sql: SqlStr) -> Result<(), sqlx::Error> {
        let answer = self.answer;
        D::fits(&self.raw().brake, sql.as_str().len())?;
        answered(answer, D::run(self.conn(), sql)).await
    }

    /// Runs a statement and says how many rows it touched, in time.
    pub(crate) async fn execute(&mut self, sql: &D::Sql, values: Vec<Value>) -> Result<u64, sqlx::Error> {
        let answer = self.answer;
        D::fits(&self.raw().brake, size(&values))?;
        answered(answer, D::execute(self.conn(), sql, values)).await
    }

    /// Runs a statement and collects its rows, in time.
    pub(crate) async fn fetch(
        &mut self,
        sql: &D::Sql,
        values: Vec<Value>,
    ) -> Result<Vec<D::Row>, sqlx::Error> {
        let answer = self.answer;
        D::fits(&self.raw().brake, size(&values))?;
        answered(answer, D::fetch(self.conn(), sql, values)).await
    }

    /// Runs the ending of a transaction, which alone may commit.
    pub(crate) async fn end(&mut self, ending: SqlStr) -> Result<(), sqlx::Error> {
        D::let_commit(&self.raw().brake, true);
        let ended = self.run(ending).await;
        D::let_commit(&self.raw().brake, false);
        ended
    }

    /// How long an answer may take.
    pub(crate) fn limit(&self) -> Duration {
        self.answer
    }

    /// Keeps the connection for the next one. Only where no transaction is open on it.
    pub(crate) fn put_back(mut self) {
        // Where a nested `begin` failed, sqlx gives up its count of the transaction around it as well;
        // the next nested one would then be no savepoint.
        if let Some(raw) = self.raw.take().filter(|raw| raw.conn.is_in_transaction()) {
            self.lane.idle().push((raw, Instant::now()));
        }
    }

    /// Puts the connection back after a statement that was a transaction of its own.
    pub(crate) fn answer<T>(self, answer: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        if !matches!(&answer, Err(error) if crate::error::is_unknown::<D>(error)) {
            self.put_back();
        }
        answer
    }

    /// Commits a side transaction.
    pub(crate) async fn commit(mut self) -> Result<()> {
        self.run(SqlStr::from_static("COMMIT")).await.map_err(failed::<D>("cannot commit"))?;
        self.put_back();
        Ok(())
    }

    /// Rolls back; a connection that cannot is closed.
    pub(crate) async fn roll_back(mut self) {
        let rolled_back = D::run(self.conn(), SqlStr::from_static("ROLLBACK"));
        if answered(ROLL_BACK, rolled_back).await.is_ok() {
            self.put_back();
        }
    }

    /// Asks the server through `other` to stop what this connection is doing.
    pub(crate) async fn cancel(&mut self, other: &mut Self) -> Result<(), sqlx::Error> {
        answered(ROLL_BACK, D::cancel(&self.raw().brake, other.conn())).await
    }
}

impl<D: Dialect> Drop for Held<D> {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            D::stop(&raw.brake);
        }
    }
}

/// How many bytes values come to, the small ones aside.
fn size(values: &[Value]) -> usize {
    values.iter().map(Value::len).sum()
}

/// An answer in time, or an error that says there was none.
pub(crate) async fn answered<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| Err(no_answer()))
}
