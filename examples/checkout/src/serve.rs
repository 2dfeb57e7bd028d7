//! The service: requests, the consumer that charges, and the relay between the two, in one process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use hapax::http::Idempotency;
use hapax::sql::{Dialect, SqlStore};
use hapax::{
    BoxError, ClaimRequest, ConsumerName, DeadFilter, Janitor, Keep, OutboxFilter, OutboxState, PgStore,
    Relay, SqliteStore,
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::charges;
use crate::client::Server;
use crate::payments::desk::{self, DESK};
use crate::payments::{PaymentStore, Payments as _, create_tables};
use crate::problem::{Problem, json};
use crate::webhooks::{self, Secrets};

/// Answers are kept for so long, and clients are told so.
const KEPT: Duration = Duration::from_hours(24);
/// A copy that comes while the first request is at work waits so long for its answer before it is told to come again.
const WAIT: Duration = Duration::from_secs(2);
/// After so long what a killed process had in hand, of the queue and of the outbox, is handed out again.
const LEASE: Duration = Duration::from_secs(3);
/// How often the queue is looked at: when something came lately, and else.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Where the service finds things.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Where to answer HTTP.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The database: sqlite:… or postgres:…
    #[arg(long, value_name = "URL", env = "CHECKOUT_STORE", default_value = "sqlite:checkout.db")]
    store: String,
    /// The payment provider. While nobody is there, payments are taken and charged later.
    #[arg(long, value_name = "URL", env = "CHECKOUT_PROVIDER", default_value = "http://127.0.0.1:8081")]
    provider: Server,
    #[command(flatten)]
    secrets: Secrets,
}

/// Runs until it is told to stop.
pub(crate) async fn run(args: &ServeArgs) -> Result<(), BoxError> {
    match args.store.split(':').next() {
        Some("sqlite") => serve(args, SqliteStore::connect(&args.store).await?).await,
        Some("postgres" | "postgresql") => serve(args, PgStore::connect(&args.store).await?).await,
        _ => Err("--store is a sqlite: or postgres: URL".into()),
    }
}

async fn serve<D: Dialect>(args: &ServeArgs, store: SqlStore<D>) -> Result<(), BoxError>
where
    SqlStore<D>: PaymentStore,
{
    store.migrate().await?;
    create_tables(&args.store).await?;
    let idempotency =
        Idempotency::transactional(DESK, store.clone())?.one_tenant().wait(WAIT).expires_after(KEPT);
    let queue = store.queue(charges::QUEUE).lease(LEASE).poll_every(POLL.0, POLL.1);
    let consumer = charges::consumer(&store, queue, args.provider.clone())?;
    let relay = Relay::new(store.clone(), store.queues()).lease(LEASE).poll_every(POLL.1);
    let routes = Router::new()
        .merge(desk::routes(store.clone(), &idempotency)?)
        .merge(webhooks::routes(&args.secrets, &store.queues())?)
        .merge(state_routes(store.clone())?)
        .fallback(async || Problem::not_found("there is nothing at this address"))
        .method_not_allowed_fallback(async || Problem::wrong_method());

    let stop = CancellationToken::new();
    let listener = TcpListener::bind(args.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    tokio::spawn({
        let stop = stop.clone();
        async move {
            crate::told_to_stop().await;
            stop.cancel();
        }
    });
    // The consumer brings its own janitor; the records of requests need one.
    tokio::spawn(
        Janitor::new(store, ConsumerName::new(DESK)?, Keep::for_at_least(KEPT)).run_until(stop.clone()),
    );
    let answering = async {
        axum::serve(listener, routes).with_graceful_shutdown(stop.clone().cancelled_owned()).await?;
        idempotency.drained().await; // what is still at work for clients that hung up
        Ok::<_, BoxError>(())
    };
    let charging = async { consumer.run_until(stop.cancelled()).await.map_err(BoxError::from) };
    let relaying = async { relay.run_until(stop.cancelled()).await.map_err(BoxError::from) };
    tokio::try_join!(answering, charging, relaying)?;
    Ok(())
}

/// How far the service has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) payments: i64,
    /// Of the payments.
    pub(crate) charged: i64,
    /// Messages in the outbox.
    pub(crate) unsent: u64,
    /// Messages in the waiting room.
    pub(crate) waiting: u64,
    /// Messages set aside.
    pub(crate) dead: u64,
}

struct Books<S> {
    store: S,
    consumer: ConsumerName,
}

/// `GET /live`, and how far it has got: `GET /progress`.
fn state_routes<S: PaymentStore>(store: S) -> Result<Router, BoxError> {
    let books = Arc::new(Books { store, consumer: ConsumerName::new(charges::CONSUMER)? });
    Ok(Router::new()
        .route("/live", get(async || "live\n"))
        .route("/progress", get(progress::<S>))
        .with_state(books))
}

async fn progress<S: PaymentStore>(State(books): State<Arc<Books<S>>>) -> Result<Response, Problem> {
    let Books { store, consumer } = &*books;
    let (mut tx, _) = store.begin_claim(&ClaimRequest::none(consumer)).await?;
    let found = tx.progress().await;
    store.roll_back(tx).await;
    let (payments, charged) = found.map_err(|failure| Problem::of_failure(store, &failure))?;
    let unsent = OutboxFilter { state: Some(OutboxState::Unsent), ..OutboxFilter::default() };
    let progress = Progress {
        payments,
        charged,
        unsent: store.count_outbox(&unsent).await?,
        waiting: store.depth(consumer).await?.total,
        dead: store.count_dead(&DeadFilter::default()).await?,
    };
    Ok(json(StatusCode::OK, &progress))
}
