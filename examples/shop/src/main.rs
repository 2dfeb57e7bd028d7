//! A shop whose every payment is announced twice, and takes effect once: with the orders, which ask for a
//! confirmation by e-mail through the outbox, and with accounting, a service that keeps its own record of the
//! same event.
//!
//! ```console
//! $ cargo run -p shop                    # SQLite and the queue embedded in it: the file shop.db
//! $ HAPAX_STORE=postgres://localhost/shop HAPAX_BROKER=amqp://localhost cargo run -p shop
//! $ HAPAX_STORE=mongodb://localhost/shop HAPAX_BROKER=kafka://localhost:9092 cargo run -p shop
//! $ cargo run -p shop -- --unprotected   # the same handler without the inbox: each copy takes effect
//! ```
//!
//! [`payments`] is the producer, [`orders`] has the consumers, [`books`] what they write; `RUST_LOG=hapax=debug,sqlx=debug` shows
//! each statement.

mod books;
mod orders;
mod payments;

use std::env;
use std::time::Duration;

use hapax::{BoxError, MongoStore, MySqlStore, PgStore, SqliteStore, Strategy};
use orders::demonstrate;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// What is run, and where.
struct Shop {
    /// The database of the orders and of the inbox.
    store: String,
    /// The broker; without one the queue is embedded in the database.
    broker: Option<String>,
    /// What its queues' names begin with.
    queue: String,
    /// When a payment's id is recorded.
    strategy: Strategy,
}

impl Shop {
    /// Reads the environment and the arguments `--unprotected` and `--queue NAME`.
    fn from_environment() -> Result<Self, BoxError> {
        let mut shop = Self {
            store: env::var("HAPAX_STORE").unwrap_or_else(|_| "sqlite:shop.db".to_owned()),
            broker: env::var("HAPAX_BROKER").ok(),
            queue: "shop".to_owned(),
            strategy: Strategy::Transactional,
        };
        let mut args = env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                // Nothing is recorded: right for sets and upserts, wrong for a handler that adds.
                "--unprotected" => shop.strategy = Strategy::Natural,
                "--queue" => shop.queue = args.next().ok_or("--queue needs a name")?,
                _ => return Err("usage: shop [--unprotected] [--queue NAME]".into()),
            }
        }
        Ok(shop)
    }

    /// How long nothing must have come before it ends. A broker that first divides its topics needs longer.
    fn patience(&self) -> Duration {
        let is_log = self.broker.as_ref().is_some_and(|url| url.starts_with("kafka"));
        Duration::from_secs(if is_log { 3 } else { 1 })
    }

    /// The queues of the orders, the mails, and accounting.
    fn queues(&self) -> [String; 3] {
        ["payments", "mails", "accounting"].map(|name| format!("{}-{name}", self.queue))
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let filter: Targets = env::var("RUST_LOG").map_or(Ok(Targets::new()), |text| text.parse())?;
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(log.with_filter(filter)).init();
    let shop = Shop::from_environment()?;
    match shop.store.split(':').next() {
        Some("sqlite") => demonstrate::<SqliteStore>(&shop).await,
        Some("postgres" | "postgresql") => demonstrate::<PgStore>(&shop).await,
        Some("mysql" | "mariadb") => demonstrate::<MySqlStore>(&shop).await,
        Some("mongodb" | "mongodb+srv") => demonstrate::<MongoStore>(&shop).await,
        _ => Err("HAPAX_STORE must begin with sqlite:, postgres:, mysql: or mongodb:".into()),
    }
}
