//! Who runs, and who ended cleanly.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use hapax_core::{InstanceId, Instances as _, Timestamp};

use super::StoreFixture;
use super::by_hand::{ByHand, LONG};
use crate::conformance::{SHORT_LEASE, SOON};

/// A deploy makes nothing suspect: an instance that took its leave is not seen again.
pub async fn a_clean_end_leaves_nothing_to_suspect<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    enlist(&orders, "old").await;
    assert!(others(&orders, "new").await.contains_key("old"), "who runs is seen");
    orders.store.leave(&orders.consumer, &instance("old")).await.expect("the clean end is recorded");
    assert_eq!(others(&orders, "new").await, BTreeMap::new());
}

/// Whoever was killed stays behind, with its latest sign of life.
pub async fn an_unclean_end_stays_visible<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    enlist(&orders, "killed").await;
    enlist(&elsewhere, "next").await;
    let first = others(&elsewhere, "next").await;
    let second = others(&elsewhere, "next").await;
    assert_eq!(first.keys().collect::<Vec<_>>(), ["killed"], "itself is not among the others");
    assert_eq!(first, second, "it shows no further sign of life");
}

/// A sign of life is one: the others see the latest.
pub async fn a_beat_is_a_newer_sign_of_life<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    enlist(&orders, "one").await;
    enlist(&elsewhere, "other").await;
    let first = others(&elsewhere, "other").await["one"];
    let newer = async {
        loop {
            others(&orders, "one").await;
            if others(&elsewhere, "other").await["one"] > first {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, newer).await.expect("its sign of life is renewed");
}

/// Consumers do not see each other's instances.
pub async fn instances_belong_to_their_consumer<F: StoreFixture>(fixture: &F) {
    let (orders, mails) = (ByHand::new(fixture), ByHand::named(fixture, "mails"));
    enlist(&orders, "one").await;
    enlist(&mails, "one").await;
    assert_eq!(others(&orders, "one").await, BTreeMap::new());
    assert!(others(&orders, "two").await.contains_key("one"));
    assert!(others(&mails, "two").await.contains_key("one"));
}

/// Whoever has shown no sign of life for long enough is forgotten.
pub async fn what_is_silent_for_long_is_forgotten<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    enlist(&orders, "silent").await;
    let forgotten = async {
        while beat(&orders, "new", SHORT_LEASE).await.contains_key("silent") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, forgotten).await.expect("it is forgotten");
    assert_eq!(others(&orders, "new").await, BTreeMap::new());
}

/// An instance whose row was forgotten while it was cut off is back with its next beat.
pub async fn a_beat_brings_a_forgotten_instance_back<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    others(&orders, "never enlisted").await;
    assert!(others(&orders, "new").await.contains_key("never enlisted"));
}

fn instance(text: &str) -> InstanceId {
    InstanceId(text.into())
}

async fn enlist<F: StoreFixture>(orders: &ByHand<F>, text: &str) {
    orders.store.enlist(&orders.consumer, &instance(text)).await.expect("the instance is recorded");
}

async fn others<F: StoreFixture>(orders: &ByHand<F>, text: &str) -> BTreeMap<String, Timestamp> {
    beat(orders, text, LONG).await
}

async fn beat<F: StoreFixture>(
    orders: &ByHand<F>,
    text: &str,
    forget: Duration,
) -> BTreeMap<String, Timestamp> {
    let beats = orders.store.beat(&orders.consumer, &instance(text), forget).await;
    let beats = beats.expect("the sign of life is recorded");
    beats.into_iter().map(|beat| (beat.instance.0, beat.beat_at)).collect()
}
