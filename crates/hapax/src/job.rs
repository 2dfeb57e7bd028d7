//! A message on its way through a consumer, with whatever must happen when it leaves.

use std::sync::Arc;
use std::time::Instant;

use hapax_core::{
    Code, Delivery, Digest, Envelope, Fence, Key, Lane, MessageId, Place, Prepared, RawMessage, Timestamp,
    Unreadable,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::handler::Circumstances;
use crate::keeper::Kept;

/// Where a message is to be settled.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every message is a delivery; a box would cost each an allocation"
)]
pub(crate) enum Hold<R> {
    /// With the broker.
    Delivery(Delivery<R>),
    /// In the waiting room.
    Waiting(Place),
}

/// Why a message will be set aside rather than handled, known before it is claimed.
#[derive(Clone, Debug)]
pub(crate) struct Flaw {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

/// What a consumer could read of a message.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every message is readable; a box would cost each an allocation"
)]
pub(crate) enum Content {
    Message(RawMessage),
    Unreadable(Unreadable),
}

/// How far a message is suspected of having ended a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspect {
    No,
    /// Only if the store has not seen it: the source cannot tell what it delivered before.
    IfNew,
    Yes,
}

/// A message on its way.
pub(crate) struct Job<R> {
    pub(crate) content: Content,
    pub(crate) hold: Hold<R>,
    pub(crate) lane: Option<Lane>,
    /// Failures before this attempt.
    pub(crate) failures: u32,
    pub(crate) suspect: Suspect,
    /// Its start is on record, to be erased when it ends in order.
    pub(crate) start_charged: bool,
    /// A commit with it in had no answer: if the claim finds it done, it was this one.
    pub(crate) uncertain: bool,
    /// How often it was found busy.
    pub(crate) busy: u32,
    pub(crate) ready_at: Option<Instant>,
    /// It is on record as running, under a lease of ours.
    pub(crate) grip: Option<Held>,
    /// Its record may have been purged after it was handled.
    pub(crate) ambiguous: bool,
    pub(crate) prepared: Option<Prepared>,
    pub(crate) received_at: Instant,
    pub(crate) slot: Slot,
}

/// A message under a lease of ours.
pub(crate) struct Held {
    pub(crate) fence: Fence,
    /// Somebody else began it, and its lease ended.
    pub(crate) taken_over: bool,
    /// Its prepare step was begun.
    pub(crate) used: bool,
    pub(crate) _kept: Kept,
}

/// What is given back by dropping: its share of the in-flight limit, its entry with the keeper.
pub(crate) struct Slot {
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
    pub(crate) _kept: Option<Kept>,
}

impl<R> Job<R> {
    pub(crate) fn new(content: Content, hold: Hold<R>, slot: Slot) -> Self {
        Self {
            content,
            hold,
            lane: None,
            failures: 0,
            suspect: Suspect::No,
            start_charged: false,
            uncertain: false,
            busy: 0,
            ready_at: None,
            grip: None,
            ambiguous: false,
            prepared: None,
            received_at: Instant::now(),
            slot,
        }
    }

    pub(crate) fn id(&self) -> Option<&MessageId> {
        match &self.content {
            Content::Message(message) => Some(&message.id),
            Content::Unreadable(unreadable) => unreadable.id.as_ref(),
        }
    }

    /// For logs.
    pub(crate) fn id_text(&self) -> &str {
        self.id().map_or("(none)", MessageId::as_str)
    }

    pub(crate) fn kind(&self) -> &str {
        match &self.content {
            Content::Message(message) => &message.kind,
            Content::Unreadable(unreadable) => &unreadable.kind,
        }
    }

    pub(crate) fn envelope(&self) -> &Envelope {
        match &self.content {
            Content::Message(message) => &message.envelope,
            Content::Unreadable(unreadable) => &unreadable.envelope,
        }
    }

    pub(crate) fn message(&self) -> Option<&RawMessage> {
        match &self.content {
            Content::Message(message) => Some(message),
            Content::Unreadable(_) => None,
        }
    }

    pub(crate) fn place(&self) -> Option<Place> {
        match self.hold {
            Hold::Waiting(place) => Some(place),
            Hold::Delivery(_) => None,
        }
    }

    /// What its handler is told of it.
    pub(crate) fn circumstances(&self) -> Circumstances {
        Circumstances {
            attempt: self.failures + 1,
            taken_over: self.grip.as_ref().is_some_and(|grip| grip.taken_over),
            prepared: self.prepared.clone(),
        }
    }

    /// What decides the worker: the key, else the lane; the other way round where the lane's order is kept, which
    /// two workers with keys of one lane would not.
    pub(crate) fn route(&self, order: Order) -> Option<&str> {
        let key = self.message().and_then(|message| message.key.as_deref());
        let lane = self.lane.as_ref().map(|lane| &*lane.0);
        if order == Order::Lane { lane.or(key) } else { key.or(lane) }
    }

    /// The key whose order is to be kept.
    pub(crate) fn order_key(&self, order: Order) -> Option<&str> {
        match order {
            Order::None => None,
            Order::Key => self.message().and_then(|message| message.key.as_deref()),
            Order::Lane => self.lane.as_ref().map(|lane| &*lane.0),
        }
    }

    /// What is claimed for it; nothing for a message without a usable id.
    pub(crate) fn key(&self, order: Order) -> Option<Key> {
        let (digest, sent_at) = self.fingerprint();
        Some(Key {
            id: self.id()?.clone(),
            digest,
            sent_at,
            order: self.order_key(order).map(str::to_owned),
            place: self.place(),
            fence: self.grip.as_ref().map(|grip| grip.fence),
        })
    }

    fn fingerprint(&self) -> (Digest, Option<Timestamp>) {
        match &self.content {
            Content::Message(message) => (message.digest, message.sent_at),
            Content::Unreadable(unreadable) => (Digest::of(&unreadable.envelope.body), None),
        }
    }
}

/// Whether a failed message holds up those behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// It does not: messages behind it go on.
    #[default]
    None,
    /// Messages of its key queue up behind it until it took effect or was discarded.
    Key,
    /// Messages of its lane (Kafka partition, FIFO group) queue up behind it.
    Lane,
}

/// A lane's name, shared by all its messages.
pub(crate) fn lane_of(key: &str) -> Lane {
    Lane(Arc::from(key))
}
