//! The order of the messages of a key.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::time::Duration;

use hapax_core::{Claim, DeadLetters as _, RawMessage, Waiting};

use super::StoreFixture;
use super::by_hand::{ByHand, LONG, failed, failed_for, ids, in_order, key_at, key_of, message, queued};

const HOUR: Duration = Duration::from_hours(1);

/// Whoever comes after a waiting message of its key queues up; nobody else does.
pub async fn a_message_behind_a_waiting_one_is_held<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&in_order("1", "ada"))).await;

    let batch = [in_order("2", "ada"), in_order("3", "bob"), in_order("4", "ADA"), message("5")];
    let answers = orders.answers(&batch.each_ref().map(key_of)).await;
    assert_eq!(answers, [Claim::Held, Claim::New, Claim::New, Claim::New]);
    let mails = ByHand::named(fixture, "mails");
    assert_eq!(
        mails.answer(key_of(&in_order("2", "ada"))).await,
        Claim::New,
        "another consumer's order is its own"
    );
    assert_eq!(orders.answer(key_of(&message("2"))).await, Claim::New, "who keeps no order is not held");
}

/// The same behind a dead one.
pub async fn a_message_behind_a_dead_one_is_held<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.bury(&in_order("1", "ada")).await;
    let batch = [in_order("2", "ada"), in_order("3", "bob")];
    assert_eq!(orders.answers(&batch.each_ref().map(key_of)).await, [Claim::Held, Claim::New]);
}

/// Copies of the one in front are copies, not successors.
pub async fn a_copy_is_not_held_behind_itself<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.deliver(&in_order("0", "ada")).await;
    orders.park(&failed(&in_order("1", "ada"))).await;
    let batch = [in_order("0", "ada"), in_order("1", "ada")];
    let expected = [Claim::Duplicate { other_payload: false }, Claim::Waiting { other_payload: false }];
    assert_eq!(orders.answers(&batch.each_ref().map(key_of)).await, expected);
}

/// The head of a key may be late: then all of its key wait, however long they have been due.
pub async fn only_the_head_of_a_key_is_leased<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let (first, second, third) = (in_order("1", "ada"), in_order("2", "ada"), in_order("3", "ada"));
    orders.park(&failed(&first)).await;
    orders.park(&queued(&second)).await;
    orders.park(&queued(&third)).await;
    orders.park(&failed(&in_order("4", "bob"))).await;
    orders.park(&failed(&message("5"))).await;

    let leased = orders.lease(10, LONG).await;
    assert_eq!(ids(&leased), ["1", "4", "5"]);
    assert_eq!(leased[0].order.as_deref(), Some("ada"));
    orders.park_again(&leased[0], &failed_for(&first, HOUR)).await;
    assert_eq!(orders.lease(10, LONG).await, [], "the head is late, and so are those behind it");
    let depth = hapax_core::WaitingRoom::depth(&orders.store, &orders.consumer).await.expect("an answer");
    assert_eq!((depth.total, depth.due), (5, 2));
}

/// As soon as the head is through, the next is due.
pub async fn the_next_of_a_key_follows_the_head<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&in_order("1", "ada"))).await;
    orders.park(&queued(&in_order("2", "ada"))).await;
    orders.park(&queued(&in_order("3", "ada"))).await;
    for expected in ["1", "2", "3"] {
        let waiting = orders.lease_only(expected).await;
        assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);
    }
    assert_eq!(orders.deliver(&in_order("4", "ada")).await, Claim::New, "nobody waits any more");
}

/// A message that lost its lease does not overtake those that stand before it.
pub async fn a_waiting_message_with_one_before_it_is_held<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&in_order("1", "ada"))).await;
    orders.park(&queued(&in_order("2", "ada"))).await;
    let second = waiting_of(&orders, &in_order("2", "ada")).await;
    assert_eq!(orders.answer(key_at(&second)).await, Claim::Held);
}

/// A dead letter holds its key until somebody decides; messages of other keys flow.
pub async fn a_dead_letter_holds_its_key_until_it_is_discarded<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let number = orders.bury(&in_order("1", "ada")).await;
    orders.park(&queued(&in_order("2", "ada"))).await;
    orders.park(&queued(&in_order("3", "bob"))).await;
    assert_eq!(ids(&orders.lease(10, LONG).await), ["3"]);

    orders.store.discard(number).await.expect("it is discarded");
    let waiting = orders.lease_only("2").await;
    assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);
}

/// A dead letter stands where it stood: those before it are not held by it.
pub async fn a_dead_letter_does_not_hold_those_before_it<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let (first, second) = (in_order("1", "ada"), in_order("2", "ada"));
    orders.park(&failed(&first)).await;
    orders.park(&queued(&second)).await;
    let waiting = waiting_of(&orders, &second).await;
    let buried = orders.bury_waiting(&waiting, &second).await;
    let head = orders.lease_only("1").await;
    assert_eq!(orders.deliver_waiting(&head).await, Claim::New);
    orders.redrive(buried).await.expect("it is redriven");
    assert_eq!(orders.lease_only("2").await.place, waiting.place);
}

/// Redriven, it comes before those that queued up behind it.
pub async fn a_redriven_message_keeps_its_place<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let first = in_order("1", "ada");
    orders.park(&failed(&first)).await;
    let waiting = orders.lease_only("1").await;
    let number = orders.bury_waiting(&waiting, &first).await;
    orders.park(&queued(&in_order("2", "ada"))).await;
    orders.redrive(number).await.expect("it is redriven");
    assert_eq!(orders.answer(key_of(&in_order("3", "ada"))).await, Claim::Held);

    for expected in ["1", "2"] {
        let waiting = orders.lease_only(expected).await;
        assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);
    }
}

/// The same if it was set aside at its first delivery.
pub async fn a_redriven_message_that_never_waited_comes_first_too<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let number = orders.bury(&in_order("1", "ada")).await;
    orders.park(&queued(&in_order("2", "ada"))).await;
    orders.redrive(number).await.expect("it is redriven");
    for expected in ["1", "2"] {
        let waiting = orders.lease_only(expected).await;
        assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New);
    }
}

/// Message 1 of a key fails twice; messages 2 and 3 of it and others arrive meanwhile.
pub async fn case_49_the_messages_of_a_key_take_effect_in_order<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let (first, second, third) = (in_order("1", "ada"), in_order("2", "ada"), in_order("3", "ada"));
    let mut effects = Vec::new();

    orders.park(&failed(&first)).await;
    for message in [&second, &in_order("x", "bob"), &third, &message("y")] {
        match orders.deliver(message).await {
            Claim::New => effects.push(message.id.to_string()),
            claim => {
                assert_eq!(claim, Claim::Held);
                orders.park(&queued(message)).await;
            }
        }
    }
    let again = orders.lease_only("1").await;
    orders.park_again(&again, &hapax_core::Parking { failures: 2, ..failed(&first) }).await;
    loop {
        let leased = orders.lease(10, LONG).await;
        let [head] = leased.as_slice() else { break };
        assert_eq!(orders.deliver_waiting(head).await, Claim::New);
        effects.push(head.id.to_string());
    }
    assert_eq!(effects, ["x", "y", "1", "2", "3"]);
    assert_eq!(orders.deliver(&in_order("4", "ada")).await, Claim::New);
}

/// A waiting message as a lease that was lost had it.
async fn waiting_of<F: StoreFixture>(orders: &ByHand<F>, message: &RawMessage) -> Waiting {
    let row = hapax_core::WaitingRoom::waiting(&orders.store, &orders.consumer, &message.id).await;
    let row = row.expect("the waiting room answers").expect("the message is waiting");
    Waiting {
        place: row.place,
        id: message.id.clone(),
        envelope: message.envelope.clone(),
        order: message.key.clone(),
        failures: row.failures,
        leased_before: false,
    }
}
