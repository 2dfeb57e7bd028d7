//! Several who want the same message.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::sync::Arc;

use hapax_core::{Claim, ClaimRequest, Digest, ErrorKind, Key, Store as _};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::StoreFixture;
use super::by_hand::{ByHand, Tx, key, message};
use crate::conformance::SOON;

const DUPLICATE: Claim = Claim::Duplicate { other_payload: false };

/// Two transactions claim one id at the same moment, then run more statements.
pub async fn case_02_of_two_at_once_one_handles_and_neither_breaks<F: StoreFixture>(fixture: &F) {
    let start = Arc::new(Barrier::new(2));
    let mut tasks = JoinSet::new();
    for own in ["own 1", "own 2"] {
        let (orders, start) = (ByHand::new(fixture), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            contend(&orders, own).await
        });
    }
    let mut claims = tasks.join_all().await;
    claims.retain(|claim| *claim == Claim::New);
    assert_eq!(claims.len(), 1, "one of them handles it");
    assert_eq!(ByHand::new(fixture).answer(key("contended")).await, DUPLICATE);
    for account in ["contended", "own 1", "own 2"] {
        assert_eq!(fixture.total(account).await, 1, "{account}");
    }
}

/// Claims the contended message and one of its own, and has an effect for each that is new.
async fn contend<F: StoreFixture>(orders: &ByHand<F>, own: &str) -> Claim {
    let (mut tx, claims) = orders.claim(&[key("contended"), key(own)]).await;
    assert_eq!(claims[1], Claim::New);
    for (account, claim) in ["contended", own].into_iter().zip(&claims) {
        if *claim == Claim::New {
            ByHand::<F>::add(&mut tx, account, 1).await;
        }
    }
    orders.finish(tx).await;
    claims[0]
}

/// Fifty deliveries of one id at once, some of whose handlers fail.
pub async fn case_04_of_fifty_at_once_exactly_one_commits<F: StoreFixture>(fixture: &F) {
    let mut tasks = JoinSet::new();
    for n in 0..50 {
        let orders = ByHand::new(fixture);
        tasks.spawn(async move {
            let (mut tx, claim) = orders.claim_when_free(key("a")).await;
            if claim != Claim::New {
                assert_eq!(claim, DUPLICATE);
                orders.roll_back(tx).await;
                return false;
            }
            ByHand::<F>::add(&mut tx, "a", 1).await;
            let fails = n % 5 != 0;
            if fails {
                orders.roll_back(tx).await;
            } else {
                orders.finish(tx).await;
            }
            !fails
        });
    }
    let commits = tasks.join_all().await.into_iter().filter(|committed| *committed).count();
    assert_eq!(commits, 1);
    assert_eq!(fixture.total("a").await, 1);
    assert_eq!(ByHand::new(fixture).answer(key("a")).await, DUPLICATE);
}

/// Whoever comes second never waits for the first: the one message is busy, and the others of the batch go
/// on.
pub async fn a_message_held_by_a_rival_is_busy_and_the_others_are_not<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let held = orders.take(key("b")).await;
    second_comes(fixture, &orders, held, &orders).await;
}

/// The same if the first is another process.
pub async fn a_message_held_by_another_process_is_busy<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let held = elsewhere.take(key("b")).await;
    second_comes(fixture, &elsewhere, held, &orders).await;
}

async fn second_comes<F: StoreFixture>(fixture: &F, first: &ByHand<F>, mut held: Tx<F>, second: &ByHand<F>) {
    let batch = ["a", "b", "c"].map(key);
    if F::ONE_WRITER {
        assert_turns_are_taken(second, &batch).await;
    } else {
        let answered = tokio::time::timeout(SOON, second.claim(&batch)).await;
        let (mut tx, claims) = answered.expect("a rival's claim is answered while the first is at work");
        assert_eq!(claims, [Claim::New, Claim::Busy, Claim::New]);
        ByHand::<F>::add(&mut tx, "a", 1).await;
        second.finish(tx).await;
        assert_eq!(fixture.total("a").await, 1, "the others of the batch took effect meanwhile");
    }
    ByHand::<F>::add(&mut held, "b", 1).await;
    first.finish(held).await;
    assert_eq!(second.deliver(&message("b")).await, DUPLICATE);
    assert_eq!(fixture.total("b").await, 1);
}

/// With one writer at a time a rival is kept waiting or refused; it is never told that the message is free.
async fn assert_turns_are_taken<F: StoreFixture>(second: &ByHand<F>, batch: &[Key]) {
    let request = ClaimRequest { keys: batch, ..ClaimRequest::none(&second.consumer) };
    let soon = std::time::Duration::from_millis(200);
    match tokio::time::timeout(soon, second.store.begin_claim(&request)).await {
        Err(_waiting) => {}
        Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        Ok(Ok((_, claims))) => assert_eq!(claims[1], Claim::Busy),
    }
}

/// Busy is not an answer for good.
pub async fn what_a_rival_rolls_back_is_new<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let mut held = elsewhere.take(key("a")).await;
    ByHand::<F>::add(&mut held, "a", 1).await;
    let (rival, key) = (orders.clone(), key("a"));
    let waiting = tokio::spawn(async move { rival.answer_when_free(key).await });
    elsewhere.roll_back(held).await;
    assert_eq!(waiting.await.expect("the rival does not panic"), Claim::New);
    assert_eq!(fixture.total("a").await, 0);
}

/// A rival may be inside with another payload: that shows once it has committed.
pub async fn case_47_another_payload_shows_after_the_rival_committed<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let held = elsewhere.take(key("a")).await;
    let copy = Key { digest: Digest::of(b"another payload"), ..key("a") };
    let rival = orders.clone();
    let waiting = tokio::spawn(async move { rival.answer_when_free(copy).await });
    elsewhere.finish(held).await;
    let claim = waiting.await.expect("the rival does not panic");
    assert_eq!(claim, Claim::Duplicate { other_payload: true });
}

/// Two consumers never stand in each other's way.
pub async fn case_07_another_consumer_is_no_rival<F: StoreFixture>(fixture: &F) {
    let (orders, mails) = (ByHand::new(fixture), ByHand::named(fixture, "mails"));
    let held = orders.take(key("a")).await;
    if !F::ONE_WRITER {
        assert_eq!(mails.deliver(&message("a")).await, Claim::New);
    }
    orders.finish(held).await;
    assert_eq!(mails.answer(key("a")).await, if F::ONE_WRITER { Claim::New } else { DUPLICATE });
}

/// Batches that overlap in every way, in any order: no deadlock, nothing lost, nothing doubled.
pub async fn overlapping_batches_take_effect_once_each<F: StoreFixture>(fixture: &F) {
    const MESSAGES: usize = 60;
    let mut tasks = JoinSet::new();
    for worker in 0..6 {
        let orders = ByHand::new(fixture);
        tasks.spawn(async move {
            for round in 0..10 {
                let first = (worker * 7 + round * 11) % MESSAGES;
                let numbers = (0..20).map(|n| (first + n * (worker + 1)) % MESSAGES);
                let mut batch: Vec<usize> = numbers.collect();
                let mut seen = std::collections::HashSet::new();
                batch.retain(|n| seen.insert(*n));
                deliver_batch(&orders, &batch).await;
            }
        });
    }
    tasks.join_all().await;
    let orders = ByHand::new(fixture);
    deliver_batch(&orders, &(0..MESSAGES).collect::<Vec<_>>()).await;
    for n in 0..MESSAGES {
        assert_eq!(fixture.total(&account(n)).await, 1, "message {n}");
    }
}

/// Has the new messages of a batch take effect, and leaves the others to whoever has them.
async fn deliver_batch<F: StoreFixture>(orders: &ByHand<F>, batch: &[usize]) {
    let keys: Vec<Key> = batch.iter().map(|n| key(&account(*n))).collect();
    let (mut tx, claims) = orders.claim(&keys).await;
    for (key, claim) in keys.iter().zip(claims) {
        if claim == Claim::New {
            ByHand::<F>::add(&mut tx, key.id.as_str(), 1).await;
        }
    }
    orders.finish(tx).await;
}

fn account(n: usize) -> String {
    format!("message {n}")
}
