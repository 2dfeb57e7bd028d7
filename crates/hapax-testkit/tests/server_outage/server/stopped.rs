//! A consumer in a process of its own while a server is really stopped under it.

use std::time::Duration;

use hapax::PgStore;
use hapax_core::Envelope;
use hapax_testkit::process::{Running, Subject};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{
    PrivateMongo, PrivatePostgres, PrivateRabbit, Server, TestDatabase, address, rabbitmq_url, require,
    unique,
};
use tokio::time::sleep;

use crate::outage::{PATIENCE, Producer, consumer, message, until_handled};

const MESSAGES: usize = 400;
/// How many have taken effect when the server is stopped.
const BEFORE: usize = 40;
/// Between two messages: some are sent before the outage, most during it, some afterwards.
const PACE: Duration = Duration::from_millis(30);
/// How long a server is away.
const OUTAGE: Duration = Duration::from_secs(10);
/// As many connections as a consumer may try in that time: its one question with growing pauses, a sign of
/// life every two seconds, and one for each connection that was in use.
const FEW: usize = 30;
/// MongoDB's driver looks for a primary twice a second as long as anybody asks for one.
const FEW_BY_THE_DRIVER: usize = 60;

/// The work, of which some takes a while, so that something is in hand whenever a server stops.
fn work(number: usize) -> Envelope {
    message(number, if number.is_multiple_of(20) { "take a while" } else { "pay" })
}

async fn produce(producer: Producer) -> Producer {
    for number in 0..MESSAGES {
        producer.send(vec![work(number)]).await;
        sleep(PACE).await; // the load is to last longer than the outage
    }
    producer
}

/// A private database that can be stopped.
trait Stops {
    async fn stop(&mut self) -> std::io::Result<()>;
    async fn start_again(&mut self) -> std::io::Result<()>;
}

impl Stops for PrivatePostgres {
    async fn stop(&mut self) -> std::io::Result<()> {
        Self::stop(self).await
    }

    async fn start_again(&mut self) -> std::io::Result<()> {
        Self::start_again(self).await
    }
}

impl Stops for PrivateMongo {
    async fn stop(&mut self) -> std::io::Result<()> {
        Self::stop(self).await
    }

    async fn start_again(&mut self) -> std::io::Result<()> {
        Self::start_again(self).await
    }
}

/// Stops a private database for a while; answers with how many connections were tried meanwhile.
async fn outage_of(database: &mut impl Stops, proxy: &Proxy) -> usize {
    let before = proxy.accepted();
    database.stop().await.expect("it stops");
    sleep(OUTAGE).await; // the time is what is tested
    let tried = proxy.accepted() - before;
    database.start_again().await.expect("it starts again");
    tried
}

/// The process that was there all along has handled each message once, charged nobody, and ends cleanly.
async fn assert_recovered(url: &str, consumer: &mut Running) {
    let tally = until_handled(url, MESSAGES, consumer).await;
    assert_eq!(tally.effects, MESSAGES, "doubled\n{consumer}");
    consumer.terminate().expect("it is told to end");
    assert!(consumer.wait_exit(PATIENCE).await.success(), "{consumer}");
    let summary = consumer.stdout();
    assert!(summary.contains(&format!("handled: {MESSAGES}, ")), "{consumer}");
    assert!(
        summary.contains("retried: 0, dead: 0, ambiguous: 0, waiting: 0 "),
        "an attempt was counted\n{consumer}"
    );
}

/// A database is stopped under a consumer that a broker delivers to, and started again.
async fn stopped_while_a_broker_delivers(database: &mut impl Stops, url: &str, proxy: &Proxy, few: usize) {
    let queue = unique("outage");
    let producer = Producer::declare(&rabbitmq_url(), &queue).await;
    let source = format!("{}#{queue}", rabbitmq_url());
    let subject = consumer(&proxy.route(url).expect("a URL"), &source);
    let mut consumer = subject.start().expect("it starts");

    let producing = tokio::spawn(produce(producer));
    until_handled(url, BEFORE, &mut consumer).await;
    let tried = outage_of(database, proxy).await;
    let producer = producing.await.expect("all are sent");
    assert_recovered(url, &mut consumer).await;
    println!("{tried} connections were tried within {OUTAGE:?}");
    assert!(tried <= few, "{tried} connections were tried within {OUTAGE:?}\n{consumer}");
    producer.clear_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_16_postgres_is_stopped_while_rabbitmq_delivers() {
    if !require(Server::PrivatePostgres) || !require(Server::RabbitMq) {
        return;
    }
    let mut postgres = PrivatePostgres::start().await.expect("a server of its own");
    let proxy = Proxy::start(postgres.addr()).expect("a proxy");
    let url = postgres.url("postgres");
    stopped_while_a_broker_delivers(&mut postgres, &url, &proxy, FEW).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_16_a_private_mongodb_is_stopped_while_rabbitmq_delivers() {
    if !require(Server::PrivateMongo) || !require(Server::RabbitMq) {
        return;
    }
    let mut mongodb = PrivateMongo::start().await.expect("a server of its own");
    let proxy = Proxy::start(mongodb.addr()).expect("a proxy");
    let url = mongodb.url("shop");
    stopped_while_a_broker_delivers(&mut mongodb, &url, &proxy, FEW_BY_THE_DRIVER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_16_postgres_is_stopped_with_the_embedded_queue_in_it() {
    if !require(Server::PrivatePostgres) {
        return;
    }
    let mut postgres = PrivatePostgres::start().await.expect("a server of its own");
    let proxy = Proxy::start(postgres.addr()).expect("a proxy");
    let url = postgres.url("postgres");
    let store = PgStore::connect(&url).await.expect("the store opens");
    store.migrate().await.expect("the schema is made");
    let subject = consumer(&proxy.route(&url).expect("a URL"), "queue:messages");
    let mut consumer = subject.start().expect("it starts");

    let producing = tokio::spawn(async move {
        for number in 0..MESSAGES {
            // What was stored although its answer was lost is a copy the next time.
            while store.send("messages", &[work(number)]).await.is_err() {
                sleep(PACE).await;
            }
            sleep(PACE).await; // the load is to last longer than the outage
        }
    });
    until_handled(&url, BEFORE, &mut consumer).await;
    let tried = outage_of(&mut postgres, &proxy).await;
    producing.await.expect("all are sent");
    assert_recovered(&url, &mut consumer).await;
    println!("{tried} connections were tried within {OUTAGE:?}");
    assert!(tried <= FEW, "{tried} connections were tried within {OUTAGE:?}\n{consumer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_17_a_private_rabbitmq_is_stopped_with_deliveries_and_publishes_under_way() {
    if !require(Server::PrivateRabbit) || !require(Server::Postgres) {
        return;
    }
    let mut rabbit = PrivateRabbit::start().await.expect("a node of its own");
    let database = TestDatabase::create().await.expect("a database of its own");
    let producer = Producer::declare(&rabbit.url(), "messages").await;
    let subject = consumer(database.url(), &format!("{}#messages", rabbit.url()));
    let mut consumer = subject.start().expect("it starts");

    let producing = tokio::spawn(produce(producer));
    until_handled(database.url(), BEFORE, &mut consumer).await;
    rabbit.stop().await.expect("it stops");
    sleep(OUTAGE).await; // the time is what is tested
    rabbit.start_again().await.expect("it starts again");
    producing.await.expect("all are confirmed");
    assert_recovered(database.url(), &mut consumer).await;
}

/// Nobody knows whether a queue is empty while its broker is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_until_idle_does_not_end_while_the_broker_is_away() {
    if !require(Server::RabbitMq) || !require(Server::Postgres) {
        return;
    }
    let database = TestDatabase::create().await.expect("a database of its own");
    let proxy = Proxy::start(address(&rabbitmq_url()).expect("a URL")).expect("a proxy");
    let queue = unique("idle");
    let producer = Producer::declare(&rabbitmq_url(), &queue).await;
    producer.send((0..BEFORE).map(work).collect()).await;
    let subject = Subject::example("subject").expect("a test has a path");
    let through_proxy = proxy.route(&rabbitmq_url()).expect("a URL");
    let subject = subject.arg(database.url()).arg(format!("{through_proxy}#{queue}"));
    let mut consumer = subject.start().expect("it starts");

    until_handled(database.url(), BEFORE, &mut consumer).await;
    proxy.cut();
    producer.send((BEFORE..2 * BEFORE).map(work).collect()).await;
    sleep(OUTAGE / 2).await; // longer than the silence after which it ends
    proxy.heal();
    until_handled(database.url(), 2 * BEFORE, &mut consumer).await;
    assert!(consumer.wait_exit(PATIENCE).await.success(), "{consumer}");
    producer.clear_up().await;
}
