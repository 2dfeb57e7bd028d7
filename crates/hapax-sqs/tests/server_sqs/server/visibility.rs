//! Handlers that take longer than SQS keeps a message for us.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use hapax::{Consumer, Event, Message, Summary};
use hapax_core::{ErrorKind, Publisher as _, Settler as _};
use hapax_sqs::SqsSource;
use hapax_testkit::memory::{MemoryStore, MemoryTx};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{Server, eventually, require};
use tokio::time::sleep;

use crate::broker::{Queue, SOON, message, proxy, sqs, through};
use crate::by_hand::{acks, settle, settle_all, source, take};

const VISIBILITY: u32 = 3;
/// Longer than two visibilities.
const LONG: Duration = Duration::from_secs(7);

#[derive(serde::Deserialize, serde::Serialize)]
struct Number(u32);

impl Event for Number {
    const TYPE: &'static str = "Number";
}

async fn publish(queue: &Queue, numbers: std::ops::Range<u32>) {
    let mut messages: Vec<_> = numbers.map(|number| message(&queue.name, number)).collect();
    messages.iter_mut().for_each(|message| message.envelope.properties.kind = Some(Number::TYPE.into()));
    sqs().publisher().publish_all(messages).await.unwrap();
}

/// One worker, a message at a time. The first handler takes long; if there is a proxy, the network is silent
/// meanwhile. Answers with the summary and with how many handlers were started.
async fn consume(source: SqsSource, store: &MemoryStore, silent: Option<Arc<Proxy>>) -> (Summary, u32) {
    let starts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&starts);
    let handler = async move |tx: &mut MemoryTx, number: Message<Number>| {
        let is_first = counted.fetch_add(1, SeqCst) == 0;
        if is_first {
            silent.iter().for_each(|proxy| proxy.stall());
            sleep(LONG).await;
            silent.iter().for_each(|proxy| proxy.sever());
            silent.iter().for_each(|proxy| proxy.heal());
        }
        tx.add(number.0.to_string(), 1)?;
        Ok(())
    };
    let consumer = Consumer::new("numbers", store.clone(), source).unwrap().concurrency(1).batch(1);
    let consumer = consumer.until_idle(Duration::from_secs(u64::from(VISIBILITY) + 3));
    let summary = consumer.on_event::<Number, _>(handler).run().await.unwrap();
    (summary, starts.load(SeqCst))
}

#[tokio::test]
async fn case_13_a_handler_that_outlives_the_visibility_keeps_its_message() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("case_13", VISIBILITY).await;
    publish(&queue, 0..3).await;
    let store = MemoryStore::new();
    let slow = sqs().source(&queue.name).wait_time(Duration::from_secs(1));
    let (summary, starts) = consume(slow, &store, None).await;
    assert_eq!((summary.handled, summary.duplicates, starts), (3, 0, 3), "nothing was delivered twice");
    assert_eq!(queue.messages().await, 0, "the queue drains");
    queue.delete().await;
}

/// The messages wait in the consumer behind a slow one, and nothing can be extended: once their visibility has passed
/// they are not started. They come again, and are handled then. Had they been started, each of them would come again
/// as a duplicate.
#[tokio::test]
async fn case_14_messages_that_waited_for_too_long_never_start() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("case_14", VISIBILITY).await;
    publish(&queue, 0..20).await;
    let (store, proxy) = (MemoryStore::new(), Arc::new(proxy()));
    let far = through(&proxy).connect_timeout(Duration::from_secs(2));
    let far = far.source(&queue.name).wait_time(Duration::from_secs(1));
    let (summary, starts) = consume(far, &store, Some(proxy)).await;
    assert_eq!((summary.handled, starts), (20, 20), "each started once");
    assert_eq!(summary.duplicates, 1, "only the slow one, whose ack came too late");
    assert!((0..20).all(|number| store.number(&number.to_string()) == 1));
    assert_eq!(queue.messages().await, 0, "the queue drains");
    queue.delete().await;
}

#[tokio::test]
async fn a_receipt_that_expired_settles_and_extends_nothing() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("expired", 1).await;
    publish(&queue, 0..1).await;
    let mut source = source(&sqs(), &queue, 1).await;
    let late = take(&mut source, 1).await;
    let (settler, receipt) = (hapax_core::Source::settler(&source), late[0].receipt().clone());
    eventually("its visibility has passed", SOON, async || !settler.holds(&receipt)).await;
    let extended = settler.extend(vec![receipt]).await.remove(0);
    assert_eq!(extended.unwrap_err().kind(), ErrorKind::NotFound);
    let settled = settle(&source, acks(late)).await.remove(0);
    assert_eq!(settled.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(queue.messages().await, 1, "it is still there");
    hapax_core::Source::close(&mut source).await;
    queue.delete().await;
}

/// A visibility of one's own holds for what is received, whatever the queue's is.
#[tokio::test]
async fn a_configured_visibility_is_the_one_that_counts() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("configured", 600).await;
    publish(&queue, 0..1).await;
    let mut source =
        sqs().source(&queue.name).visibility(Duration::from_secs(2)).wait_time(Duration::from_secs(1));
    let first = take(&mut source, 1).await;
    let again = take(&mut source, 1).await;
    assert!(!first[0].redelivered && again[0].redelivered);
    settle_all(&source, acks(again)).await;
    hapax_core::Source::close(&mut source).await;
    queue.delete().await;
}
