//! The attempt to take a message.

use std::time::Duration;

use crate::{ConsumerName, Digest, Fence, MessageId, RawMessage, Timestamp};

/// What a store answers to the attempt to take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claim {
    /// Ours: the inbox row is written in this transaction.
    New,
    /// Ours, but its record may have been purged after it was handled: `sent_at` lies at or before
    /// the consumer's horizon (plus slack).
    Ambiguous,
    /// Ours, but an earlier message of its key is waiting or dead: it must queue up behind it.
    Held,
    /// Its effect is committed.
    Duplicate {
        /// The payload differs from the one that was handled under this id.
        other_payload: bool,
    },
    /// It failed or was deferred and is kept in the waiting room.
    Waiting {
        /// The payload differs from the one that is kept under this id.
        other_payload: bool,
    },
    /// It was set aside.
    Dead {
        /// The payload differs from the one that was set aside under this id.
        other_payload: bool,
    },
    /// Somebody holds it uncommitted; claim again later.
    Busy,
}

impl Claim {
    /// Whether this transaction holds the message's inbox row.
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::New | Self::Ambiguous | Self::Held)
    }

    /// Whether a copy under this id carried another payload.
    pub const fn differs(self) -> bool {
        matches!(
            self,
            Self::Duplicate { other_payload: true }
                | Self::Waiting { other_payload: true }
                | Self::Dead { other_payload: true }
        )
    }
}

/// One message to be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The message's id.
    pub id: MessageId,
    /// Fingerprint of its payload, kept with the row.
    pub digest: Digest,
    /// The producer's `sent_at`, kept with the row; decides what is ambiguous after a purge.
    pub sent_at: Option<Timestamp>,
    /// The key whose order must be kept, if the consumer keeps one.
    pub order: Option<String>,
    /// Its place in the waiting room, when it comes from there: only such a key may take a `waiting` row.
    pub place: Option<Place>,
    /// What it was put under a lease with: only such a key may take a `running` row, unless its lease has ended.
    pub fence: Option<Fence>,
}

impl Key {
    /// The key of a message whose producer does not say when it was sent.
    pub fn new(id: MessageId, digest: Digest) -> Self {
        Self { id, digest, sent_at: None, order: None, place: None, fence: None }
    }

    /// The key of a message that comes from a source.
    pub fn of(message: &RawMessage) -> Self {
        Self {
            id: message.id.clone(),
            digest: message.digest,
            sent_at: message.sent_at,
            order: None,
            place: None,
            fence: None,
        }
    }
}

/// A message's place in the waiting room: its number orders the messages of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(pub i64);

/// What is to be claimed in one transaction.
#[derive(Clone, Debug)]
pub struct ClaimRequest<'r> {
    /// In whose name.
    pub consumer: &'r ConsumerName,
    /// The messages, each id at most once; a store may take them in any order but answers in this one.
    pub keys: &'r [Key],
    /// Added to the horizon when ambiguity is judged, for producers' clocks that run behind.
    pub slack: Duration,
    /// The longest a single statement of the handler may run on the server; the server ends it after that.
    pub timeout: Option<Duration>,
}

impl<'r> ClaimRequest<'r> {
    /// A transaction in a consumer's name that claims nothing yet.
    pub fn none(consumer: &'r ConsumerName) -> Self {
        Self { consumer, keys: &[], slack: Duration::ZERO, timeout: None }
    }
}
