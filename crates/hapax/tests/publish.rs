//! What handlers publish, through the consumer.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hapax::{
    Consumer, DeadFilter, DeadLetters, Envelope, Event, Failure, Idempotent, Key, Message, MessageId, Outbox,
    OutboxFilter, OutboxRow, Publication, Retry, Strategy,
};
use hapax_testkit::memory::{MemoryBroker, MemorySource, MemoryStore, MemoryTx};

const IDLE: Duration = Duration::from_millis(60);

#[derive(serde::Serialize)]
struct Booked {
    account: i64,
}

impl Event for Booked {
    const TYPE: &'static str = "Booked";

    fn key(&self) -> Option<String> {
        Some(self.account.to_string())
    }
}

async fn book(tx: &mut MemoryTx, account: Message<i64>) -> hapax::Result {
    tx.publish(Booked { account: *account })
}

struct Ground {
    store: MemoryStore,
    broker: MemoryBroker,
}

impl Ground {
    /// With these messages, whose accounts are their ids' numbers.
    fn with(messages: i64) -> Self {
        let ground = Self { store: MemoryStore::new(), broker: MemoryBroker::new() };
        for number in 0..messages {
            let mut envelope =
                Envelope::new(number.to_string()).with_id(format!("m{number}")).with_type("Book");
            envelope.properties.correlation_id = Some("c".into());
            ground.broker.publish("orders", envelope.with_header("traceparent", "00-a-b-01"));
        }
        ground
    }

    fn consumer(&self) -> Consumer<MemoryStore, MemorySource> {
        Consumer::new("orders", self.store.clone(), self.broker.source("orders"))
            .unwrap()
            .retry(Retry::exponential().attempts(3).first(Duration::from_millis(5)))
            .until_idle(IDLE)
    }

    async fn rows(&self) -> Vec<OutboxRow> {
        self.store.outbox(&OutboxFilter { limit: 1_000, ..OutboxFilter::default() }).await.unwrap()
    }

    /// Cause and id of each.
    async fn published(&self) -> Vec<(String, String)> {
        let pair = |row: OutboxRow| (row.cause.unwrap().to_string(), row.id.to_string());
        let mut published: Vec<_> = self.rows().await.into_iter().map(pair).collect();
        published.sort();
        published
    }
}

#[tokio::test]
async fn a_message_of_a_batch_is_the_cause_of_what_its_own_handler_publishes() {
    let (together, singly) = (Ground::with(20), Ground::with(20));
    together.consumer().on("Book", book).run().await.unwrap();
    singly.consumer().batch(1).on("Book", book).run().await.unwrap();
    let published = together.published().await;
    assert_eq!(published.len(), 20);
    assert_eq!(published, singly.published().await, "the ids do not depend on the batch");
    let row = &together.rows().await[0];
    assert_eq!(
        (row.producer.as_str(), row.kind.as_str(), row.key.as_deref()),
        ("orders", "Booked", Some("0"))
    );
    assert_eq!(row.destination.routing_key, "Booked");
    assert_eq!(row.envelope.properties.correlation_id.as_deref(), Some("c"));
    assert_eq!(row.envelope.headers.get("traceparent"), Some("00-a-b-01"));
}

#[tokio::test]
async fn a_handler_that_fails_says_nothing() {
    let ground = Ground::with(10);
    let handler = async move |tx: &mut MemoryTx, account: Message<i64>| {
        tx.publish(Booked { account: *account })?;
        if *account == 3 { Err(Failure::reject("not this one")) } else { Ok(()) }
    };
    let summary = ground.consumer().on("Book", handler).run().await.unwrap();
    assert_eq!((summary.handled, summary.dead), (9, 1));
    let causes: Vec<_> = ground.published().await.into_iter().map(|(cause, _)| cause).collect();
    assert_eq!(causes.len(), 9);
    assert!(!causes.contains(&"m3".to_owned()));
}

#[tokio::test]
async fn an_attempt_that_failed_shifts_no_id() {
    let ground = Ground::with(1);
    let calls = Arc::new(AtomicU32::new(0));
    let handler = async move |tx: &mut MemoryTx, account: Message<i64>| {
        tx.publish(Booked { account: *account })?;
        if calls.fetch_add(1, Ordering::SeqCst) == 0 { Err("once".into()) } else { Ok(()) }
    };
    ground.consumer().on("Book", handler).run().await.unwrap();
    let smooth = Ground::with(1);
    smooth.consumer().on("Book", book).run().await.unwrap();
    assert_eq!(ground.published().await, smooth.published().await);
}

#[tokio::test]
async fn case_29_without_a_record_the_ids_are_the_same_all_the_same() {
    let ground = Ground::with(1);
    ground.broker.publish("orders", Envelope::new("0").with_id("m0").with_type("Book"));
    ground.consumer().strategy(Strategy::Natural).on("Book", book).run().await.unwrap();
    let published = ground.published().await;
    assert_eq!(published.len(), 2);
    assert_eq!(published[0], published[1]);
}

#[tokio::test]
async fn a_handler_of_a_batch_names_the_cause_or_is_refused() {
    let ground = Ground::with(5);
    let named = async move |tx: &mut MemoryTx, accounts: Vec<Message<i64>>| {
        for account in &accounts {
            tx.publish(Publication::of(&Booked { account: **account })?.caused_by(account))?;
        }
        Ok(())
    };
    ground.consumer().on_batch("Book", named).run().await.unwrap();
    let singly = Ground::with(5);
    singly.consumer().on("Book", book).run().await.unwrap();
    assert_eq!(ground.published().await, singly.published().await);

    let ground = Ground::with(2);
    let nameless = async move |tx: &mut MemoryTx, accounts: Vec<Message<i64>>| {
        for account in accounts {
            tx.publish(Booked { account: *account })?;
        }
        Ok(())
    };
    let summary = ground.consumer().on_batch("Book", nameless).run().await.unwrap();
    assert_eq!((summary.handled, summary.dead), (0, 2));
    let letters = ground.store.dead(&DeadFilter::default()).await.unwrap();
    assert!(letters.iter().all(|letter| letter.reason == "HX0025"), "{letters:?}");
    assert!(ground.rows().await.is_empty());
}

#[tokio::test]
async fn the_decorator_knows_the_cause() {
    let store = MemoryStore::new();
    let handler =
        async move |tx: &mut MemoryTx, account: i64| -> hapax::Result { tx.publish(Booked { account }) };
    let handler = Idempotent::wrap(handler).with("orders", store.clone()).unwrap();
    let key = Key::new(MessageId::new("m7").unwrap(), hapax::Digest::of(b"7"));
    for _ in 0..2 {
        handler.handle_in(&key, 7).await.unwrap();
    }
    let rows = store.outbox(&OutboxFilter::default()).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].cause, Some(MessageId::new("m7").unwrap()));
}
