//! Losing the broker is no error. Sources whose fixture cannot cut connections pass.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::collections::BTreeSet;

use hapax_core::Source as _;

use super::SourceFixture;
use super::by_hand::{ByHand, distinct, id, ids, message, numbered, publish_all};
use crate::conformance::SOON;
use crate::servers::eventually;

/// The source connects again by itself, and what was in flight comes again.
pub async fn case_17_a_source_goes_on_after_its_connection_was_cut<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(5)).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let before = source.take(3).await;
    if !fixture.drop_connections().await {
        return;
    }
    fixture.publish(message("after")).await;

    let mut came = BTreeSet::new();
    if F::receipts_outlive_connections() {
        came.extend(distinct(&before).into_iter().map(str::to_owned));
    }
    while came.len() < 6 {
        let batch = tokio::time::timeout(SOON, source.next(10)).await;
        let batch = batch.unwrap_or_else(|_| panic!("only these came: {came:?}"));
        came.extend(distinct(&batch).into_iter().map(str::to_owned));
        source.ack(batch).await;
    }
    let reconnected = async || source.source.is_connected();
    eventually("it says that it is connected", SOON, reconnected).await;
    assert!(distinct(&before).iter().all(|id| came.contains(*id)), "what was in flight came again");
    if F::receipts_outlive_connections() {
        source.ack(before).await;
        drop(source);
        let mut source = ByHand::<F>::open(fixture).await;
        fixture.publish(message("last")).await;
        assert_eq!(ids(&source.take_until("last").await), ["last"], "acks through the new connection hold");
    }
}

/// An ack that belongs to a connection that is gone must not reach the new one.
pub async fn case_17_a_late_ack_does_not_reach_the_new_connection<F: SourceFixture>(fixture: &F) {
    fixture.publish(message("a")).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let stale = source.take_one().await.receipt().clone();
    if F::receipts_outlive_connections() || !fixture.drop_connections().await {
        return;
    }
    let now = source.take_one().await;
    assert_eq!(id(&now), "a");
    assert_eq!(now.redelivered, source.source.capabilities().knows_redelivered);
    source.ack_late(stale).await;
    source.hand_back(vec![now]).await;
    let again = source.take_one().await;
    assert_eq!(id(&again), "a", "a late ack must not ack it");
    source.ack(vec![again]).await;
    fixture.publish(message("last")).await;
    assert_eq!(ids(&source.take_until("last").await), ["last"]);
}

/// A worker that still settles when the connection goes is told, and does not hang.
pub async fn settling_while_the_connection_goes_ends<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(20)).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let receipts: Vec<_> = source.take(20).await.iter().map(|delivery| delivery.receipt().clone()).collect();
    if !fixture.drop_connections().await {
        return;
    }
    for receipt in receipts {
        tokio::time::timeout(SOON, source.ack_late(receipt)).await.expect("settling ends");
    }
    fixture.publish(message("last")).await;
    source.take_until("last").await;
}
