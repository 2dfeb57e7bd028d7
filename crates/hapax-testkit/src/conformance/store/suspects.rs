//! Starts charged to messages that may have ended the process.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use hapax_core::{Claim, Instances as _, Key, Start, Transaction as _};

use super::StoreFixture;
use super::by_hand::{ByHand, NOWHERE, failed, id, in_order, key, key_at, key_of, message};

/// A message that ends the process each time is found out after `limit` starts.
pub async fn case_15_starts_are_counted_up_to_the_limit<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    for recorded in 1..=3 {
        assert_eq!(charge(&orders, key("a"), 3).await, Start::Charged);
        assert_eq!(starts(&elsewhere, "a").await, recorded, "it is recorded before the message runs");
    }
    assert_eq!(charge(&elsewhere, key("a"), 3).await, Start::Spent(3));
    assert_eq!(starts(&orders, "a").await, 3);
    assert_eq!(starts(&orders, "b").await, 0, "the innocent ones have none");
    assert_eq!(charge(&ByHand::named(fixture, "mails"), key("a"), 3).await, Start::Charged);
}

/// Whatever would not run is not charged.
pub async fn a_message_that_would_not_run_is_not_charged<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.deliver(&message("done")).await;
    orders.park(&failed(&message("waiting"))).await;
    orders.bury(&message("dead")).await;
    let elsewhere = Key { place: Some(NOWHERE), ..key("waiting") };
    for key in [key("done"), key("waiting"), elsewhere, key("dead")] {
        let text = key.id.to_string();
        assert_eq!(charge(&orders, key, 3).await, Start::NotNeeded, "{text}");
        assert_eq!(starts(&orders, &text).await, 0, "{text}");
    }
}

/// A suspect may come out of the waiting room.
pub async fn a_waiting_message_is_charged_at_its_place<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("a"))).await;
    let waiting = orders.lease_only("a").await;
    assert_eq!(charge(&orders, key_at(&waiting), 3).await, Start::Charged);
    assert_eq!(starts(&orders, "a").await, 1);
    assert_eq!(orders.deliver_waiting(&waiting).await, Claim::New, "being charged is no obstacle");
}

/// A message that has to queue up behind others of its key does not run, so it is not charged.
pub async fn a_held_message_is_not_charged<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&in_order("1", "ada"))).await;
    assert_eq!(charge(&orders, key_of(&in_order("2", "ada")), 3).await, Start::NotNeeded);
    assert_eq!(starts(&orders, "2").await, 0);
}

/// What ended in order is no suspect any more; what was rolled back still is.
pub async fn starts_are_erased_with_the_commit<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for text in ["a", "b"] {
        charge(&orders, key(text), 3).await;
        charge(&orders, key(text), 3).await;
    }
    let mut tx = orders.take(key("a")).await;
    tx.meta().erased_starts.push(id("a"));
    orders.roll_back(tx).await;
    assert_eq!(starts(&orders, "a").await, 2);

    let mut tx = orders.take(key("a")).await;
    tx.meta().erased_starts.push(id("a"));
    orders.finish(tx).await;
    assert_eq!((starts(&orders, "a").await, starts(&orders, "b").await), (0, 2));
}

/// A message that somebody is handling right now is not charged.
pub async fn a_message_in_a_rivals_hands_is_not_charged<F: StoreFixture>(fixture: &F) {
    if F::ONE_WRITER {
        return; // charging has to wait for the rival's end
    }
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let held = elsewhere.take(key("a")).await;
    assert_eq!(charge(&orders, key("a"), 3).await, Start::NotNeeded);
    elsewhere.roll_back(held).await;
    assert_eq!(charge(&orders, key("a"), 3).await, Start::Charged);
}

async fn charge<F: StoreFixture>(orders: &ByHand<F>, key: Key, limit: u32) -> Start {
    orders.store.charge_start(&orders.consumer, &key, limit).await.expect("charging is answered")
}

async fn starts<F: StoreFixture>(orders: &ByHand<F>, message: &str) -> u32 {
    orders.store.starts(&orders.consumer, &id(message)).await.expect("the starts are read")
}
