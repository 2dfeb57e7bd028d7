//! Brokers that take a delivery away from whoever is slow. Sources that need no extending pass.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::collections::BTreeSet;

use hapax_core::{Settler as _, Source as _};

use super::SourceFixture;
use super::by_hand::{ByHand, distinct, id, ids, message, numbered, publish_all};
use crate::conformance::SOON;
use crate::servers::eventually;

/// A live handler keeps its delivery however long it takes; another delivery, which nobody extends, tells the
/// time.
pub async fn case_13_an_extended_delivery_is_not_taken_away<F: SourceFixture>(fixture: &F) {
    let mut source = ByHand::<F>::open(fixture).await;
    let Some(period) = source.source.capabilities().extend_every else { return };
    fixture.publish(message("kept")).await;
    fixture.publish(message("left")).await;
    let batch = source.take(2).await;
    let kept = batch.iter().find(|delivery| id(delivery) == "kept").expect("both came");

    let mut taken_away = 0;
    while taken_away < 2 {
        let extended = source.settler.extend(vec![kept.receipt().clone()]).await;
        assert!(extended.len() == 1 && extended[0].is_ok(), "{extended:?}");
        let Ok(again) = tokio::time::timeout(period / 2, source.next(10)).await else { continue };
        assert_eq!(ids(&again), ["left"], "only what was not extended comes again");
        taken_away += 1;
    }
}

/// What was taken away belongs to whoever has it now: neither a late ack nor a late extension touches it.
pub async fn case_13_a_receipt_that_ran_out_does_no_harm<F: SourceFixture>(fixture: &F) {
    let mut source = ByHand::<F>::open(fixture).await;
    if source.source.capabilities().extend_every.is_none() {
        return;
    }
    fixture.publish(message("a")).await;
    let stale = source.take_one().await.receipt().clone();
    let now = source.take_one().await;
    assert_eq!((id(&now), now.redelivered), ("a", source.source.capabilities().knows_redelivered));
    source.settler.extend(vec![stale.clone()]).await;
    source.ack_late(stale).await;
    source.hand_back(vec![now]).await;
    let again = source.take_one().await;
    assert_eq!(id(&again), "a", "a late ack must not ack it");
    source.ack(vec![again]).await;
}

/// A consumer that let a delivery wait for too long can ask, and does not start it.
pub async fn case_14_what_ran_out_is_no_longer_held<F: SourceFixture>(fixture: &F) {
    if !F::KNOWS_WHAT_IT_HOLDS {
        return;
    }
    let mut source = ByHand::<F>::open(fixture).await;
    fixture.publish(message("a")).await;
    let late = source.take_one().await;
    assert!(source.settler.holds(late.receipt()), "it has just come");
    let settler = source.settler.clone();
    eventually("its time has passed", SOON, async || !settler.holds(late.receipt())).await;
    let again = source.take_one().await;
    assert_eq!(id(&again), "a");
    assert!(source.settler.holds(again.receipt()) && !source.settler.holds(late.receipt()));
    source.ack(vec![again]).await;
}

/// A consumer that does not ask for more for a while is not given what was fetched for it before: everything
/// that is handed out can still be acked, and whatever is acked does not come again.
pub async fn case_14_what_lay_in_the_source_for_too_long_is_not_handed_out<F: SourceFixture>(fixture: &F) {
    let mut source = ByHand::<F>::open(fixture).await;
    let Some(period) = source.source.capabilities().extend_every else { return };
    let published = numbered(20);
    publish_all(fixture, &published).await;
    let first = source.take_one().await;
    let mut acked: BTreeSet<String> =
        distinct(std::slice::from_ref(&first)).into_iter().map(str::to_owned).collect();
    source.ack(vec![first]).await;

    tokio::time::sleep(period * 4).await; // longer than a lease, whose end nothing announces
    while acked.len() < published.len() {
        let batch = source.take(1).await;
        for id in ids(&batch) {
            assert!(acked.insert(id.to_owned()), "{id} came again after its ack");
        }
        source.ack(batch).await;
    }
}
