//! The store: how a transaction begins and ends on it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::{Claim, ClaimRequest, Code, Error, ErrorKind, Outbox as _, Store, TxMeta, crash_point};
use mongodb::Database;
use mongodb::bson::doc;
use mongodb::error::Error as Driver;
use tokio::sync::{Mutex, watch};

use crate::builder::Builder;
use crate::counter::Block;
use crate::error::{
    Answer, DriverError, Result, answered, failed, is_over, is_rival, is_unknown, kind_of, meaning, overdue,
};
use crate::orphans::Looked;
use crate::session::Sessions;
use crate::tables::Tables;
use crate::transaction::MongoTx;

/// How long to wait before a commit without an answer is repeated.
const REPEAT: Duration = Duration::from_millis(100);

/// A store on a MongoDB replica set.
///
/// Cloning is cheap and shares the connections: `pool` of them for transactions and two for side work, opened by
/// the driver when they are first needed.
#[derive(Clone)]
pub struct MongoStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) sessions: Arc<Sessions>,
    /// With majority reads and writes, through the primary.
    pub(crate) database: Database,
    pub(crate) tables: Tables,
    pub(crate) place: String,
    pub(crate) prefix: String,
    pub(crate) pool: usize,
    pub(crate) instance: u64,
    /// What connections are called on the server.
    pub(crate) app_name: String,
    pub(crate) looked: Looked,
    /// Numbers for rows of the outbox.
    pub(crate) block: Mutex<Block>,
    /// Counts commits of this store with rows of the outbox in them.
    pub(crate) news: watch::Sender<u64>,
}

impl MongoStore {
    /// Connects with the defaults of [`builder`](Self::builder).
    ///
    /// [`ErrorKind::Setup`]: a URL that cannot be read or names no database, refused credentials, a server that is
    /// not in a replica set. [`ErrorKind::Unavailable`]: nobody answers, or there is no primary. The schema is not
    /// looked at: see [`check`](Store::check) and [`migrate`](Self::migrate).
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// A store at a URL: `mongodb://host1,host2/database?replicaSet=rs0`.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// Where it is, for logs, without secrets.
    pub fn place(&self) -> &str {
        &self.inner.place
    }

    /// The prefix of its collections' names.
    pub fn prefix(&self) -> &str {
        &self.inner.prefix
    }

    pub(crate) fn sessions(&self) -> &Arc<Sessions> {
        &self.inner.sessions
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.inner.tables
    }

    /// Writes what the transaction settles and publishes. The rows of the outbox come last, so that of two
    /// transactions that were serialised on a document the later has the later ones.
    async fn write_meta(&self, tx: &mut MongoTx) -> Result<()> {
        self.settle(tx).await.map_err(not_written)?;
        let entries = tx.meta.outbox.entries();
        let Ok(numbers @ 1..) = i64::try_from(entries.len()) else { return Ok(()) };
        let counted = self.outbox_numbers(numbers).await?;
        self.write_outbox(tx, counted).await.map_err(not_written)
    }

    /// Commits, and repeats the commit as long as its outcome is unknown and there is time.
    async fn commit(&self, tx: &mut MongoTx) -> Answer<()> {
        let limit = tx.held.limit();
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (session, _) = tx.held.parts();
            match answered(left, session.commit_transaction()).await {
                Err(error) if is_unknown(&error) && Instant::now() + REPEAT < deadline => {
                    tracing::debug!(store = self.place(), "a commit had no answer, it is repeated");
                    tokio::time::sleep(REPEAT).await;
                }
                answer => return answer,
            }
        }
    }
}

/// What it means that a commit was not answered with a yes.
fn not_committed(error: Driver) -> Error {
    // No operation of ours failed before: the server ended it by itself, as on a change of primary.
    if is_over(&error) || !is_unknown(&error) {
        return not_written(error);
    }
    let context = "no answer to the commit";
    Error::new(ErrorKind::Unknown, Code::OutcomeUnknown, context).because(DriverError(error))
}

/// What it means that something could not be written before the commit: nothing was.
fn not_written(error: Driver) -> Error {
    let (kind, code) = meaning(&error);
    Error::new(kind, code, "the transaction cannot be committed").because(DriverError(error))
}

fn broken(error: Driver) -> Error {
    let context = "the handler swallowed an error that ended the transaction";
    Error::new(ErrorKind::Broken, Code::TransactionBroken, context).because(DriverError(error))
}

impl Store for MongoStore {
    type Tx = MongoTx;

    /// Two round trips; one more if a message is on record already, and some more if a rival holds one.
    async fn begin_claim(&self, request: &ClaimRequest<'_>) -> Result<(Self::Tx, Vec<Claim>)> {
        let (held, claims) = self.claim(request).await?;
        let ours = request.keys.iter().zip(&claims).filter(|(_, claim)| claim.is_ours());
        let tx = MongoTx {
            held,
            database: self.inner.database.clone(),
            consumer: request.consumer.clone(),
            taken: ours.map(|(key, _)| key.id.clone()).collect(),
            longest: request.timeout,
            left: Vec::new(),
            meta: TxMeta::new(request.consumer.clone()),
        };
        Ok((tx, claims))
    }

    /// One round trip; one more for what is settled, one for erased starts, one for results, one for what is
    /// published. Numbers for that are taken beforehand, which is one more for each 1,024 of them, and at most one in
    /// a minute besides.
    async fn finish(&self, mut tx: Self::Tx) -> Result<()> {
        if let Some(error) = tx.held.fate().ended() {
            self.roll_back(tx).await;
            return Err(broken(error));
        }
        if let Err(error) = self.write_meta(&mut tx).await {
            self.roll_back(tx).await;
            return Err(error);
        }
        crash_point!("store-before-commit");
        match self.commit(&mut tx).await {
            Ok(()) => tx.held.let_go(),
            Err(error) if is_over(&error) && tx.held.fate().is_overdue() => {
                return Err(not_written(overdue()));
            }
            Err(error) => return Err(not_committed(error)),
        }
        crash_point!("store-after-commit");
        self.forget_leases(&tx.left).await;
        if !tx.meta.outbox.entries().is_empty() {
            self.wake_relays();
        }
        Ok(())
    }

    async fn roll_back(&self, tx: Self::Tx) {
        let met_rival = tx.held.fate().ended().is_some_and(|error| is_rival(&error));
        tx.held.roll_back().await;
        if met_rival {
            self.end_orphans().await;
        }
    }

    async fn abort(&self, tx: Self::Tx) {
        tx.held.undo().await;
    }

    fn kind_of(&self, error: &(dyn StdError + 'static)) -> Option<(ErrorKind, Code)> {
        kind_of(error)
    }

    /// A write that changes nothing, acknowledged by a majority.
    async fn ping(&self) -> Result<()> {
        let _turn = self.sessions().side_turn().await?;
        let write =
            self.tables().counters.update_one(doc! { "_id": "ping" }, doc! { "$set": { "last": 0_i64 } });
        let written = answered(self.sessions().limit(), write).await;
        written.map(drop).map_err(failed("the store does not answer or takes no writes"))
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

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoStore").field("place", &self.place()).field("prefix", &self.prefix()).finish()
    }
}
