//! What the tasks of one consumer share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hapax_core::{BoxError, ConsumerName, Destination, Retry, Store, Verdict};
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

use crate::brake::Brake;
use crate::handler::{ErasedHandler, ErasedPrepare};
use crate::health::Vitals;
use crate::intake::Intake;
use crate::janitor::Keep;
use crate::job::Order;
use crate::keeper::Hands;
use crate::outage::Outage;
use crate::room::Alarm;
use crate::suspicion::Suspicion;

/// When the inbox row is written relative to the handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// Before the handler, in its transaction. The default.
    #[default]
    Transactional,
    /// Before the handler, as *in progress*, in a transaction of its own and under a lease: for calls to the
    /// outside, which [`Consumer::prepare`](crate::Consumer::prepare) makes. Each message runs by itself. The lease
    /// is renewed as long as this process lives; if it dies, another one takes the message over when the lease
    /// has ended, and [`Message::is_taken_over`](hapax_core::Message::is_taken_over) says so.
    Eager {
        /// How long a message belongs to a process without a sign of life. Zero is refused.
        lease: Duration,
    },
    /// Never: the handlers' changes are safe to repeat (sets, upserts, version guards).
    Natural,
}

/// What becomes of a message of a type nobody handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownType {
    /// It is set aside.
    #[default]
    DeadLetter,
    /// It is recorded as handled, without effect.
    Ignore,
}

/// What becomes of a copy whose payload differs from the one its id is known with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtherPayload {
    /// It is counted, warned of, and acked as a duplicate.
    #[default]
    Warn,
    /// It is set aside besides.
    DeadLetter,
}

/// A batch is what is there when a worker gets free, up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The most messages in one transaction.
    pub max: usize,
    /// How long to wait for more when there are fewer; zero never waits.
    pub wait: Duration,
}

impl Default for Batch {
    /// At most 50, never waiting.
    fn default() -> Self {
        Self { max: 50, wait: Duration::ZERO }
    }
}

/// With two messages a worker in hand and random keys, one of eight workers would have none.
const IN_HAND: usize = 8;

impl Batch {
    /// The most deliveries that so many workers have in hand at a time: each its batch, and as many waiting
    /// for it; at least 8 a worker, since messages with keys do not spread evenly.
    pub fn in_flight(self, workers: usize) -> usize {
        workers.saturating_mul(self.max.saturating_mul(2).max(IN_HAND))
    }
}

impl Batch {
    /// The same under the eager strategy: each worker its message, and one waiting for it. After a crash all of them
    /// are suspects and run alone, and a call may take its time.
    pub fn in_flight_eager(workers: usize) -> usize {
        workers.saturating_mul(2)
    }
}

/// How a consumer behaves.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) strategy: Strategy,
    pub(crate) retry: Retry,
    pub(crate) timeout: Option<Duration>,
    pub(crate) unknown_type: UnknownType,
    pub(crate) other_payload: OtherPayload,
    pub(crate) order: Order,
    pub(crate) keep: Keep,
    pub(crate) batch: Batch,
    pub(crate) concurrency: usize,
    pub(crate) drain: Duration,
    pub(crate) until_idle: Option<Duration>,
    pub(crate) janitor: bool,
    pub(crate) dead_letters_to: Option<Destination>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            retry: Retry::default(),
            timeout: Some(Duration::from_secs(20)),
            unknown_type: UnknownType::default(),
            other_payload: OtherPayload::default(),
            order: Order::default(),
            keep: Keep::default(),
            batch: Batch::default(),
            concurrency: 4,
            drain: Duration::from_secs(25),
            until_idle: None,
            janitor: true,
            dead_letters_to: None,
        }
    }
}

impl Settings {
    /// The lease, if messages are put under one.
    pub(crate) fn lease(&self) -> Option<Duration> {
        match self.strategy {
            Strategy::Eager { lease } => Some(lease),
            _ => None,
        }
    }

    /// The most deliveries in hand at a time.
    pub(crate) fn in_flight(&self) -> usize {
        if self.lease().is_some() {
            return Batch::in_flight_eager(self.concurrency);
        }
        self.batch.in_flight(self.concurrency)
    }
}

pub(crate) type Handlers<S> = HashMap<String, Arc<dyn ErasedHandler<S>>>;
pub(crate) type Prepares = HashMap<String, Arc<dyn ErasedPrepare>>;
pub(crate) type Classify = Arc<dyn Fn(&BoxError) -> Option<Verdict> + Send + Sync>;

/// What the tasks of one consumer share.
pub(crate) struct Shared<S: Store, T, R> {
    pub(crate) store: S,
    pub(crate) settler: T,
    pub(crate) consumer: ConsumerName,
    pub(crate) settings: Settings,
    pub(crate) handlers: Handlers<S>,
    pub(crate) prepares: Prepares,
    pub(crate) classify: Vec<Classify>,
    pub(crate) intake: Intake<R>,
    pub(crate) hands: Arc<Hands<R>>,
    pub(crate) outage: Outage,
    pub(crate) brake: Brake,
    pub(crate) suspicion: Arc<Suspicion>,
    pub(crate) alarm: Alarm,
    pub(crate) vitals: Arc<Vitals>,
    /// Held shared by every batch and alone by a suspect, so that no one else can be charged for its crash.
    pub(crate) alone: RwLock<()>,
    /// No new messages are begun.
    pub(crate) stop: CancellationToken,
    /// What is begun is given up.
    pub(crate) abort: CancellationToken,
}

impl<S: Store, T, R> Shared<S, T, R> {
    /// Shows that the loops turn, and how fast, to whoever asks for the consumer's health.
    pub(crate) fn show(&self) {
        self.vitals.pulse.turn();
        self.vitals.slow.store(self.brake.is_slow(), Ordering::Relaxed);
    }
}
