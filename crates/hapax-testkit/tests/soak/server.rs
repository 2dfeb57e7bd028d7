mod ground;
mod length;
mod plan;
mod victim;

use std::env;
use std::time::Instant;

use fastrand::Rng;
use tokio::time::sleep;

use crate::outage::{PATIENCE, Producer, consumer, until_handled};
use ground::{Broker, Database};
use length::Length;
use plan::{plan, produce, producer_in_store};
use victim::Victim;

const QUEUE: &str = "messages";

/// Takes away the database, then the broker, and gives each back.
async fn round(
    number: u32,
    (database, broker): (&mut Database, &mut Broker),
    victim: &mut Victim,
    length: &Length,
    random: &mut Rng,
) {
    let orderly = number % 2 == 1;
    victim.suffer(length, random).await;
    database.take_away(orderly).await;
    sleep(length.outage).await; // the time is what is tested
    database.give_back().await;
    victim.assert_alive("the database's outage");
    victim.suffer(length, random).await;
    broker.take_away(database, orderly).await;
    sleep(length.outage).await; // the time is what is tested
    broker.give_back(database).await;
    victim.assert_alive("the broker's outage");
}

/// The whole run; its result is a row of the soak test's table.
async fn nothing_is_lost_and_nothing_doubled(
    database: Option<Database>,
    broker: Option<Broker>,
    length: Length,
) {
    let (Some(mut database), Some(mut broker)) = (database, broker) else { return };
    let begun = Instant::now();
    let seed = env::var("HAPAX_SOAK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("HAPAX_SOAK_SEED={seed}");
    let mut random = Rng::with_seed(seed);

    let url = database.url();
    let (producer, source) = match broker.url() {
        Some(broker) => (Producer::declare(&broker, QUEUE).await, format!("{broker}#{QUEUE}")),
        None => (producer_in_store(&url, QUEUE).await, format!("queue:{QUEUE}")),
    };
    let plan = plan(length.messages, &mut random);
    let copies = plan.len() - length.messages;
    let mut victim = Victim::start(consumer(&url, &source));
    let producing = tokio::spawn(produce(producer, plan, length.total()));
    for number in 0..length.rounds {
        round(number, (&mut database, &mut broker), &mut victim, &length, &mut random).await;
    }
    let producer = producing.await.expect("all are confirmed");
    let tally = until_handled(&url, length.messages, &mut victim.running).await;
    victim.running.terminate().expect("it is told to end");
    assert!(victim.running.wait_exit(PATIENCE).await.success(), "{}", victim.running);
    producer.clear_up().await;

    let lost = length.messages - tally.messages;
    let doubled = tally.effects - tally.messages;
    println!(
        "| {} | {} | {} | {copies} | {} | {} × {} s | {} × {} s | {} s | {lost} | {doubled} |",
        database.name(),
        broker.name(),
        length.messages,
        victim.kills,
        length.rounds,
        length.outage.as_secs(),
        length.rounds,
        length.outage.as_secs(),
        begun.elapsed().as_secs(),
    );
    assert_eq!((lost, doubled), (0, 0), "{}", victim.running);
}

/// A test of each pair.
macro_rules! pairs {
    ($($test:ident: $database:expr, $broker:expr, $length:expr;)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                nothing_is_lost_and_nothing_doubled($database, $broker, $length).await;
            }
        )*
    };
}

pairs! {
    case_05_case_16_case_17_postgres_and_rabbitmq:
        Database::postgres().await, Broker::rabbitmq().await, Length::from_environment().longer();
    case_05_case_16_postgres_and_embedded_queue:
        Database::postgres().await, Some(Broker::Embedded), Length::from_environment();
    case_05_case_16_case_17_postgres_and_nats:
        Database::postgres().await, Broker::nats().await, Length::from_environment();
    case_05_case_16_case_17_postgres_and_redis:
        Database::postgres().await, Broker::redis().await, Length::from_environment();
    case_05_case_16_case_17_postgres_and_kafka:
        Database::postgres().await, Broker::kafka().await, Length::from_environment();
    case_05_case_16_case_17_postgres_and_sqs:
        Database::postgres().await, Broker::sqs().await, Length::from_environment();
    case_05_case_16_case_17_mariadb_and_rabbitmq:
        Database::mariadb().await, Broker::rabbitmq().await, Length::from_environment();
    case_05_case_16_case_17_mongodb_and_rabbitmq:
        Database::mongodb().await, Broker::rabbitmq().await, Length::from_environment();
    case_05_case_16_case_17_sqlite_and_rabbitmq:
        Some(Database::sqlite()), Broker::rabbitmq().await, Length::from_environment();
}
