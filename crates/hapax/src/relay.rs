//! The relay: publishes what is in the outbox.

mod broker;
mod page;
mod turn;
mod vitals;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Error, ErrorKind, InstanceId, OnFailure, Outbox, Publisher, Retry};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::boxed::BoxPublisher;
use crate::keeper::wait;
use broker::Broker;
use turn::{Turn, Turns};
use vitals::Vitals;
pub use vitals::{RelayHealth, RelaySummary};

/// The first wait after the store was found away, doubled each time.
const FIRST: Duration = Duration::from_millis(100);
/// The longest such wait.
const LONGEST: Duration = Duration::from_secs(5);

/// Publishes the messages that transactions left in the outbox, with confirms, in the order of their keys.
///
/// As many relays as one likes can run at once, in as many processes: each owns a part of the keys under a
/// lease. A message is removed from the outbox, or marked as sent, after its broker has confirmed it; a relay
/// that dies in between leaves it to be published again under the same id. What a broker refuses is tried
/// again, later each time, and parked after 20 failures; what cannot be sent because its broker is away is
/// charged nothing.
///
/// ```
/// use hapax::{Consumer, Envelope, Event, Message, Relay};
/// use hapax_testkit::memory::{MemoryBroker, MemoryStore, MemoryTx};
///
/// #[derive(serde::Serialize)]
/// struct OrderPaid { order_id: i64 }
///
/// impl Event for OrderPaid {
///     const TYPE: &'static str = "OrderPaid";           // goes to the queue of that name, unless it says otherwise
/// }
///
/// async fn mark_paid(tx: &mut MemoryTx, order_id: Message<i64>) -> hapax::Result {
///     tx.add("paid", 1)?;
///     tx.publish(OrderPaid { order_id: *order_id })     // in the same transaction
/// }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
/// broker.declare("OrderPaid");
/// broker.publish("orders", Envelope::new("7").with_id("m1").with_type("Paid"));
/// let idle = std::time::Duration::from_millis(50);
/// Consumer::new("orders", store.clone(), broker.source("orders"))?.on("Paid", mark_paid).until_idle(idle).run().await?;
/// let summary = Relay::new(store, broker.clone()).until_idle(idle).run().await?;
/// assert_eq!(summary.published, 1);
/// assert_eq!(broker.stats("OrderPaid").published, 1);
/// # Ok(()) }
/// ```
#[must_use = "a relay does nothing until it is run"]
pub struct Relay<S: Outbox> {
    store: S,
    brokers: BTreeMap<String, Broker>,
    settings: Settings,
    vitals: Arc<Vitals>,
}

/// How a relay behaves.
#[derive(Clone, Copy, Debug)]
struct Settings {
    batch: usize,
    on_failure: OnFailure,
    retry: Retry,
    keep: Option<Duration>,
    lease: Duration,
    poll: Duration,
    until_idle: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch: 100,
            on_failure: OnFailure::default(),
            retry: Retry::exponential().attempts(20),
            keep: None,
            lease: Duration::from_secs(10),
            poll: Duration::from_secs(1),
            until_idle: None,
        }
    }
}

impl<S: Outbox> Relay<S> {
    /// A relay to one broker, the default of every message that names none.
    pub fn new(store: S, publisher: impl Publisher) -> Self {
        Self::of(store).broker("", publisher)
    }

    /// A relay that knows no broker yet.
    pub fn of(store: S) -> Self {
        Self { store, brokers: BTreeMap::new(), settings: Settings::default(), vitals: Arc::default() }
    }

    /// Adds a broker under the name by which messages ask for it, see
    /// [`Destination::on`](hapax_core::Destination::on). All relays on one store must know the same ones.
    pub fn broker(mut self, name: impl Into<String>, publisher: impl Publisher) -> Self {
        let name = name.into();
        self.brokers.insert(name.clone(), Broker::new(name, BoxPublisher::new(publisher)));
        self
    }

    /// The most messages that are published together; of a key only one, unless failures
    /// [are skipped](OnFailure::Skip). Default 100.
    pub fn batch(mut self, max: usize) -> Self {
        self.settings.batch = max.max(1);
        self
    }

    /// What becomes of the messages of a key behind one that fails. Default: they wait.
    pub fn on_failure(mut self, policy: OnFailure) -> Self {
        self.settings.on_failure = policy;
        self
    }

    /// When a message that its broker refused is tried again, and after how many failures it is parked.
    /// Default: exponential from 1 s to 5 min, 20 failures.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.settings.retry = retry;
        self
    }

    /// Keeps rows for the record this long after they were published. Default: they are removed at once.
    pub fn keep_sent(mut self, keep: Duration) -> Self {
        self.settings.keep = Some(keep);
        self
    }

    /// How long other relays wait before they take over the keys of one that is silent; at least 1 s.
    /// Default 10 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease.max(Duration::from_secs(1));
        self
    }

    /// How often to look for messages of which no news came. Default: every second.
    pub fn poll_every(mut self, period: Duration) -> Self {
        self.settings.poll = period;
        self
    }

    /// Ends the run when nothing was due for so long; with a broker that is away, 25 s later, and what was for it
    /// stays in the outbox.
    pub fn until_idle(mut self, silence: Duration) -> Self {
        self.settings.until_idle = Some(silence);
        self
    }

    /// A handle that can be asked while the relay runs.
    pub fn health(&self) -> RelayHealth {
        RelayHealth(Arc::clone(&self.vitals))
    }

    /// Runs until it is idle, if [`until_idle`](Self::until_idle) says so, else for ever.
    pub async fn run(self) -> Result<RelaySummary, Error> {
        self.run_until(std::future::pending::<()>()).await
    }

    /// Runs until `shutdown` completes; then what is being published is awaited and its keys are given back.
    ///
    /// Losing the store or a broker ends nothing. An error means that the store could not be used at all
    /// (schema, permissions).
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<RelaySummary, Error> {
        let stop = CancellationToken::new();
        let signal = stop.clone();
        let vitals = Arc::clone(&self.vitals);
        // Boxed, since the whole relay lives in this future and would swell every caller's.
        let mut running = Box::pin(self.run_to_end(stop));
        let ended = tokio::select! {
            ended = &mut running => ended,
            () = shutdown => {
                signal.cancel();
                running.await
            }
        };
        ended.map(|()| vitals.summary())
    }

    async fn run_to_end(self, stop: CancellationToken) -> Result<(), Error> {
        self.store.check().await?;
        let relay = InstanceId(uuid::Uuid::now_v7().to_string());
        let mut turns = Turns::new(&self.store, relay, self.brokers, self.settings, Arc::clone(&self.vitals));
        self.vitals.running(true);
        let ended = until_stopped(&mut turns, &stop).await;
        turns.leave().await;
        self.vitals.running(false);
        ended
    }
}

async fn until_stopped<S: Outbox>(turns: &mut Turns<'_, S>, stop: &CancellationToken) -> Result<(), Error> {
    let mut pause = FIRST;
    let mut idle_since = None;
    while !stop.is_cancelled() {
        turns.vitals.pulse.turn();
        match turns.turn(stop).await {
            Ok(turn) => {
                if turns.vitals.store_is_away(false) {
                    info!("the store is back; the relay goes on");
                }
                pause = FIRST;
                if turn == Turn::Progress {
                    idle_since = None;
                    continue;
                }
                let since = *idle_since.get_or_insert_with(Instant::now);
                if turns.is_done(since.elapsed()) {
                    return Ok(());
                }
                turns.rest(stop, since).await;
            }
            Err(error) if error.kind() == ErrorKind::Setup => return Err(error),
            Err(error) => {
                if !turns.vitals.store_is_away(true) {
                    warn!(%error, "the store is away; the relay waits until it is back");
                }
                idle_since = None;
                wait(pause.mul_f64(0.5 + fastrand::f64() / 2.0), stop).await;
                pause = (pause * 2).min(LONGEST);
            }
        }
    }
    Ok(())
}

impl<S: Outbox> fmt::Debug for Relay<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("brokers", &self.brokers.keys().collect::<Vec<_>>())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
