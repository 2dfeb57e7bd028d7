//! Messages in progress under a lease.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{
    Claim, Digest, Fence, Grip, Inbox as _, InboxRow, InboxState, Instances as _, Key, Retention as _,
    Running as _, Start, Timestamp, Transaction as _, WaitingRoom as _,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::StoreFixture;
use super::by_hand::{ByHand, LONG, failed, id, in_order, key, key_at, key_of, message, rejected};
use crate::conformance::{SHORT_LEASE, SOON};

const DUPLICATE: Claim = Claim::Duplicate { other_payload: false };

/// What is begun is on record before the work is, for everybody to see.
pub async fn what_is_begun_is_seen_by_everybody<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let grip = begin(&orders, key("a"), LONG).await;
    assert!(
        matches!(grip, Grip::Ours { taken_over: false, ambiguous: false, other_payload: false, .. }),
        "{grip:?}"
    );
    match begin(&elsewhere, key("a"), LONG).await {
        Grip::Running { other_payload: false, ends_in } => {
            assert!(ends_in > Duration::ZERO && ends_in <= LONG);
        }
        grip => panic!("{grip:?}"),
    }
    let other = Key { digest: Digest::of(b"another payload"), ..key("a") };
    let grip = begin(&elsewhere, other, LONG).await;
    assert!(matches!(grip, Grip::Running { other_payload: true, .. }), "{grip:?}");
    assert_eq!(elsewhere.answer(key("a")).await, Claim::Busy, "a claim has to wait, too");
    let row = row(&elsewhere, "a").await.expect("it is on record");
    assert_eq!((row.state, row.lease_until.is_some()), (InboxState::Running, true));
    let mails = ByHand::named(fixture, "mails");
    assert!(matches!(begin(&mails, key("a"), LONG).await, Grip::Ours { .. }), "another consumer has its own");
}

/// Fifty begin one message at once.
pub async fn case_04_of_fifty_at_once_one_begins<F: StoreFixture>(fixture: &F) {
    let start = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let (orders, start) = (ByHand::new(fixture), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            matches!(begin(&orders, key("a"), LONG).await, Grip::Ours { .. })
        });
    }
    let ours = tasks.join_all().await.into_iter().filter(|ours| *ours).count();
    assert_eq!(ours, 1);
}

/// The process ends right after it began: whoever comes when the lease has ended takes over, and knows it.
pub async fn case_20_what_a_dead_one_began_is_taken_over<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let first = ours(&orders, key("a"), SHORT_LEASE).await;
    let second = take_over(&elsewhere, key("a")).await;
    assert!(second > first, "{second:?} after {first:?}");
    assert!(end(&elsewhere, "a", second, None).await);
    assert_eq!(orders.answer(key("a")).await, DUPLICATE);
}

/// Whoever takes over with another payload is told so, and what was begun first stays on record.
pub async fn case_47_another_payload_shows_when_it_takes_over<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let other = || Key { digest: Digest::of(b"another payload"), ..key("a") };
    let mut last = ours(&orders, key("a"), Duration::ZERO).await;
    for (key, expected) in [(other(), true), (key("a"), false), (other(), true)] {
        let taken = async {
            loop {
                match begin(&orders, key.clone(), Duration::ZERO).await {
                    Grip::Ours { fence, taken_over: true, other_payload, .. } => {
                        return (fence, other_payload);
                    }
                    Grip::Running { .. } => tokio::time::sleep(Duration::from_millis(1)).await,
                    grip => panic!("{grip:?}"),
                }
            }
        };
        let (fence, other_payload) = tokio::time::timeout(SOON, taken).await.expect("the lease has ended");
        assert!(fence > last);
        assert_eq!(other_payload, expected);
        last = fence;
    }
}

/// A healthy one that renews is not taken over, however long it takes; and renewing touches nobody else's.
pub async fn case_21_what_is_renewed_is_not_taken_over<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let mails = ByHand::named(fixture, "mails");
    let lease = SHORT_LEASE * 4;
    let fence = ours(&orders, key("a"), lease).await;
    let of_mails = ours(&mails, key("a"), Duration::ZERO).await;
    for _ in 0..12 {
        tokio::time::sleep(SHORT_LEASE).await;
        assert_eq!(renew(&orders, &[("a", fence), ("b", fence)], lease).await, [true, false]);
        let grip = begin(&elsewhere, key("a"), lease).await;
        assert!(matches!(grip, Grip::Running { .. }), "{grip:?}");
    }
    assert!(take_over(&mails, key("a")).await > of_mails, "that of another consumer was not renewed");
    assert!(end(&orders, "a", fence, None).await);
}

/// The first owner finishes late: whatever it does is refused, and the winner's result stands.
pub async fn case_22_a_late_loser_changes_nothing<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let late = ours(&orders, key("a"), SHORT_LEASE).await;
    let winner = take_over(&elsewhere, key("a")).await;
    for _ in 0..2 {
        assert!(!end(&orders, "a", late, Some(b"late")).await);
        assert!(!orders.store.drop_running(&orders.consumer, &id("a"), late).await.expect("an answer"));
        assert_eq!(renew(&orders, &[("a", late)], LONG).await, [false]);
        let fenced = Key { fence: Some(late), ..key("a") };
        assert!(!orders.answer(fenced).await.is_ours());
        end(&elsewhere, "a", winner, Some(b"winner")).await;
    }
    let row = row(&orders, "a").await.expect("it is on record");
    assert_eq!((row.state, row.result.as_deref()), (InboxState::Done, Some(&b"winner"[..])));
}

/// Zero is a deadline like any other, and not "for ever".
pub async fn case_23_a_lease_of_zero_has_ended<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let first = ours(&orders, key("a"), Duration::ZERO).await;
    assert!(take_over(&orders, key("a")).await > first);
}

/// A lease that has ended is still the one's who had it, as long as nobody took it.
pub async fn a_lease_that_ended_can_be_renewed_until_it_is_taken<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let fence = ours(&orders, key("a"), Duration::ZERO).await;
    assert_eq!(renew(&orders, &[("a", fence)], LONG).await, [true]);
    assert!(matches!(begin(&orders, key("a"), LONG).await, Grip::Running { .. }));
}

/// What ended is a duplicate, with what was kept beside its record.
pub async fn a_result_is_kept_beside_the_record<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let result: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let fence = ours(&orders, key("a"), LONG).await;
    assert!(end(&orders, "a", fence, Some(&result)).await);
    let fence = ours(&orders, key("b"), LONG).await;
    assert!(end(&orders, "b", fence, None).await);

    let expected = Grip::Done { other_payload: false, result: Some(result.clone().into()) };
    assert_eq!(begin(&orders, key("a"), LONG).await, expected);
    let expected = Grip::Done { other_payload: false, result: None };
    assert_eq!(begin(&orders, key("b"), LONG).await, expected);
    assert_eq!(orders.answer(key("a")).await, DUPLICATE);
    let row = row(&orders, "a").await.expect("it is on record");
    assert_eq!((row.lease_until, row.result.as_deref()), (None, Some(&result[..])));
}

/// What a transaction keeps beside a record commits with it or not at all.
pub async fn a_result_commits_with_its_transaction<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for (commits, result) in [(false, None), (true, Some(&b"it's \\ \0 done"[..]))] {
        let mut tx = orders.take(key("a")).await;
        tx.meta().results.push((id("a"), b"it's \\ \0 done".to_vec().into()));
        if commits {
            orders.finish(tx).await;
        } else {
            orders.roll_back(tx).await;
        }
        assert_eq!(row(&orders, "a").await.and_then(|row| row.result).as_deref(), result);
    }
}

/// What is given up is as if it had never been begun; its fence is worth nothing from then on.
pub async fn what_is_given_up_is_new<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let first = ours(&orders, key("a"), LONG).await;
    assert!(orders.store.drop_running(&orders.consumer, &id("a"), first).await.expect("an answer"));
    assert_eq!(row(&orders, "a").await, None);
    let second = ours(&orders, key("a"), LONG).await;
    assert_ne!(second, first, "or whoever had the first could end the second");
    assert!(!end(&orders, "a", first, None).await);
    assert!(end(&orders, "a", second, None).await);
}

/// A message of the waiting room is begun at its place, and waits again when it is given up.
pub async fn a_waiting_message_is_begun_at_its_place<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&message("a"))).await;
    let grip = begin(&orders, key("a"), LONG).await;
    assert_eq!(grip, Grip::Waiting { other_payload: false }, "a copy is not begun");
    let waiting = orders.lease_only("a").await;
    let fence = ours(&orders, key_at(&waiting), LONG).await;
    assert_eq!(orders.answer(key_at(&waiting)).await, Claim::Busy, "only with the fence");
    assert!(orders.store.drop_running(&orders.consumer, &id("a"), fence).await.expect("an answer"));
    assert_eq!(orders.state("a").await, Some(InboxState::Waiting));
    let again = ours(&orders, key_at(&waiting), LONG).await;
    assert!(again > fence);
    let fenced = Key { fence: Some(again), ..key_at(&waiting) };
    let mut tx = orders.take(fenced).await;
    ByHand::<F>::add(&mut tx, "a", 1).await;
    tx.meta().settled.push(hapax_core::Settled::Waiting(waiting.place));
    orders.finish(tx).await;
    assert_eq!((orders.state("a").await, fixture.total("a").await), (Some(InboxState::Done), 1));
    let depth = orders.store.depth(&orders.consumer).await.expect("a depth");
    assert_eq!(depth.total, 0);
}

/// The handler's transaction claims with the fence: nothing between the two can take the message away.
pub async fn a_claim_with_the_fence_ends_it_in_the_transaction<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for (text, lease) in [("live", LONG), ("ended", Duration::ZERO)] {
        let fence = ours(&orders, key(text), lease).await;
        let fenced = Key { fence: Some(fence), ..key(text) };
        let (tx, claims) = orders.claim(std::slice::from_ref(&fenced)).await;
        assert_eq!(claims, [Claim::New], "{text}");
        orders.roll_back(tx).await;
        assert_eq!(orders.state(text).await, Some(InboxState::Running), "a rolled back claim ends nothing");

        let mut tx = orders.take(fenced.clone()).await;
        ByHand::<F>::add(&mut tx, text, 1).await;
        orders.finish(tx).await;
        assert_eq!((orders.state(text).await, fixture.total(text).await), (Some(InboxState::Done), 1));
        assert_eq!(orders.answer(fenced).await, DUPLICATE);
    }
}

/// A claim among others, as in a batch.
pub async fn a_claim_with_a_fence_stands_among_others<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let fence = ours(&orders, key("begun"), LONG).await;
    ours(&orders, key("elsewhere"), LONG).await;
    ours(&orders, key("ended"), Duration::ZERO).await;
    orders.deliver(&message("done")).await;
    let fenced = Key { fence: Some(fence), ..key("begun") };
    let wrong = Key { fence: Some(fence), ..key("elsewhere") };
    let keys = [key("new"), wrong, fenced, key("done"), key("ended")];
    let expected = [Claim::New, Claim::Busy, Claim::New, DUPLICATE, Claim::New];
    let answers = async {
        while orders.answers(&keys).await != expected {
            tokio::time::sleep(Duration::from_millis(1)).await; // the clock may not have moved on yet
        }
    };
    tokio::time::timeout(SOON, answers).await.expect("each has its answer");
}

/// What was begun can fail, and be set aside.
pub async fn what_is_begun_can_wait_or_die<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let fence = ours(&orders, key("waits"), LONG).await;
    let mut tx = orders.take(Key { fence: Some(fence), ..key("waits") }).await;
    orders.store.park(&mut tx, &orders.consumer, &failed(&message("waits"))).await.expect("it is parked");
    orders.finish(tx).await;
    assert_eq!(begin(&orders, key("waits"), LONG).await, Grip::Waiting { other_payload: false });
    assert_eq!(orders.lease_only("waits").await.failures, 1);

    let fence = ours(&orders, key("dies"), LONG).await;
    let mut tx = orders.take(Key { fence: Some(fence), ..key("dies") }).await;
    let (message, consumer) = (message("dies"), &orders.consumer);
    let burial = rejected(&message);
    hapax_core::DeadLetters::bury(&orders.store, &mut tx, consumer, &burial).await.expect("it is set aside");
    orders.finish(tx).await;
    assert_eq!(begin(&orders, key("dies"), LONG).await, Grip::Dead { other_payload: false });
}

/// A message that a transaction holds is nobody else's, and cannot be taken over while it does.
pub async fn a_message_in_a_transaction_is_not_begun<F: StoreFixture>(fixture: &F) {
    if F::ONE_WRITER {
        return; // beginning has to wait for the transaction's end
    }
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let tx = orders.take(key("new")).await;
    assert_eq!(begin(&elsewhere, key("new"), LONG).await, Grip::Busy);
    orders.roll_back(tx).await;

    let fence = ours(&orders, key("begun"), Duration::ZERO).await;
    let tx = orders.take(Key { fence: Some(fence), ..key("begun") }).await;
    let grip = begin(&elsewhere, key("begun"), LONG).await;
    assert!(matches!(grip, Grip::Busy | Grip::Running { .. }), "though its lease has ended: {grip:?}");
    orders.finish(tx).await;
    let grip = begin(&elsewhere, key("begun"), LONG).await;
    assert!(matches!(grip, Grip::Done { .. }), "{grip:?}");
}

/// A message whose record may have been purged shows when it is begun, as it does when it is claimed.
pub async fn case_12_what_may_have_been_purged_is_ambiguous_when_begun<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let old = Timestamp::now().minus(Duration::from_hours(2));
    let sent = |text| Key { sent_at: Some(old), ..key(text) };
    let tx = orders.take(sent("purged")).await;
    orders.finish(tx).await;
    let purged = async {
        while orders.store.purge(&orders.consumer, Duration::ZERO, 10).await.expect("a purge").rows == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, purged).await.expect("the row is purged");
    for (key, expected) in [(sent("purged"), true), (sent("unseen"), true), (key("without"), false)] {
        match begin(&orders, key, LONG).await {
            Grip::Ours { ambiguous, .. } => assert_eq!(ambiguous, expected),
            grip => panic!("{grip:?}"),
        }
    }
    let later = Key { sent_at: Some(Timestamp::now()), ..key("later") };
    assert!(matches!(begin(&orders, later, LONG).await, Grip::Ours { ambiguous: false, .. }));
}

/// A message behind a waiting one of its key is not begun, and leaves no record.
pub async fn case_49_a_message_behind_another_of_its_key_is_not_begun<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.park(&failed(&in_order("1", "ada"))).await;
    assert_eq!(begin(&orders, key_of(&in_order("2", "ada")), LONG).await, Grip::Held);
    assert_eq!(row(&orders, "2").await, None);
    assert!(matches!(begin(&orders, key_of(&in_order("3", "bob")), LONG).await, Grip::Ours { .. }));
    let waiting = orders.lease_only("1").await;
    assert!(
        matches!(begin(&orders, key_at(&waiting), LONG).await, Grip::Ours { .. }),
        "the first of its key is"
    );
}

/// A start is charged to what a claim would take.
pub async fn a_begun_message_is_charged_to_its_owner<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let fence = ours(&orders, key("a"), LONG).await;
    let charge =
        async |key: &Key| orders.store.charge_start(&orders.consumer, key, 3).await.expect("an answer");
    assert_eq!(charge(&key("a")).await, Start::NotNeeded);
    assert_eq!(charge(&Key { fence: Some(fence), ..key("a") }).await, Start::Charged);
}

/// What is in progress is not forgotten, however old.
pub async fn what_is_begun_is_never_purged<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let fence = ours(&orders, key("a"), Duration::ZERO).await;
    orders.deliver(&message("done")).await;
    let purged = async {
        while orders.store.purge(&orders.consumer, Duration::ZERO, 10).await.expect("a purge").rows == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, purged).await.expect("the row that is done is purged");
    assert!(end(&orders, "a", fence, None).await);
}

async fn begin<F: StoreFixture>(orders: &ByHand<F>, key: Key, lease: Duration) -> Grip {
    let begun = orders.store.begin_running(&orders.consumer, &key, lease, Duration::ZERO).await;
    begun.expect("beginning is answered")
}

/// Begins a message that is to be ours.
async fn ours<F: StoreFixture>(orders: &ByHand<F>, key: Key, lease: Duration) -> Fence {
    match begin(orders, key, lease).await {
        Grip::Ours { fence, taken_over: false, .. } => fence,
        grip => panic!("the message should be free, but: {grip:?}"),
    }
}

/// Begins a message again and again until its lease has ended.
async fn take_over<F: StoreFixture>(orders: &ByHand<F>, key: Key) -> Fence {
    let taken = async {
        loop {
            match begin(orders, key.clone(), LONG).await {
                Grip::Ours { fence, taken_over: true, .. } => return fence,
                Grip::Running { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                grip => panic!("{grip:?}"),
            }
        }
    };
    tokio::time::timeout(SOON, taken).await.expect("the lease ends")
}

async fn renew<F: StoreFixture>(orders: &ByHand<F>, running: &[(&str, Fence)], lease: Duration) -> Vec<bool> {
    let running: Vec<_> = running.iter().map(|(text, fence)| (id(text), *fence)).collect();
    orders.store.renew_running(&orders.consumer, &running, lease).await.expect("renewing is answered")
}

async fn end<F: StoreFixture>(
    orders: &ByHand<F>,
    message: &str,
    fence: Fence,
    result: Option<&[u8]>,
) -> bool {
    orders.store.end_running(&orders.consumer, &id(message), fence, result).await.expect("ending is answered")
}

async fn row<F: StoreFixture>(orders: &ByHand<F>, message: &str) -> Option<InboxRow> {
    orders.store.look(&orders.consumer, &[id(message)]).await.expect("the inbox answers").remove(0)
}
