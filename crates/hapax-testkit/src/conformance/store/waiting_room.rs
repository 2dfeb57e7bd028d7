//! Whole messages that are due later.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::collections::HashSet;
use std::time::Duration;

use hapax_core::{
    Claim, Code, Envelope, Headers, InboxState, Origin, Parking, Properties, RawMessage, Timestamp,
    Transaction as _, WaitingDepth, WaitingRoom as _, WaitingRow,
};
use tokio::task::JoinSet;

use super::StoreFixture;
use super::by_hand::{
    ByHand, LONG, NOWHERE, failed, failed_for, id, ids, key, key_at, key_of, message, other_payload,
};
use crate::conformance::SHORT_LEASE;

const HOUR: Duration = Duration::from_hours(1);
const WAITING: Claim = Claim::Waiting { other_payload: false };

/// A failed message leaves the broker; a copy that arrives meanwhile is acked.
pub async fn a_failed_message_waits_and_its_copies_do_not_count<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("a"))).await;

    assert_eq!(orders.state("a").await, Some(InboxState::Waiting));
    assert_eq!(orders.deliver(&message("a")).await, WAITING);
    assert_eq!(orders.deliver(&message("b")).await, Claim::New);
    assert_eq!(fixture.total("a").await, 0);
    let row = waiting_row(&orders, "a").await;
    assert_eq!((row.failures, row.error.as_str()), (1, "no such order"));
    assert_eq!(row.code.as_deref(), Some(Code::HandlerFailed.as_str()));
}

/// Only whoever was handed the place may take a waiting message, and with the right place only.
pub async fn only_its_place_takes_a_waiting_message<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("a"))).await;
    orders.park(&failed(&message("b"))).await;
    let leased = orders.lease(10, LONG).await;

    let right = key_at(&leased[0]);
    let wrong = hapax_core::Key { place: Some(NOWHERE), ..right.clone() };
    let others = hapax_core::Key { place: Some(leased[1].place), ..right.clone() };
    assert_eq!(orders.answer(key(leased[0].id.as_str())).await, WAITING);
    assert_eq!(orders.answer(wrong).await, WAITING);
    assert_eq!(orders.answer(others).await, WAITING);
    assert_eq!(orders.answer(right).await, Claim::New);
}

/// The message's success and the end of its waiting are one.
pub async fn success_takes_the_waiting_row_along<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("a"))).await;
    let waiting = orders.lease_only("a").await;
    assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);

    assert_eq!(orders.state("a").await, Some(InboxState::Done));
    assert_eq!(orders.store.waiting(&orders.consumer, &id("a")).await.expect("an answer"), None);
    assert_eq!(depth(&orders).await, WaitingDepth::default());
    assert_eq!(orders.deliver(&message("a")).await, Claim::Duplicate { other_payload: false });
    assert_eq!(orders.deliver_waiting(&waiting).await, Claim::Duplicate { other_payload: false });
    assert_eq!(fixture.total("a").await, 1);
}

/// What is rolled back keeps its place, its lease and its failures.
pub async fn a_rolled_back_success_leaves_the_message_waiting<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("a"))).await;
    let before = waiting_row(&orders, "a").await;
    let waiting = orders.lease_only("a").await;
    let mut tx = orders.take(key_at(&waiting)).await;
    ByHand::<F>::add(&mut tx, "a", 1).await;
    tx.meta().settled.push(hapax_core::Settled::Waiting(waiting.place));
    orders.roll_back(tx).await;

    assert_eq!(orders.state("a").await, Some(InboxState::Waiting));
    assert_eq!(waiting_row(&orders, "a").await, before);
    assert_eq!(orders.lease(10, LONG).await, [], "it is still leased");
    assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);
}

/// Neither the row nor the state is there before the commit.
pub async fn a_rolled_back_parking_leaves_the_message_new<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let mut tx = orders.take(key("a")).await;
    orders.store.park(&mut tx, &orders.consumer, &failed(&message("a"))).await.expect("it is parked");
    orders.roll_back(tx).await;

    assert_eq!(orders.answer(key("a")).await, Claim::New);
    assert_eq!(depth(&orders).await, WaitingDepth::default());
}

/// The waits of a retry policy are kept by the database's clock.
pub async fn a_message_is_not_leased_before_its_time<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed_for(&message("late"), 2 * HOUR)).await;
    orders.park(&failed_for(&message("later"), 3 * HOUR)).await;
    assert_eq!(orders.lease(10, LONG).await, []);
    let WaitingDepth { total, due, next } = depth(&orders).await;
    assert_eq!((total, due), (2, 0));
    let next = next.expect("one is to come");
    assert!(next > HOUR && next <= 2 * HOUR, "{next:?}");

    orders.park(&failed_for(&message("soon"), Duration::from_millis(50))).await;
    assert_eq!(ids(&orders.lease_when_due(LONG).await), ["soon"]);
    let WaitingDepth { total, due, next } = depth(&orders).await;
    assert_eq!((total, due), (3, 1), "what is in somebody's hands counts as due");
    assert!(next.is_some_and(|next| next > HOUR));
}

/// The second failure of a message is an update of the first.
pub async fn parking_again_keeps_place_and_first_time<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let message = message("a");
    orders.park(&failed(&message)).await;
    let first = waiting_row(&orders, "a").await;
    let waiting = orders.lease_only("a").await;
    assert_eq!(waiting.place, first.place);
    let second =
        Parking { failures: 2, error: "still none", code: Some(Code::HandlerTimedOut), ..failed(&message) };
    orders.park_again(&waiting, &second).await;

    let row = waiting_row(&orders, "a").await;
    assert_eq!((row.place, row.parked_at), (first.place, first.parked_at));
    assert_eq!((row.failures, row.error.as_str()), (2, "still none"));
    assert_eq!(row.code.as_deref(), Some(Code::HandlerTimedOut.as_str()));
    assert!(row.due_at >= first.due_at);
    let waiting = orders.lease_only("a").await;
    assert_eq!((waiting.place, waiting.failures), (first.place, 2));
    assert!(!waiting.leased_before, "whoever parks it has given it back");
}

/// A deferral is no failure.
pub async fn a_deferred_message_has_no_failure_and_no_code<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let message = message("a");
    orders.park(&Parking { failures: 0, error: "", code: None, ..failed(&message) }).await;
    let row = waiting_row(&orders, "a").await;
    assert_eq!((row.failures, row.error.as_str(), row.code), (0, "", None));
    assert_eq!(orders.lease_only("a").await.failures, 0);
}

/// Several of one batch go to the waiting room in one transaction.
pub async fn a_batch_is_parked_whole<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let batch: Vec<RawMessage> = ["a", "b", "c"].map(message).into();
    let (mut tx, claims) = orders.claim(&batch.iter().map(key_of).collect::<Vec<_>>()).await;
    assert_eq!(claims, [Claim::New; 3]);
    for message in &batch[..2] {
        orders.store.park(&mut tx, &orders.consumer, &failed(message)).await.expect("it is parked");
    }
    orders.finish(tx).await;

    assert_eq!(ids(&orders.lease(10, LONG).await), ["a", "b"]);
    assert_eq!(orders.state("c").await, Some(InboxState::Done));
}

/// A lease keeps others off, and `max` is kept.
pub async fn a_leased_message_is_nobody_elses<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    for text in ["a", "b", "c"] {
        orders.park(&failed(&message(text))).await;
    }
    let mut leased = orders.lease(2, LONG).await;
    assert_eq!(leased.len(), 2);
    leased.extend(elsewhere.lease(2, LONG).await);
    let distinct: HashSet<_> = leased.iter().map(|waiting| waiting.place).collect();
    assert_eq!((leased.len(), distinct.len()), (3, 3));
    assert_eq!(orders.lease(2, LONG).await, []);
    assert_eq!(orders.lease(0, LONG).await, []);
    let mails = ByHand::named(fixture, "mails");
    assert_eq!(mails.lease(10, LONG).await, [], "another consumer's messages are its own");
}

/// Several workers in two processes lease at once: each message goes to one of them.
pub async fn leases_taken_at_once_do_not_overlap<F: StoreFixture>(fixture: &F) {
    const MESSAGES: usize = 40;
    let orders = ByHand::new(fixture);
    for n in 0..MESSAGES {
        orders.park(&failed(&message(&format!("message {n}")))).await;
    }
    let mut tasks = JoinSet::new();
    for worker in 0..4 {
        let orders = if worker % 2 == 0 { ByHand::new(fixture) } else { ByHand::elsewhere(fixture).await };
        tasks.spawn(async move { lease_until_empty(&orders).await });
    }
    let mut leased: Vec<String> = tasks.join_all().await.concat();
    leased.extend(lease_until_empty(&orders).await);
    let distinct: HashSet<&String> = leased.iter().collect();
    assert_eq!((leased.len(), distinct.len()), (MESSAGES, MESSAGES));
}

async fn lease_until_empty<F: StoreFixture>(orders: &ByHand<F>) -> Vec<String> {
    let mut leased = Vec::new();
    loop {
        let some = orders.lease(3, LONG).await;
        if some.is_empty() {
            return leased;
        }
        leased.extend(some.into_iter().map(|waiting| waiting.id.to_string()));
    }
}

/// Whoever had it may have died with it in hand: that shows.
pub async fn a_lease_that_ran_out_shows<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("a"))).await;
    let first = orders.lease(10, SHORT_LEASE).await;
    assert!(!first[0].leased_before);
    let second = orders.lease_when_due(LONG).await;
    assert!(second[0].leased_before);
    assert_eq!((second[0].place, &second[0].id), (first[0].place, &first[0].id));
    assert_eq!(orders.deliver_waiting(&first[0]).await, Claim::New, "late is not wrong: the claim decides");
}

/// A message that is given back is due at once, as if nobody had touched it.
pub async fn a_message_given_back_is_due_and_unmarked<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("a"))).await;
    orders.park(&failed(&message("b"))).await;
    let [first, second] = orders.lease(10, LONG).await.try_into().expect("both are due");
    orders.store.give_back(&orders.consumer, &[first.place]).await.expect("it is taken back");

    assert_eq!(orders.lease(10, LONG).await, [first], "untouched, and only that one");
    orders.store.give_back(&orders.consumer, &[NOWHERE]).await.expect("a place that is gone is no error");
    orders.store.give_back(&orders.consumer, &[]).await.expect("nothing is no error");
    assert_eq!(orders.deliver_waiting(&second).await, Claim::New);
}

/// A live handler keeps its message; the lease of a second message, which nobody renews, tells the time.
pub async fn a_renewed_lease_outlasts_the_first<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("kept"))).await;
    orders.park(&failed(&message("left"))).await;
    let leased = orders.lease(10, SHORT_LEASE).await;
    assert_eq!(ids(&leased), ["kept", "left"]);
    orders.store.renew(&orders.consumer, &[leased[0].place], LONG).await.expect("the lease is renewed");

    assert_eq!(ids(&orders.lease_when_due(LONG).await), ["left"]);
    assert_eq!(orders.deliver_waiting(&leased[0]).await, Claim::New);
    orders
        .store
        .renew(&orders.consumer, &[leased[0].place], LONG)
        .await
        .expect("a place that is gone is no error");
    orders.store.renew(&orders.consumer, &[], LONG).await.expect("nothing is no error");
}

/// Every byte of the body and every character of the label comes out as it went in.
pub async fn a_message_comes_out_byte_for_byte<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let bodies = [Vec::new(), every_byte(), every_byte().repeat(4_096)];
    for (n, body) in bodies.into_iter().enumerate() {
        let id = format!("message {n}");
        let envelope = Envelope { body: body.into(), ..labelled(&id) };
        let odd = RawMessage { payload: envelope.body.clone(), envelope, ..message(&id) };
        orders.park(&failed(&odd)).await;
        let waiting = orders.lease_only(&id).await;
        assert!(waiting.envelope == odd.envelope, "message {n} came out different");
    }
}

/// A body that is not text and does not end at NUL.
pub(super) fn every_byte() -> Vec<u8> {
    (0..=u8::MAX).collect()
}

/// A label with everything in it that an encoding could spoil.
pub(super) fn labelled(id: &str) -> Envelope {
    Envelope {
        body: bytes::Bytes::new(),
        headers: [
            ("Quote\"s", "\\ ' \" {}[]"),
            ("lines", "a\r\nb\tc"),
            ("", ""),
            ("nul", "\0"),
            ("ü", "💶\u{301}"),
        ]
        .into_iter()
        .collect::<Headers>(),
        properties: Properties {
            message_id: Some(id.into()),
            kind: Some("Paid".into()),
            correlation_id: Some(" c ".into()),
            content_type: Some("application/octet-stream".into()),
            key: Some(String::new()),
            timestamp: Some(Timestamp::from_micros(-1)),
            broker_id: Some("cluster/topic/0/9007199254740993".into()),
        },
        origin: Origin { source: "test:queue".into(), position: Some("7".into()) },
    }
}

/// The depth of a room with a leased, a due and a late message, and of another consumer's.
pub async fn depth_counts_what_is_there<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("leased"))).await;
    orders.lease_only("leased").await;
    orders.park(&failed(&message("due"))).await;
    orders.park(&failed_for(&message("late"), HOUR)).await;

    let WaitingDepth { total, due, next } = depth(&orders).await;
    assert_eq!((total, due), (3, 2));
    assert!(next.is_some_and(|next| next <= HOUR));
    assert_eq!(depth(&ByHand::named(fixture, "mails")).await, WaitingDepth::default());
}

/// A copy with another payload does not replace the one that is kept.
pub async fn case_47_a_copy_does_not_change_the_waiting_message<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("a"))).await;
    assert_eq!(orders.answer(other_payload("a")).await, Claim::Waiting { other_payload: true });
    assert_eq!(orders.lease_only("a").await.envelope, message("a").envelope);
}

async fn depth<F: StoreFixture>(orders: &ByHand<F>) -> WaitingDepth {
    orders.store.depth(&orders.consumer).await.expect("the waiting room answers")
}

async fn waiting_row<F: StoreFixture>(orders: &ByHand<F>, message: &str) -> WaitingRow {
    let row = orders.store.waiting(&orders.consumer, &id(message)).await.expect("the waiting room answers");
    row.expect("the message is waiting")
}
