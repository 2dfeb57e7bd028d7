//! A broker that takes a delivery back while its handler is at work.

use std::sync::Arc;
use std::time::Duration;

use hapax::rabbitmq::RabbitMq;
use hapax::{Consumer, Handler, Message, PgStore, PgTx};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{PrivateRabbit, Server, eventually, require};
use tokio::sync::watch;

use super::ground::{Ground, Job, QUEUE, assert_uncharged, message, note};
use crate::outage::{PATIENCE, Producer};

/// How long a delivery may stay unacked, and how often the broker looks, in milliseconds: half an hour and a
/// minute, unless told otherwise.
const IMPATIENT: [(&str, &str); 2] = [("consumer_timeout", "2000"), ("channel_tick_interval", "100")];

/// Works on some messages until they are let go.
#[derive(Clone)]
struct Holding(Arc<watch::Sender<Desk>>);

struct Desk {
    held: Vec<&'static str>,
    /// One entry for each call of the handler.
    begun: Vec<String>,
}

impl Holding {
    fn back(held: &[&'static str]) -> Self {
        Self(Arc::new(watch::Sender::new(Desk { held: held.to_vec(), begun: Vec::new() })))
    }

    async fn until_begun(&self, id: &str) {
        eventually(&format!("{id} is begun"), PATIENCE, async || {
            self.begun().iter().any(|begun| begun == id)
        })
        .await;
    }

    fn let_go(&self, id: &str) {
        self.0.send_modify(|desk| desk.held.retain(|held| *held != id));
    }

    fn begun(&self) -> Vec<String> {
        self.0.borrow().begun.clone()
    }
}

impl Handler<PgStore, Job> for Holding {
    async fn handle(&self, tx: &mut PgTx, job: Message<Job>) -> hapax::Result {
        let id = job.id().to_string();
        note(tx, job).await?;
        self.0.send_modify(|desk| desk.begun.push(id.clone()));
        self.0.subscribe().wait_for(|desk| !desk.held.contains(&id.as_str())).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_13_a_handler_that_outlives_the_ack_timeout_of_a_private_rabbitmq_is_one_effect() {
    if !require(Server::PrivateRabbit) || !require(Server::Postgres) {
        return;
    }
    let rabbit = PrivateRabbit::start_with(&IMPATIENT).await.expect("a node of its own");
    let proxy = Proxy::start(rabbit.addr()).expect("a proxy");
    let broker = RabbitMq::new(&proxy.route(&rabbit.url()).expect("a URL")).expect("a URL");
    let producer = Producer::declare(&rabbit.url(), QUEUE).await;
    let ground = Ground::new().await;
    let store = ground.store().await;
    let consumer = |handler| {
        let consumer = Consumer::new("orders", store.clone(), broker.source(QUEUE)).expect("a name");
        consumer.batch(1).concurrency(2).timeout(None).on_handler::<Job, _>("Job", handler)
    };

    let holding = Holding::back(&["m2", "m4"]);
    let first = consumer(holding.clone()).drain(Duration::ZERO);
    let health = first.health();
    let overdue = async {
        producer.send((0..3).map(message).collect()).await;
        holding.until_begun("m2").await;
        let before = proxy.accepted();
        eventually("it consumes on a new channel", PATIENCE, async || proxy.accepted() > before).await;
        // They come after the copy of m2. So m4 has the delivery tag that m2 had on the old channel.
        producer.send((3..5).map(message).collect()).await;
        // By one worker after the other, since m2 has the other one: the copy of m2 was found busy by now.
        holding.until_begun("m4").await;
        holding.let_go("m2");
        eventually("m2 has taken effect", PATIENCE, async || health.summary().handled == 4).await;
    };
    let first = first.run_until(overdue).await.expect("it ends cleanly");
    assert_uncharged(&first, 4);

    let second = consumer(Holding::back(&[])).until_idle(Duration::from_secs(1));
    let second = second.run().await.expect("it ends cleanly");
    assert_eq!(second.handled, 1, "the late ack of m2 is no ack of m4");
    assert_uncharged(&second, 1);
    assert!(first.duplicates + second.duplicates > 0, "m2 was delivered again");
    ground.until_handled(5).await;
    let mut begun = holding.begun();
    begun.sort_unstable();
    assert_eq!(begun, ["m0", "m1", "m2", "m3", "m4"], "no copy reached the handler");
}
