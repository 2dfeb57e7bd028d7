//! A database that keeps the inbox, by role.
//!
//! Every role's operations that belong to a message's effect take the transaction of its claim, so
//! that they commit with it or not at all.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::{
    Claim, ClaimRequest, Code, ConsumerName, Digest, Envelope, Error, ErrorKind, Key, MessageId,
    NotPublishable, OutboxBuffer, Place, Publishable, RawMessage, Running, Timestamp,
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// A store's transaction, as the handler gets it.
pub trait Transaction: Send + 'static {
    /// What is written when the transaction is finished, beside what the handler writes.
    fn meta(&mut self) -> &mut TxMeta;

    /// Publishes a message if and when this transaction commits. It costs no round trip of its own.
    ///
    /// [`Failure::Reject`](crate::Failure::Reject), under [`Code::PublicationInvalid`]: it cannot be
    /// published as it is given.
    fn publish(&mut self, message: impl Publishable) -> crate::Result
    where
        Self: Sized,
    {
        self.meta().outbox.publish(message).map_err(NotPublishable::reject)
    }
}

/// What [`Store::finish`] writes in the same transaction as the handler's changes.
#[derive(Debug)]
pub struct TxMeta {
    /// What the handlers publish.
    pub outbox: OutboxBuffer,
    /// Rows that are settled by this transaction: they go when its changes come.
    pub settled: Vec<Settled>,
    /// Messages whose recorded starts are erased, since they ended in order.
    pub erased_starts: Vec<MessageId>,
    /// What is to be kept beside the records of messages that this transaction holds, see [`InboxRow::result`].
    pub results: Vec<(MessageId, Bytes)>,
}

impl TxMeta {
    /// Of a transaction in a consumer's name, with nothing to write.
    pub fn new(consumer: ConsumerName) -> Self {
        Self {
            outbox: OutboxBuffer::new(consumer),
            settled: Vec::new(),
            erased_starts: Vec::new(),
            results: Vec::new(),
        }
    }
}

/// A row that a transaction settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// A row of the embedded queue in the same database.
    Queued(StoreReceipt),
    /// A row of the waiting room.
    Waiting(Place),
}

/// A delivery of the embedded queue that can be acked inside a transaction of the store it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreReceipt {
    /// The store that handed it out, see [`Store::instance`].
    pub store: u64,
    /// The row.
    pub number: i64,
    /// The lease: a row that was leased again since then is not ours to delete.
    pub fence: i64,
}

/// A database that takes part in a delivery: claims and the handler's changes commit together.
///
/// Cloning is cheap and shares the connections.
pub trait Store: Clone + Send + Sync + 'static {
    /// The transaction that the handler gets: owned, without a lifetime.
    type Tx: Transaction;

    /// Begins a transaction and takes the keys in it, in one or two round trips. The answers stand in
    /// the order of the keys. With no keys it is a plain transaction under the same sentinel.
    ///
    /// Cancel safe: a call that is dropped leaves no open transaction behind.
    fn begin_claim(
        &self,
        request: &ClaimRequest<'_>,
    ) -> impl Future<Output = Result<(Self::Tx, Vec<Claim>)>> + Send;

    /// Checks that the transaction is still the one the claims were made in, writes what
    /// [`TxMeta`] holds, and commits.
    ///
    /// [`ErrorKind::Broken`]: rolled back, the handler ended our transaction itself.
    /// [`ErrorKind::Unknown`]: the answer was lost. Every other kind: rolled back.
    fn finish(&self, tx: Self::Tx) -> impl Future<Output = Result<()>> + Send;

    /// Rolls back. Never fails: a connection that cannot is closed, which does the same.
    fn roll_back(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;

    /// Ends a transaction whose handler was dropped in the middle of a statement: asks the server to
    /// cancel it and closes the connection.
    fn abort(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;

    /// What an error that came out of a handler means to this store, if it is one of its driver's.
    /// Wrapped errors are found as far as `source()` leads; a miss is no harm, only an attempt charged.
    fn kind_of(&self, error: &(dyn StdError + 'static)) -> Option<(ErrorKind, Code)>;

    /// Whether the store answers and takes writes. One round trip.
    fn ping(&self) -> impl Future<Output = Result<()>> + Send;

    /// Checks the schema's version: [`Code::SchemaMissing`] or [`Code::SchemaTooNew`].
    fn check(&self) -> impl Future<Output = Result<()>> + Send;

    /// How many workers it can serve: each holds a connection of its own, also where, as on SQLite, their
    /// transactions take turns.
    fn capacity(&self) -> usize;

    /// A number that tells this store from others in the process, see [`StoreReceipt`].
    fn instance(&self) -> u64;
}

/// The state of an inbox row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InboxState {
    /// The effect is committed.
    Done,
    /// Failed or deferred, kept in the waiting room.
    Waiting,
    /// Set aside.
    Dead,
    /// Eager only: in progress under a lease.
    Running,
}

impl InboxState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Waiting => "waiting",
            Self::Dead => "dead",
            Self::Running => "running",
        }
    }

    /// As a store keeps it.
    pub const fn as_i64(self) -> i64 {
        match self {
            Self::Done => 0,
            Self::Waiting => 1,
            Self::Dead => 2,
            Self::Running => 3,
        }
    }

    /// From what a store kept.
    pub const fn from_i64(kept: i64) -> Option<Self> {
        match kept {
            0 => Some(Self::Done),
            1 => Some(Self::Waiting),
            2 => Some(Self::Dead),
            3 => Some(Self::Running),
            _ => None,
        }
    }
}

impl fmt::Display for InboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An inbox row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRow {
    /// The message's id.
    pub id: MessageId,
    /// What became of it.
    pub state: InboxState,
    /// Fingerprint of its payload.
    pub digest: Digest,
    /// The producer's `sent_at`.
    pub sent_at: Option<Timestamp>,
    /// When it got into this state, by the database's clock.
    pub processed_at: Timestamp,
    /// Of a running one: when its lease ends, by the database's clock.
    pub lease_until: Option<Timestamp>,
    /// What was kept beside the record, such as the answer to a request.
    pub result: Option<Bytes>,
}

/// The inbox itself.
pub trait Inbox: Store {
    /// Reads rows without taking anything, on the primary. One round trip.
    fn look(
        &self,
        consumer: &ConsumerName,
        ids: &[MessageId],
    ) -> impl Future<Output = Result<Vec<Option<InboxRow>>>> + Send;

    /// Records a message as done in a transaction of its own, unless it is recorded: the last step of
    /// the lazy strategy where the handler has no transaction. Says whether the row is new. A row that waits
    /// counts as new for the key that names its place in the waiting room, and turns to done.
    fn record(&self, consumer: &ConsumerName, key: &Key) -> impl Future<Output = Result<bool>> + Send;

    /// The same in a handler's transaction, after the handler: the last step of the lazy strategy. Says
    /// whether the row is new; if it is not, the race is lost and the transaction is to be rolled back.
    fn record_in(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerName,
        key: &Key,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Moves every record of a consumer to a new name, in one transaction.
    /// [`Code::NameTaken`] if the new name has records. Answers with the number of inbox rows moved.
    fn rename(&self, from: &ConsumerName, to: &ConsumerName) -> impl Future<Output = Result<u64>> + Send;
}

/// How a message gets into the waiting room.
#[derive(Clone, Debug)]
pub struct Parking<'p> {
    /// The message, whole.
    pub message: &'p RawMessage,
    /// How often it failed.
    pub failures: u32,
    /// The last error; empty for a deferral.
    pub error: &'p str,
    /// The last error's code, if it failed.
    pub code: Option<Code>,
    /// From now, by the database's clock, until it is due.
    pub wait: Duration,
    /// The key whose order it keeps, if the consumer keeps one.
    pub order: Option<&'p str>,
}

/// A message in the waiting room, under a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its place.
    pub place: Place,
    /// Its id.
    pub id: MessageId,
    /// The message as it came.
    pub envelope: Envelope,
    /// The key whose order it keeps, as it was parked.
    pub order: Option<String>,
    /// How often it failed.
    pub failures: u32,
    /// It was leased before and not given back: whoever had it may have died with it in hand.
    pub leased_before: bool,
}

/// What the waiting room holds for a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingDepth {
    /// All messages in it.
    pub total: u64,
    /// Those that are due, or in somebody's hands.
    pub due: u64,
    /// How long until the next one is due; none if there is none to come.
    pub next: Option<Duration>,
}

/// The waiting room: whole messages that are due later, read by every consumer beside its source.
pub trait WaitingRoom: Store {
    /// Puts a message that this transaction holds into the waiting room and turns its inbox row to
    /// `waiting`. One that is there already keeps its place.
    fn park(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerName,
        parking: &Parking<'_>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Takes up to `max` due messages under a lease. Of the messages that share an order key only the
    /// first is ever due, and none while a dead letter of that key stands before it.
    fn lease(
        &self,
        consumer: &ConsumerName,
        max: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<Waiting>>> + Send;

    /// Renews leases.
    fn renew(
        &self,
        consumer: &ConsumerName,
        places: &[Place],
        lease: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Gives leased messages back untouched, due now.
    fn give_back(&self, consumer: &ConsumerName, places: &[Place])
    -> impl Future<Output = Result<()>> + Send;

    /// What is in it.
    fn depth(&self, consumer: &ConsumerName) -> impl Future<Output = Result<WaitingDepth>> + Send;

    /// A message's waiting row, for an operator: its failures, last error and due time.
    fn waiting(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
    ) -> impl Future<Output = Result<Option<WaitingRow>>> + Send;
}

/// A waiting row as an operator reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRow {
    /// Its place.
    pub place: Place,
    /// How often it failed.
    pub failures: u32,
    /// The last error's code.
    pub code: Option<String>,
    /// The last error.
    pub error: String,
    /// When it is due.
    pub due_at: Timestamp,
    /// When it first came in.
    pub parked_at: Timestamp,
}

/// A message to be set aside.
#[derive(Clone, Debug)]
pub struct Burial<'b> {
    /// The message as it came.
    pub envelope: &'b Envelope,
    /// Its id; none for those that have no usable one.
    pub id: Option<&'b MessageId>,
    /// Its type, as far as it is known.
    pub kind: &'b str,
    /// Its key, if the consumer keeps order by key.
    pub order: Option<&'b str>,
    /// Its place in the waiting room, if it was there.
    pub place: Option<Place>,
    /// Why it is set aside.
    pub reason: Code,
    /// The last error, in words.
    pub error: &'b str,
    /// How often it failed.
    pub failures: u32,
    /// How often the process ended while it was in hand.
    pub crashes: u32,
}

/// The number of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeadNumber(pub i64);

impl fmt::Display for DeadNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A dead letter: a message set aside whole, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number.
    pub number: DeadNumber,
    /// Whose it is.
    pub consumer: ConsumerName,
    /// Its id; none for those that have no usable one.
    pub id: Option<MessageId>,
    /// Its type, as far as it is known.
    pub kind: String,
    /// The key whose order it keeps.
    pub order: Option<String>,
    /// The code of the reason, such as `HX0040`.
    pub reason: String,
    /// The last error, in words.
    pub error: String,
    /// How often it failed.
    pub failures: u32,
    /// How often the process ended while it was in hand.
    pub crashes: u32,
    /// When it first failed.
    pub first_failed_at: Timestamp,
    /// When it was set aside.
    pub died_at: Timestamp,
    /// The message as it came.
    pub envelope: Envelope,
}

/// Which dead letters an operator asks for. By default the first hundred of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadFilter {
    /// Of this consumer only.
    pub consumer: Option<ConsumerName>,
    /// With this reason only.
    pub reason: Option<Code>,
    /// With this message id only.
    pub id: Option<MessageId>,
    /// With a higher number only, for reading page by page.
    pub after: Option<DeadNumber>,
    /// At most so many, in the order of their numbers.
    pub limit: u32,
}

impl Default for DeadFilter {
    fn default() -> Self {
        Self { consumer: None, reason: None, id: None, after: None, limit: 100 }
    }
}

/// A redrive: who asks for it, and under which id.
#[derive(Clone, Debug)]
pub struct Redrive<'r> {
    /// Which dead letter.
    pub number: DeadNumber,
    /// An id for one that has none. One that has an id keeps it.
    pub id: Option<&'r MessageId>,
    /// Who asks for it, recorded.
    pub by: &'r str,
}

/// Messages set aside.
pub trait DeadLetters: Store {
    /// Sets a message aside in a transaction: its inbox row, if it has an id, becomes `dead`; its
    /// waiting row, if it has one, goes.
    fn bury(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerName,
        burial: &Burial<'_>,
    ) -> impl Future<Output = Result<DeadNumber>> + Send;

    /// Lists dead letters.
    fn dead(&self, filter: &DeadFilter) -> impl Future<Output = Result<Vec<DeadLetter>>> + Send;

    /// Counts dead letters by consumer and reason.
    fn count_dead(&self, filter: &DeadFilter) -> impl Future<Output = Result<u64>> + Send;

    /// Moves a dead letter to the waiting room under its own id, due now. Compare-and-swap: of two
    /// operators the slower gets [`Code::RedriveLost`]. [`Code::RedriveNeedsId`] if it has no id,
    /// [`ErrorKind::Busy`] if a message of its id is waiting already.
    fn redrive(&self, redrive: &Redrive<'_>) -> impl Future<Output = Result<()>> + Send;

    /// Removes a dead letter for good. Its inbox row stays `dead`, so that late copies are still acked;
    /// messages of its key that queued up behind it go on. [`ErrorKind::NotFound`] if it was redriven or
    /// discarded before, with [`Code::RedriveLost`], or never was.
    fn discard(&self, number: DeadNumber) -> impl Future<Output = Result<()>> + Send;
}

/// A running consumer, as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InstanceId(pub String);

/// Who runs, how they ended, and what they had begun.
pub trait Instances: Store {
    /// Records a new instance of a consumer.
    fn enlist(
        &self,
        consumer: &ConsumerName,
        instance: &InstanceId,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Records that the instance lives, and answers with the latest signs of life of the consumer's
    /// other instances that have not ended cleanly. Rows without one for `forget` are removed.
    fn beat(
        &self,
        consumer: &ConsumerName,
        instance: &InstanceId,
        forget: Duration,
    ) -> impl Future<Output = Result<Vec<InstanceBeat>>> + Send;

    /// Records a clean end.
    fn leave(
        &self,
        consumer: &ConsumerName,
        instance: &InstanceId,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Charges a start to a suspect in a transaction of its own, if a claim of it would succeed, and
    /// says whether it may run.
    fn charge_start(
        &self,
        consumer: &ConsumerName,
        key: &Key,
        limit: u32,
    ) -> impl Future<Output = Result<Start>> + Send;

    /// The starts recorded against a message.
    fn starts(&self, consumer: &ConsumerName, id: &MessageId) -> impl Future<Output = Result<u32>> + Send;
}

/// Another instance's sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InstanceBeat {
    /// Which one.
    pub instance: InstanceId,
    /// Its latest sign of life.
    pub beat_at: Timestamp,
}

/// What became of charging a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// Recorded; run it.
    Charged,
    /// A claim would not succeed anyway; nothing was recorded.
    NotNeeded,
    /// The limit is reached: so many starts ended with the process.
    Spent(u32),
}

/// What a purge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Rows removed.
    pub rows: u64,
    /// The consumer's horizon afterwards.
    pub horizon: Option<Timestamp>,
}

/// How long inbox rows are kept.
pub trait Retention: Store {
    /// Removes up to `max` rows that are `done` and whose later of `sent_at` and `processed_at` lies
    /// more than `keep` ago by the database's clock, and moves the horizon, in one transaction.
    fn purge(
        &self,
        consumer: &ConsumerName,
        keep: Duration,
        max: u32,
    ) -> impl Future<Output = Result<Purged>> + Send;

    /// The newest `sent_at` that was ever purged.
    fn horizon(&self, consumer: &ConsumerName) -> impl Future<Output = Result<Option<Timestamp>>> + Send;
}

/// The guard of naturally idempotent handlers: a value is applied only if its version is newer.
pub trait Versions: Store {
    /// Takes note of an entity's version in the transaction and says whether it is newer than every
    /// version noted before. The note outlives the entity, so that a late copy of an old version
    /// cannot bring a deleted one back. One round trip.
    fn newer(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerName,
        entity: &str,
        version: i64,
    ) -> impl Future<Output = Result<bool>> + Send;
}

/// Everything a [`Consumer`](https://docs.rs/hapax/latest/hapax/struct.Consumer.html) asks of a store.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store that a consumer can run on",
    note = "give `Consumer::new` a `hapax::PgStore`, a `hapax::SqliteStore`, a `hapax::MongoStore` or the test kit's `MemoryStore`"
)]
pub trait ConsumerStore: Inbox + Running + WaitingRoom + DeadLetters + Instances + Retention {}

impl<S: Inbox + Running + WaitingRoom + DeadLetters + Instances + Retention> ConsumerStore for S {}
