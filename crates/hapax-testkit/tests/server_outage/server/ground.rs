//! A consumer in this process, on a database of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hapax::sql::Queue;
use hapax::sqlx::postgres::{PgConnectOptions, PgSslMode};
use hapax::sqlx::{self, Connection as _, PgConnection, Postgres, Row as _};
use hapax::{Consumer, Handler, Message, PgStore, PgTx, Summary};
use hapax_core::Envelope;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{TestDatabase, address, eventually, postgres_url};
use tokio::time::sleep;

use crate::outage::{PATIENCE, tally};

/// A server that does not answer for so long is given up, so that tests need not wait for long.
const NO_ANSWER: Duration = Duration::from_secs(1);
/// Short, so that what a dropped consumer had in hand comes again soon.
const LEASE: Duration = Duration::from_secs(1);

/// What the server calls the sessions of the stores behind the proxy.
pub(crate) const APPLICATION: &str = "consumer";

pub(crate) const QUEUE: &str = "messages";

/// A database, two ways to it, and a queue in it.
pub(crate) struct Ground {
    database: TestDatabase,
    /// Straight to the server, for the test itself.
    pub(crate) direct: PgStore,
    pub(crate) proxy: Arc<Proxy>,
}

impl Ground {
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::create().await.expect("a database of its own");
        let direct = PgStore::connect(database.url()).await.expect("the store opens");
        direct.migrate().await.expect("the schema is made");
        let proxy = Proxy::start(address(&postgres_url()).expect("a URL")).expect("a proxy");
        let ground = Self { database, direct, proxy: Arc::new(proxy) };
        ground.run("CREATE TABLE ledger (message_id TEXT NOT NULL)").await;
        ground
    }

    /// Another instance's store, by way of the proxy.
    pub(crate) async fn store(&self) -> PgStore {
        let url = self.proxy.route(self.database.url()).expect("a URL");
        let options: PgConnectOptions = url.parse().expect("a URL");
        // The proxy looks for patterns, which encryption would hide.
        let options = options.ssl_mode(PgSslMode::Disable).application_name(APPLICATION);
        let store = PgStore::with_options(options).connect_within(NO_ANSWER).answer_within(NO_ANSWER);
        store.connect().await.expect("the store opens")
    }

    pub(crate) async fn connection(&self) -> PgConnection {
        PgConnection::connect(self.database.url()).await.expect("the database opens")
    }

    /// Runs a statement through a connection of its own.
    pub(crate) async fn run(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut self.connection().await).await.expect("the statement runs");
    }

    /// What a statement counts, through a connection of its own.
    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query(sql).fetch_one(&mut self.connection().await).await.expect("it counts").get(0)
    }

    pub(crate) async fn send(&self, messages: &[Envelope]) {
        self.direct.send(QUEUE, messages).await.expect("messages are sent");
    }

    /// Sends messages until the trouble is over, and waits until each has taken effect; answers with their
    /// number.
    pub(crate) async fn under_load(&self, trouble: impl Future<Output = ()>) -> usize {
        let (over, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
        let feeding = async {
            while !over.load(Ordering::SeqCst) {
                self.send(&[message(sent.fetch_add(1, Ordering::SeqCst))]).await;
                sleep(Duration::from_millis(2)).await; // the load is to last as long as the trouble
            }
        };
        let troubling = async {
            trouble.await;
            over.store(true, Ordering::SeqCst);
        };
        tokio::join!(feeding, troubling);
        let sent = sent.into_inner();
        self.until_handled(sent).await;
        sent
    }

    /// Waits until so many messages have taken effect, each once.
    pub(crate) async fn until_handled(&self, messages: usize) {
        eventually("every message has taken effect", PATIENCE, async || {
            tally(self.database.url()).await.is_ok_and(|tally| tally.messages == messages)
        })
        .await;
        let tally = tally(self.database.url()).await.expect("it counts");
        assert_eq!(tally.effects, messages, "doubled");
    }
}

pub(crate) fn message(number: usize) -> Envelope {
    Envelope::new("{}").with_id(format!("m{number}")).with_type("Job")
}

#[derive(serde::Deserialize)]
pub(crate) struct Job {}

/// The effect that is counted.
pub(crate) async fn note(tx: &mut PgTx, job: Message<Job>) -> hapax::Result {
    let note = sqlx::query("INSERT INTO ledger (message_id) VALUES ($1)").bind(job.id().as_str());
    note.execute(tx.conn()).await?;
    Ok(())
}

/// [`note`], for consumers that are given a handler.
pub(crate) struct Note;

impl Handler<PgStore, Job> for Note {
    async fn handle(&self, tx: &mut PgTx, job: Message<Job>) -> hapax::Result {
        note(tx, job).await
    }
}

/// A consumer of the queue, with batches small enough that there are many transactions.
pub(crate) fn consumer(
    store: &PgStore,
    handler: impl Handler<PgStore, Job>,
) -> Consumer<PgStore, Queue<Postgres>> {
    Consumer::new("orders", store.clone(), store.queue(QUEUE).lease(LEASE))
        .expect("a name")
        .batch(5)
        .on_handler::<Job, _>("Job", handler)
}

/// Everything was handled once, and no attempt was counted.
pub(crate) fn assert_uncharged(summary: &Summary, messages: usize) {
    let counted = (summary.handled, summary.retried, summary.dead, summary.waiting);
    assert_eq!(counted, (messages as u64, 0, 0, 0), "{summary:?}");
}
