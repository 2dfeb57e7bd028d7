//! The source.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{
    Code, Delivery, Envelope, ErrorKind, Fetched, Outgoing, Publisher, Settler, Source, Timestamp,
};
use hapax_rabbitmq::{RabbitMq, RabbitSettler, Receipt};
use hapax_testkit::servers::{Server, eventually, rabbitmq_url, require, unique};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use crate::broker::{Queue, SOON, kind_and_code, proxy, publish, rabbit, through};
use crate::by_hand::{acks, nothing_comes, numbers, settle, source, take};

#[tokio::test]
async fn a_message_arrives_with_all_it_had() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("properties").await;
    let mut envelope = Envelope::new(vec![0, 159, 146, 150, b'"', b'\n'])
        .with_id("ć/1 ")
        .with_type("PaymentReceived")
        .with_header("hapax-sent-at", "2026-11-30T10:00:00Z")
        .with_header("X-Empty", "");
    envelope.properties.correlation_id = Some("cause-1".into());
    envelope.properties.content_type = Some("application/json".into());
    envelope.properties.timestamp = Some(Timestamp::from_micros(1_700_000_000_000_000));

    let publisher = rabbit().publisher();
    let sent = publisher.publish(vec![Outgoing::to_queue(&queue.name, envelope.clone())]).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");

    let mut source = source(&rabbit(), &queue, 10).await;
    let delivery = take(&mut source, 1).await.remove(0);
    envelope.origin.source = source.name();
    assert_eq!(source.name(), format!("rabbitmq:{}", queue.name));
    assert_eq!(delivery.envelope.body, envelope.body);
    assert_eq!(delivery.envelope.properties, envelope.properties);
    assert_eq!(delivery.envelope.origin, envelope.origin);
    for (name, value) in envelope.headers.iter() {
        assert_eq!(delivery.envelope.headers.get(name), Some(value));
    }
    assert!(!delivery.redelivered);
    settle(&source, acks(vec![delivery])).await;
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn prefetch_bounds_what_is_unsettled() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("prefetch").await;
    publish(&queue, 0..20).await;
    let mut source = source(&rabbit(), &queue, 7).await;
    let mut first = take(&mut source, 7).await;
    assert!(nothing_comes(&mut source).await);
    assert_eq!(queue.ready().await, 13);
    settle(&source, acks(first.drain(..3).collect())).await;
    assert_eq!(numbers(&take(&mut source, 3).await), [7, 8, 9], "as many more as were acked");
    assert!(nothing_comes(&mut source).await);
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn what_was_acked_is_gone_and_the_rest_returns_when_closed() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("acked").await;
    publish(&queue, 0..10).await;
    let mut first = source(&rabbit(), &queue, 10).await;
    let in_hand = take(&mut first, 4).await;
    settle(&first, acks(in_hand)).await;
    timeout(SOON, first.close()).await.unwrap();
    assert!(matches!(first.next(1).await, Ok(Fetched::Ended)));
    assert_eq!(queue.ready().await, 6, "closing gives back what was not handed out");

    let mut second = source(&rabbit(), &queue, 10).await;
    assert_eq!(numbers(&take(&mut second, 6).await), [4, 5, 6, 7, 8, 9]);
    second.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_message_handed_back_comes_again_as_redelivered() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("handed_back").await;
    publish(&queue, 0..3).await;
    let mut source = source(&rabbit(), &queue, 10).await;
    let settlements = take(&mut source, 3)
        .await
        .into_iter()
        .map(|delivery| if delivery.envelope.body == "1" { delivery.hand_back() } else { delivery.ack() })
        .collect();
    settle(&source, settlements).await;
    let again = take(&mut source, 1).await;
    assert_eq!((numbers(&again), again[0].redelivered), (vec![1], true));
    settle(&source, acks(again)).await;
    assert!(nothing_comes(&mut source).await);
    source.close().await;
    assert_eq!(queue.ready().await, 0);
    queue.delete().await;
}

/// Each worker settles random parts of what it holds, so that acks cross in every way; a wrong
/// frame would close the channel, and what is unsettled would come again.
#[tokio::test(flavor = "multi_thread")]
async fn many_workers_settle_out_of_order_and_nothing_is_lost_or_acked_unasked() {
    const MESSAGES: u32 = 2_000;
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("out_of_order").await;
    publish(&queue, 0..MESSAGES).await;
    let mut source = source(&rabbit(), &queue, 400).await;
    let settler = source.settler();
    let (to_workers, work) = mpsc::unbounded_channel();
    let work = Arc::new(Mutex::new(work));
    let workers: Vec<_> =
        (0..8).map(|_| tokio::spawn(settle_at_random(settler.clone(), work.clone()))).collect();
    let mut seen = BTreeSet::new();
    while seen.len() < MESSAGES as usize {
        let batch = take(&mut source, 1).await;
        assert!(batch.iter().all(|delivery| !delivery.redelivered), "the channel was closed");
        seen.extend(numbers(&batch));
        to_workers.send(batch).unwrap();
    }
    drop(to_workers);
    let mut kept = BTreeSet::new();
    for worker in workers {
        kept.extend(timeout(SOON, worker).await.unwrap().unwrap());
    }
    source.close().await;

    let mut second = crate::by_hand::source(&rabbit(), &queue, MESSAGES as usize).await;
    let again = take(&mut second, kept.len()).await;
    assert_eq!(numbers(&again).into_iter().collect::<BTreeSet<_>>(), kept, "exactly what was not settled");
    assert!(nothing_comes(&mut second).await);
    second.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn after_a_reconnect_stale_acks_are_discarded_and_the_messages_come_again() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("reconnect").await;
    publish(&queue, 0..6).await;
    let proxy = proxy();
    let mut source = source(&through(&proxy), &queue, 6).await;
    let stale = take(&mut source, 4).await; // two more are buffered
    eventually("all are delivered", SOON, async || queue.ready().await == 0).await;

    proxy.cut();
    eventually("the loss is noticed", SOON, async || !source.is_connected()).await;
    assert!(nothing_comes(&mut source).await, "what was buffered is dropped");
    proxy.heal();
    let again = take(&mut source, 6).await;
    assert!(source.is_connected());
    assert_eq!(numbers(&again), [0, 1, 2, 3, 4, 5]);
    assert!(again.iter().all(|delivery| delivery.redelivered));

    settle(&source, acks(stale)).await; // the same tags as those of `again`
    settle(&source, again.into_iter().map(Delivery::hand_back).collect()).await;
    assert_eq!(take(&mut source, 6).await.len(), 6, "the stale acks acked nothing");
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("silent").await;
    let proxy = proxy();
    let broker =
        through(&proxy).heartbeat(Duration::from_secs(1)).connect_timeout(Duration::from_millis(500));
    let mut source = source(&broker, &queue, 1).await;
    proxy.stall();
    eventually("the silence is noticed", SOON, async || !source.is_connected()).await;
    let attempts = proxy.accepted();
    eventually("attempts to connect are given up, too", SOON, async || proxy.accepted() > attempts + 1).await;
    proxy.sever();
    proxy.heal();
    publish(&queue, [7]).await;
    assert_eq!(numbers(&take(&mut source, 1).await), [7]);
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_missing_queue_and_refused_credentials_are_errors_at_the_start() {
    if !require(Server::RabbitMq) {
        return;
    }
    let missing = rabbit().source(unique("missing")).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&missing), (ErrorKind::Setup, Code::QueueMissing));

    let refused = rabbit().password("wrong-secret").source("any").prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused));
    assert!(!refused.to_string().contains("wrong-secret"), "{refused}");

    let url = rabbitmq_url();
    let elsewhere = RabbitMq::new(&format!("{}/nowhere", url.rsplit_once('/').unwrap().0)).unwrap();
    let refused = elsewhere.source("any").prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused));
}

#[tokio::test]
async fn a_broker_that_cannot_be_reached_is_one_error_after_the_timeout() {
    if !require(Server::RabbitMq) {
        return;
    }
    let proxy = proxy();
    for silent in [false, true] {
        if silent {
            proxy.stall();
        } else {
            proxy.cut();
        }
        let broker = through(&proxy).connect_timeout(Duration::from_millis(400));
        let error = timeout(SOON, broker.source("any").prepare(1)).await.unwrap().unwrap_err();
        assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::BrokerUnavailable), "{error}");
    }
}

#[tokio::test]
async fn nothing_is_declared_unless_asked() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::named("declared").await;
    assert!(rabbit().source(&queue.name).prepare(1).await.is_err());
    assert!(!queue.exists().await);

    let mut source = rabbit().source(&queue.name).declare().argument("x-max-length", 10);
    source.prepare(1).await.unwrap();
    assert!(queue.exists().await);
    source.close().await;

    let other = rabbit().source(&queue.name).declare().prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&other), (ErrorKind::Setup, Code::BrokerRefused), "{other}");
    queue.delete().await;
}

#[tokio::test]
async fn a_queue_that_is_deleted_and_declared_again_is_consumed_again() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("deleted").await;
    let mut source = source(&rabbit(), &queue, 1).await;
    queue.delete().await;
    eventually("the loss is noticed", SOON, async || !source.is_connected()).await;
    queue.declare().await;
    publish(&queue, [1]).await;
    let delivery = take(&mut source, 1).await;
    settle(&source, acks(delivery)).await;
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_dropped_call_to_next_loses_nothing() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("cancelled").await;
    let mut source = source(&rabbit(), &queue, 100).await;
    publish(&queue, 0..100).await;
    let mut seen = Vec::new();
    while seen.len() < 100 {
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            fetched = source.next(1) => {
                let Fetched::Batch(batch) = fetched.unwrap() else { panic!("a batch") };
                seen.extend(numbers(&batch));
            }
        }
    }
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    source.close().await;
    queue.delete().await;
}

type Work = Arc<Mutex<mpsc::UnboundedReceiver<Vec<Delivery<Receipt>>>>>;

/// Settles what it gets, a random part of what it holds at a time, but for one message in fifty: those
/// it returns.
async fn settle_at_random(settler: RabbitSettler, work: Work) -> BTreeSet<u32> {
    let (mut held, mut kept) = (Vec::new(), Vec::new());
    loop {
        let next = work.lock().await.recv().await;
        let ended = next.is_none();
        for delivery in next.into_iter().flatten() {
            let keep = numbers([&delivery])[0] % 50 == 0;
            if keep { &mut kept } else { &mut held }.push(delivery);
        }
        fastrand::shuffle(&mut held);
        let some = held.split_off(if ended { 0 } else { fastrand::usize(..=held.len()) });
        for result in settler.settle(acks(some)).await {
            result.unwrap();
        }
        if ended {
            return numbers(&kept).into_iter().collect();
        }
    }
}
