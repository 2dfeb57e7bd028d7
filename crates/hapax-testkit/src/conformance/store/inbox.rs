//! The inbox, read and written outside a handler's transaction.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::time::Duration;

use hapax_core::{
    Claim, Code, Inbox as _, InboxState, Instances as _, Key, Retention as _, Timestamp, Versions as _,
    WaitingRoom as _,
};
use tokio::task::JoinSet;

use super::StoreFixture;
use super::by_hand::{
    ByHand, LONG, NOWHERE, failed, id, in_order, key, key_at, key_of, message, name, other_payload,
};
use crate::conformance::SOON;

const DUPLICATE: Claim = Claim::Duplicate { other_payload: false };

/// Looking takes nothing and answers in the order of the ids.
pub async fn a_look_answers_in_the_order_of_the_ids<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.deliver(&message("m-done")).await;
    orders.park(&failed(&message("z-waiting"))).await;
    orders.bury(&message("a-dead")).await;
    let ids = ["z-waiting", "b-unseen", "m-done", "a-dead", "m-done"].map(id);
    let rows = orders.store.look(&orders.consumer, &ids).await.expect("the inbox answers");
    let states: Vec<_> = rows.iter().map(|row| row.as_ref().map(|row| row.state)).collect();
    let (waiting, done, dead) = (InboxState::Waiting, InboxState::Done, InboxState::Dead);
    assert_eq!(states, [Some(waiting), None, Some(done), Some(dead), Some(done)]);
    assert_eq!(orders.answer(key("b-unseen")).await, Claim::New);
    assert_eq!(orders.store.look(&orders.consumer, &[]).await.expect("the inbox answers"), []);
}

/// The last step of the lazy strategy where the handler has no transaction.
pub async fn a_record_is_new_once<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    assert!(record(&orders, "a").await);
    assert!(!record(&orders, "a").await);
    assert_eq!(orders.deliver(&message("a")).await, DUPLICATE);
    assert_eq!(orders.answer(other_payload("a")).await, Claim::Duplicate { other_payload: true });

    orders.park(&failed(&message("waiting"))).await;
    assert!(!record(&orders, "waiting").await, "a row is a row");
    assert_eq!(orders.state("waiting").await, Some(InboxState::Waiting));
    assert!(record(&ByHand::named(fixture, "mails"), "a").await);
}

/// A message that failed before comes out of the waiting room: recording it at its place ends its waiting.
pub async fn a_waiting_message_is_recorded_at_its_place<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for text in ["alone", "in a transaction"] {
        orders.park(&failed(&message(text))).await;
        let waiting = orders.lease_only(text).await;
        let (ours, elsewhere) = (key_at(&waiting), Key { place: Some(NOWHERE), ..key_at(&waiting) });
        assert!(!orders.store.record(&orders.consumer, &elsewhere).await.expect("an answer"));
        if text == "alone" {
            assert!(orders.store.record(&orders.consumer, &ours).await.expect("the record is made"));
        } else {
            let mut tx = orders.begin().await;
            let new = orders.store.record_in(&mut tx, &orders.consumer, &ours).await;
            assert!(new.expect("the record is made"));
            orders.finish(tx).await;
        }
        assert_eq!(orders.state(text).await, Some(InboxState::Done));
        assert_eq!(orders.store.waiting(&orders.consumer, &waiting.id).await.expect("an answer"), None);
        assert!(!orders.store.record(&orders.consumer, &ours).await.expect("an answer"), "once is enough");
    }
}

/// Of many who record one message, one was first.
pub async fn of_many_records_at_once_one_is_new<F: StoreFixture>(fixture: &F) {
    let mut tasks = JoinSet::new();
    for worker in 0..8 {
        let orders = if worker % 2 == 0 { ByHand::new(fixture) } else { ByHand::elsewhere(fixture).await };
        tasks.spawn(async move { record(&orders, "a").await });
    }
    let new = tasks.join_all().await.into_iter().filter(|new| *new).count();
    assert_eq!(new, 1);
}

/// The last step of the lazy strategy in the handler's transaction: a lost race rolls the effect back.
pub async fn a_record_in_a_transaction_commits_with_it<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for (expected_new, commits) in [(true, false), (true, true), (false, false)] {
        let mut tx = orders.begin().await;
        ByHand::<F>::add(&mut tx, "a", 1).await;
        let new = orders.store.record_in(&mut tx, &orders.consumer, &key("a")).await;
        assert_eq!(new.expect("the record is made"), expected_new);
        if commits {
            orders.finish(tx).await;
        } else {
            orders.roll_back(tx).await;
        }
    }
    assert_eq!(fixture.total("a").await, 1);
    assert_eq!(orders.deliver(&message("a")).await, DUPLICATE);
}

/// Everything that is recorded under a name moves with it.
pub async fn a_rename_moves_every_record<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let horizon = leave_horizon(&orders).await;
    orders.deliver(&message("done")).await;
    orders.park(&failed(&in_order("waiting", "ada"))).await;
    orders.bury(&message("dead")).await;
    charge(&orders, "suspect").await;
    assert!(newer(&orders, 7).await);

    let moved = orders.store.rename(&orders.consumer, &name("shop")).await.expect("it is renamed");
    assert_eq!(moved, 3);
    let shop = ByHand::named(fixture, "shop");
    let states = [shop.state("done").await, shop.state("waiting").await, shop.state("dead").await];
    assert_eq!(states, [Some(InboxState::Done), Some(InboxState::Waiting), Some(InboxState::Dead)]);
    assert_eq!(shop.store.starts(&shop.consumer, &id("suspect")).await.expect("an answer"), 1);
    assert_eq!(shop.store.horizon(&shop.consumer).await.expect("an answer"), horizon);
    assert!(!newer(&shop, 7).await);
    assert_eq!(shop.answer(key_of(&in_order("next", "ada"))).await, Claim::Held);
    let waiting = shop.lease_only("waiting").await;
    assert_eq!(shop.deliver_waiting(&waiting).await, Claim::New);
    shop.redrive(shop.dead().await[0].number).await.expect("it is redriven");
    shop.lease_only("dead").await;

    assert_eq!(orders.answer(key("done")).await, Claim::New, "nothing is left under the old name");
    assert_eq!(orders.dead().await, []);
}

/// A name that has records is not taken over.
pub async fn a_rename_to_a_taken_name_is_refused<F: StoreFixture>(fixture: &F) {
    let (orders, mails) = (ByHand::new(fixture), ByHand::named(fixture, "mails"));
    orders.deliver(&message("a")).await;
    mails.deliver(&message("b")).await;
    let error = orders.store.rename(&orders.consumer, &mails.consumer).await.expect_err("the name is taken");
    assert_eq!(error.code(), Code::NameTaken, "{error}");
    assert_eq!(orders.state("a").await, Some(InboxState::Done), "nothing has moved");
    assert_eq!(mails.state("a").await, None);
}

/// Nothing to rename is no error, and nothing moves.
pub async fn a_rename_of_nothing_moves_nothing<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let moved = orders.store.rename(&name("nobody"), &name("somebody")).await.expect("it is renamed");
    assert_eq!(moved, 0);
}

async fn record<F: StoreFixture>(orders: &ByHand<F>, message: &str) -> bool {
    orders.store.record(&orders.consumer, &key(message)).await.expect("the record is made")
}

async fn charge<F: StoreFixture>(orders: &ByHand<F>, message: &str) {
    orders.store.charge_start(&orders.consumer, &key(message), 3).await.expect("charging is answered");
}

/// Notes a version of one entity and says whether it is newer.
async fn newer<F: StoreFixture>(orders: &ByHand<F>, version: i64) -> bool {
    let mut tx = orders.begin().await;
    let newer = orders.store.newer(&mut tx, &orders.consumer, "order 1", version).await;
    orders.finish(tx).await;
    newer.expect("the version is noted")
}

/// Handles a message and purges it, so that there is a horizon.
async fn leave_horizon<F: StoreFixture>(orders: &ByHand<F>) -> Option<Timestamp> {
    let sent_at = Timestamp::now().minus(LONG);
    let tx = orders.take(Key { sent_at: Some(sent_at), ..key("purged") }).await;
    orders.finish(tx).await;
    let purged = async {
        while orders.store.horizon(&orders.consumer).await.expect("the horizon is read").is_none() {
            orders.store.purge(&orders.consumer, Duration::ZERO, 10).await.expect("the purge runs");
        }
    };
    tokio::time::timeout(SOON, purged).await.expect("the row is purged");
    Some(sent_at)
}
