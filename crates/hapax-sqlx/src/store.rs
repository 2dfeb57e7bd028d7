//! The store: how it is built, and how a transaction begins and ends on it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::{Claim, ClaimRequest, Code, Error, ErrorKind, Outbox as _, Store, TxMeta, crash_point};
use tokio::sync::watch;

use crate::connection::{Connections, Held, Limits};
use crate::dialect::{Dialect, Opening, Options, Wanted, int};
use crate::error::{Result, failed, has_forgotten, is_broken, is_unknown, kind_of, meaning, not_begun};
use crate::news::News;
use crate::statements::{Statements, resolve};
use crate::transaction::SqlTx;

/// A store in an SQL database.
///
/// Cloning is cheap and shares the connections: `pool` of them for transactions and half as many,
/// two at least, for side work, opened when they are first needed.
pub struct SqlStore<D: Dialect> {
    pub(crate) inner: Arc<Inner<D>>,
}

pub(crate) struct Inner<D: Dialect> {
    pub(crate) connections: Connections<D>,
    pub(crate) statements: Statements<D>,
    pub(crate) schema: String,
    /// Changes whenever this store sends to an embedded queue.
    pub(crate) sent: watch::Sender<()>,
    pub(crate) news: News,
    /// Tells this store from others, also those of other machines.
    pub(crate) token: u64,
    pool: usize,
    instance: u64,
}

impl<D: Dialect> SqlStore<D> {
    /// Connects with the defaults of [`builder`](Self::builder).
    ///
    /// [`ErrorKind::Setup`]: a URL that cannot be read, refused credentials.
    /// [`ErrorKind::Unavailable`]: nobody answers. The schema is not looked at: see
    /// [`check`](Store::check) and [`migrate`](Self::migrate).
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// A store at a URL: `postgres://…`, `mysql://…` (MariaDB, too), `sqlite:path/to/file.db` (created if it is
    /// missing).
    pub fn builder(url: &str) -> Builder<D> {
        Builder::new(D::options(url))
    }

    /// A store by the driver's own options, which keep what they say but for what the store rests on:
    /// SQLite is run with WAL, `synchronous = FULL` and foreign keys, MySQL and MariaDB with strict SQL and utf8mb4.
    pub fn with_options(options: Options<D>) -> Builder<D> {
        Builder::new(Ok(options))
    }

    /// Where it is, for logs, without secrets.
    pub fn place(&self) -> &str {
        self.inner.connections.place()
    }

    /// The schema its tables are in, or their prefix.
    pub fn schema(&self) -> &str {
        &self.inner.schema
    }

    pub(crate) fn connections(&self) -> &Connections<D> {
        &self.inner.connections
    }

    pub(crate) fn sql(&self) -> &Statements<D> {
        &self.inner.statements
    }

    /// A connection on which the keys are taken. A stale one is replaced once, before anything began.
    async fn open(&self, request: &ClaimRequest<'_>) -> Result<(Held<D>, Vec<Claim>, i64)> {
        let mut held = self.connections().main().await?;
        let wanted = Wanted { consumer: request.consumer, keys: request.keys };
        let mut taking = self.try_open(&mut held, request.timeout, wanted).await;
        if taking.as_ref().is_err_and(is_stale::<D>) {
            held = self.connections().replace(held).await?;
            taking = self.try_open(&mut held, request.timeout, wanted).await;
        }
        match taking {
            Ok(taking) => {
                let token = taking.token;
                let (consumer, keys) = (request.consumer, request.keys);
                let claims = self.judge(held.conn(), consumer, keys, request.slack, taking).await?;
                Ok((held, claims, token))
            }
            Err(Opening::Begin(error) | Opening::Claim(error)) => {
                // A connection that answered is worth keeping, on a full disk above all.
                if !is_unknown::<D>(&error) {
                    held.roll_back().await;
                }
                Err(not_begun::<D>(error))
            }
        }
    }

    async fn try_open(
        &self,
        held: &mut Held<D>,
        timeout: Option<Duration>,
        wanted: Wanted<'_>,
    ) -> Result<crate::dialect::Taking, Opening> {
        let limit = held.limit();
        let opened = D::open_claim(held.conn(), self.sql(), timeout, wanted);
        match tokio::time::timeout(limit, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(Opening::Claim(crate::error::no_answer())),
        }
    }

    /// What it means that `finish` was refused, and what becomes of the connection.
    async fn unfinished(&self, tx: SqlTx<D>, error: sqlx::Error) -> Error {
        if is_broken::<D>(&error) {
            let context = "the handler ended the transaction, or swallowed an error that did";
            return Error::new(ErrorKind::Broken, Code::TransactionBroken, context).because(error);
        }
        if is_unknown::<D>(&error) {
            let context = "the connection was lost during the commit";
            return Error::new(ErrorKind::Unknown, Code::OutcomeUnknown, context).because(error);
        }
        let (kind, code) = meaning::<D>(&error);
        tx.held.roll_back().await;
        Error::new(kind, code, "the commit was refused").because(error)
    }
}

impl<D: Dialect> Store for SqlStore<D> {
    type Tx = SqlTx<D>;

    async fn begin_claim(&self, request: &ClaimRequest<'_>) -> Result<(Self::Tx, Vec<Claim>)> {
        let (held, claims, token) = self.open(request).await?;
        let ours = request.keys.iter().zip(&claims).filter(|(_, claim)| claim.is_ours());
        let ids = ours.map(|(key, _)| key.id.clone()).collect();
        let consumer = request.consumer.clone();
        let meta = TxMeta::new(consumer.clone());
        Ok((SqlTx { held, consumer, taken: ids, token, meta }, claims))
    }

    async fn finish(&self, mut tx: Self::Tx) -> Result<()> {
        let ending = tx.ending(&self.inner.schema, self.inner.instance);
        crash_point!("store-before-commit");
        if let Err(error) = tx.held.end(ending).await {
            return Err(self.unfinished(tx, error).await);
        }
        crash_point!("store-after-commit");
        let publishes = !tx.meta.outbox.entries().is_empty();
        tx.held.put_back();
        if publishes {
            self.wake_relays();
        }
        Ok(())
    }

    async fn roll_back(&self, tx: Self::Tx) {
        tx.held.roll_back().await;
    }

    async fn abort(&self, mut tx: Self::Tx) {
        if let Ok(mut other) = self.connections().side().await {
            let cancelled = tx.held.cancel(&mut other).await;
            let _ = other.answer(cancelled); // closing the connection ends it all the same, only later
        }
    }

    fn kind_of(&self, error: &(dyn StdError + 'static)) -> Option<(ErrorKind, Code)> {
        kind_of::<D>(error)
    }

    async fn ping(&self) -> Result<()> {
        let cannot = failed::<D>("the store does not answer or takes no writes");
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().probe, Vec::new()).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        if rows.first().map_or(Ok(0), |row| int::<D>(row, 0)).map_err(&cannot)? != 1 {
            let context = "the database takes no writes";
            return Err(Error::new(ErrorKind::Unavailable, Code::StoreReadOnly, context));
        }
        if D::PROBE_WRITE.is_empty() {
            return Ok(());
        }
        // Somebody who is writing proves as much.
        let Some(mut held) = self.connections().idle_writer().await? else { return Ok(()) };
        held.run(resolve::<D>(D::PROBE_WRITE, self.schema())).await.map_err(cannot)?;
        held.put_back();
        Ok(())
    }

    async fn check(&self) -> Result<()> {
        self.check_schema().await
    }

    fn capacity(&self) -> usize {
        self.inner.pool
    }

    fn instance(&self) -> u64 {
        self.inner.instance
    }
}

impl<D: Dialect> Clone for SqlStore<D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<D: Dialect> fmt::Debug for SqlStore<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStore").field("place", &self.place()).field("schema", &self.schema()).finish()
    }
}

/// How a store is built.
#[must_use = "a builder does nothing until `connect`"]
pub struct Builder<D: Dialect> {
    options: Result<Options<D>>,
    schema: String,
    pool: usize,
    limits: Limits,
    /// What a session for transactions is told when it is opened.
    pub(crate) named: &'static str,
}

impl<D: Dialect> Builder<D> {
    fn new(options: Result<Options<D>>) -> Self {
        let limits = Limits {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            busy: Duration::from_secs(5),
        };
        Self { options, schema: "hapax".to_owned(), pool: 8, limits, named: D::CLAIM[5] }
    }

    /// The schema of the tables on PostgreSQL, elsewhere their prefix. Default: `hapax`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// How many transactions can be open at once, at least one. Default: 8.
    pub fn pool(mut self, pool: usize) -> Self {
        self.pool = pool.max(1);
        self
    }

    /// How long connecting may take. Default: 5 s.
    pub fn connect_within(mut self, limit: Duration) -> Self {
        self.limits.connect = limit;
        self
    }

    /// How long the answer to a statement of Hapax may take before the connection is given up.
    /// Handlers' statements have their own limit. Default: 30 s.
    pub fn answer_within(mut self, limit: Duration) -> Self {
        self.limits.answer = limit;
        self
    }

    /// How long to wait for a database that another process has locked (SQLite). Default: 5 s.
    pub fn busy_within(mut self, limit: Duration) -> Self {
        self.limits.busy = limit;
        self
    }

    /// Connects once, to see that it can.
    ///
    /// Errors as [`SqlStore::connect`].
    pub async fn connect(self) -> Result<SqlStore<D>> {
        static INSTANCES: AtomicU64 = AtomicU64::new(1);

        check_schema_name(&self.schema)?;
        let options = D::prepare(self.options?, self.limits.busy)?;
        let statements = Statements::of(&self.schema);
        let named = resolve::<D>(self.named, &self.schema);
        let connections = Connections::new(options, self.pool, self.limits, named);
        connections.side().await?.put_back();
        let inner = Inner {
            connections,
            statements,
            schema: self.schema,
            sent: watch::Sender::new(()),
            news: News::default(),
            token: fastrand::u64(..),
            pool: self.pool,
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
        };
        Ok(SqlStore { inner: Arc::new(inner) })
    }
}

/// Whether another connection may do better: this one is gone, or a handler has made it forget what was
/// prepared on it, the handlers' statements with ours.
fn is_stale<D: Dialect>(opening: &Opening) -> bool {
    match opening {
        Opening::Begin(error) => is_unknown::<D>(error) || has_forgotten::<D>(error),
        Opening::Claim(error) => has_forgotten::<D>(error),
    }
}

/// The name is written into statements, so that it has to be plain.
fn check_schema_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if starts_plain && name.len() <= 40 && name.chars().all(plain) {
        return Ok(());
    }
    let context = format!("`{name}` is no schema name: 1 to 40 of a-z, 0-9 and _, not starting with a digit");
    Err(Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context))
}
