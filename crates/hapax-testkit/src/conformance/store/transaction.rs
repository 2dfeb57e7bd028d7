//! The transaction in which a message takes effect.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use hapax_core::{Claim, ClaimRequest, InboxState, Store as _};

use super::StoreFixture;
use super::by_hand::{ByHand, key, message};
use crate::conformance::{SOON, cancelled_after};

/// Neither is ever seen without the other.
pub async fn effect_and_record_commit_together<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let mut tx = orders.take(key("a")).await;
    ByHand::<F>::add(&mut tx, "a", 1).await;
    assert_eq!(
        (fixture.total("a").await, orders.state("a").await),
        (0, None),
        "nothing shows before the commit"
    );
    orders.finish(tx).await;
    assert_eq!((fixture.total("a").await, orders.state("a").await), (1, Some(InboxState::Done)));
}

/// Rolled back, aborted or dropped: nothing is left, neither effect nor record nor a lock.
pub async fn an_unfinished_transaction_leaves_nothing_behind<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for end in ["roll back", "abort", "drop"] {
        let mut tx = orders.claim_when_free(key("a")).await.0;
        ByHand::<F>::add(&mut tx, "a", 1).await;
        match end {
            "roll back" => orders.store.roll_back(tx).await,
            "abort" => orders.store.abort(tx).await,
            _ => drop(tx),
        }
        assert_eq!(orders.answer_when_free(key("a")).await, Claim::New, "after {end}");
        assert_eq!(fixture.total("a").await, 0, "after {end}");
    }
}

/// Without keys it is the user's own transaction under the same sentinel.
pub async fn a_claim_of_nothing_is_a_plain_transaction<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let (mut tx, claims) = orders.claim(&[]).await;
    assert!(claims.is_empty());
    ByHand::<F>::add(&mut tx, "a", 2).await;
    orders.finish(tx).await;
    assert_eq!(fixture.total("a").await, 2);
}

/// A handler writes as often as it likes.
pub async fn a_handler_reads_its_own_writes<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let mut tx = orders.take(key("a")).await;
    for n in 1..=10 {
        ByHand::<F>::add(&mut tx, "a", n).await;
    }
    orders.finish(tx).await;
    assert_eq!(fixture.total("a").await, 55);
}

/// A worker's task is cancelled at every await of `begin_claim`.
pub async fn case_43_a_claim_cancelled_anywhere_holds_nothing<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for polls in 0.. {
        let keys = [key("a"), key("b")];
        let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(&orders.consumer) };
        let completed = cancelled_after(polls, orders.store.begin_claim(&request)).await;
        if let Some(begun) = completed {
            orders.roll_back(begun.expect("a claim is answered").0).await;
            break;
        }
        assert_eq!(orders.answer_when_free(key("b")).await, Claim::New, "after {polls} polls");
    }
    open_all(&orders).await;
}

/// A worker's task is cancelled at every await of `finish`: the outcome is unknown, but it is one or the
/// other.
pub async fn case_43_a_commit_cancelled_anywhere_is_whole_or_nothing<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let mut effects = 0;
    for polls in 0.. {
        let id = format!("message {polls}");
        let mut tx = orders.take(key(&id)).await;
        ByHand::<F>::add(&mut tx, "effects", 1).await;
        let completed = cancelled_after(polls, orders.store.finish(tx)).await;
        let recorded = orders.answer_when_free(key(&id)).await != Claim::New;
        effects += i64::from(recorded);
        assert_eq!(fixture.total("effects").await, effects, "after {polls} polls");
        if let Some(finished) = completed {
            finished.expect("the transaction commits");
            assert!(recorded);
            break;
        }
    }
    open_all(&orders).await;
}

/// As many transactions as the store says can be open at the same time.
pub async fn as_many_can_be_open_as_it_says<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    assert!(orders.store.capacity() >= 1);
    open_all(&orders).await;
    assert_eq!(orders.deliver(&message("a")).await, Claim::New);
}

/// Opens as many transactions as the store allows, each with a message of its own, and rolls them back. Where
/// one at a time can write, the others of its capacity are those who wait for their turn.
async fn open_all<F: StoreFixture>(orders: &ByHand<F>) {
    let at_once = if F::ONE_WRITER { 1 } else { orders.store.capacity() };
    let mut open = Vec::new();
    for n in 0..at_once {
        let tx = tokio::time::timeout(SOON, orders.take(key(&format!("open {n}")))).await;
        open.push(tx.unwrap_or_else(|_| panic!("transaction {n} does not open")));
    }
    for tx in open {
        orders.roll_back(tx).await;
    }
}

/// A store that was just made answers, has its schema, and is told from every other.
pub async fn a_fresh_store_answers_and_has_its_schema<F: StoreFixture>(fixture: &F) {
    let (store, reopened) = (fixture.store(), fixture.reopened().await);
    store.ping().await.expect("the store answers");
    store.check().await.expect("the schema is there");
    assert_eq!(store.clone().instance(), store.instance());
    assert_ne!(reopened.instance(), store.instance());
}
