//! How long records are kept, and what is ambiguous afterwards.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::time::Duration;

use hapax_core::{Claim, InboxState, Key, Purged, Retention as _, Timestamp};
use tokio::task::JoinSet;

use super::StoreFixture;
use super::by_hand::{ByHand, failed, key, key_at, message};
use crate::conformance::SOON;

const HOUR: Duration = Duration::from_hours(1);
const DUPLICATE: Claim = Claim::Duplicate { other_payload: false };

/// Rows younger than `keep` stay.
pub async fn a_young_row_is_kept<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    handle_sent(&orders, "a", at(-2)).await;
    assert_eq!(purge(&orders, HOUR, 100).await, Purged::default());
    assert_eq!(orders.answer(sent("a", at(-2))).await, DUPLICATE);
}

/// A row is as old as the later of its two times: a message sent ahead of time is kept.
pub async fn a_row_is_as_old_as_the_later_of_its_times<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    handle_sent(&orders, "ahead", at(1)).await;
    handle_sent(&orders, "behind", at(-1)).await;
    purge_all(&orders, 1).await;
    assert_eq!(orders.state("ahead").await, Some(InboxState::Done));
    assert_eq!(orders.state("behind").await, None);
}

/// One call removes `max` rows at most.
pub async fn a_purge_is_bounded<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for n in 0..25 {
        orders.deliver(&message(&format!("message {n}"))).await;
    }
    let all = async {
        let mut gone = 0;
        while gone < 25 {
            let rows = purge(&orders, Duration::ZERO, 10).await.rows;
            assert!(rows <= 10, "{rows} rows at once");
            gone += rows;
        }
    };
    tokio::time::timeout(SOON, all).await.expect("the rows are purged");
}

/// Only what is done is forgotten.
pub async fn waiting_and_dead_rows_are_never_purged<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("waiting"))).await;
    let number = orders.bury(&message("discarded")).await;
    hapax_core::DeadLetters::discard(&orders.store, number).await.expect("it is discarded");
    orders.bury(&message("dead")).await;
    orders.deliver(&message("done")).await;
    purge_all(&orders, 1).await;

    assert_eq!(orders.state("waiting").await, Some(InboxState::Waiting));
    assert_eq!(orders.state("dead").await, Some(InboxState::Dead));
    assert_eq!(orders.state("discarded").await, Some(InboxState::Dead));
    assert_eq!(orders.state("done").await, None);
}

/// The horizon is the newest `sent_at` that was purged, and never moves back.
pub async fn the_horizon_moves_with_the_rows<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    assert_eq!(horizon(&orders).await, None);
    orders.deliver(&message("without sent_at")).await;
    purge_all(&orders, 1).await;
    assert_eq!(horizon(&orders).await, None, "a row without sent_at does not move it");

    let mut newest = None;
    for hours in [vec![-5, -3, -4], vec![-9], vec![-2, -6]] {
        let times: Vec<Timestamp> = hours.into_iter().map(at).collect();
        for (n, sent_at) in times.iter().enumerate() {
            handle_sent(&orders, &format!("message {n}"), *sent_at).await;
        }
        newest = newest.max(times.iter().max().copied());
        assert_eq!(purge_all(&orders, times.len()).await.horizon, newest);
        assert_eq!(horizon(&orders).await, newest);
    }
    assert_eq!(purge(&orders, Duration::ZERO, 10).await, Purged { rows: 0, horizon: newest });
}

/// A consumer's purge is its own.
pub async fn another_consumers_rows_are_left_alone<F: StoreFixture>(fixture: &F) {
    let (orders, mails) = (ByHand::new(fixture), ByHand::named(fixture, "mails"));
    handle_sent(&orders, "a", at(-2)).await;
    handle_sent(&mails, "a", at(-2)).await;
    purge_all(&orders, 1).await;
    assert_eq!(mails.state("a").await, Some(InboxState::Done));
    assert_eq!(horizon(&mails).await, None);
    assert_eq!(mails.answer(sent("b", at(-3))).await, Claim::New);
}

/// A consumer is stopped for longer than the retention, the janitor runs, and old messages are replayed.
pub async fn case_12_what_may_have_been_purged_is_ambiguous<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let purged = at(-2);
    handle_sent(&orders, "purged", purged).await;
    handle_sent(&orders, "kept", at(1)).await;
    orders.park(&failed(&message("waiting"))).await;
    let waiting = orders.lease_only("waiting").await;
    purge_all(&orders, 1).await;

    assert_eq!(orders.answer(sent("purged", purged)).await, Claim::Ambiguous);
    assert_eq!(orders.answer(sent("never seen", at(-3))).await, Claim::Ambiguous, "nobody can tell");
    let micro = Duration::from_micros(1);
    assert_eq!(orders.answer(sent("later", purged.plus(micro))).await, Claim::New);
    assert_eq!(orders.answer(key("without sent_at")).await, Claim::New);
    assert_eq!(orders.answer(sent("kept", at(-3))).await, DUPLICATE, "what has a row is not ambiguous");
    let from_the_room = Key { sent_at: Some(at(-3)), ..key_at(&waiting) };
    assert_eq!(orders.answer(from_the_room).await, Claim::New, "nor what comes from the waiting room");
    assert_eq!(ByHand::named(fixture, "mails").answer(sent("purged", purged)).await, Claim::New);
}

/// Producers' clocks may run behind by the slack.
pub async fn slack_widens_what_is_ambiguous<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let purged = at(-3);
    handle_sent(&orders, "purged", purged).await;
    purge_all(&orders, 1).await;

    let (within, beyond) = (purged.plus(HOUR), purged.plus(HOUR + Duration::from_micros(1)));
    let (tx, claims) = orders.claim_with_slack(&[sent("within", within), sent("beyond", beyond)], HOUR).await;
    orders.roll_back(tx).await;
    assert_eq!(claims, [Claim::Ambiguous, Claim::New]);
}

/// An ambiguous message is ours: what the policy makes of it commits like any other.
pub async fn an_ambiguous_message_can_be_handled_or_set_aside<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    handle_sent(&orders, "purged", at(-2)).await;
    purge_all(&orders, 1).await;

    let (tx, claims) = orders.claim(&[sent("purged", at(-3))]).await;
    assert_eq!(claims, [Claim::Ambiguous]);
    orders.finish(tx).await;
    assert_eq!(orders.answer(sent("purged", at(-3))).await, DUPLICATE);

    let message = hapax_core::RawMessage { sent_at: Some(at(-3)), ..message("set aside") };
    orders.bury(&message).await;
    assert_eq!(orders.deliver(&message).await, Claim::Dead { other_payload: false });
}

/// Order does not hide ambiguity: a message that were parked unseen would be handled later without a
/// question.
pub async fn an_ambiguous_message_of_a_held_key_is_ambiguous<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    handle_sent(&orders, "purged", at(-2)).await;
    purge_all(&orders, 1).await;
    orders.park(&failed(&super::by_hand::in_order("1", "ada"))).await;
    let key = Key { order: Some("ada".into()), ..sent("2", at(-3)) };
    assert_eq!(orders.answer(key).await, Claim::Ambiguous);
}

/// A purge runs on several instances under load.
pub async fn case_11_purges_and_claims_do_not_stand_in_each_others_way<F: StoreFixture>(fixture: &F) {
    const WORKERS: usize = 4;
    const MESSAGES: usize = 40;
    let mut tasks = JoinSet::new();
    for worker in 0..WORKERS {
        let orders = ByHand::new(fixture);
        tasks.spawn(async move {
            let mut rows = 0;
            for n in 0..MESSAGES {
                let message = message(&format!("message {worker}/{n}"));
                assert_eq!(orders.deliver(&message).await, Claim::New);
                rows += purge(&orders, Duration::ZERO, 7).await.rows;
            }
            rows
        });
    }
    let purged: u64 = tasks.join_all().await.into_iter().sum();
    let orders = ByHand::new(fixture);
    let left = (WORKERS * MESSAGES) as u64 - purged;
    purge_all(&orders, usize::try_from(left).expect("a small number")).await;
    assert_eq!(purge(&orders, Duration::ZERO, 1_000).await.rows, 0, "each row was purged once");
}

/// Hours from now.
fn at(hours: i64) -> Timestamp {
    let by = HOUR * u32::try_from(hours.unsigned_abs()).unwrap_or(u32::MAX);
    if hours < 0 { Timestamp::now().minus(by) } else { Timestamp::now().plus(by) }
}

fn sent(text: &str, sent_at: Timestamp) -> Key {
    Key { sent_at: Some(sent_at), ..key(text) }
}

async fn handle_sent<F: StoreFixture>(orders: &ByHand<F>, text: &str, sent_at: Timestamp) {
    let tx = orders.take(sent(text, sent_at)).await;
    orders.finish(tx).await;
}

async fn purge<F: StoreFixture>(orders: &ByHand<F>, keep: Duration, max: u32) -> Purged {
    orders.store.purge(&orders.consumer, keep, max).await.expect("the purge runs")
}

/// Purges until so many rows are gone: a row has to be older than now, which takes the clock a moment.
async fn purge_all<F: StoreFixture>(orders: &ByHand<F>, rows: usize) -> Purged {
    let all = async {
        let mut gone = 0;
        loop {
            let purged = purge(orders, Duration::ZERO, 1_000).await;
            gone += usize::try_from(purged.rows).expect("a small number");
            if gone >= rows {
                assert_eq!(gone, rows);
                return purged;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, all).await.expect("the rows are purged")
}

async fn horizon<F: StoreFixture>(orders: &ByHand<F>) -> Option<Timestamp> {
    orders.store.horizon(&orders.consumer).await.expect("the horizon is read")
}
