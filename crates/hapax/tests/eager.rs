//! The eager strategy and recorded calls: what happens outside the transaction.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::{
    AmbiguousPolicy, CallRecords as _, CallRequest, Calls, ClaimRequest, Code, Consumer, ConsumerName,
    DeadFilter, DeadLetters as _, Digest, Envelope, ErrorKind, Failure, Format, Grip, Handle, Idempotent,
    Inbox as _, InboxState, Keep, Key, Message, MessageId, Outcome, Part, PrepareFn, Retention as _, Retry,
    Running as _, SentAtRule, Store as _, Strategy, Timestamp,
};
use hapax_testkit::memory::{MemoryBroker, MemorySource, MemoryStore, MemoryTx, Op};
use serde::Deserialize;
use tokio::sync::{Barrier, Notify};

const LEASE: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(20);

#[derive(Clone, Deserialize)]
struct Paid {
    account: String,
}

struct Ground {
    store: MemoryStore,
    broker: MemoryBroker,
}

impl Ground {
    fn new() -> Self {
        Self { store: MemoryStore::new(), broker: MemoryBroker::new() }
    }

    fn publish(&self, id: &str) {
        let body = format!(r#"{{"account":"{id}"}}"#);
        self.broker.publish("orders", Envelope::new(body).with_id(id).with_type("Paid"));
    }

    fn consumer(&self) -> Consumer<MemoryStore, MemorySource> {
        self.consumer_on(self.store.clone())
    }

    fn consumer_on(&self, store: MemoryStore) -> Consumer<MemoryStore, MemorySource> {
        Consumer::new("orders", store, self.broker.source("orders"))
            .unwrap()
            .strategy(Strategy::Eager { lease: LEASE })
            .retry(Retry::exponential().attempts(3).first(Duration::from_millis(5)))
            .until_idle(Duration::from_millis(80))
            .on("Paid", pay)
    }

    async fn state(&self, id: &str) -> Option<InboxState> {
        let rows = self.store.look(&name(), &[message_id(id)]).await.unwrap();
        rows[0].as_ref().map(|row| row.state)
    }

    async fn reasons(&self) -> Vec<String> {
        let letters = self.store.dead(&DeadFilter::default()).await.unwrap();
        letters.into_iter().map(|letter| letter.reason).collect()
    }

    async fn begin(&self, id: &str, lease: Duration) -> Grip {
        let body = format!(r#"{{"account":"{id}"}}"#);
        let key = Key::new(message_id(id), Digest::of(body.as_bytes()));
        self.store.begin_running(&name(), &key, lease, Duration::ZERO).await.unwrap()
    }
}

async fn pay(tx: &mut MemoryTx, paid: Message<Paid>) -> hapax::Result {
    tx.add(&paid.account, 1)?;
    Ok(())
}

fn name() -> ConsumerName {
    ConsumerName::new("orders").unwrap()
}

fn message_id(id: &str) -> MessageId {
    MessageId::new(id).unwrap()
}

/// The service outside: counts what it is asked for, by account.
#[derive(Clone, Default)]
struct Outside(Arc<Mutex<Vec<String>>>);

impl Outside {
    fn call(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_message_is_recorded_then_called_for_then_handled() {
    let (ground, outside) = (Ground::new(), Outside::default());
    for _ in 0..3 {
        ground.publish("a");
    }
    let (store, called) = (ground.store.clone(), outside.clone());
    let step = async move |paid: Message<Paid>| {
        let rows = store.look(&name(), &[paid.id().clone()]).await?;
        called.call(format!("{:?} {}", rows[0].as_ref().map(|row| row.state), paid.is_taken_over()));
        Ok(())
    };
    let summary = ground.consumer().prepare("Paid", step).run().await.unwrap();
    assert_eq!((summary.handled, summary.duplicates), (1, 2));
    assert_eq!(outside.calls(), ["Some(Running) false"]);
    assert_eq!((ground.store.number("a"), ground.state("a").await), (1, Some(InboxState::Done)));
}

#[tokio::test]
async fn case_13_copies_that_come_during_a_long_call_wait_and_are_duplicates() {
    let (ground, outside) = (Ground::new(), Outside::default());
    ground.publish("a");
    let (broker, called) = (ground.broker.clone(), outside.clone());
    let step = async move |paid: Message<Paid>| {
        called.call(paid.id().to_string());
        for _ in 0..5 {
            let copy = Envelope::new(r#"{"account":"a"}"#).with_id("a").with_type("Paid");
            broker.publish("orders", copy); // the broker has waited long enough, and delivers it again
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        Ok(())
    };
    let summary = ground.consumer().prepare("Paid", step).run().await.unwrap();
    assert_eq!((summary.handled, summary.duplicates, summary.dead), (1, 5, 0), "the queue drains");
    assert_eq!((outside.calls().len(), ground.store.number("a")), (1, 1));
}

#[tokio::test]
async fn case_20_what_a_dead_process_began_is_taken_over_when_the_lease_ends() {
    let ground = Ground::new();
    let Grip::Ours { .. } = ground.begin("a", LEASE).await else { panic!("it is new") };
    ground.publish("a");
    let taken_over = Outside::default();
    let seen = taken_over.clone();
    let step = async move |paid: Message<Paid>| {
        seen.call(paid.is_taken_over().to_string());
        Ok(())
    };
    let consumer = ground.consumer().prepare("Paid", step);
    let running = tokio::spawn(consumer.run());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(taken_over.calls(), [""; 0], "as long as the lease lasts it may be alive");
    ground.store.advance(LEASE);
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.dead, ground.store.number("a")), (1, 0, 1));
    assert_eq!(taken_over.calls(), ["true"]);
}

#[tokio::test]
async fn case_21_a_healthy_handler_outlasts_its_lease_and_is_not_taken_over() {
    let (ground, outside) = (Ground::new(), Outside::default());
    let lease = Duration::from_millis(300);
    let runs = [ground.store.clone(), ground.store.reopen()].map(|store| {
        ground.publish("a");
        let called = outside.clone();
        let step = async move |_: Message<Paid>| {
            called.call("called");
            tokio::time::sleep(lease * 3).await;
            Ok(())
        };
        let consumer = ground.consumer_on(store).strategy(Strategy::Eager { lease }).prepare("Paid", step);
        tokio::spawn(consumer.run())
    });
    let mut handled = 0;
    for run in runs {
        handled += run.await.unwrap().unwrap().handled;
    }
    assert_eq!((handled, ground.store.number("a")), (1, 1));
    assert_eq!(outside.calls(), ["called"]);
}

#[tokio::test]
async fn case_22_the_first_owner_finishes_late_and_changes_nothing() {
    let ground = Ground::new();
    ground.publish("a");
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let step = {
        let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
        async move |_: Message<Paid>| {
            begun.notify_one();
            go_on.notified().await;
            Ok(())
        }
    };
    let late = tokio::spawn(ground.consumer().prepare("Paid", step).run());
    begun.notified().await;
    ground.store.advance(LEASE); // it was paused for as long as that

    let winner = Ground { store: ground.store.reopen(), broker: MemoryBroker::new() };
    winner.publish("a");
    let summary = winner.consumer().run().await.unwrap();
    assert_eq!((summary.handled, ground.store.number("a")), (1, 1));
    go_on.notify_one();
    let summary = late.await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.duplicates, summary.dead), (0, 1, 0));
    assert_eq!(ground.store.number("a"), 1, "the winner's result stands");
}

#[tokio::test]
async fn case_22_a_late_failure_is_not_charged_to_the_message() {
    let ground = Ground::new();
    ground.publish("a");
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let step = {
        let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
        async move |_: Message<Paid>| -> hapax::Result {
            begun.notify_one();
            go_on.notified().await;
            Err(Failure::reject("too late"))
        }
    };
    let late = tokio::spawn(ground.consumer().prepare("Paid", step).run());
    begun.notified().await;
    ground.store.advance(LEASE);
    let Grip::Ours { fence, taken_over: true, .. } = ground.begin("a", LEASE).await else {
        panic!("the lease ended")
    };
    go_on.notify_one();
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(ground.state("a").await, Some(InboxState::Running), "the winner is still at it");
    assert!(ground.store.end_running(&name(), &message_id("a"), fence, None).await.unwrap());
    let summary = late.await.unwrap().unwrap();
    assert_eq!((summary.duplicates, summary.dead), (1, 0));
}

#[tokio::test]
async fn case_23_a_lease_of_zero_is_refused_where_it_is_configured() {
    let ground = Ground::new();
    let consumer = ground.consumer().strategy(Strategy::Eager { lease: Duration::ZERO });
    let error = consumer.run().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::ConfigWrongValue), "{error}");
    let consumer = ground.consumer().strategy(Strategy::Eager { lease: Duration::MAX });
    assert_eq!(consumer.run().await.unwrap_err().code(), Code::ConfigWrongValue, "it would never end");
    let calls = Calls::new("orders", ground.store.clone()).unwrap();
    assert_eq!(calls.lease(Duration::ZERO).unwrap_err().code(), Code::ConfigWrongValue);
    let wrapped = Idempotent::wrap(async |(): ()| -> hapax::Result { Ok(()) }).eager(Duration::ZERO);
    assert_eq!(wrapped.with("orders", ground.store).err().unwrap().code(), Code::ConfigWrongValue);
}

#[tokio::test]
async fn a_step_that_fails_is_tried_again_and_then_set_aside() {
    let (ground, outside) = (Ground::new(), Outside::default());
    ground.publish("once");
    ground.publish("always");
    let called = outside.clone();
    let step = async move |paid: Message<Paid>| -> hapax::Result {
        called.call(format!("{} {}", paid.account, paid.attempt()));
        if paid.account == "always" || paid.attempt() == 1 {
            Err("no")?;
        }
        Ok(())
    };
    let summary = ground.consumer().prepare("Paid", step).run().await.unwrap();
    assert_eq!((summary.handled, summary.dead, summary.waiting), (1, 1, 0));
    assert_eq!(ground.reasons().await, ["HX0041"]);
    let mut calls = outside.calls();
    calls.sort();
    assert_eq!(calls, ["always 1", "always 2", "always 3", "once 1", "once 2"]);
    assert_eq!((ground.store.number("once"), ground.store.number("always")), (1, 0));
}

#[tokio::test]
async fn a_handler_that_fails_after_its_call_leaves_nothing_behind() {
    let ground = Ground::new();
    ground.publish("a");
    let failures = Arc::new(AtomicU32::new(0));
    let failing = async move |tx: &mut MemoryTx, paid: Message<Paid>| -> hapax::Result {
        tx.add(&paid.account, 1)?;
        if failures.fetch_add(1, Ordering::SeqCst) == 0 {
            Err("once")?;
        }
        Ok(())
    };
    let consumer = ground.consumer().prepare("Paid", async |_: Message<Paid>| Ok(())).on("Paid", failing);
    let summary = consumer.run().await.unwrap();
    assert_eq!((summary.handled, summary.retried, ground.store.number("a")), (1, 1, 1));
}

#[tokio::test]
async fn as_many_are_called_for_at_once_as_there_are_workers_and_no_connection_is_held() {
    let mut ground = Ground::new();
    ground.store = MemoryStore::with_capacity(4);
    for n in 0..12 {
        ground.publish(&format!("m{n}"));
    }
    let (together, store) = (Arc::new(Barrier::new(4)), ground.store.clone());
    let step = async move |_: Message<Paid>| {
        together.wait().await; // four are here at once, or it never ends
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(store.begin_claim(&ClaimRequest::none(&name())).await?);
            tokio::task::yield_now().await;
            held.clear();
        }
        Ok(())
    };
    let consumer = ground.consumer().concurrency(4).prepare("Paid", step);
    let summary = tokio::time::timeout(SOON, consumer.run()).await.unwrap().unwrap();
    assert_eq!(summary.handled, 12);
}

#[tokio::test]
async fn what_is_cut_off_by_a_shutdown_is_taken_over_at_once() {
    let ground = Ground::new();
    ground.publish("a");
    let begun = Arc::new(Notify::new());
    let (shutdown, seen) = (Arc::clone(&begun), Outside::default());
    let step = async move |_: Message<Paid>| -> hapax::Result {
        begun.notify_one();
        std::future::pending().await
    };
    let consumer = ground.consumer().timeout(None).drain(Duration::from_millis(20)).prepare("Paid", step);
    let summary = consumer.run_until(async move { shutdown.notified().await }).await.unwrap();
    assert_eq!((summary.handled, summary.dead), (0, 0));

    let again = seen.clone();
    let step = async move |paid: Message<Paid>| {
        again.call(paid.is_taken_over().to_string());
        Ok(())
    };
    let summary = ground.consumer().prepare("Paid", step).run().await.unwrap();
    assert_eq!((summary.handled, seen.calls()), (1, vec!["true".to_owned()]), "nobody waits for the lease");
}

#[tokio::test]
async fn an_unknown_type_and_an_undecodable_payload_are_set_aside() {
    let ground = Ground::new();
    ground.broker.publish("orders", Envelope::new("{}").with_id("unknown").with_type("Unknown"));
    ground.broker.publish("orders", Envelope::new("{}").with_id("empty").with_type("Paid"));
    ground.broker.publish("orders", Envelope::new("{}").with_type("Paid"));
    let consumer = ground.consumer().prepare("Paid", async |_: Message<Paid>| Ok(()));
    let summary = consumer.run().await.unwrap();
    assert_eq!(summary.dead, 3);
    let mut reasons = ground.reasons().await;
    reasons.sort();
    assert_eq!(reasons, ["HX0030", "HX0034", "HX0035"]);
}

#[tokio::test]
async fn case_12_what_may_have_been_purged_is_not_called_for() {
    for (policy, calls, dead) in [(AmbiguousPolicy::DeadLetter, 0, 1), (AmbiguousPolicy::Process, 1, 0)] {
        let (ground, outside) = (Ground::new(), Outside::default());
        let sent_at = Timestamp::now().minus(Duration::from_hours(2));
        let old = Key { sent_at: Some(sent_at), ..Key::new(message_id("old"), Digest::of(b"")) };
        ground.store.record(&name(), &old).await.unwrap();
        ground.store.purge(&name(), Duration::ZERO, 10).await.unwrap();

        let body = format!(r#"{{"account":"a","sent_at":"{sent_at}"}}"#);
        ground.broker.publish("orders", Envelope::new(body).with_id("old").with_type("Paid"));
        let called = outside.clone();
        let step = async move |_: Message<Paid>| {
            called.call("called");
            Ok(())
        };
        let format = Format::default().sent_at(SentAtRule::Part("json:/sent_at".parse::<Part>().unwrap()));
        let keep = Keep::default().ambiguous(policy);
        let summary = ground.consumer().format(format).keep(keep).prepare("Paid", step).run().await.unwrap();
        assert_eq!((summary.dead, summary.ambiguous), (dead, 1), "{policy:?}");
        assert_eq!(outside.calls().len(), calls, "{policy:?}");
    }
}

#[tokio::test]
async fn a_store_that_is_away_when_a_message_is_begun_charges_nobody() {
    let ground = Ground::new();
    ground.publish("a");
    for kind in [ErrorKind::Unavailable, ErrorKind::Busy, ErrorKind::Conflict] {
        ground.store.fail_next(Op::Running, kind);
    }
    let summary = ground.consumer().run().await.unwrap();
    assert_eq!((summary.handled, summary.retried, ground.store.number("a")), (1, 0, 1));
}

/// A step that charges the account, once for each message.
fn charging(ground: &Ground, outside: &Outside) -> impl PrepareFn<Paid, String> {
    let calls = Calls::new("orders", ground.store.clone()).unwrap();
    let outside = outside.clone();
    async move |paid: Message<Paid>| {
        let call = async |key: hapax::IdempotencyKey| {
            outside.call(key.to_string());
            Ok(format!("receipt {}", outside.calls().len()))
        };
        calls.of(&paid).run("charge", &paid.account, call).await
    }
}

#[tokio::test]
async fn a_call_is_made_once_though_the_handler_fails_after_it() {
    let (ground, outside) = (Ground::new(), Outside::default());
    ground.publish("a");
    let failing = async |tx: &mut MemoryTx, paid: Message<Paid>| -> hapax::Result {
        if paid.attempt() == 1 {
            Err("after the call")?;
        }
        tx.put("receipt", paid.prepared::<String>().cloned().unwrap_or_default())?;
        Ok(())
    };
    for strategy in [Strategy::Eager { lease: LEASE }, Strategy::Transactional] {
        let consumer = ground.consumer().strategy(strategy).prepare("Paid", charging(&ground, &outside));
        consumer.on("Paid", failing).run().await.unwrap();
        assert_eq!(ground.store.get("receipt").unwrap(), "receipt 1");
    }
    assert_eq!(
        outside.calls(),
        ["e902d787-69d7-8942-8192-c418929f53dc"],
        "the key is what it was in every release"
    );
}

#[tokio::test]
async fn case_35_a_call_whose_process_died_is_made_again_under_the_same_key() {
    let (ground, outside) = (Ground::new(), Outside::default());
    let (id, consumer) = (message_id("a"), name());
    let died = CallRequest {
        consumer: &consumer,
        id: &id,
        label: "charge",
        request: b"\"a\"",
        lease: Duration::ZERO,
        key_valid_for: LEASE,
    };
    ground.store.begin_call(&died).await.unwrap();
    outside.call(died.idempotency_key());
    ground.publish("a");
    let summary = ground.consumer().prepare("Paid", charging(&ground, &outside)).run().await.unwrap();
    assert_eq!(summary.handled, 1);
    let calls = outside.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
}

#[tokio::test]
async fn a_call_that_may_not_be_repeated_or_differs_is_set_aside() {
    let (ground, outside) = (Ground::new(), Outside::default());
    let consumer = name();
    for (id, request, valid) in [("stale", "\"stale\"", Duration::ZERO), ("other", "\"another\"", LEASE)] {
        let call = CallRequest {
            consumer: &consumer,
            id: &message_id(id),
            label: "charge",
            request: request.as_bytes(),
            lease: Duration::ZERO,
            key_valid_for: valid,
        };
        ground.store.begin_call(&call).await.unwrap();
        ground.publish(id);
    }
    let summary = ground.consumer().prepare("Paid", charging(&ground, &outside)).run().await.unwrap();
    assert_eq!(summary.dead, 2);
    let mut reasons = ground.reasons().await;
    reasons.sort();
    assert_eq!(reasons, ["HX0043", "HX0044"]);
    assert_eq!(outside.calls(), [""; 0]);
}

#[tokio::test]
async fn a_call_that_another_process_makes_is_waited_for_and_not_charged() {
    let (ground, outside) = (Ground::new(), Outside::default());
    let (id, consumer) = (message_id("a"), name());
    let theirs = CallRequest {
        consumer: &consumer,
        id: &id,
        label: "charge",
        request: b"\"a\"",
        lease: Duration::from_millis(100),
        key_valid_for: LEASE,
    };
    let hapax::CallState::Ours { fence, .. } = ground.store.begin_call(&theirs).await.unwrap() else {
        panic!()
    };
    ground.publish("a");
    let run = tokio::spawn(ground.consumer().prepare("Paid", charging(&ground, &outside)).run());
    assert!(ground.store.end_call(&theirs, fence, b"\"theirs\"").await.unwrap());
    let summary = run.await.unwrap().unwrap();
    assert_eq!((summary.handled, summary.retried), (1, 0));
    assert_eq!(outside.calls(), [""; 0], "theirs is the answer");
}

#[tokio::test]
async fn a_store_that_is_away_when_a_call_is_recorded_charges_nobody() {
    let (ground, outside) = (Ground::new(), Outside::default());
    ground.publish("a");
    ground.store.fail_next(Op::Call, ErrorKind::Unavailable);
    let summary = ground.consumer().prepare("Paid", charging(&ground, &outside)).run().await.unwrap();
    assert_eq!((summary.handled, summary.retried), (1, 0));
}

#[tokio::test]
async fn a_call_longer_than_its_lease_is_kept() {
    let ground = Ground::new();
    let calls = Calls::new("orders", ground.store.clone()).unwrap().lease(Duration::from_millis(90)).unwrap();
    let of_a = calls.of_id(&message_id("a"));
    let slow = of_a.run("charge", "a", async |_| {
        tokio::time::sleep(Duration::from_millis(400)).await;
        Ok("slow".to_owned())
    });
    let rival = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut deferred = 0;
        loop {
            match of_a.run("charge", "a", async |_| -> hapax::Result<String> { panic!("made twice") }).await {
                Ok(answer) => return (answer, deferred),
                Err(Failure::Defer(wait)) => {
                    deferred += 1;
                    tokio::time::sleep(wait).await;
                }
                Err(failure) => panic!("{failure:?}"),
            }
        }
    };
    let (made, (seen, deferred)) =
        tokio::time::timeout(SOON, async { tokio::join!(slow, rival) }).await.unwrap();
    assert_eq!((made.unwrap(), seen), ("slow".to_owned(), "slow".to_owned()));
    assert!(deferred >= 2);
}

fn wrapped<H: Handle<u32>>(handler: H, store: &MemoryStore) -> Idempotent<H, MemoryStore> {
    Idempotent::wrap(handler).eager(LEASE).with("mail", store.clone()).unwrap()
}

#[tokio::test]
async fn the_eager_decorator_runs_a_handler_once_and_forgets_what_failed() {
    let store = MemoryStore::new();
    let (runs, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let (count, open) = (Arc::clone(&runs), Arc::clone(&gate));
    let handler = move |fails: u32| {
        let (count, open) = (Arc::clone(&count), Arc::clone(&open));
        async move {
            let run = count.fetch_add(1, Ordering::SeqCst);
            open.notified().await;
            if run < fails {
                Err("not yet")?;
            }
            Ok(())
        }
    };
    let send = Arc::new(wrapped(handler, &store));
    let key = Key::new(message_id("m1"), Digest::of(b""));
    for (expected, fails) in [(None, 1), (Some(Outcome::Handled), 1)] {
        let (first, key_of_first) = (Arc::clone(&send), key.clone());
        let first = tokio::spawn(async move { first.handle(&key_of_first, fails).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let meanwhile = send.handle(&key, fails).await.unwrap();
        assert!(matches!(meanwhile, Outcome::InProgress { ends_in } if ends_in <= LEASE), "{meanwhile:?}");
        gate.notify_one();
        assert_eq!(first.await.unwrap().ok(), expected);
    }
    assert_eq!(send.handle(&key, 0).await.unwrap(), Outcome::Duplicate);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn case_20_the_eager_decorator_closes_the_hole_of_the_known_form() {
    let store = MemoryStore::new();
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let handler = move |_: u32| {
        let count = Arc::clone(&count);
        async move {
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                std::future::pending::<()>().await; // the process is cut off here
            }
            Ok(())
        }
    };
    let send = Arc::new(wrapped(handler, &store));
    let key = Key::new(message_id("m1"), Digest::of(b""));
    let (doomed, key_of_doomed) = (Arc::clone(&send), key.clone());
    let doomed = tokio::spawn(async move { doomed.handle(&key_of_doomed, 0).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    doomed.abort();
    assert!(matches!(send.handle(&key, 0).await.unwrap(), Outcome::InProgress { .. }));
    store.advance(LEASE);
    assert_eq!(send.handle(&key, 0).await.unwrap(), Outcome::Handled, "it is not lost");
}

#[tokio::test]
async fn the_eager_decorator_marks_done_in_the_handlers_transaction() {
    let store = MemoryStore::new();
    let handler = async |tx: &mut MemoryTx, fails: bool| -> hapax::Result {
        tx.add("sent", 1)?;
        if fails {
            Err("no")?;
        }
        Ok(())
    };
    let send = Idempotent::wrap(handler).eager(LEASE).with("mail", store.clone()).unwrap();
    let key = Key::new(message_id("m1"), Digest::of(b""));
    assert!(send.handle_in(&key, true).await.is_err());
    assert_eq!(send.handle_in(&key, false).await.unwrap(), Outcome::Handled);
    assert_eq!(send.handle_in(&key, false).await.unwrap(), Outcome::Duplicate);
    assert_eq!(store.number("sent"), 1);
}
