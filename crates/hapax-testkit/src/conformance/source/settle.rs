//! How messages leave, or stay.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::collections::BTreeSet;

use hapax_core::{Delivery, Settler as _, Source as _};

use super::SourceFixture;
use super::by_hand::{ByHand, distinct, id, ids, message, numbered, publish_all};

/// What is acked is forgotten, by the broker and not only by the connection. A message that was not acked
/// tells when the broker has taken everything back.
pub async fn an_acked_message_never_comes_again<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(6)).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let mut batch = source.take(6).await;
    // Where only a prefix is forgotten, what was acked behind it comes again, too: then keep the last.
    let place = if source.source.capabilities().acks_prefixes { 5 } else { 2 };
    let kept = batch.remove(place);
    let kept_id = id(&kept).to_owned();
    source.ack(batch).await;
    drop(source);

    let mut source = ByHand::<F>::open(fixture).await;
    let again = source.take_one().await;
    assert_eq!(id(&again), kept_id);
    source.ack(vec![again]).await;
    fixture.publish(message("last")).await;
    assert_eq!(ids(&source.take_until("last").await), ["last"]);
}

/// What was not settled when its source went comes again, and says so where the broker can tell.
pub async fn an_unsettled_message_comes_again<F: SourceFixture>(fixture: &F) {
    fixture.publish(message("a")).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let first = source.take_one().await;
    assert_eq!(id(&first), "a");
    drop(source);

    let mut source = ByHand::<F>::open(fixture).await;
    let again = source.take_one().await;
    assert_eq!((id(&again), &again.envelope.body), ("a", &first.envelope.body));
    assert_eq!(again.redelivered, source.source.capabilities().knows_redelivered);
    source.ack(vec![again]).await;
}

/// What is handed back comes again, to the same source.
pub async fn a_message_handed_back_comes_again<F: SourceFixture>(fixture: &F) {
    fixture.publish(message("a")).await;
    let mut source = ByHand::<F>::open(fixture).await;
    for _ in 0..3 {
        let delivery = source.take_one().await;
        assert_eq!(id(&delivery), "a");
        source.hand_back(vec![delivery]).await;
    }
    let delivery = source.take_one().await;
    source.ack(vec![delivery]).await;
    fixture.publish(message("last")).await;
    assert_eq!(ids(&source.take_until("last").await), ["last"]);
}

/// A batch may be settled in any mixture: each entry is for itself.
pub async fn a_batch_is_settled_entry_by_entry<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(9)).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let batch = source.take(9).await;
    let mut handed_back = BTreeSet::new();
    let mut settlements = Vec::new();
    for (n, delivery) in batch.into_iter().enumerate() {
        if n % 3 == 1 {
            handed_back.insert(id(&delivery).to_owned());
            settlements.push(delivery.hand_back());
        } else {
            settlements.push(delivery.ack());
        }
    }
    source.settle(settlements).await;

    let again = source.take(3).await;
    assert_eq!(owned(distinct(&again)), handed_back);
    source.ack(again).await;
    fixture.publish(message("last")).await;
    assert_eq!(ids(&source.take_until("last").await), ["last"]);
}

/// An ack says nothing about the messages that came before it.
pub async fn acking_the_last_does_not_ack_the_first<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(4)).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let mut batch = source.take(4).await;
    let last = batch.remove(3);
    let last_id = id(&last).to_owned();
    source.ack(vec![last]).await;
    let expected = owned(distinct(&batch));
    drop((source, batch));

    let mut source = ByHand::<F>::open(fixture).await;
    let again = source.take(3).await;
    assert_eq!(owned(distinct(&again)), expected);
    source.ack(again).await;
    if source.source.capabilities().acks_prefixes {
        // The last one's ack was for this process only.
        assert_eq!(id(&source.take_one().await), last_id);
    }
}

/// Handlers end in any order, and so do the acks of their messages.
pub async fn acks_may_come_in_any_order<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(10)).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let mut batch = source.take(10).await;
    let place = if source.source.capabilities().acks_prefixes { 9 } else { 7 };
    let kept = batch.remove(place);
    let kept_id = id(&kept).to_owned();
    for n in [4, 0, 7, 3, 1, 2, 2, 0, 0] {
        let delivery = batch.remove(n.min(batch.len() - 1));
        source.ack(vec![delivery]).await;
    }
    assert!(batch.is_empty());
    drop((source, kept));

    let mut source = ByHand::<F>::open(fixture).await;
    let again = source.take_one().await;
    assert_eq!(id(&again), kept_id);
    source.ack(vec![again]).await;
    fixture.publish(message("last")).await;
    assert_eq!(ids(&source.take_until("last").await), ["last"]);
}

/// Many workers settle at once through clones of the settler.
pub async fn many_workers_settle_at_once<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(40)).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let batch = source.take(40).await;
    let mut tasks = tokio::task::JoinSet::new();
    for delivery in batch {
        let settler = source.settler.clone();
        tasks.spawn(async move { settler.settle(vec![delivery.ack()]).await });
    }
    for results in tasks.join_all().await {
        assert!(results.len() == 1 && results[0].is_ok(), "{results:?}");
    }
    drop(source);
    let mut source = ByHand::<F>::open(fixture).await;
    fixture.publish(message("last")).await;
    assert_eq!(ids(&source.take_until("last").await), ["last"]);
}

/// Settling and extending nothing is no error.
pub async fn nothing_can_be_settled<F: SourceFixture>(fixture: &F) {
    let source = ByHand::<F>::open(fixture).await;
    assert!(source.settler.settle(Vec::new()).await.is_empty());
    assert!(source.settler.extend(Vec::new()).await.is_empty());
}

/// A source that says goodbye leaves what it had fetched, but not handed out, to the others at once.
pub async fn close_returns_what_was_not_handed_out<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(10)).await;
    let mut leaving = ByHand::<F>::open(fixture).await;
    let first = leaving.take_one().await;
    let first_id = id(&first).to_owned();
    leaving.ack(vec![first]).await;
    leaving.source.close().await;

    let mut staying = ByHand::<F>::open(fixture).await;
    let rest = staying.take(9).await;
    assert!(!distinct(&rest).contains(first_id.as_str()));
    assert_eq!(distinct(&rest).len(), 9);
    staying.ack(rest).await;
}

/// A delivery that its source is too late to settle belongs to whoever has it now.
pub async fn a_receipt_of_a_source_that_went_does_no_harm<F: SourceFixture>(fixture: &F) {
    fixture.publish(message("a")).await;
    let mut gone = ByHand::<F>::open(fixture).await;
    let stale = gone.take_one().await.receipt().clone();
    let ByHand { source, settler } = gone;
    drop(source);

    let mut source = ByHand::<F>::open(fixture).await;
    let now: Delivery<_> = source.take_one().await;
    assert_eq!(id(&now), "a");
    let late = hapax_core::Settlement { receipt: stale, verdict: hapax_core::Settle::Ack };
    assert_eq!(settler.settle(vec![late]).await.len(), 1, "a result per entry");
    source.hand_back(vec![now]).await;
    let again = source.take_one().await;
    assert_eq!(id(&again), "a", "a late ack must not ack it");
    source.ack(vec![again]).await;
}

fn owned(ids: BTreeSet<&str>) -> BTreeSet<String> {
    ids.into_iter().map(str::to_owned).collect()
}
