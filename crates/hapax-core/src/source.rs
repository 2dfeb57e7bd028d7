//! A broker one consumes from.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::{Envelope, Error, StoreReceipt};

/// A part of a source whose messages come in order: a Kafka partition, a FIFO group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane(pub Arc<str>);

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a source can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools, reason = "each answers a question of its own")]
pub struct Capabilities {
    /// It says of a delivery whether it was delivered before.
    pub knows_redelivered: bool,
    /// It hands over the messages of a lane in order.
    pub ordered: bool,
    /// It takes a delivery away from a slow consumer unless it is extended this often.
    pub extend_every: Option<Duration>,
    /// It ends by itself, as a file does.
    pub ends: bool,
    /// It forgets the messages of a lane only up to the first unsettled one, as a log's committed offset does.
    /// What was acked behind that comes again after a restart, and is a duplicate.
    pub acks_prefixes: bool,
}

impl Capabilities {
    /// None of them.
    pub const fn none() -> Self {
        Self {
            knows_redelivered: false,
            ordered: false,
            extend_every: None,
            ends: false,
            acks_prefixes: false,
        }
    }

    /// It says whether a delivery was delivered before (builder style).
    #[must_use]
    pub const fn knowing_redelivered(mut self) -> Self {
        self.knows_redelivered = true;
        self
    }

    /// It keeps the order of a lane (builder style).
    #[must_use]
    pub const fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// A delivery must be extended this often (builder style).
    #[must_use]
    pub const fn extending_every(mut self, period: Duration) -> Self {
        self.extend_every = Some(period);
        self
    }

    /// It forgets the messages of a lane only up to the first unsettled one (builder style).
    #[must_use]
    pub const fn acking_prefixes(mut self) -> Self {
        self.acks_prefixes = true;
        self
    }

    /// It ends by itself (builder style).
    #[must_use]
    pub const fn ending(mut self) -> Self {
        self.ends = true;
        self
    }
}

/// One handing-over of a message by a broker.
///
/// It is settled once, and acking twice does not compile:
///
/// ```compile_fail
/// fn twice<R>(delivery: hapax_core::Delivery<R>) {
///     let first = delivery.ack();
///     let second = delivery.ack();
/// }
/// ```
#[derive(Debug)]
pub struct Delivery<R> {
    /// The message.
    pub envelope: Envelope,
    /// Its lane, if the source has lanes.
    pub lane: Option<Lane>,
    /// Delivered before, as far as the source knows.
    pub redelivered: bool,
    /// Present if a store can ack it in a transaction: the embedded queue's.
    pub in_store: Option<StoreReceipt>,
    receipt: R,
}

impl<R> Delivery<R> {
    /// A delivery under the broker's receipt (tag, offset, row), which dies with it and is never an id.
    pub fn new(envelope: Envelope, receipt: R) -> Self {
        Self { envelope, lane: None, redelivered: false, in_store: None, receipt }
    }

    /// The broker's receipt.
    pub fn receipt(&self) -> &R {
        &self.receipt
    }

    /// The same delivery under another form of its receipt.
    pub fn map_receipt<Q>(self, form: impl FnOnce(R) -> Q) -> Delivery<Q> {
        let Self { envelope, lane, redelivered, in_store, receipt } = self;
        Delivery { envelope, lane, redelivered, in_store, receipt: form(receipt) }
    }

    /// The message took effect, or needs none: the broker may forget it.
    pub fn ack(self) -> Settlement<R> {
        Settlement { receipt: self.receipt, verdict: Settle::Ack }
    }

    /// Not handled: the broker is to deliver it again.
    pub fn hand_back(self) -> Settlement<R> {
        Settlement { receipt: self.receipt, verdict: Settle::HandBack }
    }

    /// Acked by a store's transaction: nothing is left to tell the broker but that it is out of hand.
    pub fn acked_in_store(self) -> Settlement<R> {
        Settlement { receipt: self.receipt, verdict: Settle::AckedInStore }
    }
}

/// What is to become of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// Forget it.
    Ack,
    /// Deliver it again.
    HandBack,
    /// Forgotten already, by the transaction that handled it.
    AckedInStore,
}

/// A delivery's end, to be passed to [`Settler::settle`].
#[derive(Debug)]
#[must_use = "a settlement takes effect when it is passed to `Settler::settle`"]
pub struct Settlement<R> {
    /// The broker's receipt.
    pub receipt: R,
    /// What is to become of it.
    pub verdict: Settle,
}

/// What a source hands over.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fetched<R> {
    /// Deliveries, in order within each lane. Never empty.
    Batch(Vec<Delivery<R>>),
    /// Lanes that now belong to somebody else: nothing of theirs may be acked any more.
    Lost(Vec<Lane>),
    /// There is no more, and there will not be.
    Ended,
}

/// A broker one consumes from. It owns its reconnect loop: losing the broker is no error.
pub trait Source: Send + 'static {
    /// What the broker wants to see again when a delivery is settled. Clones serve only to extend.
    type Receipt: Clone + Send + Sync + 'static;
    /// Its other half, used by many workers at once.
    type Settler: Settler<Self::Receipt>;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The half that settles and extends.
    fn settler(&self) -> Self::Settler;

    /// Where the messages come from, for logs and dead letters, without secrets.
    fn name(&self) -> String;

    /// Told once, before the first `next`: the most deliveries that will be in hand at a time.
    fn prepare(&mut self, in_flight: usize) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = in_flight;
        async { Ok(()) }
    }

    /// Whether it could be consumed from now: the broker answers, and what is to be read is there. Takes
    /// no message. By default what [`prepare`](Self::prepare) says, for a source that takes none by it.
    fn check(&mut self) -> impl Future<Output = Result<(), Error>> + Send {
        self.prepare(1)
    }

    /// Waits for deliveries and hands over at most `max` of what is there; never waits for more.
    ///
    /// Cancel safe: a call that is dropped loses no delivery. An error ends the consumer, so only
    /// what no waiting will mend is one: a missing queue, refused credentials.
    fn next(&mut self, max: usize) -> impl Future<Output = Result<Fetched<Self::Receipt>, Error>> + Send;

    /// Whether the broker is connected now, for `/ready`.
    fn is_connected(&self) -> bool {
        true
    }

    /// Says goodbye after everything is settled.
    fn close(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// The half of a source that settles and extends deliveries.
pub trait Settler<R: Send>: Clone + Send + Sync + 'static {
    /// Settles a batch, with a result per entry in the same order. A failed ack changes nothing: the
    /// message comes again and is a duplicate. So is one whose receipt the broker no longer knows: the
    /// answer may be [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) or, where it cannot tell, `Ok`.
    fn settle(&self, settlements: Vec<Settlement<R>>) -> impl Future<Output = Vec<Result<(), Error>>> + Send;

    /// Keeps deliveries from being taken away while their handlers run.
    fn extend(&self, receipts: Vec<R>) -> impl Future<Output = Vec<Result<(), Error>>> + Send {
        async move { receipts.iter().map(|_| Ok(())).collect() }
    }

    /// Whether a delivery is still kept for us, as far as this side can tell without asking the broker. False
    /// once its time has passed without an extension: the broker may have given it to somebody else, so it is
    /// not to be started. Sources that are not told when a delivery is taken away say `true`.
    fn holds(&self, receipt: &R) -> bool {
        let _ = receipt;
        true
    }
}
