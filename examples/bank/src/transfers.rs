//! The transfer service: accepts transfers, and takes each from state to state as the account service answers.

mod desk;
mod machine;
mod mongodb;
mod saga;
mod sqlite;

use std::future::Future;

use hapax::MongoStore;
use hapax::{
    BoxError, BoxSource, Consumer, ConsumerName, ConsumerStore, Janitor, Keep, Outbox, Relay, SqliteStore,
    Transaction,
};
use serde::{Deserialize, Serialize};

use crate::events::{self, Entry, Movement};
use crate::exchange::{ACCOUNTS, TRANSFERS};
use crate::money::Money;
use crate::service::{BATCH, Counts, Service, ServiceArgs, Tally, retry};
pub(crate) use machine::State;

/// A transfer of money from one account to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Transfer {
    pub(crate) id: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) amount: Money,
    pub(crate) state: State,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl Transfer {
    /// What is to happen to one of its two accounts.
    pub(crate) fn movement(&self, entry: Entry) -> Movement {
        let account = if entry == Entry::Credit { &self.to } else { &self.from };
        Movement { transfer_id: self.id.clone(), entry, account: account.clone(), amount: self.amount }
    }
}

/// What the service keeps, as one transaction sees and changes it.
pub(crate) trait Transfers: Transaction {
    /// Adds a transfer that a request with this key asked for.
    fn add(&mut self, transfer: &Transfer, key: &str) -> impl Future<Output = hapax::Result> + Send;
    /// Finds a transfer.
    fn find(&mut self, id: &str) -> impl Future<Output = hapax::Result<Option<Transfer>>> + Send;
    /// Finds the transfer that a request with this key asked for.
    fn asked_for(&mut self, key: &str) -> impl Future<Output = hapax::Result<Option<Transfer>>> + Send;
    /// Writes down a transfer's new state.
    fn update(&mut self, transfer: &Transfer) -> impl Future<Output = hapax::Result> + Send;
    /// All transfers.
    fn all(&mut self) -> impl Future<Output = hapax::Result<Vec<Transfer>>> + Send;
    /// How many are not at their end.
    fn moving(&mut self) -> impl Future<Output = hapax::Result<i64>> + Send;
    /// Takes note of an account; naturally idempotent.
    fn learn(&mut self, account: &str) -> impl Future<Output = hapax::Result> + Send;
    /// Whether there is such an account.
    fn knows(&mut self, account: &str) -> impl Future<Output = hapax::Result<bool>> + Send;
    /// How many accounts there are.
    fn known(&mut self) -> impl Future<Output = hapax::Result<i64>> + Send;
}

/// A store that can keep transfers.
pub(crate) trait TransferStore: ConsumerStore<Tx: Transfers> + Outbox {}

impl<S: ConsumerStore<Tx: Transfers> + Outbox> TransferStore for S {}

/// In this name messages are handled.
const CONSUMER: &str = "transfers";
/// In this name requests are accepted: a key of theirs takes effect once.
const DESK: &str = "transfers.http";

/// Runs the service until it is told to stop.
pub(crate) async fn run(args: &ServiceArgs) -> Result<(), BoxError> {
    match args.store.split(':').next() {
        Some("sqlite") => {
            let store = SqliteStore::connect(&args.store).await?;
            store.migrate().await?;
            sqlite::create_tables(&args.store).await?;
            let queue = store.queue(TRANSFERS.queue);
            serve(args, store, args.embedded(queue)).await
        }
        Some("mongodb" | "mongodb+srv") => {
            let store = MongoStore::connect(&args.store).await?;
            store.migrate().await?;
            mongodb::create_collections(&args.store).await?;
            serve(args, store, None).await
        }
        _ => Err("the transfer service's --store is a mongodb: or sqlite: URL".into()),
    }
}

async fn serve<S: TransferStore>(
    args: &ServiceArgs,
    store: S,
    embedded: Option<BoxSource>,
) -> Result<(), BoxError> {
    let wire = args.wire(TRANSFERS, ACCOUNTS, embedded).await?;
    let consumer = Consumer::new(CONSUMER, store.clone(), wire.source)?
        .format(events::format("json:/payload/transferId")?)
        .batch(BATCH)
        .retry(retry())
        .on(events::OPENED.name, saga::opened)
        .on(events::DEBITED.name, saga::debited)
        .on(events::DEBIT_REJECTED.name, saga::debit_rejected)
        .on(events::CREDITED.name, saga::credited)
        .on(events::CREDIT_REJECTED.name, saga::credit_rejected);
    let relay = Relay::new(store.clone(), wire.publisher);
    let routes = desk::routes(store.clone())?;
    let health = consumer.health();
    let counts = move || {
        let summary = health.summary();
        Counts { handled: summary.handled, duplicates: summary.duplicates }
    };
    let service = Service::start(args.listen, Tally::new(store.clone(), CONSUMER, counts)?, routes).await?;
    let janitor = Janitor::new(store, ConsumerName::new(DESK)?, Keep::default());
    tokio::spawn(janitor.run_until(service.stop.clone()));
    service.run(consumer.run_until(service.stopped()), relay).await
}
