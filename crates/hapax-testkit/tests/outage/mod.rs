//! What the tests of outages share: a consumer in a process of its own, a producer that never gives up, and
//! counts through a second connection.

use std::time::{Duration, Instant};

use hapax::mongodb::bson::{Document, doc};
use hapax::mongodb::{self, options::ClientOptions};
use hapax::sqlx::{self, Connection as _};
use hapax::{BoxError, BoxPublisher, Broker, BrokerPublisher};
use hapax_core::{Envelope, Outgoing, Publisher as _};
use hapax_testkit::process::{Running, Subject};
use tokio::time::sleep;

/// Longer than anything here takes once what it waits for is there again, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// How long to wait before something that failed is tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// The consumer, which runs until SIGTERM.
pub(crate) fn consumer(store: &str, source: &str) -> Subject {
    Subject::example("subject").expect("a test has a path").arg(store).arg(source).arg("forever")
}

/// A message that does what it says.
pub(crate) fn message(number: usize, what: &str) -> Envelope {
    Envelope::new(format!(r#"{{"id":"m{number}","key":"k{}","do":"{what}"}}"#, number % 7))
}

/// What has taken effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) messages: usize,
    /// More than messages where one was doubled.
    pub(crate) effects: usize,
}

/// How messages and effects are counted.
const COUNT: &str = "SELECT count(DISTINCT message_id), count(*) FROM ledger";

/// Counts through a connection of its own. Fails while the database is away, or has no ledger yet.
pub(crate) async fn tally(url: &str) -> Result<Tally, BoxError> {
    if url.starts_with("mongodb:") {
        return tally_in_mongodb(url).await;
    }
    let (messages, effects): (i64, i64) = if url.starts_with("sqlite:") {
        sqlx::query_as(COUNT).fetch_one(&mut sqlx::SqliteConnection::connect(url).await?).await?
    } else if url.starts_with("mysql:") {
        sqlx::query_as(COUNT).fetch_one(&mut sqlx::MySqlConnection::connect(url).await?).await?
    } else {
        sqlx::query_as(COUNT).fetch_one(&mut sqlx::PgConnection::connect(url).await?).await?
    };
    Ok(Tally { messages: usize::try_from(messages)?, effects: usize::try_from(effects)? })
}

async fn tally_in_mongodb(url: &str) -> Result<Tally, BoxError> {
    let mut options = ClientOptions::parse(url).await?;
    options.server_selection_timeout = Some(Duration::from_secs(1));
    let client = mongodb::Client::with_options(options)?;
    let ledger = client.default_database().ok_or("a database")?.collection::<Document>("ledger");
    let messages = ledger.distinct("message_id", doc! {}).await?.len();
    let effects = usize::try_from(ledger.count_documents(doc! {}).await?)?;
    Ok(Tally { messages, effects })
}

/// Waits until so many messages have taken effect.
///
/// # Panics
/// If they have not in time, with what the consumer said.
pub(crate) async fn until_handled(url: &str, messages: usize, consumer: &mut Running) -> Tally {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = tally(url).await;
        match seen {
            Ok(tally) if tally.messages >= messages => return tally,
            _ => assert!(Instant::now() < deadline, "{seen:?} instead of {messages}\n{consumer}"),
        }
        assert!(consumer.is_running(), "ended at {seen:?} instead of {messages}\n{consumer}");
        sleep(AGAIN).await;
    }
}

/// Publishes to a queue as a relay does: under the same id, until the broker has confirmed it.
pub(crate) struct Producer {
    pub(crate) publisher: BoxPublisher,
    pub(crate) queue: String,
    /// None where the queue is in a store.
    pub(crate) broker: Option<BrokerPublisher>,
}

impl Producer {
    /// Declares the queue.
    pub(crate) async fn declare(broker: &str, queue: &str) -> Self {
        let broker = Broker::open(broker).await.expect("a URL").publisher();
        broker.declare(queue).await.expect("a queue of its own");
        Self { publisher: BoxPublisher::new(broker.clone()), queue: queue.to_owned(), broker: Some(broker) }
    }

    /// Returns when all are confirmed. What was confirmed too late is sent once more.
    pub(crate) async fn send(&self, mut messages: Vec<Envelope>) {
        while !messages.is_empty() {
            let outgoing = messages.iter().map(|message| Outgoing::to_queue(&self.queue, message.clone()));
            let sent = self.publisher.publish(outgoing.collect()).await;
            messages =
                messages.into_iter().zip(sent).filter(|(_, sent)| sent.is_err()).map(|(m, _)| m).collect();
            if !messages.is_empty() {
                sleep(AGAIN).await;
            }
        }
    }

    /// Deletes the queue.
    pub(crate) async fn clear_up(self) {
        if let Some(broker) = self.broker {
            broker.delete(&self.queue).await.expect("the queue goes");
            broker.close().await;
        }
    }
}
