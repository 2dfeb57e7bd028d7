//! Messages set aside, and their way back.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::time::Duration;

use hapax_core::{
    Burial, Claim, Code, DeadFilter, DeadLetters as _, DeadNumber, Envelope, Error, ErrorKind, InboxState,
    Instances as _, Parking, Redrive, Start, WaitingDepth, WaitingRoom as _,
};

use super::StoreFixture;
use super::by_hand::{
    ByHand, LONG, everything, failed, id, in_order, key, key_at, message, nameless, rejected,
};
use super::waiting_room::{every_byte, labelled};

const DEAD: Claim = Claim::Dead { other_payload: false };
const DUPLICATE: Claim = Claim::Duplicate { other_payload: false };

/// Everything that an operator needs is in it, and the message byte for byte.
pub async fn a_dead_letter_is_kept_whole<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let envelope = Envelope { body: every_byte().into(), ..labelled("a") };
    let message = hapax_core::RawMessage { envelope: envelope.clone(), ..in_order("a", "ada") };
    let burial = Burial {
        reason: Code::AttemptsSpent,
        error: "no such \"order\"\n",
        failures: 5,
        crashes: 2,
        ..rejected(&message)
    };
    let mut tx = orders.take(key("a")).await;
    let number = orders.store.bury(&mut tx, &orders.consumer, &burial).await.expect("it is set aside");
    orders.finish(tx).await;

    let letters = orders.dead().await;
    let [letter] = letters.as_slice() else { panic!("one dead letter, not {}", letters.len()) };
    assert_eq!((letter.number, &letter.consumer), (number, &orders.consumer));
    assert_eq!(letter.id, Some(id("a")));
    assert_eq!((letter.kind.as_str(), letter.order.as_deref()), ("Paid", Some("ada")));
    assert_eq!((letter.reason.as_str(), letter.error.as_str()), ("HX0041", "no such \"order\"\n"));
    assert_eq!((letter.failures, letter.crashes), (5, 2));
    assert!(letter.first_failed_at <= letter.died_at);
    assert!(letter.envelope == envelope, "the message came out different");
}

/// Set aside means out of the way: a copy is acked, the waiting row is gone.
pub async fn copies_of_a_dead_message_do_not_run<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.bury(&message("first delivery")).await;
    orders.park(&failed(&message("after a wait"))).await;
    let waiting = orders.lease_only("after a wait").await;
    orders.bury_waiting(&waiting, &message("after a wait")).await;

    for dead in ["first delivery", "after a wait"] {
        assert_eq!(orders.state(dead).await, Some(InboxState::Dead));
        assert_eq!(orders.deliver(&message(dead)).await, DEAD);
        assert_eq!(fixture.total(dead).await, 0);
    }
    assert_eq!(orders.answer(key_at(&waiting)).await, DEAD, "not even at the place it had");
    let depth = orders.store.depth(&orders.consumer).await.expect("the waiting room answers");
    assert_eq!(depth, WaitingDepth::default());
}

/// The first failure is the one that put it into the waiting room, not the last.
pub async fn a_dead_letter_remembers_its_first_failure<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let message = message("a");
    orders.park(&failed(&message)).await;
    let waiting = orders.lease_only("a").await;
    orders.park_again(&waiting, &Parking { failures: 2, ..failed(&message) }).await;
    let row = orders.store.waiting(&orders.consumer, &message.id).await.expect("an answer");
    let second_failed_at = row.expect("it waits").due_at;
    let waiting = orders.lease_only("a").await;
    orders.bury_waiting(&waiting, &message).await;
    let letters = orders.dead().await;
    assert!(letters[0].first_failed_at < second_failed_at);
    assert!(letters[0].died_at > second_failed_at);
}

/// A burial that is rolled back has not happened.
pub async fn a_rolled_back_burial_leaves_nothing<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let mut tx = orders.take(key("a")).await;
    orders.store.bury(&mut tx, &orders.consumer, &rejected(&message("a"))).await.expect("it is set aside");
    orders.roll_back(tx).await;
    assert_eq!(orders.answer(key("a")).await, Claim::New);
    assert_eq!(orders.dead().await, []);
}

/// Two messages without a usable id are never one.
pub async fn case_38_messages_without_an_id_are_set_aside_each<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let envelope = Envelope::new("the same payload");
    let mut tx = orders.begin().await;
    let first =
        orders.store.bury(&mut tx, &orders.consumer, &nameless(&envelope)).await.expect("it is set aside");
    let second =
        orders.store.bury(&mut tx, &orders.consumer, &nameless(&envelope)).await.expect("it is set aside");
    orders.finish(tx).await;
    let third = orders.bury_nameless(&envelope).await;

    let letters = orders.dead().await;
    let numbers: Vec<DeadNumber> = letters.iter().map(|letter| letter.number).collect();
    assert_eq!(numbers, [first, second, third]);
    assert!(letters.iter().all(|letter| letter.id.is_none() && letter.reason == "HX0030"));
}

/// A copy with another payload can be set aside beside the record of the first, which stays as it is.
pub async fn case_47_a_copy_that_differs_is_set_aside_beside_the_record<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.deliver(&message("a")).await;
    let envelope = Envelope::new("another payload").with_id("a");
    let burial = Burial { reason: Code::PayloadDiffers, id: Some(&id("a")), ..nameless(&envelope) };
    let mut tx = orders.begin().await;
    orders.store.bury(&mut tx, &orders.consumer, &burial).await.expect("it is set aside");
    orders.finish(tx).await;
    assert_eq!(orders.dead().await.len(), 1);
    assert_eq!(orders.deliver(&message("a")).await, DUPLICATE);
}

/// A message that failed is dead-lettered, lies there, and is redriven: its id stood only as `dead`.
pub async fn case_08_a_redriven_message_takes_effect_once<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let number = orders.bury(&message("a")).await;
    orders.redrive(number).await.expect("it is redriven");

    assert_eq!(orders.state("a").await, Some(InboxState::Waiting));
    assert_eq!(orders.dead().await, []);
    let waiting_copy = Claim::Waiting { other_payload: false };
    assert_eq!(orders.deliver(&message("a")).await, waiting_copy, "only the redriven one may take the row");
    let waiting = orders.lease_only("a").await;
    assert!(waiting.envelope == message("a").envelope, "it is the message as it came");
    assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);
    assert_eq!(orders.deliver(&message("a")).await, DUPLICATE);
    assert_eq!(fixture.total("a").await, 1);
}

/// A redriven message has all its attempts before it.
pub async fn a_redriven_message_starts_afresh<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let charged = orders.store.charge_start(&orders.consumer, &key("a"), 1).await.expect("an answer");
    assert_eq!(charged, Start::Charged);
    let mut tx = orders.take(key("a")).await;
    let message = message("a");
    let burial = Burial { failures: 5, crashes: 1, ..rejected(&message) };
    let number = orders.store.bury(&mut tx, &orders.consumer, &burial).await.expect("it is set aside");
    orders.finish(tx).await;

    orders.redrive(number).await.expect("it is redriven");
    let waiting = orders.lease_only("a").await;
    assert_eq!((waiting.failures, waiting.leased_before), (0, false));
    let starts = orders.store.starts(&orders.consumer, &id("a")).await.expect("an answer");
    assert_eq!(starts, 0);
}

/// A message that was already processed is resubmitted by hand.
pub async fn case_09_a_processed_message_resubmitted_has_no_effect<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.deliver(&message("a")).await;
    let number = orders.bury_nameless(&message("a").envelope).await;
    let by_hand = Redrive { number, id: Some(&id("a")), by: "ada" };
    orders.store.redrive(&by_hand).await.expect("it is redriven under the id of a message that is done");

    assert_eq!(orders.state("a").await, Some(InboxState::Done), "what is done stays done");
    let waiting = orders.lease_only("a").await;
    assert_eq!(orders.deliver_waiting(&waiting).await, DUPLICATE);
    assert_eq!(fixture.total("a").await, 1);
    assert_eq!(orders.lease(10, LONG).await, []);
}

/// Two operators redrive one dead letter at the same time.
pub async fn case_10_of_two_redrives_at_once_one_counts<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    for n in 0..10 {
        let text = format!("message {n}");
        let number = orders.bury(&message(&text)).await;
        let (one, other) = tokio::join!(orders.redrive(number), elsewhere.redrive(number));
        assert_ne!(one.is_ok(), other.is_ok(), "one of them wins: {one:?}, {other:?}");
        assert_lost(one.and(other));

        let waiting = orders.lease_only(&text).await;
        assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);
        assert_lost(orders.redrive(number).await);
        assert_eq!(fixture.total(&text).await, 1);
    }
}

fn assert_lost(slower: Result<(), Error>) {
    let error = slower.expect_err("it was redriven before");
    assert_eq!((error.kind(), error.code()), (ErrorKind::NotFound, Code::RedriveLost), "{error}");
}

/// A message that is redriven may fail again, and be redriven again under a new number.
pub async fn a_redriven_message_may_die_again<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let first = orders.bury(&message("a")).await;
    orders.redrive(first).await.expect("it is redriven");
    let waiting = orders.lease_only("a").await;
    let second = orders.bury_waiting(&waiting, &message("a")).await;
    assert!(second > first, "a number is given once");
    assert_lost(orders.redrive(first).await);
    orders.redrive(second).await.expect("it is redriven again");
    let waiting = orders.lease_only("a").await;
    assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);
    assert_eq!(fixture.total("a").await, 1);
}

/// A message without an id has to be given one.
pub async fn a_message_without_an_id_is_redriven_under_a_given_one<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let number = orders.bury_nameless(&Envelope::new("nameless")).await;
    let error = orders.redrive(number).await.expect_err("it has no id");
    assert_eq!(error.code(), Code::RedriveNeedsId, "{error}");
    assert_eq!(orders.dead().await.len(), 1, "nothing has happened");

    orders
        .store
        .redrive(&Redrive { number, id: Some(&id("given")), by: "ada" })
        .await
        .expect("it is redriven");
    let waiting = orders.lease_only("given").await;
    assert_eq!(waiting.envelope, Envelope::new("nameless"));
    assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);
    assert_eq!(orders.deliver(&message("given")).await, Claim::Duplicate { other_payload: true });
}

/// A message that has an id keeps it, whatever the operator says.
pub async fn a_message_with_an_id_keeps_it<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let number = orders.bury(&message("a")).await;
    orders.store.redrive(&Redrive { number, id: Some(&id("b")), by: "ada" }).await.expect("it is redriven");
    orders.lease_only("a").await;
    assert_eq!(orders.state("b").await, None);
}

/// A discarded message is gone for good: its copies are still acked.
pub async fn a_discarded_message_stays_dead<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let number = orders.bury(&message("a")).await;
    orders.store.discard(number).await.expect("it is discarded");

    assert_eq!(orders.dead().await, []);
    assert_eq!(orders.deliver(&message("a")).await, DEAD);
    assert_lost(orders.redrive(number).await);
    let error = orders.store.discard(number).await.expect_err("it is gone");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

/// What was never there is not found.
pub async fn an_unknown_number_is_not_found<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for error in [orders.redrive(DeadNumber(4711)).await, orders.store.discard(DeadNumber(4711)).await] {
        let error = error.expect_err("there is no such dead letter");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}

/// Lists and counts by consumer, reason and id, page by page.
pub async fn dead_letters_are_found_by_what_is_asked<F: StoreFixture>(fixture: &F) {
    let (orders, mails) = (ByHand::new(fixture), ByHand::named(fixture, "mails"));
    for text in ["a", "b", "c"] {
        orders.bury(&message(text)).await;
    }
    orders.bury_nameless(&Envelope::new("nameless")).await;
    mails.bury(&message("a")).await;

    let ours = || DeadFilter { consumer: Some(orders.consumer.clone()), ..everything() };
    let rejected = || DeadFilter { reason: Some(Code::Rejected), ..everything() };
    let named = || DeadFilter { id: Some(id("a")), ..everything() };
    let both = DeadFilter { consumer: Some(mails.consumer.clone()), ..named() };
    let none = DeadFilter { reason: Some(Code::AttemptsSpent), ..everything() };
    for (filter, expected) in
        [(everything(), 5), (ours(), 4), (rejected(), 4), (named(), 2), (both, 1), (none, 0)]
    {
        let listed = orders.store.dead(&filter).await.expect("dead letters are listed");
        let counted = orders.store.count_dead(&filter).await.expect("dead letters are counted");
        assert_eq!((listed.len(), counted), (expected, expected as u64), "{filter:?}");
    }
    assert_eq!(page_by_page(&orders, 2).await, page_by_page(&orders, 100).await);
}

async fn page_by_page<F: StoreFixture>(orders: &ByHand<F>, limit: u32) -> Vec<DeadNumber> {
    let mut filter = DeadFilter { limit, ..everything() };
    let mut numbers = Vec::new();
    loop {
        let page = orders.store.dead(&filter).await.expect("dead letters are listed");
        assert!(page.len() <= limit as usize);
        let Some(last) = page.last() else { break };
        filter.after = Some(last.number);
        numbers.extend(page.into_iter().map(|letter| letter.number));
    }
    assert!(numbers.is_sorted(), "in the order of their numbers");
    assert_eq!(numbers.len(), 5);
    numbers
}

/// The redriven message is due at once, by the database's clock.
pub async fn a_redriven_message_is_due_now<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let number = orders.bury(&message("a")).await;
    orders.redrive(number).await.expect("it is redriven");
    let depth = orders.store.depth(&orders.consumer).await.expect("the waiting room answers");
    assert_eq!((depth.total, depth.due, depth.next), (1, 1, None::<Duration>));
}
