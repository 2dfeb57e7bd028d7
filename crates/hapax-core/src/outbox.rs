//! The outbox as a relay and an operator use it.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::{
    Code, ConsumerName, Destination, Envelope, Error, InstanceId, MessageId, Outgoing, Store, Timestamp,
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// The number of a row of the outbox. A process may take numbers beforehand, so that their order is not that in which
/// rows were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutboxNumber(pub i64);

impl fmt::Display for OutboxNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What becomes of the rows of a key behind one that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// They wait, also while it is parked, so that the key's order is kept.
    #[default]
    Block,
    /// They go on.
    Skip,
}

/// A row that is to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// Its number.
    pub number: OutboxNumber,
    /// The part of the outbox it belongs to.
    pub bucket: u16,
    /// The key whose order is kept.
    pub key: Option<String>,
    /// How often publishing it failed.
    pub attempts: u32,
    /// Where it goes.
    pub destination: Destination,
    /// The message.
    pub envelope: Envelope,
}

impl Unsent {
    /// As a publisher takes it.
    pub fn outgoing(&self) -> Outgoing {
        self.destination.outgoing(self.envelope.clone())
    }
}

/// What a relay asks for.
#[derive(Clone, Debug)]
pub struct Take<'t> {
    /// Who asks: rows come only from buckets it holds.
    pub relay: &'t InstanceId,
    /// At most so many.
    pub max: u32,
    /// What becomes of the rows of a key behind one that fails.
    pub on_failure: OnFailure,
    /// Brokers that are away: their rows are left alone.
    pub away: &'t [String],
}

/// Why a row was not published.
#[derive(Clone, Debug)]
pub struct NotSent<'n> {
    /// Which.
    pub number: OutboxNumber,
    /// The reason's code.
    pub code: Code,
    /// The reason in words.
    pub error: &'n str,
    /// What becomes of it.
    pub then: Then,
}

/// What becomes of a row that was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It is tried again as soon as the broker is back; nothing is charged to it.
    Wait,
    /// The failure is charged to it, and it is tried again after this time.
    Retry(Duration),
    /// The failure is charged to it, and it stays until an operator decides.
    Park,
}

/// Where a row of the outbox stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutboxState {
    /// To be published.
    Unsent,
    /// Published, and kept for the record.
    Sent,
    /// Failed as often as is allowed.
    Parked,
}

impl OutboxState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unsent => "unsent",
            Self::Sent => "sent",
            Self::Parked => "parked",
        }
    }

    /// As a store keeps it.
    pub const fn as_i64(self) -> i64 {
        match self {
            Self::Unsent => 0,
            Self::Sent => 1,
            Self::Parked => 2,
        }
    }

    /// From what a store kept.
    pub const fn from_i64(kept: i64) -> Option<Self> {
        match kept {
            0 => Some(Self::Unsent),
            1 => Some(Self::Sent),
            2 => Some(Self::Parked),
            _ => None,
        }
    }
}

impl fmt::Display for OutboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A row of the outbox as an operator reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its number.
    pub number: OutboxNumber,
    /// The message's id.
    pub id: MessageId,
    /// Who publishes it: a consumer, or a producer's name.
    pub producer: ConsumerName,
    /// The message in whose handling it was published.
    pub cause: Option<MessageId>,
    /// Its type.
    pub kind: String,
    /// The key whose order is kept.
    pub key: Option<String>,
    /// Where it goes.
    pub destination: Destination,
    /// Where it stands.
    pub state: OutboxState,
    /// How often publishing it failed.
    pub attempts: u32,
    /// The last reason's code.
    pub code: Option<String>,
    /// The last reason in words.
    pub error: Option<String>,
    /// When it was written.
    pub created_at: Timestamp,
    /// When it is due.
    pub due_at: Timestamp,
    /// When it was published, if it is kept after that.
    pub sent_at: Option<Timestamp>,
    /// When it was parked.
    pub parked_at: Option<Timestamp>,
    /// The message.
    pub envelope: Envelope,
}

/// Which rows an operator asks for. By default the first hundred of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxFilter {
    /// In this state only.
    pub state: Option<OutboxState>,
    /// Of this producer only.
    pub producer: Option<ConsumerName>,
    /// Of this key only.
    pub key: Option<String>,
    /// With this message id only.
    pub id: Option<MessageId>,
    /// Only such as failed at least once.
    pub failing: bool,
    /// With a higher number only, for reading page by page.
    pub after: Option<OutboxNumber>,
    /// At most so many, in the order of their numbers.
    pub limit: u32,
}

impl Default for OutboxFilter {
    fn default() -> Self {
        Self { state: None, producer: None, key: None, id: None, failing: false, after: None, limit: 100 }
    }
}

/// The outbox: messages that were written in the transactions of their causes, and are published afterwards.
///
/// Writing is [`Store::finish`]'s business, which takes what [`TxMeta::outbox`](crate::TxMeta::outbox)
/// gathered. A row's place in the order is given when it is written, so that of two transactions of one key that
/// were serialised on it the later one's rows come later.
pub trait Outbox: Store {
    /// Records that a relay lives, renews its buckets, gives back what is more than its share among the
    /// relays that live, and takes what is free up to that share. Answers with what it holds.
    fn share_buckets(
        &self,
        relay: &InstanceId,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<u16>>> + Send;

    /// Records that a relay lives and renews its buckets, no more.
    fn keep_buckets(&self, relay: &InstanceId, lease: Duration) -> impl Future<Output = Result<()>> + Send;

    /// Gives back all buckets of a relay that ends.
    fn leave_buckets(&self, relay: &InstanceId) -> impl Future<Output = Result<()>> + Send;

    /// Reads rows that are unsent and due, by state and never by a last number seen, since a lower number
    /// can be committed later. Of each bucket they come in the order in which they were written. One round trip.
    fn unsent(&self, take: &Take<'_>) -> impl Future<Output = Result<Vec<Unsent>>> + Send;

    /// Removes rows that were published, or keeps them as sent. One round trip.
    fn sent(&self, numbers: &[OutboxNumber], keep: bool) -> impl Future<Output = Result<()>> + Send;

    /// Notes why rows were not published. One transaction.
    fn not_sent(&self, rows: &[NotSent<'_>]) -> impl Future<Output = Result<()>> + Send;

    /// Removes up to `max` rows that were published longer than `keep` ago.
    fn purge_sent(&self, keep: Duration, max: u32) -> impl Future<Output = Result<u64>> + Send;

    /// Lists rows.
    fn outbox(&self, filter: &OutboxFilter) -> impl Future<Output = Result<Vec<OutboxRow>>> + Send;

    /// Counts rows; the filter's `after` and `limit` do not matter.
    fn count_outbox(&self, filter: &OutboxFilter) -> impl Future<Output = Result<u64>> + Send;

    /// Makes a row due now, with its slate wiped. [`ErrorKind::NotFound`](crate::ErrorKind::NotFound)
    /// unless it is unsent or parked.
    fn unpark(&self, number: OutboxNumber) -> impl Future<Output = Result<()>> + Send;

    /// Removes a row that was not published, for good; rows of its key that stood behind it go on.
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) unless it is unsent or parked.
    fn discard_unsent(&self, number: OutboxNumber) -> impl Future<Output = Result<()>> + Send;

    /// Completes when rows may have come in since the state that `seen` stands for, here or, where the
    /// database can tell, in another process; at once if they have. A relay polls besides.
    ///
    /// Cancel safe: `seen` changes only when it completes.
    fn outbox_changed(&self, seen: &mut u64) -> impl Future<Output = ()> + Send;

    /// Tells relays that rows came in, for whoever commits by himself.
    fn wake_relays(&self);
}
