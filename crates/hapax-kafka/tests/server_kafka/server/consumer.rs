//! The whole way: records, handlers and their effects, while the group changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::{Consumer, HandlerFn, Message, Order, Outgoing, Publisher, Retry, Source, Summary};
use hapax_kafka::{Kafka, KafkaSource};
use hapax_testkit::memory::{MemoryStore, MemoryTx};
use hapax_testkit::servers::{Server, eventually, require, unique};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::broker::{SOON, Topic, kafka, message};
use crate::by_hand::{numbers, take};

/// Payloads are numbers; each has its own row, and each instance counts its own.
fn counting(
    instance: &'static str,
) -> impl for<'a> HandlerFn<'a, MemoryTx, Message<u32>> + Clone + Sync + 'static {
    async move |tx: &mut MemoryTx, number: Message<u32>| {
        tokio::time::sleep(Duration::from_millis(5)).await; // a handler's work
        tx.add(format!("row {}", *number), 1)?;
        tx.add(instance, 1)?;
        Ok(())
    }
}

fn consumer(store: &MemoryStore, kafka: &Kafka, topic: &Topic) -> Consumer<MemoryStore, KafkaSource> {
    let source = kafka.source([&topic.name], &topic.name);
    Consumer::new("orders", store.clone(), source).unwrap().concurrency(4).batch(8)
}

fn running(
    consumer: Consumer<MemoryStore, KafkaSource>,
) -> (JoinHandle<Result<Summary, hapax::Error>>, CancellationToken) {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    (tokio::spawn(async move { consumer.run_until(stopped.cancelled_owned()).await }), stop)
}

/// Spreads the messages over the partitions by key.
async fn publish(topic: &Topic, numbers: impl Iterator<Item = u32>) {
    let keyed = |number: u32| Outgoing {
        destination: topic.name.clone(),
        routing_key: number.to_string(),
        envelope: message("", number).envelope.with_type("Counted"),
    };
    topic.publisher.publish_all(numbers.map(keyed).collect()).await.unwrap();
}

/// A second instance joins while the first one's handlers run, and when it is at work, the first one leaves, as in a
/// deploy. Messages come all the time.
async fn case_18_on(kafka: Kafka) {
    let topic = Topic::created(&kafka, "deploy", 3).await;
    let store = MemoryStore::new();
    let handled = |instance| store.number(instance);
    let mut published = 0;
    let mut more = async || {
        publish(&topic, published..published + 20).await;
        published += 20;
        published
    };
    let (first, stop_first) = running(consumer(&store, &kafka, &topic).on("Counted", counting("first")));
    eventually("the first one is at work", SOON, async || more().await > 0 && handled("first") > 0).await;
    let again = store.reopen();
    let (second, stop_second) = running(consumer(&again, &kafka, &topic).on("Counted", counting("second")));
    eventually("both are at work", SOON, async || more().await > 0 && handled("second") > 0).await;
    stop_first.cancel();
    let mut counted = first.await.unwrap().unwrap().handled;
    let total = more().await;
    let all = async || handled("first") + handled("second") == i64::from(total);
    eventually("none is lost", SOON, all).await;
    stop_second.cancel();
    counted += second.await.unwrap().unwrap().handled;
    assert_eq!(counted, u64::from(total));
    for number in 0..total {
        assert_eq!(store.number(&format!("row {number}")), 1, "message {number}");
    }
    topic.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_18_a_deploy_under_load_loses_and_doubles_nothing_cooperative() {
    if require(Server::Kafka) {
        case_18_on(kafka()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_18_a_deploy_under_load_loses_and_doubles_nothing_eager() {
    if require(Server::Kafka) {
        case_18_on(kafka().property("partition.assignment.strategy", "roundrobin").unwrap()).await;
    }
}

/// `order = "lane"`: a message that fails holds up its partition, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_message_holds_up_its_partition_and_no_other() {
    if !require(Server::Kafka) {
        return;
    }
    let topic = Topic::created(&kafka(), "lanes", 3).await;
    publish(&topic, 0..60).await;
    let lanes = lanes(&topic, 60).await;
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let store = MemoryStore::new();
    let log = Arc::clone(&seen);
    let handler = async move |_: &mut MemoryTx, number: Message<u32>| {
        if *number == 0 && number.attempt() < 3 {
            return Err("not yet".into());
        }
        log.lock().unwrap().push(*number);
        Ok(())
    };
    let consumer = consumer(&store, &kafka(), &topic)
        .order(Order::Lane)
        .retry(Retry::fixed(Duration::from_millis(500)).jitter(false).attempts(5))
        .on("Counted", handler);
    let (run, stop) = running(consumer);
    eventually("all are handled", SOON, async || seen.lock().unwrap().len() == 60).await;
    stop.cancel();
    run.await.unwrap().unwrap();

    let seen = seen.lock().unwrap().clone();
    assert_eq!(lanes.len(), 3);
    for lane in lanes.values() {
        let came: Vec<u32> = seen.iter().copied().filter(|number| lane.contains(number)).collect();
        assert_eq!(came, *lane, "in the order of the partition");
    }
    let place_of_the_failed = seen.iter().position(|number| *number == 0).unwrap();
    let held_up = lanes.values().find(|lane| lane.contains(&0)).unwrap().len();
    assert_eq!(place_of_the_failed, 60 - held_up, "all of the other partitions came before it");
    topic.delete().await;
}

/// Which numbers each partition has, in its order, as another group sees them.
async fn lanes(topic: &Topic, count: usize) -> BTreeMap<Arc<str>, Vec<u32>> {
    let mut source = kafka().source([&topic.name], unique("onlooker"));
    let mut lanes: BTreeMap<Arc<str>, Vec<u32>> = BTreeMap::new();
    for delivery in take(&mut source, count).await {
        let number = numbers([&delivery])[0];
        lanes.entry(delivery.lane.unwrap().0).or_default().push(number);
    }
    source.close().await;
    lanes
}
