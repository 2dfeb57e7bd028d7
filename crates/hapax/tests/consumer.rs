//! The consumer on the in-memory store and broker: every turn a message can take.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::{
    AmbiguousPolicy, ClaimRequest, Code, Consumer, ConsumerName, DeadFilter, DeadLetter, DeadLetters, Digest,
    Envelope, ErrorKind, Event, Failure, Format, Handler, InstanceId, Instances as _, Keep, Key, Message,
    MessageId, OrReject, Order, OtherPayload, Part, Retention, Retry, Store as _, Strategy, Summary,
    UnknownType, Verdict, WaitingRoom,
};
use hapax_testkit::memory::{MemoryBroker, MemorySource, MemoryStore, MemoryTx, Op};
use serde::Deserialize;

#[derive(Deserialize)]
struct Paid {
    account: String,
    #[serde(default = "one")]
    amount: i64,
}

fn one() -> i64 {
    1
}

impl Event for Paid {
    const TYPE: &'static str = "Paid";
}

impl serde::Serialize for Paid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.account)
    }
}

async fn pay(tx: &mut MemoryTx, paid: Message<Paid>) -> hapax::Result {
    tx.add(&paid.account, paid.amount)?;
    Ok(())
}

struct Bench {
    store: MemoryStore,
    broker: MemoryBroker,
}

impl Bench {
    fn new() -> Self {
        Self { store: MemoryStore::new(), broker: MemoryBroker::new() }
    }

    fn publish(&self, id: &str, account: &str) {
        self.broker.publish("orders", paid(id, account));
    }

    fn consumer(&self) -> Consumer<MemoryStore, MemorySource> {
        Consumer::new("orders", self.store.clone(), self.broker.source("orders"))
            .unwrap()
            .retry(Retry::exponential().attempts(3).first(Duration::from_millis(5)))
            .until_idle(Duration::from_millis(60))
    }

    async fn dead(&self) -> Vec<DeadLetter> {
        self.store.dead(&DeadFilter { limit: 1_000, ..DeadFilter::default() }).await.unwrap()
    }

    async fn reasons(&self) -> Vec<String> {
        self.dead().await.into_iter().map(|letter| letter.reason).collect()
    }
}

fn paid(id: &str, account: &str) -> Envelope {
    Envelope::new(format!(r#"{{"account":"{account}"}}"#)).with_id(id).with_type("Paid")
}

fn name() -> ConsumerName {
    ConsumerName::new("orders").unwrap()
}

fn counts(summary: Summary) -> (u64, u64, u64, u64) {
    (summary.handled, summary.duplicates, summary.retried, summary.dead)
}

/// A handler that fails the first `times` calls for each account, then pays.
fn failing(times: u32) -> impl AsyncFnOnceLike {
    let calls: Arc<Mutex<std::collections::HashMap<String, u32>>> = Arc::default();
    async move |tx: &mut MemoryTx, paid: Message<Paid>| {
        let call = {
            let mut calls = calls.lock().unwrap();
            let call = calls.entry(paid.id().to_string()).or_default();
            *call += 1;
            *call
        };
        tx.add(&paid.account, paid.amount)?;
        if call <= times { Err("not yet".into()) } else { Ok(()) }
    }
}

trait AsyncFnOnceLike: for<'a> hapax::HandlerFn<'a, MemoryTx, Message<Paid>> + Clone + Sync + 'static {}
impl<F: for<'a> hapax::HandlerFn<'a, MemoryTx, Message<Paid>> + Clone + Sync + 'static> AsyncFnOnceLike
    for F
{
}

#[tokio::test]
async fn copies_take_effect_once() {
    let bench = Bench::new();
    for id in ["a", "b", "a", "c", "a"] {
        bench.publish(id, "x");
    }
    let summary = bench.consumer().on_event::<Paid, _>(pay).run().await.unwrap();
    assert_eq!(counts(summary), (3, 2, 0, 0));
    assert_eq!(bench.store.number("x"), 3);
    assert_eq!(bench.broker.stats("orders").acked, 5);
}

#[tokio::test]
async fn case_01_a_failed_message_runs_again_and_only_then_is_a_duplicate() {
    let bench = Bench::new();
    bench.publish("a", "x");
    let summary = bench.consumer().on("Paid", failing(1)).run().await.unwrap();
    assert_eq!(counts(summary), (1, 0, 1, 0));
    bench.publish("a", "x");
    let summary = bench.consumer().on("Paid", failing(0)).run().await.unwrap();
    assert_eq!(counts(summary), (0, 1, 0, 0));
    assert_eq!(bench.store.number("x"), 1);
}

#[tokio::test]
async fn a_spent_limit_makes_a_dead_letter() {
    let bench = Bench::new();
    bench.publish("a", "x");
    let summary = bench.consumer().on("Paid", failing(99)).run().await.unwrap();
    assert_eq!(counts(summary), (0, 0, 2, 1));
    let dead = bench.dead().await.remove(0);
    assert_eq!((dead.reason.as_str(), dead.failures), ("HX0041", 3));
    assert!(dead.error.contains("not yet"), "{}", dead.error);
    assert_eq!(dead.envelope.body, paid("a", "x").body);
    bench.publish("a", "x");
    assert_eq!(counts(bench.consumer().on("Paid", failing(0)).run().await.unwrap()), (0, 1, 0, 0));
}

#[tokio::test]
async fn case_42_in_a_batch_of_100_two_fail_and_98_take_effect_once() {
    let bench = Bench::new();
    for n in 0..100 {
        bench.publish(&format!("m{n}"), if n == 17 || n == 83 { "bad" } else { "good" });
    }
    let handler = async |tx: &mut MemoryTx, paid: Message<Paid>| {
        tx.add(&paid.account, 1)?;
        if paid.account == "bad" && paid.attempt() == 1 { Err("bad".into()) } else { Ok(()) }
    };
    let summary = bench.consumer().batch(100).concurrency(1).on("Paid", handler).run().await.unwrap();
    assert_eq!(counts(summary), (100, 0, 2, 0));
    assert_eq!((bench.store.number("good"), bench.store.number("bad")), (98, 2));
}

#[tokio::test]
async fn reject_defer_panic_and_timeout_have_their_own_ends() {
    let bench = Bench::new();
    for account in ["reject", "panic", "slow", "fine"] {
        bench.publish(account, account);
    }
    let deferred = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&deferred);
    bench.publish("defer", "defer");
    let handler = async move |tx: &mut MemoryTx, paid: Message<Paid>| {
        tx.add(&paid.account, 1)?;
        match paid.account.as_str() {
            "reject" => None::<()>.or_reject(),
            "panic" => panic!("boom"),
            "slow" => std::future::pending().await,
            "defer" if seen.fetch_add(1, Ordering::SeqCst) < 5 => {
                Err(Failure::defer(Duration::from_millis(1)))
            }
            _ => Ok(()),
        }
    };
    let consumer = bench.consumer().retry(Retry::never()).timeout(Duration::from_millis(40));
    let summary = consumer.on("Paid", handler).run().await.unwrap();
    assert_eq!(counts(summary), (2, 0, 0, 3));
    let dead = bench.dead().await;
    let error_of = |id: &str| {
        let letter =
            dead.iter().find(|letter| letter.id.as_ref().is_some_and(|found| found.as_str() == id)).unwrap();
        format!("{} {}", letter.reason, letter.error)
    };
    assert!(error_of("reject").starts_with("HX0040"));
    assert!(error_of("panic").contains("HX0051: boom"), "{}", error_of("panic"));
    assert!(error_of("slow").contains("HX0052"), "{}", error_of("slow"));
    assert!(deferred.load(Ordering::SeqCst) >= 6, "a deferral is no failure, however often");
    assert_eq!(bench.store.rows().len(), 2, "{:?}", bench.store.rows());
}

#[tokio::test]
async fn case_38_messages_without_an_id_are_set_aside_each() {
    let bench = Bench::new();
    for _ in 0..2 {
        bench.broker.publish("orders", Envelope::new("{}").with_type("Paid"));
        bench.broker.publish("orders", Envelope::new("{}").with_type("Paid").with_id(""));
    }
    let summary = bench.consumer().on("Paid", pay).run().await.unwrap();
    assert_eq!(counts(summary), (0, 0, 0, 4));
    assert_eq!(bench.reasons().await, ["HX0030"; 4]);
    assert_eq!(bench.broker.stats("orders").acked, 4);
}

#[tokio::test]
async fn case_39_what_cannot_be_decoded_is_set_aside_and_the_rest_goes_on() {
    let bench = Bench::new();
    bench.broker.publish("orders", Envelope::new("not json").with_id("a").with_type("Paid"));
    bench.broker.publish("orders", Envelope::new("{}").with_id("b").with_type("Paid"));
    bench.broker.publish("orders", Envelope::new(vec![b'1'; 10_000_000]).with_id("c").with_type("Paid"));
    bench.publish("d", "x");
    let consumer = bench.consumer().format(Format::default().max_payload(4 << 20));
    assert_eq!(counts(consumer.on("Paid", pay).run().await.unwrap()), (1, 0, 0, 3));
    assert_eq!(bench.reasons().await, ["HX0035", "HX0035", "HX0036"]);
}

#[tokio::test]
async fn case_41_an_unknown_type_is_set_aside_or_ignored_as_configured() {
    let bench = Bench::new();
    let publish = |id: &str| {
        bench.broker.publish("orders", Envelope::new("{}").with_id(format!("{id}1")).with_type("Shipped"));
        bench.broker.publish("orders", Envelope::new("{}").with_id(format!("{id}2")));
    };
    publish("a");
    assert_eq!(counts(bench.consumer().on("Paid", pay).run().await.unwrap()), (0, 0, 0, 2));
    assert_eq!(bench.reasons().await, ["HX0034", "HX0033"]);
    publish("b");
    let summary = bench.consumer().unknown_type(UnknownType::Ignore).on("Paid", pay).run().await.unwrap();
    assert_eq!(counts(summary), (2, 0, 0, 0));
}

#[tokio::test]
async fn case_47_the_same_id_with_another_payload_is_noticed() {
    let bench = Bench::new();
    bench.publish("a", "x");
    bench.publish("a", "y");
    assert_eq!(counts(bench.consumer().on("Paid", pay).run().await.unwrap()), (1, 1, 0, 0));
    bench.publish("a", "y");
    let summary =
        bench.consumer().other_payload(OtherPayload::DeadLetter).on("Paid", pay).run().await.unwrap();
    assert_eq!(counts(summary), (0, 0, 0, 1));
    assert_eq!(bench.reasons().await, ["HX0037"]);
    bench.publish("a", "x");
    let summary =
        bench.consumer().other_payload(OtherPayload::DeadLetter).on("Paid", pay).run().await.unwrap();
    assert_eq!(counts(summary), (0, 1, 0, 0), "the record of the first is untouched");
}

#[tokio::test]
async fn a_broken_transaction_is_found_in_its_batch_and_charged_alone() {
    let bench = Bench::new();
    for n in 0..20 {
        bench.publish(&format!("m{n}"), if n == 7 { "breaker" } else { "good" });
    }
    let handler = async |tx: &mut MemoryTx, paid: Message<Paid>| {
        tx.add(&paid.account, 1)?;
        if paid.account == "breaker" {
            tx.break_transaction();
        }
        Ok(())
    };
    let summary = bench.consumer().concurrency(1).on("Paid", handler).run().await.unwrap();
    assert_eq!(counts(summary), (19, 0, 2, 1));
    assert_eq!((bench.store.number("good"), bench.store.number("breaker")), (19, 0));
    assert!(bench.dead().await[0].error.contains("HX0050"), "{:?}", bench.dead().await);
}

#[tokio::test]
async fn an_unknown_commit_is_claimed_again_and_counts_once() {
    for applied in [true, false] {
        let bench = Bench::new();
        bench.publish("a", "x");
        bench.store.unknown_next_commit(applied);
        let summary = bench.consumer().on("Paid", pay).run().await.unwrap();
        assert_eq!(counts(summary), (1, 0, 0, 0), "applied: {applied}");
        assert_eq!(bench.store.number("x"), 1);
    }
}

#[tokio::test]
async fn a_duplicate_beside_an_unknown_commit_stays_a_duplicate() {
    for applied in [true, false] {
        let bench = Bench::new();
        bench.publish("a", "x");
        bench.consumer().on("Paid", pay).run().await.unwrap();
        bench.publish("a", "x");
        bench.publish("b", "y");
        bench.store.unknown_next_commit(applied);
        let summary = bench.consumer().concurrency(1).on("Paid", pay).run().await.unwrap();
        assert_eq!((summary.handled, summary.duplicates), (1, 1), "applied: {applied}");
        assert_eq!((bench.store.number("x"), bench.store.number("y")), (1, 1));
    }
}

#[tokio::test]
async fn conflicts_and_locks_are_charged_to_nobody() {
    let bench = Bench::new();
    (0..10).for_each(|n| bench.publish(&format!("m{n}"), "x"));
    for kind in [ErrorKind::Conflict, ErrorKind::Busy] {
        (0..5).for_each(|_| bench.store.fail_next(Op::Finish, kind));
        (0..5).for_each(|_| bench.store.fail_next(Op::Statement, kind));
    }
    let consumer = bench.consumer().retry(Retry::exponential().attempts(6).first(Duration::from_millis(5)));
    let summary = consumer.on("Paid", pay).run().await.unwrap();
    assert_eq!((summary.handled, summary.dead), (10, 0));
    assert_eq!(bench.store.number("x"), 10);
}

#[tokio::test]
async fn a_batch_that_waits_for_more_is_not_lost_when_a_busy_message_is_due() {
    let bench = Bench::new();
    bench.publish("held", "x");
    let (consumer, keys) = (name(), [Key::new(MessageId::new("held").unwrap(), Digest::of(b""))]);
    let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(&consumer) };
    let (rival, _) = bench.store.begin_claim(&request).await.unwrap();
    let run = bench.consumer().concurrency(1).batch_wait(Duration::from_millis(100)).on("Paid", pay).run();
    let meanwhile = async {
        for n in 0..10 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            bench.publish(&format!("m{n}"), "x");
        }
        drop(rival);
    };
    let (summary, ()) = tokio::join!(run, meanwhile);
    assert_eq!(summary.unwrap().handled, 11);
    assert_eq!(bench.store.number("x"), 11);
}

#[tokio::test]
async fn case_16_a_store_that_is_away_costs_nobody_an_attempt() {
    let bench = Bench::new();
    (0..100).for_each(|n| bench.publish(&format!("m{n}"), "x"));
    let consumer = bench.consumer().retry(Retry::never()).batch(5).on("Paid", pay);
    let health = consumer.health();
    let running = tokio::spawn(consumer.run());
    bench.broker.wait_for("orders", |stats| stats.acked >= 5).await;
    bench.store.go_away();
    let store = bench.store.clone();
    let away = health.clone();
    hapax_testkit::servers::eventually("the outage shows", Duration::from_secs(5), || {
        let away = away.clone();
        async move { away.impediments().contains(&"the store is away") || away.summary().handled == 100 }
    })
    .await;
    store.come_back();
    let summary = running.await.unwrap().unwrap();
    assert_eq!(counts(summary), (100, 0, 0, 0));
    assert_eq!(bench.store.number("x"), 100);
}

#[tokio::test]
async fn case_17_a_broker_that_was_away_redelivers_and_nothing_is_doubled() {
    let bench = Bench::new();
    (0..200).for_each(|n| bench.publish(&format!("m{n}"), "x"));
    let slow = async |tx: &mut MemoryTx, paid: Message<Paid>| {
        tx.add(&paid.account, 1)?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(())
    };
    let consumer = bench.consumer().batch(10).until_idle(Duration::from_millis(300)).on("Paid", slow);
    let running = tokio::spawn(consumer.run());
    bench.broker.wait_for("orders", |stats| stats.acked >= 20).await;
    bench.broker.go_away();
    bench.broker.come_back();
    let summary = running.await.unwrap().unwrap();
    assert_eq!(summary.handled, 200);
    assert_eq!(bench.store.number("x"), 200);
}

#[tokio::test]
async fn case_49_a_failed_message_holds_up_its_key_and_nobody_else() {
    let bench = Bench::new();
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let keyed = |id: &str, key: &str| {
        let mut envelope = paid(id, key);
        envelope.properties.key = Some(key.to_owned());
        bench.broker.publish("orders", envelope);
    };
    for n in 1..=3 {
        keyed(&format!("k{n}"), "k");
        keyed(&format!("o{n}"), &format!("other{n}"));
    }
    let seen = Arc::clone(&order);
    let handler = async move |tx: &mut MemoryTx, paid: Message<Paid>| {
        if paid.id().as_str() == "k1" && paid.attempt() < 3 {
            return Err("not yet".into());
        }
        tx.add(&paid.account, 1)?;
        seen.lock().unwrap().push(paid.id().to_string());
        Ok(())
    };
    let consumer = bench
        .consumer()
        .format(Format::default().key(Part::KeyProperty))
        .order(Order::Key)
        .retry(Retry::fixed(Duration::from_millis(150)).jitter(false).attempts(5))
        .batch(1)
        .on("Paid", handler);
    let summary = consumer.run().await.unwrap();
    assert_eq!(summary.handled, 6);
    let order = order.lock().unwrap().clone();
    let of_key: Vec<_> = order.iter().filter(|id| id.starts_with('k')).cloned().collect();
    assert_eq!(of_key, ["k1", "k2", "k3"]);
    assert!(order.iter().take(3).all(|id| id.starts_with('o')), "{order:?}");
}

#[tokio::test]
async fn a_dead_letter_of_a_key_blocks_it_until_it_is_discarded() {
    let bench = Bench::new();
    let keyed = |id: &str| {
        let mut envelope = paid(id, id);
        envelope.properties.key = Some("k".to_owned());
        bench.broker.publish("orders", envelope);
    };
    keyed("bad");
    keyed("good");
    let handler = async |tx: &mut MemoryTx, paid: Message<Paid>| {
        if paid.account == "bad" {
            return Err(Failure::reject("bad"));
        }
        tx.add(&paid.account, 1)?;
        Ok(())
    };
    let consumer = || {
        let format = Format::default().key(Part::KeyProperty);
        bench.consumer().format(format).order(Order::Key).on("Paid", handler)
    };
    let stopped = tokio::time::timeout(Duration::from_millis(400), consumer().run()).await;
    assert!(stopped.is_err(), "what queues up behind a dead letter keeps the consumer from being idle");
    assert_eq!(bench.store.number("good"), 0);
    bench.store.discard(bench.dead().await[0].number).await.unwrap();
    bench.store.advance(Duration::from_mins(1)); // the leases of the run that was cut off
    assert_eq!(consumer().run().await.unwrap().handled, 1);
    assert_eq!(bench.store.number("good"), 1);
}

#[tokio::test]
async fn case_48_when_everything_fails_fetching_slows_and_nothing_is_spent() {
    let bench = Bench::new();
    (0..400).for_each(|n| bench.publish(&format!("m{n}"), "x"));
    let away = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let flag = Arc::clone(&away);
    let handler = async move |tx: &mut MemoryTx, paid: Message<Paid>| {
        if flag.load(Ordering::SeqCst) {
            return Err("the downstream is away".into());
        }
        tx.add(&paid.account, 1)?;
        Ok(())
    };
    let consumer = bench
        .consumer()
        .retry(Retry::exponential().attempts(3).first(Duration::from_millis(1)))
        .batch(5)
        .concurrency(2)
        .until_idle(Duration::from_millis(1_500))
        .on("Paid", handler);
    let health = consumer.health();
    let running = tokio::spawn(consumer.run());
    hapax_testkit::servers::eventually("it slows down", Duration::from_secs(10), || {
        let health = health.clone();
        async move { health.impediments().iter().any(|text| text.contains("slowed")) }
    })
    .await;
    let parked = bench.store.depth(&name()).await.unwrap().total;
    assert!(parked <= 100, "{parked} of 400 were poured into the waiting room");
    away.store(false, Ordering::SeqCst);
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.dead), (400, 0));
}

#[tokio::test]
async fn case_15_a_message_that_ends_the_process_is_charged_and_the_innocent_are_not() {
    // The process's end is played by a run that is cut off: no clean end is recorded, deliveries return.
    let bench = Bench::new();
    (0..20).for_each(|n| bench.publish(&format!("m{n}"), if n == 4 { "killer" } else { "x" }));
    let killed = Arc::new(tokio::sync::Notify::new());
    for life in 0..8 {
        let kill = Arc::clone(&killed);
        let handler = async move |tx: &mut MemoryTx, paid: Message<Paid>| {
            if paid.account == "killer" {
                kill.notify_one();
                std::future::pending::<()>().await;
            }
            tx.add(&paid.account, 1)?;
            Ok(())
        };
        let running = bench.consumer().on("Paid", handler).run();
        tokio::select! {
            summary = running => {
                summary.unwrap();
                assert!(life >= 3, "it took {life} lives");
                break;
            }
            () = killed.notified() => {}
        }
        bench.broker.drop_connections();
    }
    assert_eq!(bench.store.number("x"), 19);
    let dead = bench.dead().await;
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].reason.as_str(), dead[0].crashes), ("HX0042", 3));
}

#[tokio::test]
async fn a_clean_end_makes_nothing_suspect() {
    let bench = Bench::new();
    bench.publish("a", "x");
    bench.consumer().on("Paid", pay).run().await.unwrap();
    let beats = bench.store.beat(&name(), &InstanceId("me".into()), Duration::from_mins(1)).await.unwrap();
    assert!(beats.is_empty());
}

#[tokio::test]
async fn prepare_runs_before_the_transaction_and_only_for_new_messages() {
    let bench = Bench::new();
    for id in ["a", "a", "b"] {
        bench.publish(id, "x");
    }
    let prepared = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&prepared);
    let handler = async |tx: &mut MemoryTx, paid: Message<Paid>| {
        let fee: &i64 = paid.prepared().or_reject()?;
        tx.add(&paid.account, *fee)?;
        Ok(())
    };
    let consumer = bench.consumer().on("Paid", handler).prepare("Paid", move |_: Message<Paid>| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(7_i64) }
    });
    assert_eq!(counts(consumer.run().await.unwrap()), (2, 1, 0, 0));
    assert_eq!(bench.store.number("x"), 14);
    assert_eq!(prepared.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn on_batch_takes_what_stands_together_and_finds_the_one_that_fails() {
    let bench = Bench::new();
    (0..40).for_each(|n| bench.publish(&format!("m{n}"), if n == 9 { "bad" } else { "x" }));
    let largest = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&largest);
    let handler = async move |tx: &mut MemoryTx, batch: Vec<Message<Paid>>| {
        seen.fetch_max(u32::try_from(batch.len()).unwrap(), Ordering::SeqCst);
        for paid in &batch {
            tx.add(&paid.account, 1)?;
            if paid.account == "bad" {
                return Err(Failure::reject("bad"));
            }
        }
        Ok(())
    };
    let summary = bench.consumer().concurrency(1).on_batch("Paid", handler).run().await.unwrap();
    assert_eq!(counts(summary), (39, 0, 0, 1));
    assert_eq!((bench.store.number("x"), bench.store.number("bad")), (39, 0));
    assert!(largest.load(Ordering::SeqCst) > 1);
}

#[tokio::test]
async fn a_struct_handles_and_a_classifier_judges() {
    struct Till;
    impl Handler<MemoryStore, Paid> for Till {
        async fn handle(&self, tx: &mut MemoryTx, paid: Message<Paid>) -> hapax::Result {
            tx.add(&paid.account, 1)?;
            paid.account.parse::<u32>()?;
            Ok(())
        }
    }
    let bench = Bench::new();
    bench.publish("a", "12");
    bench.publish("b", "x");
    let classify = |error: &hapax::BoxError| error.is::<std::num::ParseIntError>().then_some(Verdict::Reject);
    let summary = bench.consumer().on_handler("Paid", Till).classify(classify).run().await.unwrap();
    assert_eq!(counts(summary), (1, 0, 0, 1));
}

#[tokio::test]
async fn case_12_a_message_older_than_what_was_purged_is_ambiguous() {
    let bench = Bench::new();
    let old = |id: &str, seconds: u64| {
        let sent = hapax::Timestamp::now().minus(Duration::from_secs(seconds));
        paid(id, "x").with_header(hapax::SENT_AT_HEADER, sent.to_string())
    };
    bench.broker.publish("orders", old("a", 0));
    bench.consumer().on("Paid", pay).run().await.unwrap();
    bench.store.advance(Duration::from_hours(20 * 24));
    let purged = bench.store.purge(&name(), Duration::from_hours(14 * 24), 1_000).await.unwrap();
    assert_eq!(purged.rows, 1);
    bench.broker.publish("orders", old("a", 0));
    let summary = bench.consumer().on("Paid", pay).run().await.unwrap();
    assert_eq!((summary.handled, summary.dead, summary.ambiguous), (0, 1, 1));
    assert_eq!(bench.reasons().await, ["HX0038"]);
    assert_eq!(bench.store.number("x"), 1);
    bench.broker.publish("orders", old("b", 10));
    let keep = Keep::default().ambiguous(AmbiguousPolicy::Process);
    let summary = bench.consumer().keep(keep).on("Paid", pay).run().await.unwrap();
    assert_eq!((summary.handled, summary.dead, summary.ambiguous), (1, 0, 1));
}

#[tokio::test]
async fn natural_handlers_leave_no_record_unless_they_fail() {
    let bench = Bench::new();
    for _ in 0..2 {
        bench.publish("a", "x");
    }
    bench.publish("b", "y");
    let summary = bench.consumer().strategy(Strategy::Natural).on("Paid", failing(1)).run().await.unwrap();
    assert_eq!((summary.dead, summary.waiting), (0, 0));
    assert!(bench.store.number("x") >= 1 && bench.store.number("y") == 1);
}

#[tokio::test]
async fn shutdown_finishes_what_is_begun_and_hands_back_the_rest() {
    let bench = Bench::new();
    (0..50).for_each(|n| bench.publish(&format!("m{n}"), "x"));
    let (begun, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Semaphore::new(0)));
    let (mark, gate) = (Arc::clone(&begun), Arc::clone(&go));
    let handler = async move |tx: &mut MemoryTx, paid: Message<Paid>| {
        mark.notify_one();
        gate.acquire().await.map_err(|_| "closed")?.forget();
        tx.add(&paid.account, 1)?;
        Ok(())
    };
    let consumer = bench.consumer().batch(1).concurrency(1).on("Paid", handler);
    let stop = Arc::clone(&begun);
    let gate = Arc::clone(&go);
    let summary = consumer
        .run_until(async move {
            stop.notified().await;
            tokio::spawn(async move { gate.add_permits(1) });
        })
        .await
        .unwrap();
    assert_eq!(summary.handled, 1);
    let stats = bench.broker.stats("orders");
    assert_eq!((stats.ready, stats.in_flight), (49, 0));
}

#[tokio::test]
async fn when_the_drain_time_is_over_handlers_are_dropped_and_their_messages_handed_back() {
    let bench = Bench::new();
    bench.publish("a", "x");
    let begun = Arc::new(tokio::sync::Notify::new());
    let mark = Arc::clone(&begun);
    let handler = async move |tx: &mut MemoryTx, paid: Message<Paid>| {
        tx.add(&paid.account, 1)?;
        mark.notify_one();
        std::future::pending::<()>().await;
        Ok(())
    };
    let consumer = bench.consumer().drain(Duration::from_millis(30)).on("Paid", handler);
    let summary = consumer.run_until(async move { begun.notified().await }).await.unwrap();
    assert_eq!(counts(summary), (0, 0, 0, 0));
    assert_eq!(bench.broker.stats("orders").ready, 1);
    let summary = bench.consumer().on("Paid", pay).run().await.unwrap();
    assert_eq!((summary.handled, bench.store.number("x")), (1, 1));
}

#[tokio::test]
async fn a_redriven_dead_letter_takes_effect_once() {
    let bench = Bench::new();
    bench.publish("a", "x");
    bench.consumer().retry(Retry::never()).on("Paid", failing(9)).run().await.unwrap();
    let number = bench.dead().await[0].number;
    let redrive = hapax::Redrive { number, id: None, by: "tests" };
    bench.store.redrive(&redrive).await.unwrap();
    assert_eq!(bench.store.redrive(&redrive).await.unwrap_err().code(), Code::RedriveLost);
    bench.publish("a", "x");
    let summary = bench.consumer().on("Paid", pay).run().await.unwrap();
    assert_eq!((summary.handled, summary.duplicates), (1, 1));
    assert_eq!(bench.store.number("x"), 1);
}

#[tokio::test]
async fn more_workers_than_connections_are_refused() {
    let store = MemoryStore::with_capacity(2);
    let consumer = Consumer::new("orders", store, MemoryBroker::new().source("orders")).unwrap();
    let error = consumer.concurrency(3).on("Paid", pay).run().await.unwrap_err();
    assert_eq!(error.code(), Code::TooFewConnections);
}

/// Messages wait in the consumer, as many as it prefetches, behind a slow handler, and the broker is away, so that
/// nothing is extended. Had they been started when their time had passed, each would come again as a duplicate.
#[tokio::test]
async fn case_14_what_waited_for_too_long_is_not_started_and_comes_again() {
    const VISIBILITY: Duration = Duration::from_millis(200);
    let bench = Bench::new();
    for n in 0..20 {
        bench.publish(&n.to_string(), "x");
    }
    let starts = Arc::new(AtomicU32::new(0));
    let (counted, broker) = (Arc::clone(&starts), bench.broker.clone());
    let slow_at_first = async move |tx: &mut MemoryTx, paid: Message<Paid>| {
        if counted.fetch_add(1, Ordering::SeqCst) == 0 {
            broker.go_away();
            tokio::time::sleep(VISIBILITY * 3).await; // nobody tells when a lease has run out
            broker.come_back();
        }
        tx.add(&paid.account, paid.amount)?;
        Ok(())
    };
    let source = bench.broker.source("orders").with_visibility(VISIBILITY);
    let consumer = Consumer::new("orders", bench.store.clone(), source).unwrap();
    let consumer = consumer.concurrency(1).batch(1).until_idle(VISIBILITY * 3);
    let summary = consumer.on_event::<Paid, _>(slow_at_first).run().await.unwrap();
    assert_eq!(counts(summary), (20, 1, 0, 0), "only the slow one, whose ack came too late, is a duplicate");
    assert_eq!((starts.load(Ordering::SeqCst), bench.store.number("x")), (20, 20));
}
