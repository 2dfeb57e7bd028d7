//! What is sent.

use std::time::Duration;

use fastrand::Rng;
use hapax::{BoxPublisher, PgStore};
use hapax_core::Envelope;
use tokio::time::{Instant, sleep_until};

use crate::outage::{Producer, message};

/// The share of messages that are sent twice.
const COPIED: f64 = 0.3;
/// Messages that are published together.
const TOGETHER: usize = 20;
/// How far behind its message a copy may be.
const BEHIND: f64 = 500.0;

/// The numbers of the messages in order: every message, and the copies of some a little later.
pub(crate) fn plan(messages: usize, random: &mut Rng) -> Vec<usize> {
    let mut sent: Vec<(f64, usize)> = Vec::with_capacity(2 * messages);
    let mut place = 0.0;
    for number in 0..messages {
        place += 1.0;
        sent.push((place, number));
        if random.f64() < COPIED {
            sent.push((place + random.f64() * BEHIND, number));
        }
    }
    sent.sort_by(|(one, _), (two, _)| one.total_cmp(two));
    sent.into_iter().map(|(_, number)| number).collect()
}

/// Most simply work; some fail once, some take a while.
fn work(number: usize) -> Envelope {
    message(
        number,
        match number % 50 {
            7 => "fail once",
            21 => "take a while",
            _ => "pay",
        },
    )
}

/// Publishes at a pace that lasts as long as the outages do.
pub(crate) async fn produce(producer: Producer, plan: Vec<usize>, time: Duration) -> Producer {
    let begun = Instant::now();
    let calls = u32::try_from(plan.len().div_ceil(TOGETHER)).expect("not that many");
    for (call, together) in (0..).zip(plan.chunks(TOGETHER)) {
        sleep_until(begun + time * call / calls).await;
        producer.send(together.iter().map(|number| work(*number)).collect()).await;
    }
    producer
}

/// Publishes to a queue in the store itself.
pub(crate) async fn producer_in_store(url: &str, queue: &str) -> Producer {
    let store = PgStore::connect(url).await.expect("the store opens");
    store.migrate().await.expect("the schema is made");
    Producer { publisher: BoxPublisher::new(store.queues()), queue: queue.to_owned(), broker: None }
}
