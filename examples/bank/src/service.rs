//! What both services have in common: how they are told where things are, how they run, and what they say of
//! themselves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use hapax::rabbitmq::RabbitMq;
use hapax::{
    BoxError, BoxPublisher, BoxSource, ConsumerName, ConsumerStore, DeadFilter, Error, Outbox, OutboxFilter,
    OutboxState, Relay, Retry, SqliteStore,
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::chaos::Chaos;
use crate::exchange::{Binding, Exchange, declare};
use crate::problem::{Problem, json};

/// After so long the outbox of a relay that was killed is taken over.
const RELAY_LEASE: Duration = Duration::from_secs(2);
/// After so long what a killed consumer had in hand is handed out again, where the queue is embedded.
const QUEUE_LEASE: Duration = Duration::from_secs(2);
/// How often an embedded queue is looked at: when something came lately, and else.
const POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// Where a service finds its database, its peer, and its customers.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    /// The database.
    #[arg(long, value_name = "URL")]
    pub(crate) store: String,
    /// The broker: amqp://…
    #[arg(long, value_name = "URL", required_unless_present = "peer")]
    pub(crate) broker: Option<String>,
    /// Without a broker: the other service's database, sqlite:…, in which its queue is embedded.
    #[arg(long, value_name = "URL", conflicts_with = "broker")]
    pub(crate) peer: Option<String>,
    /// The topic exchange.
    #[arg(long, value_name = "NAME", default_value = crate::events::EXCHANGE)]
    pub(crate) exchange: String,
    /// Where to answer HTTP.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    /// Publishes this share of all messages twice, and as many late.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, hide = true)]
    pub(crate) duplicates: f64,
    /// What chance is drawn from.
    #[arg(long, default_value_t = 0, hide = true)]
    pub(crate) seed: u64,
}

/// What a service hears from and speaks to.
pub(crate) struct Wire {
    pub(crate) source: BoxSource,
    pub(crate) publisher: BoxPublisher,
}

impl ServiceArgs {
    /// The service's own embedded queue, where there is no broker.
    pub(crate) fn embedded<D: hapax::sql::Dialect>(&self, queue: hapax::sql::Queue<D>) -> Option<BoxSource> {
        let queue = queue.lease(QUEUE_LEASE).poll_every(POLL.0, POLL.1);
        self.broker.is_none().then(|| BoxSource::new(queue))
    }

    /// Connects the service that `own` is bound to with the one that `peer` is bound to.
    pub(crate) async fn wire(
        &self,
        own: Binding,
        peer: Binding,
        embedded: Option<BoxSource>,
    ) -> Result<Wire, BoxError> {
        let (source, exchange) = match (&self.broker, &self.peer, embedded) {
            (Some(url), ..) => {
                declare(url, &self.exchange).await?;
                let broker = RabbitMq::new(url)?;
                let source = BoxSource::new(broker.source(own.queue_on(&self.exchange)));
                (source, Exchange::RabbitMq { publisher: broker.publisher(), name: self.exchange.clone() })
            }
            (None, Some(url), Some(source)) => {
                let queues = BoxPublisher::new(SqliteStore::connect(url).await?.queues());
                (source, Exchange::Embedded { queues, peer })
            }
            _ => return Err("this store has no embedded queue: name a --broker".into()),
        };
        let publisher = BoxPublisher::new(Chaos::new(exchange, self.duplicates, self.seed));
        Ok(Wire { source, publisher })
    }
}

/// The most messages in one transaction. What a killed process had in hand is tried one by one by the next, each alone
/// and on record, since one of them may have been the cause: small batches leave it less to do.
pub(crate) const BATCH: usize = 10;

/// How often a message may fail. Generous, since a service that is killed again and again may die with one message
/// in hand more than once.
pub(crate) fn retry() -> Retry {
    Retry::exponential().attempts(20).first(Duration::from_millis(100)).max(Duration::from_secs(2))
}

/// A service that answers HTTP.
pub(crate) struct Service {
    pub(crate) stop: CancellationToken,
}

impl Service {
    /// Answers HTTP from here on, with `GET /health` beside the service's own routes.
    pub(crate) async fn start<S: ConsumerStore + Outbox>(
        listen: SocketAddr,
        tally: Tally<S>,
        routes: Router,
    ) -> Result<Self, BoxError> {
        let stop = CancellationToken::new();
        let listener = TcpListener::bind(listen).await?;
        println!("listening on http://{}", listener.local_addr()?);
        let routes = routes
            .route("/health", get(health::<S>).with_state(Arc::new(tally)))
            .fallback(async || Problem::not_found("there is nothing at this address"))
            .method_not_allowed_fallback(async || Problem::wrong_method());
        let served = axum::serve(listener, routes).with_graceful_shutdown(stop.clone().cancelled_owned());
        tokio::spawn(served.into_future());
        tokio::spawn(stop_when_told(stop.clone()));
        Ok(Self { stop })
    }

    /// Completes when the service is told to stop.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + use<> {
        self.stop.clone().cancelled_owned()
    }

    /// Runs consumer and relay until both have ended.
    pub(crate) async fn run<S: Outbox, T, E: Into<BoxError>>(
        &self,
        consuming: impl Future<Output = Result<T, E>>,
        relay: Relay<S>,
    ) -> Result<(), BoxError> {
        let relay = relay.lease(RELAY_LEASE).poll_every(Duration::from_millis(200));
        let consuming = async { consuming.await.map_err(Into::into) };
        let relaying = async { relay.run_until(self.stopped()).await.map_err(BoxError::from) };
        tokio::try_join!(consuming, relaying)?;
        Ok(())
    }
}

async fn stop_when_told(stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    stop.cancel();
}

/// What a process has seen since it started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) handled: u64,
    pub(crate) duplicates: u64,
}

/// What a service says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Health {
    /// Tells this process from earlier ones.
    pub(crate) process: u32,
    pub(crate) handled: u64,
    pub(crate) duplicates: u64,
    /// Messages in the waiting room.
    pub(crate) waiting: u64,
    /// Messages set aside.
    pub(crate) dead: u64,
    /// Messages in the outbox.
    pub(crate) unsent: u64,
}

type Counting = Arc<dyn Fn() -> Counts + Send + Sync>;

/// Where a service's [`Health`] is found.
pub(crate) struct Tally<S> {
    store: S,
    consumer: ConsumerName,
    counts: Counting,
}

impl<S: ConsumerStore + Outbox> Tally<S> {
    pub(crate) fn new(
        store: S,
        consumer: &str,
        counts: impl Fn() -> Counts + Send + Sync + 'static,
    ) -> Result<Self, BoxError> {
        Ok(Self { store, consumer: ConsumerName::new(consumer)?, counts: Arc::new(counts) })
    }

    async fn health(&self) -> Result<Health, Error> {
        let unsent = OutboxFilter { state: Some(OutboxState::Unsent), ..OutboxFilter::default() };
        let waiting = self.store.depth(&self.consumer).await?.total;
        let dead = self.store.count_dead(&DeadFilter::default()).await?;
        let unsent = self.store.count_outbox(&unsent).await?;
        let Counts { handled, duplicates } = (self.counts)();
        Ok(Health { process: std::process::id(), handled, duplicates, waiting, dead, unsent })
    }
}

async fn health<S: ConsumerStore + Outbox>(State(tally): State<Arc<Tally<S>>>) -> Result<Response, Problem> {
    json(StatusCode::OK, &tally.health().await?)
}
