//! A consumer: what a user configures and runs.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hapax_core::{
    BoxError, Code, ConsumerName, ConsumerStore, Destination, Error, ErrorKind, Event, Format, InstanceId,
    Message, Part, Payload, Retry, Source, Verdict,
};
use tokio::sync::{RwLock, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::brake::Brake;
use crate::fetch::FetchEnd;
use crate::handler::{ErasedHandler, Handler, HandlerFn, OnBatch, OnFunction, OnHandler, Prepare, PrepareFn};
use crate::health::{Health, Summary, Vitals};
use crate::intake::Intake;
use crate::janitor::{Janitor, Keep};
use crate::job::Order;
use crate::keeper::{Hands, extend_deliveries, renew_running, renew_waiting};
use crate::lease::check_lease;
use crate::outage::Outage;
use crate::room::Alarm;
use crate::shared::{
    Batch, Classify, Handlers, OtherPayload, Prepares, Settings, Shared, Strategy, UnknownType,
};
use crate::suspicion::{Suspicion, enlist};
use crate::worker::Worker;

/// How often the end of a run is looked for.
const IDLE_CHECK: Duration = Duration::from_millis(10);

/// Takes messages from a source and lets each take effect once.
///
/// ```
/// use hapax::{Consumer, Message};
/// use hapax_testkit::memory::{MemoryBroker, MemoryStore, MemoryTx};
///
/// #[derive(serde::Deserialize)]
/// struct Paid { order: String }
///
/// async fn mark_paid(tx: &mut MemoryTx, paid: Message<Paid>) -> hapax::Result {
///     tx.add(&paid.order, 1)?;                      // commits together with the inbox row
///     Ok(())
/// }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
/// for _ in 0..2 {                                   // the broker delivers it twice
///     broker.publish("orders", hapax::Envelope::new(r#"{"order":"o1"}"#).with_id("m1").with_type("Paid"));
/// }
/// let summary = Consumer::new("orders", store.clone(), broker.source("orders"))?
///     .on("Paid", mark_paid)
///     .until_idle(std::time::Duration::from_millis(50))
///     .run()
///     .await?;
/// assert_eq!((summary.handled, summary.duplicates), (1, 1));
/// assert_eq!(store.number("o1"), 1);
/// # Ok(()) }
/// ```
#[must_use = "a consumer does nothing until it is run"]
pub struct Consumer<S: ConsumerStore, Src: Source> {
    name: ConsumerName,
    store: S,
    source: Src,
    format: Format,
    settings: Settings,
    handlers: Handlers<S>,
    prepares: Prepares,
    classify: Vec<Classify>,
    vitals: Arc<Vitals>,
}

impl<S: ConsumerStore, Src: Source> Consumer<S, Src> {
    /// A consumer under a logical name, which is the scope of deduplication: whoever changes it
    /// handles everything again (`hapax inbox rename` takes the records along).
    pub fn new(name: impl AsRef<str>, store: S, source: Src) -> Result<Self, Error> {
        let name = ConsumerName::new(name)
            .map_err(|error| Error::new(ErrorKind::Setup, Code::ConfigWrongValue, error.to_string()))?;
        Ok(Self {
            name,
            store,
            source,
            format: Format::default(),
            settings: Settings::default(),
            handlers: Handlers::new(),
            prepares: Prepares::new(),
            classify: Vec::new(),
            vitals: Vitals::new(),
        })
    }

    /// Handles messages of a type with an async function or closure.
    ///
    /// The handler runs in the transaction of its claim and may run more than once before one run
    /// commits, so what it does outside that transaction must be safe to repeat. With
    /// [`batch`](Self::batch) above 1 it shares the transaction with other messages' handlers, one
    /// after another in delivery order.
    pub fn on<T, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        T: Payload,
        F: for<'a> HandlerFn<'a, S::Tx, Message<T>> + Clone + Sync + 'static,
    {
        self.register(kind.into(), Arc::new(OnFunction::<T, F>::new(handler)))
    }

    /// The same, under the type name that the payload knows.
    pub fn on_event<T, F>(self, handler: F) -> Self
    where
        T: Payload + Event,
        F: for<'a> HandlerFn<'a, S::Tx, Message<T>> + Clone + Sync + 'static,
    {
        self.on::<T, F>(T::TYPE, handler)
    }

    /// Handles messages of a type with a struct.
    pub fn on_handler<T: Payload, H: Handler<S, T>>(self, kind: impl Into<String>, handler: H) -> Self {
        self.register(kind.into(), Arc::new(OnHandler::<T, H>::new(handler)))
    }

    /// Handles all messages of a type that stand together in a batch with one call, for set-based SQL.
    /// If the call fails, the batch runs again in halves until the failing message stands alone.
    pub fn on_batch<T, F>(self, kind: impl Into<String>, handler: F) -> Self
    where
        T: Payload,
        F: for<'a> HandlerFn<'a, S::Tx, Vec<Message<T>>> + Clone + Sync + 'static,
    {
        self.register(kind.into(), Arc::new(OnBatch::<T, F>::new(handler)))
    }

    /// Runs a step for messages of a type before their transaction begins: the place for calls to the
    /// outside. What it returns is handed in, see [`Message::prepared`]. Its failures count like the
    /// handler's. It is not run for duplicates, which costs one more round trip per batch.
    pub fn prepare<T, P, F>(mut self, kind: impl Into<String>, step: F) -> Self
    where
        T: Payload,
        P: Any + Send + Sync,
        F: PrepareFn<T, P>,
    {
        self.prepares.insert(kind.into(), Arc::new(Prepare::<T, P, F>::new(step)));
        self
    }

    /// Says what an error that a handler let through with `?` means: `None` leaves it a retry. Of
    /// several classifiers the first that answers decides.
    pub fn classify(
        mut self,
        verdict: impl Fn(&BoxError) -> Option<Verdict> + Send + Sync + 'static,
    ) -> Self {
        self.classify.push(Arc::new(verdict));
        self
    }

    /// How id, type, key, `sent_at` and payload are found in a message.
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Where a message's key is: messages of one key are handled by one worker, in order, so that
    /// workers do not lock each other out. A shortcut for [`Format::key`].
    ///
    /// ```
    /// # use hapax_testkit::memory::{MemoryBroker, MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    /// let consumer = hapax::Consumer::new("orders", store, broker.source("orders"))?
    ///     .key("json:/order_id".parse()?);
    /// # Ok(()) }
    /// ```
    pub fn key(mut self, part: Part) -> Self {
        self.format = self.format.key(part);
        self
    }

    /// When a failed message is tried again, and when it is set aside.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.settings.retry = retry;
        self
    }

    /// How long one call of a handler may take; `None` for ever. Default 20 s.
    pub fn timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.settings.timeout = limit.into();
        self
    }

    /// When the inbox row is written. Default: in the handler's transaction.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.settings.strategy = strategy;
        self
    }

    /// What becomes of a message of a type nobody handles. Default: set aside.
    pub fn unknown_type(mut self, policy: UnknownType) -> Self {
        self.settings.unknown_type = policy;
        self
    }

    /// What becomes of a copy whose payload differs. Default: counted and warned of.
    pub fn other_payload(mut self, policy: OtherPayload) -> Self {
        self.settings.other_payload = policy;
        self
    }

    /// Publishes a copy of each dead letter besides, through the outbox, for tools that work on a broker's
    /// queue. The letter itself stays in the store. A copy that comes back to this consumer's source with its
    /// headers is a redrive, as long as the letter is set aside.
    pub fn dead_letters_to(mut self, destination: Destination) -> Self {
        self.settings.dead_letters_to = Some(destination);
        self
    }

    /// Whether a failed message holds up those behind it. Default: it does not.
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = order;
        self
    }

    /// How long inbox rows are kept. Default: 14 days.
    pub fn keep(mut self, keep: Keep) -> Self {
        self.settings.keep = keep;
        self
    }

    /// The most messages in one transaction; 1 switches batches off. Default 50.
    pub fn batch(mut self, max: usize) -> Self {
        self.settings.batch.max = max.max(1);
        self
    }

    /// How long a worker waits for a fuller batch. Default: never.
    pub fn batch_wait(mut self, wait: Duration) -> Self {
        self.settings.batch = Batch { wait, ..self.settings.batch };
        self
    }

    /// How many workers, each with a connection of its own. Default 4.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.settings.concurrency = workers.max(1);
        self
    }

    /// How long messages that are begun may take to finish at shutdown. Default 25 s.
    pub fn drain(mut self, limit: Duration) -> Self {
        self.settings.drain = limit;
        self
    }

    /// Ends the run when the source has been silent and the waiting room empty for so long.
    pub fn until_idle(mut self, silence: Duration) -> Self {
        self.settings.until_idle = Some(silence);
        self
    }

    /// Leaves purging to a [`Janitor`] elsewhere.
    pub fn without_janitor(mut self) -> Self {
        self.settings.janitor = false;
        self
    }

    /// A handle that can be asked while the consumer runs.
    pub fn health(&self) -> Health {
        Health(Arc::clone(&self.vitals))
    }

    fn register(mut self, kind: String, handler: Arc<dyn ErasedHandler<S>>) -> Self {
        self.handlers.insert(kind, handler);
        self
    }

    /// Runs until the source ends, or until it is idle if [`until_idle`](Self::until_idle) says so.
    pub async fn run(self) -> Result<Summary, Error> {
        self.run_until(std::future::pending::<()>()).await
    }

    /// Runs until `shutdown` completes; then no new message is begun, those that are begun finish
    /// within the [drain](Self::drain) time, the rest is handed back, and a clean end is recorded.
    ///
    /// Losing the store or the broker ends nothing: fetching stops and goes on when it is back. An
    /// error means that the consumer could not be set up (schema, credentials, a missing queue) or
    /// that its source failed for good.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<Summary, Error> {
        // Boxed, since the whole consumer lives in this future and would swell every caller's.
        Box::pin(self.run_to_end(shutdown)).await
    }

    async fn run_to_end(self, shutdown: impl Future<Output = ()>) -> Result<Summary, Error> {
        let Self { name, store, mut source, format, mut settings, handlers, prepares, classify, vitals } =
            self;
        check_capacity(&store, &settings)?;
        if let Some(lease) = settings.lease() {
            check_lease(lease)?;
            settings.batch.max = 1; // a call that failed must not undo another's record
        }
        store.check().await?;
        source.prepare(settings.in_flight()).await?;

        let instance = InstanceId(uuid::Uuid::now_v7().to_string());
        let capabilities = source.capabilities();
        let suspicion = Arc::new(Suspicion::new(capabilities.knows_redelivered, settings.in_flight()));
        enlist(&store, &name, &instance, &suspicion).await?;
        vitals.running.store(true, Ordering::SeqCst);

        let shared = Arc::new(Shared {
            settler: source.settler(),
            intake: Intake::new(settings.concurrency, settings.order),
            hands: Hands::new(),
            outage: Outage::new(Arc::clone(&vitals)),
            brake: Brake::new(),
            alarm: Alarm::default(),
            alone: RwLock::new(()),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            store,
            consumer: name,
            settings,
            handlers,
            prepares,
            classify,
            suspicion,
            vitals,
        });
        let crew = Crew::hire(&shared, &format, instance, capabilities.extend_every);
        let outcome = fetch_until(&shared, &mut source, &format, shutdown, &crew).await;
        let summary = crew.dismiss(&shared).await;
        source.close().await;
        shared.vitals.running.store(false, Ordering::SeqCst);
        outcome.map(|()| summary)
    }
}

fn check_capacity<S: ConsumerStore>(store: &S, settings: &Settings) -> Result<(), Error> {
    if store.capacity() >= settings.concurrency {
        return Ok(());
    }
    let context = format!(
        "{} workers need as many connections, the store has {}",
        settings.concurrency,
        store.capacity()
    );
    Err(Error::new(ErrorKind::Setup, Code::TooFewConnections, context))
}

type SharedOf<S, Src> = Arc<Shared<S, <Src as Source>::Settler, <Src as Source>::Receipt>>;

/// Fetches until there is a reason to stop: a shutdown, the end of the source, idleness, an error.
async fn fetch_until<S: ConsumerStore, Src: Source>(
    shared: &SharedOf<S, Src>,
    source: &mut Src,
    format: &Format,
    shutdown: impl Future<Output = ()>,
    crew: &Crew,
) -> Result<(), Error> {
    let fetch = async {
        match shared.fetch(source, format, Arc::clone(&crew.room)).await? {
            FetchEnd::Stopped => {}
            FetchEnd::Ended => match shared.settings.until_idle {
                Some(silence) => idle(shared, crew, silence, Until::NothingWaiting).await,
                None => idle(shared, crew, Duration::ZERO, Until::NothingDue).await,
            },
        }
        Ok(())
    };
    let silence = async {
        match shared.settings.until_idle {
            Some(silence) => idle(shared, crew, silence, Until::NothingWaiting).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        fetched = fetch => fetched,
        () = silence => Ok(()),
        () = shutdown => {
            info!(consumer = %shared.consumer, "shutting down: no new message is begun");
            Ok(())
        }
    }
}

/// What the waiting room must be free of for a run to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Of what can be done now.
    NothingDue,
    /// Of everything.
    NothingWaiting,
}

/// Waits until nothing has been in hand, nor in the waiting room, for this long.
async fn idle<S: ConsumerStore, T, R>(
    shared: &Arc<Shared<S, T, R>>,
    crew: &Crew,
    silence: Duration,
    until: Until,
) {
    let mut since = tokio::time::Instant::now();
    let mut seen = shared.vitals.summary();
    loop {
        tokio::time::sleep(IDLE_CHECK).await;
        let now = shared.vitals.summary();
        // Nobody knows whether a queue is empty while its broker is away.
        let cut_off = shared.outage.is_away() || !shared.vitals.source_connected.load(Ordering::Relaxed);
        if now != seen || !crew.is_idle() || cut_off {
            seen = now;
            since = tokio::time::Instant::now();
            continue;
        }
        if since.elapsed() < silence {
            continue;
        }
        let depth = shared.store.depth(&shared.consumer).await;
        let left = depth.map(|depth| if until == Until::NothingDue { depth.due } else { depth.total });
        if left.is_ok_and(|left| left == 0) && crew.is_idle() {
            return;
        }
        since = tokio::time::Instant::now();
    }
}

/// The tasks of a running consumer.
struct Crew {
    workers: JoinSet<()>,
    side: JoinSet<()>,
    /// Ends the side tasks, after the workers.
    done: CancellationToken,
    room: Arc<Semaphore>,
    waiting_room: Arc<Semaphore>,
    in_flight: usize,
    instance: InstanceId,
}

impl Crew {
    fn hire<S, T, R>(
        shared: &Arc<Shared<S, T, R>>,
        format: &Format,
        instance: InstanceId,
        extend_every: Option<Duration>,
    ) -> Self
    where
        S: ConsumerStore,
        T: hapax_core::Settler<R>,
        R: Clone + Send + Sync + 'static,
    {
        let in_flight = shared.settings.in_flight();
        let (room, waiting_room) = (Arc::new(Semaphore::new(in_flight)), Arc::new(Semaphore::new(in_flight)));
        let done = CancellationToken::new();
        let mut workers = JoinSet::new();
        for number in 0..shared.settings.concurrency {
            let shared = Arc::clone(shared);
            let worker = Worker::new(number, shared.settings.batch.max);
            workers.spawn(async move { shared.work(worker).await });
        }
        let (reader, places, form) = (Arc::clone(shared), Arc::clone(&waiting_room), format.clone());
        workers.spawn(async move { reader.read_waiting_room(&form, places).await });

        let mut side = JoinSet::new();
        let (store, consumer) = (shared.store.clone(), shared.consumer.clone());
        let myself = instance.clone();
        let (beating, until) = (Arc::clone(shared), done.clone());
        side.spawn(async move { beating.beat(myself, until).await });
        side.spawn(renew_waiting(Arc::clone(&shared.hands), store.clone(), consumer.clone(), done.clone()));
        if let Some(lease) = shared.settings.lease() {
            let hands = Arc::clone(&shared.hands);
            side.spawn(renew_running(hands, store.clone(), consumer.clone(), lease, done.clone()));
        }
        if let Some(every) = extend_every {
            side.spawn(extend_deliveries(
                Arc::clone(&shared.hands),
                shared.settler.clone(),
                every,
                done.clone(),
            ));
        }
        if shared.settings.janitor {
            side.spawn(Janitor::new(store, consumer, shared.settings.keep).run_until(done.clone()));
        }
        Self { workers, side, done, room, waiting_room, in_flight, instance }
    }

    fn is_idle(&self) -> bool {
        self.room.available_permits() == self.in_flight
            && self.waiting_room.available_permits() == self.in_flight
    }

    /// Lets the workers finish within the drain time, hands back what they have not begun, and records
    /// the end as clean.
    async fn dismiss<S, T, R>(mut self, shared: &Arc<Shared<S, T, R>>) -> Summary
    where
        S: ConsumerStore,
        T: hapax_core::Settler<R>,
        R: Clone + Send + Sync + 'static,
    {
        shared.stop.cancel();
        let rest = shared.intake.close();
        shared.hand_back(rest).await;
        let drained = tokio::time::timeout(shared.settings.drain, join(&mut self.workers)).await;
        if drained.is_err() {
            warn!(consumer = %shared.consumer, "the drain time is over; what is unfinished is handed back");
            shared.abort.cancel();
            join(&mut self.workers).await;
        }
        self.done.cancel();
        join(&mut self.side).await;
        let mut summary = shared.vitals.summary();
        match shared.store.depth(&shared.consumer).await {
            Ok(depth) => summary.waiting = depth.total,
            Err(error) => warn!(%error, "the waiting room could not be counted"),
        }
        if let Err(error) = shared.store.leave(&shared.consumer, &self.instance).await {
            warn!(%error, "the clean end could not be recorded; redelivered messages will run alone for a while");
        }
        summary
    }
}

/// Waits for tasks; one that panicked is a defect of this crate and is logged as such.
async fn join(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            warn!(%error, "a task of the consumer ended badly");
        }
    }
}
