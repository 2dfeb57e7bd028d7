//! A message in progress under a lease: the eager strategy, and requests over HTTP.
//!
//! The record is committed before the work begins, so that everybody sees that somebody is at it. What keeps it from
//! being lost with that somebody is the lease: a live one renews it, a dead one's ends, and whoever takes the
//! message over gets a higher [`Fence`]. The former one's fence is worth nothing from then on.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::{ConsumerName, Error, Inbox, Key, MessageId};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Tells those who worked on a message from each other: each gets a higher one than all before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fence(pub i64);

/// What a store answers to the attempt to put a message under a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Grip {
    /// Ours, until the lease ends.
    Ours {
        /// What it is renewed and ended with.
        fence: Fence,
        /// Another one's lease ended before its work did: what that work did outside is unknown.
        taken_over: bool,
        /// Its record may have been purged after it was handled, as in [`Claim::Ambiguous`](crate::Claim::Ambiguous).
        ambiguous: bool,
        /// It was taken over, and its payload differs from the one of whoever began it, which stays on record.
        other_payload: bool,
    },
    /// An earlier message of its key is waiting or dead, as in [`Claim::Held`](crate::Claim::Held). Nothing is
    /// recorded.
    Held,
    /// Somebody else is at it.
    Running {
        /// The payload differs from the one they are at.
        other_payload: bool,
        /// Until their lease ends, if they do not renew it.
        ends_in: Duration,
    },
    /// Somebody holds it in a transaction.
    Busy,
    /// Its effect is committed.
    Done {
        /// The payload differs from the one that was handled under this id.
        other_payload: bool,
        /// What was kept with the record.
        result: Option<Bytes>,
    },
    /// It is kept in the waiting room.
    Waiting {
        /// The payload differs from the one that is kept under this id.
        other_payload: bool,
    },
    /// It was set aside.
    Dead {
        /// The payload differs from the one that was set aside under this id.
        other_payload: bool,
    },
}

/// Messages in progress.
///
/// A lease of zero is a deadline like any other: it has ended when it begins.
pub trait Running: Inbox {
    /// Records a message as running, in a transaction of its own from the reserved connections: one that is new,
    /// one that waits at the place its key names, or one whose lease has ended. One round trip, but for a message
    /// whose order is kept or that was sent more than 30 s ago.
    fn begin_running(
        &self,
        consumer: &ConsumerName,
        key: &Key,
        lease: Duration,
        slack: Duration,
    ) -> impl Future<Output = Result<Grip>> + Send;

    /// Sets the ends of leases anew, also of those that have ended and were not taken over. Answers which are
    /// still ours, in the order of the arguments. One round trip.
    fn renew_running(
        &self,
        consumer: &ConsumerName,
        running: &[(MessageId, Fence)],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// Marks a message done, with a result to be kept beside the record. Says whether it was still ours; if it was
    /// not, nothing is changed. A handler with a transaction claims instead, with
    /// [`Key::fence`](crate::Key::fence). One round trip.
    fn end_running(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
        result: Option<&[u8]>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Gives a message up as if it had never been begun: it is as new, or waits again. Says whether it was still
    /// ours. One round trip.
    fn drop_running(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
    ) -> impl Future<Output = Result<bool>> + Send;
}
