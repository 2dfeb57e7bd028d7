//! What the source and the publisher do on a real broker, and on one that comes and goes.

#![allow(clippy::unwrap_used)] // helpers of tests are tests, too

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{
    Code, Delivery, Envelope, Error, ErrorKind, Fetched, Outgoing, Publisher, Settlement, Settler, Source,
    Timestamp,
};
use hapax_rabbitmq::{RabbitMq, RabbitSettler, RabbitSource, Receipt};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{Server, address, eventually, rabbitmq_url, require, unique};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

/// Longer than anything here takes, so that a test fails instead of hanging.
const SOON: Duration = Duration::from_secs(30);
/// Long enough for a delivery to arrive that should not.
const A_MOMENT: Duration = Duration::from_millis(300);

mod broker;

use broker::Queue;

fn rabbit() -> RabbitMq {
    RabbitMq::new(&rabbitmq_url()).unwrap()
}

fn through(proxy: &Proxy) -> RabbitMq {
    RabbitMq::new(&proxy.route(&rabbitmq_url()).unwrap()).unwrap()
}

fn proxy() -> Proxy {
    Proxy::start(address(&rabbitmq_url()).unwrap()).unwrap()
}

async fn source(broker: &RabbitMq, queue: &Queue, in_flight: usize) -> RabbitSource {
    let mut source = broker.source(&queue.name);
    source.prepare(in_flight).await.unwrap();
    source
}

/// Publishes messages whose bodies and ids are these numbers.
async fn publish(queue: &Queue, numbers: impl IntoIterator<Item = u32>) {
    let publisher = rabbit().publisher();
    for result in
        publisher.publish(numbers.into_iter().map(|number| message(&queue.name, number)).collect()).await
    {
        result.unwrap();
    }
    publisher.close().await;
}

fn message(queue: &str, number: u32) -> Outgoing {
    Outgoing::to_queue(queue, Envelope::new(number.to_string()).with_id(number.to_string()))
}

/// Waits until so many deliveries have come.
async fn take(source: &mut RabbitSource, count: usize) -> Vec<Delivery<Receipt>> {
    let mut deliveries = Vec::new();
    while deliveries.len() < count {
        let fetched = timeout(SOON, source.next(count - deliveries.len())).await.expect("deliveries");
        let Fetched::Batch(batch) = fetched.unwrap() else { panic!("deliveries, not the end") };
        deliveries.extend(batch);
    }
    deliveries
}

async fn nothing_comes(source: &mut RabbitSource) -> bool {
    timeout(A_MOMENT, source.next(1)).await.is_err()
}

fn numbers<'d>(deliveries: impl IntoIterator<Item = &'d Delivery<Receipt>>) -> Vec<u32> {
    let number =
        |delivery: &Delivery<Receipt>| String::from_utf8_lossy(&delivery.envelope.body).parse().unwrap();
    deliveries.into_iter().map(number).collect()
}

fn acks(deliveries: Vec<Delivery<Receipt>>) -> Vec<Settlement<Receipt>> {
    deliveries.into_iter().map(Delivery::ack).collect()
}

async fn settle(source: &RabbitSource, settlements: Vec<Settlement<Receipt>>) {
    for result in source.settler().settle(settlements).await {
        result.unwrap();
    }
}

fn kind_and_code(error: &Error) -> (ErrorKind, Code) {
    (error.kind(), error.code())
}

mod server {
    use super::*;

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

        let mut second = super::source(&rabbit(), &queue, MESSAGES as usize).await;
        let again = take(&mut second, kept.len()).await;
        assert_eq!(
            numbers(&again).into_iter().collect::<BTreeSet<_>>(),
            kept,
            "exactly what was not settled"
        );
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
        eventually("attempts to connect are given up, too", SOON, async || proxy.accepted() > attempts + 1)
            .await;
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

    #[tokio::test]
    async fn a_message_nobody_takes_is_not_published_and_its_neighbours_are() {
        if !require(Server::RabbitMq) {
            return;
        }
        let queue = Queue::declared("unroutable").await;
        let nowhere = unique("nowhere");
        let publisher = rabbit().publisher();
        let messages =
            (0..100).map(|number| message(if number % 3 == 0 { &nowhere } else { &queue.name }, number));
        for (number, result) in publisher.publish(messages.collect()).await.into_iter().enumerate() {
            match result {
                Ok(()) => assert_ne!(number % 3, 0),
                Err(error) => {
                    assert_eq!(number % 3, 0, "{error}");
                    assert_eq!(kind_and_code(&error), (ErrorKind::NotFound, Code::NotPublished));
                    assert!(error.to_string().contains(&nowhere), "{error}");
                }
            }
        }
        assert_eq!(queue.ready().await, 66);
        publisher.close().await;
        queue.delete().await;
    }

    #[tokio::test]
    async fn one_message_that_closes_the_channel_does_not_condemn_the_others() {
        if !require(Server::RabbitMq) {
            return;
        }
        let queue = Queue::declared("missing_exchange").await;
        let publisher = rabbit().publisher();
        let mut messages: Vec<_> = (0..10).map(|number| message(&queue.name, number)).collect();
        messages[4].destination = unique("no_exchange");
        messages[6].envelope.properties.kind = Some("x".repeat(256));
        messages[7].envelope.headers.set("big", "x".repeat(200_000));
        let results = publisher.publish(messages).await;
        let failed: Vec<_> = results
            .iter()
            .enumerate()
            .filter_map(|(n, result)| result.as_ref().err().map(|e| (n, kind_and_code(e))))
            .collect();
        assert_eq!(
            failed,
            [
                (4, (ErrorKind::NotFound, Code::NotPublished)),
                (6, (ErrorKind::Statement, Code::NotPublished)),
                (7, (ErrorKind::Statement, Code::NotPublished)),
            ]
        );
        let mut source = source(&rabbit(), &queue, 100).await;
        let mut arrived = BTreeSet::new();
        while arrived.len() < 7 {
            arrived.extend(numbers(&take(&mut source, 1).await));
        }
        assert_eq!(arrived, BTreeSet::from([0, 1, 2, 3, 5, 8, 9]));
        source.close().await;
        publisher.close().await;
        queue.delete().await;
    }

    #[tokio::test]
    async fn publishing_keeps_order_within_a_call() {
        if !require(Server::RabbitMq) {
            return;
        }
        let queue = Queue::declared("in_order").await;
        publish(&queue, 0..1_000).await;
        let mut source = source(&rabbit(), &queue, 1_000).await;
        assert_eq!(numbers(&take(&mut source, 1_000).await), (0..1_000).collect::<Vec<_>>());
        source.close().await;
        queue.delete().await;
    }

    #[tokio::test]
    async fn publishing_fails_while_the_broker_is_away_and_works_afterwards() {
        if !require(Server::RabbitMq) {
            return;
        }
        let queue = Queue::declared("away").await;
        let proxy = proxy();
        let publisher = through(&proxy).publisher();
        let publish = async |number| publisher.publish(vec![message(&queue.name, number)]).await.remove(0);
        publish(1).await.unwrap();
        proxy.cut();
        for _ in 0..5 {
            assert_eq!(publish(2).await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert!(proxy.accepted() < 5, "it does not hammer a broker that is away");
        proxy.heal();
        eventually("it publishes again", SOON, async || publish(3).await.is_ok()).await;
        assert_eq!(queue.ready().await, 2);
        publisher.close().await;
        queue.delete().await;
    }

    #[tokio::test]
    async fn a_confirm_that_never_comes_is_a_failure() {
        if !require(Server::RabbitMq) {
            return;
        }
        let queue = Queue::declared("unconfirmed").await;
        let proxy = proxy();
        let publisher = through(&proxy).publisher().confirm_timeout(Duration::from_millis(500));
        let publish = async |number| publisher.publish(vec![message(&queue.name, number)]).await.remove(0);
        publish(1).await.unwrap();
        proxy.swallow();
        let error = publish(2).await.unwrap_err();
        assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::NotPublished));
        eventually("and yet the broker has it", SOON, async || queue.ready().await == 2).await;
        proxy.heal();
        eventually("it publishes again", SOON, async || publish(3).await.is_ok()).await;
        publisher.close().await;
        queue.delete().await;
    }

    #[tokio::test]
    async fn a_publisher_declares_a_queue_on_request() {
        if !require(Server::RabbitMq) {
            return;
        }
        let queue = Queue::named("declared_to_send").await;
        let publisher = rabbit().publisher();
        publisher.declare_queue(&queue.name).await.unwrap();
        publisher.declare_queue(&queue.name).await.unwrap();
        publish(&queue, [1]).await;
        assert_eq!(queue.ready().await, 1);
        publisher.close().await;
        queue.delete().await;
    }
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
