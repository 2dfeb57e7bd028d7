//! Copies of dead letters, and what comes of them when they come back.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax::{
    Consumer, DeadFilter, DeadLetter, DeadLetters, Destination, Envelope, Failure, Message, Relay, Summary,
};
use hapax_testkit::memory::{MemoryBroker, MemoryStore, MemoryTx};

const IDLE: Duration = Duration::from_millis(60);

/// A consumer whose handler refuses everything until it is mended.
struct Ground {
    store: MemoryStore,
    broker: MemoryBroker,
    mended: Arc<AtomicBool>,
}

impl Ground {
    fn new() -> Self {
        let broker = MemoryBroker::new();
        broker.declare("dead");
        Self { store: MemoryStore::new(), broker, mended: Arc::default() }
    }

    async fn run(&self) -> Summary {
        let mended = Arc::clone(&self.mended);
        let handler = async move |tx: &mut MemoryTx, _: Message<i64>| {
            if !mended.load(Ordering::SeqCst) {
                return Err(Failure::reject("not yet"));
            }
            tx.add("effects", 1)?;
            Ok(())
        };
        Consumer::new("orders", self.store.clone(), self.broker.source("orders"))
            .unwrap()
            .on("Paid", handler)
            .dead_letters_to(Destination::queue("dead"))
            .until_idle(IDLE)
            .run()
            .await
            .unwrap()
    }

    /// Publishes copies, and answers with what is in their queue.
    async fn copies(&self) -> Vec<Envelope> {
        Relay::new(self.store.clone(), self.broker.clone()).until_idle(IDLE).run().await.unwrap();
        self.broker.ready("dead")
    }

    async fn dead(&self) -> Vec<DeadLetter> {
        self.store.dead(&DeadFilter::default()).await.unwrap()
    }

    fn effects(&self) -> i64 {
        self.store.number("effects")
    }
}

fn paid() -> Envelope {
    Envelope::new("1").with_type("Paid").with_header("tenant", "north")
}

#[tokio::test]
async fn a_copy_of_a_dead_letter_is_published_with_its_reason() {
    let ground = Ground::new();
    ground.broker.publish("orders", paid().with_id("m1"));
    assert_eq!(ground.run().await.dead, 1);
    let copies = ground.copies().await;
    assert_eq!(copies.len(), 1);
    let header = |name: &str| copies[0].headers.get(name);
    assert_eq!(header("hapax-dead-letter"), Some("1"));
    assert_eq!(
        (header("hapax-dead-consumer"), header("hapax-dead-reason")),
        (Some("orders"), Some("HX0040"))
    );
    assert_eq!((header("hapax-dead-error"), header("tenant")), (Some("not yet"), Some("north")));
    assert_eq!(copies[0].properties.message_id.as_deref(), Some("m1"));
    assert_eq!(ground.dead().await.len(), 1, "the letter itself is in the store");
}

#[tokio::test]
async fn a_copy_that_comes_back_is_a_redrive() {
    let ground = Ground::new();
    ground.broker.publish("orders", paid().with_id("m1"));
    ground.run().await;
    let copy = ground.copies().await.remove(0);

    ground.broker.publish("orders", paid().with_id("m1")); // a late copy of the message itself is none
    assert_eq!(ground.run().await.duplicates, 1);
    assert_eq!(ground.dead().await.len(), 1);

    ground.mended.store(true, Ordering::SeqCst);
    ground.broker.publish("orders", copy.clone());
    ground.broker.publish("orders", copy);
    let summary = ground.run().await;
    assert_eq!((summary.handled, summary.duplicates), (1, 2));
    assert_eq!(ground.effects(), 1);
    assert!(ground.dead().await.is_empty());
    assert_eq!(ground.store.redriven_by(hapax::DeadNumber(1)).as_deref(), Some("memory:orders"));
}

#[tokio::test]
async fn the_copy_of_an_earlier_death_redrives_nothing() {
    let ground = Ground::new();
    ground.broker.publish("orders", paid().with_id("m1"));
    ground.run().await;
    let first = ground.copies().await.remove(0);
    ground.broker.publish("orders", first.clone());
    assert_eq!(ground.run().await.dead, 1, "it dies again, under another number");
    assert_eq!(ground.copies().await.len(), 2);

    ground.mended.store(true, Ordering::SeqCst);
    ground.broker.publish("orders", first);
    assert_eq!(ground.run().await.duplicates, 1);
    assert_eq!((ground.effects(), ground.dead().await.len()), (0, 1));
}

#[tokio::test]
async fn a_copy_without_an_id_does_not_become_another_letter() {
    let ground = Ground::new();
    ground.broker.publish("orders", paid());
    assert_eq!(ground.run().await.dead, 1);
    let copy = ground.copies().await.remove(0);
    ground.broker.publish("orders", copy);
    let summary = ground.run().await;
    assert_eq!((summary.dead, summary.duplicates), (0, 1));
    assert_eq!(ground.dead().await.len(), 1);
}

#[tokio::test]
async fn a_copy_waits_while_the_store_cannot_redrive_it() {
    let ground = Ground::new();
    ground.broker.publish("orders", paid().with_id("m1"));
    ground.run().await;
    let copy = ground.copies().await.remove(0);
    ground.mended.store(true, Ordering::SeqCst);
    ground.store.fail_next(hapax_testkit::memory::Op::Redrive, hapax::ErrorKind::Unavailable);
    ground.broker.publish("orders", copy);
    let summary = ground.run().await;
    assert_eq!((summary.handled, ground.effects()), (1, 1));
}
