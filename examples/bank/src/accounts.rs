//! The account service: keeps the accounts as events, and moves money when it is told to, once.

mod account;
mod counter;
mod hand_built;
mod mark;
mod peril;
mod postgres;
mod sqlite;
mod teller;

use std::future::Future;
use std::sync::Arc;

use hapax::{
    BoxError, BoxSource, Consumer, ConsumerStore, Message, Outbox, PgStore, Relay, SqliteStore, Transaction,
};
use serde::{Deserialize, Serialize};

use crate::events::{self, Movement};
use crate::exchange::{ACCOUNTS, TRANSFERS};
use crate::money::Money;
use crate::service::{BATCH, Counts, Service, ServiceArgs, Tally, Wire, retry};
use account::Fact;
pub(crate) use hand_built::Without;
use peril::Peril;

/// How the account service is run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AccountArgs {
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
    /// Runs a hand-built consumer with one of its defences missing, for `bank break`.
    #[arg(long, value_name = "DEFENCE", hide = true)]
    pub(crate) without: Option<Without>,
    /// Where the marks of `--without same-database` are kept: redis://… or sqlite:…
    #[arg(long, value_name = "URL", hide = true, required_if_eq("without", "same-database"))]
    pub(crate) marks: Option<String>,
    /// Dies by SIGKILL at the worst moment of so many messages' handling.
    #[arg(long, value_name = "N", hide = true)]
    pub(crate) die_at: Option<u32>,
}

/// An account as it can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Balance {
    pub(crate) account: String,
    pub(crate) balance: Money,
}

/// What the service keeps, as one transaction sees and changes it.
pub(crate) trait Accounts: Transaction {
    /// An account's events, the first one first; none if there is no such account.
    fn history(&mut self, account: &str) -> impl Future<Output = hapax::Result<Vec<Fact>>> + Send;
    /// Appends an event, unless somebody else has appended one under this version: then the transaction is run
    /// again, and no attempt is charged.
    fn append(
        &mut self,
        account: &str,
        version: i64,
        fact: &Fact,
    ) -> impl Future<Output = hapax::Result> + Send;
    /// Enters a movement into the ledger, unless it is there: the second line of defence.
    fn enter(&mut self, movement: &Movement) -> impl Future<Output = hapax::Result<bool>> + Send;
    /// The whole ledger.
    fn ledger(&mut self) -> impl Future<Output = hapax::Result<Vec<Movement>>> + Send;
    /// All accounts by name.
    fn names(&mut self) -> impl Future<Output = hapax::Result<Vec<String>>> + Send;
    /// For the hand-built consumer: takes note of a message, and says whether it is new.
    fn note(&mut self, id: &str) -> impl Future<Output = hapax::Result<bool>> + Send;
    /// For the hand-built consumer: whether a message was noted.
    fn noted(&mut self, id: &str) -> impl Future<Output = hapax::Result<bool>> + Send;
}

/// The second line of defence, and the first one of the hand-built consumer: `bank break` takes them away.
pub(crate) const INDEXES: [&str; 2] = [
    "CREATE UNIQUE INDEX IF NOT EXISTS ledger_once ON ledger (transfer_id, kind)",
    "CREATE UNIQUE INDEX IF NOT EXISTS processed_once ON processed_messages (message_id)",
];

/// Creates the tables and indexes that are not there.
pub(crate) async fn create_books(url: &str) -> Result<(), BoxError> {
    if url.starts_with("sqlite:") {
        sqlite::books::create_tables(url).await?;
    } else {
        postgres::books::create_tables(url).await?;
    }
    Ok(())
}

/// A store that can keep accounts.
pub(crate) trait AccountStore: ConsumerStore<Tx: Accounts> + Outbox {}

impl<S: ConsumerStore<Tx: Accounts> + Outbox> AccountStore for S {}

/// In this name messages are handled.
const CONSUMER: &str = "accounts";
/// In this name accounts are opened.
const COUNTER: &str = "accounts.http";

/// Runs the service until it is told to stop.
pub(crate) async fn run(args: &AccountArgs) -> Result<(), BoxError> {
    let url = &args.service.store;
    match url.split(':').next() {
        Some("sqlite") => {
            let store = SqliteStore::connect(url).await?;
            store.migrate().await?;
            create_books(url).await?;
            let queue = store.queue(ACCOUNTS.queue);
            serve(args, store, args.service.embedded(queue)).await
        }
        Some("postgres" | "postgresql") => {
            let store = PgStore::connect(url).await?;
            store.migrate().await?;
            create_books(url).await?;
            serve(args, store, None).await
        }
        _ => Err("the account service's --store is a postgres: or sqlite: URL".into()),
    }
}

async fn serve<S: AccountStore>(
    args: &AccountArgs,
    store: S,
    embedded: Option<BoxSource>,
) -> Result<(), BoxError> {
    let wire = args.service.wire(ACCOUNTS, TRANSFERS, embedded).await?;
    let peril = Arc::new(Peril::at(args.die_at));
    // Boxed, since a whole consumer lives in each.
    match args.without {
        None => Box::pin(protected(args, store, wire, peril)).await,
        Some(without) => Box::pin(hand_built::serve(args, without, store, wire, peril)).await,
    }
}

async fn protected<S: AccountStore>(
    args: &AccountArgs,
    store: S,
    wire: Wire,
    peril: Arc<Peril>,
) -> Result<(), BoxError> {
    let carry_out = async move |tx: &mut S::Tx, order: Message<Movement>| {
        teller::carry_out(tx, order).await?;
        peril.pass();
        Ok(())
    };
    let consumer = Consumer::new(CONSUMER, store.clone(), wire.source)?
        .format(events::format("json:/payload/account")?)
        .batch(BATCH)
        .retry(retry())
        .on(events::REQUESTED.name, carry_out.clone())
        .on(events::CREDIT_REQUESTED.name, carry_out.clone())
        .on(events::REFUND_REQUESTED.name, carry_out);
    let health = consumer.health();
    let counts = move || {
        let summary = health.summary();
        Counts { handled: summary.handled, duplicates: summary.duplicates }
    };
    let tally = Tally::new(store.clone(), CONSUMER, counts)?;
    let service = Service::start(args.service.listen, tally, counter::routes(store.clone())?).await?;
    service.run(consumer.run_until(service.stopped()), Relay::new(store, wire.publisher)).await
}
