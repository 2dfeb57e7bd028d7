//! Messages in progress under a lease.

use std::time::Duration;

use hapax_core::{
    Burial, Claim, Code, DeadLetters as _, Digest, Envelope, Fence, Grip, Inbox as _, InboxRow, InboxState,
    Instances as _, Key, Retention as _, Running as _, Start, Store as _, Timestamp, Transaction as _,
};
use hapax_testkit::servers::{MongoDatabase, Server, eventually, require};
use tokio::time::timeout;

use super::ground::{Ground, key};

const LONG: Duration = Duration::from_mins(10);
const SHORT: Duration = Duration::from_millis(300);
/// Longer than an answer that waits for nobody takes.
const AT_ONCE: Duration = Duration::from_secs(10);
const NEW: Claim = Claim::New;

async fn begin(ground: &Ground, key: &Key, lease: Duration) -> Grip {
    ground.store.begin_running(&ground.consumer, key, lease, Duration::ZERO).await.expect("an answer")
}

/// Begins a message that is free, and says whether it was taken over.
async fn begun(ground: &Ground, key: &Key, lease: Duration) -> (Fence, bool) {
    match begin(ground, key, lease).await {
        Grip::Ours { fence, taken_over, ambiguous: false, .. } => (fence, taken_over),
        other => panic!("{} is not ours but {other:?}", key.id),
    }
}

async fn renew(ground: &Ground, running: &[(&str, Fence)], lease: Duration) -> Vec<bool> {
    let running: Vec<_> = running.iter().map(|(id, fence)| (key(id).id, *fence)).collect();
    ground.store.renew_running(&ground.consumer, &running, lease).await.expect("leases are renewed")
}

async fn end(ground: &Ground, id: &str, fence: Fence, result: Option<&[u8]>) -> bool {
    ground.store.end_running(&ground.consumer, &key(id).id, fence, result).await.expect("an answer")
}

async fn give_up(ground: &Ground, id: &str, fence: Fence) -> bool {
    ground.store.drop_running(&ground.consumer, &key(id).id, fence).await.expect("an answer")
}

async fn row(ground: &Ground, id: &str) -> Option<InboxRow> {
    ground.store.look(&ground.consumer, &[key(id).id]).await.expect("an answer").pop().expect("one of one")
}

async fn state(ground: &Ground, id: &str) -> Option<InboxState> {
    row(ground, id).await.map(|row| row.state)
}

/// Begins a message from many sides at once, and says how many got it.
async fn winners(ground: &Ground, id: &'static str) -> usize {
    let rivals = (0..12).map(|_| {
        let (store, consumer) = (ground.store.clone(), ground.consumer.clone());
        tokio::spawn(async move { store.begin_running(&consumer, &key(id), LONG, Duration::ZERO).await })
    });
    let mut ours = 0;
    for rival in rivals.collect::<Vec<_>>() {
        match rival.await.expect("no panic").expect("an answer") {
            Grip::Ours { .. } => ours += 1,
            Grip::Running { other_payload: false, .. } | Grip::Busy => {}
            other => panic!("{other:?}"),
        }
    }
    ours
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_rivals_gets_a_message_and_one_of_many_takes_it_over() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    assert_eq!(winners(&ground, "m1").await, 1);
    let Grip::Running { ends_in, .. } = begin(&ground, &key("m1"), LONG).await else { panic!("it is free") };
    assert!(ends_in <= LONG && ends_in > LONG / 2, "{ends_in:?}");

    let (first, _) = begun(&ground, &key("m2"), Duration::ZERO).await;
    assert_eq!(winners(&ground, "m2").await, 1);
    assert!(!end(&ground, "m2", first, None).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_takes_a_message_over_has_it_and_the_late_loser_changes_nothing() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let (first, taken_over) = begun(&ground, &key("m1"), SHORT).await;
    assert!(!taken_over);
    let other = Key { digest: Digest::of(b"other"), ..key("m1") };
    let grip = begin(&ground, &other, LONG).await;
    assert!(matches!(grip, Grip::Running { other_payload: true, .. }), "{grip:?}");

    tokio::time::sleep(SHORT + SHORT / 4).await; // the lease has to end
    assert_eq!(renew(&ground, &[("m1", first)], Duration::ZERO).await, [true], "nobody has taken it over");
    let (second, taken_over) = begun(&ground, &other, LONG).await;
    assert!(taken_over && second > first);
    let kept = row(&ground, "m1").await.expect("it is recorded");
    assert_eq!((kept.state, kept.digest), (InboxState::Running, key("m1").digest), "the first one's");
    let lease_until = kept.lease_until.expect("a lease");
    assert!(kept.processed_at.until(lease_until) >= LONG, "{lease_until:?}");

    assert_eq!(
        renew(&ground, &[("m1", first), ("m1", second), ("m9", second)], LONG).await,
        [false, true, false]
    );
    assert!(!end(&ground, "m1", first, Some(b"late")).await);
    assert!(!give_up(&ground, "m1", first).await);
    assert!(end(&ground, "m1", second, Some(b"done")).await);
    assert!(!end(&ground, "m1", second, Some(b"again")).await, "it is done");

    let done = Grip::Done { other_payload: false, result: Some("done".into()) };
    assert_eq!(begin(&ground, &key("m1"), LONG).await, done);
    let kept = row(&ground, "m1").await.expect("it is recorded");
    assert_eq!((kept.state, kept.lease_until, kept.result), (InboxState::Done, None, Some("done".into())));
    assert_eq!(ground.claim(&[other]).await.1, [Claim::Duplicate { other_payload: true }]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_zero_has_ended_at_once() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let mut last = begun(&ground, &key("m1"), Duration::ZERO).await.0;
    for _ in 0..5 {
        let (fence, taken_over) = begun(&ground, &key("m1"), Duration::ZERO).await;
        assert!(taken_over && fence > last);
        last = fence;
    }
    assert!(end(&ground, "m1", last, None).await, "nobody has taken it over");
    assert_eq!(begin(&ground, &key("m1"), LONG).await, Grip::Done { other_payload: false, result: None });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_given_up_is_what_it_was() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let (first, _) = begun(&ground, &key("m1"), Duration::ZERO).await;
    let (second, _) = begun(&ground, &key("m1"), LONG).await;
    assert!(give_up(&ground, "m1", second).await);
    assert_eq!(row(&ground, "m1").await, None);
    let (third, taken_over) = begun(&ground, &key("m1"), LONG).await;
    assert!(!taken_over && third > second, "no fence is given twice");
    assert!(!end(&ground, "m1", first, None).await && !give_up(&ground, "m1", second).await);

    let place = ground.park("m2", None).await;
    let waiting = Grip::Waiting { other_payload: false };
    assert_eq!(begin(&ground, &key("m2"), LONG).await, waiting, "only who has it from there");
    let key_there = Key { place: Some(place), ..key("m2") };
    let (fence, taken_over) = begun(&ground, &key_there, LONG).await;
    assert!(!taken_over);
    assert_eq!(state(&ground, "m2").await, Some(InboxState::Running));
    assert!(give_up(&ground, "m2", fence).await);
    assert_eq!(begin(&ground, &key("m2"), LONG).await, waiting);
    assert!(begun(&ground, &key_there, LONG).await.0 > fence);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_behind_another_of_its_key_is_held_and_not_recorded() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let place = ground.park("m1", Some("k")).await;
    let of_key = |id: &str| Key { order: Some("k".into()), ..key(id) };
    assert_eq!(begin(&ground, &of_key("m2"), LONG).await, Grip::Held);
    assert_eq!(row(&ground, "m2").await, None);
    begun(&ground, &key("m3"), LONG).await;
    assert!(
        matches!(begin(&ground, &of_key("m3"), LONG).await, Grip::Running { .. }),
        "what is on record counts"
    );
    begun(&ground, &Key { place: Some(place), ..of_key("m1") }, LONG).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_25_a_message_whose_record_may_be_purged_is_recorded_and_ambiguous() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let now = Timestamp::now();
    let sent = |id: &str, ago: u64| Key { sent_at: Some(now.minus(Duration::from_secs(ago))), ..key(id) };
    assert!(ground.store.record(&ground.consumer, &sent("m1", 3_600)).await.expect("it is recorded"));
    eventually("it is purged", AT_ONCE, async || {
        ground.store.purge(&ground.consumer, Duration::ZERO, 10).await.expect("a purge");
        row(&ground, "m1").await.is_none()
    })
    .await;
    let grip = begin(&ground, &sent("m1", 3_600), Duration::ZERO).await;
    assert!(matches!(grip, Grip::Ours { ambiguous: true, taken_over: false, .. }), "{grip:?}");
    assert_eq!(state(&ground, "m1").await, Some(InboxState::Running));
    assert!(begun(&ground, &sent("m1", 3_600), LONG).await.1, "what is taken over is known");
    begun(&ground, &sent("m2", 3_000), LONG).await;
    begun(&ground, &sent("m3", 0), LONG).await;
}

/// Nobody waits for a transaction's end.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_transaction_holds_is_busy_to_all_others() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let (rival, _) = ground.claim(&[key("m1")]).await;
    let grip = timeout(AT_ONCE, begin(&ground, &key("m1"), LONG)).await.expect("nobody is waited for");
    assert_eq!(grip, Grip::Busy);
    ground.store.roll_back(rival).await;
    let (fence, _) = begun(&ground, &key("m1"), Duration::ZERO).await;
    let (other, _) = begun(&ground, &key("m2"), LONG).await;

    let (mut tx, claims) = ground.claim(&[Key { fence: Some(fence), ..key("m1") }]).await;
    assert_eq!(claims, [NEW]);
    assert_eq!(begin(&ground, &key("m1"), LONG).await, Grip::Busy);
    assert_eq!(renew(&ground, &[("m1", fence), ("m2", other)], LONG).await, [false, true]);
    tx.meta().results.push((key("m1").id, "kept".into()));
    tx.meta().results.push((key("m2").id, "not ours".into()));
    ground.store.finish(tx).await.expect("it commits");
    let done = Grip::Done { other_payload: false, result: Some("kept".into()) };
    assert_eq!(begin(&ground, &key("m1"), LONG).await, done);
    assert!(!end(&ground, "m1", fence, None).await);
    assert_eq!(row(&ground, "m2").await.expect("it is recorded").result, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_a_running_message_by_its_fence_or_after_its_lease() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let claim = async |key: Key| {
        let (tx, claims) = ground.claim(&[key]).await;
        ground.store.roll_back(tx).await;
        claims[0]
    };
    let charge =
        async |key: Key| ground.store.charge_start(&ground.consumer, &key, 5).await.expect("an answer");
    let (fence, _) = begun(&ground, &key("m1"), LONG).await;
    let fenced = |fence: i64| Key { fence: Some(Fence(fence)), ..key("m1") };
    assert_eq!(claim(key("m1")).await, Claim::Busy);
    assert_eq!(claim(fenced(fence.0 + 1)).await, Claim::Busy);
    assert_eq!(claim(fenced(fence.0)).await, NEW);
    assert_eq!(charge(key("m1")).await, Start::NotNeeded);
    assert_eq!(charge(fenced(fence.0)).await, Start::Charged);

    assert_eq!(renew(&ground, &[("m1", fence)], Duration::ZERO).await, [true]);
    assert_eq!(claim(fenced(fence.0 + 1)).await, Claim::Busy, "it was another's");
    assert_eq!(claim(fenced(fence.0)).await, NEW, "nobody has taken it over");
    let other = Key { digest: Digest::of(b"other"), ..key("m1") };
    assert_eq!(charge(other.clone()).await, Start::Charged);
    let (tx, claims) = ground.claim(&[other.clone(), key("new")]).await;
    assert_eq!(claims, [NEW, NEW]);
    ground.store.finish(tx).await.expect("it commits");
    let kept = row(&ground, "m1").await.expect("it is recorded");
    assert_eq!((kept.state, kept.digest, kept.lease_until), (InboxState::Done, other.digest, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_message_that_is_claimed_can_be_parked_and_set_aside() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let (fence, _) = begun(&ground, &key("m1"), LONG).await;
    let (mut tx, _) = ground.claim(&[Key { fence: Some(fence), ..key("m1") }]).await;
    ground.park_in(&mut tx, "m1", None).await;
    ground.store.finish(tx).await.expect("it is parked");
    let kept = row(&ground, "m1").await.expect("it is recorded");
    assert_eq!((kept.state, kept.lease_until), (InboxState::Waiting, None));
    assert_eq!(begin(&ground, &key("m1"), LONG).await, Grip::Waiting { other_payload: false });

    let (fence, _) = begun(&ground, &key("m2"), LONG).await;
    let (mut tx, _) = ground.claim(&[Key { fence: Some(fence), ..key("m2") }]).await;
    let burial = Burial {
        envelope: &Envelope::new("m2"),
        id: Some(&key("m2").id),
        kind: "Paid",
        order: None,
        place: None,
        reason: Code::HandlerFailed,
        error: "no",
        failures: 1,
        crashes: 0,
    };
    ground.store.bury(&mut tx, &ground.consumer, &burial).await.expect("it is set aside");
    ground.store.finish(tx).await.expect("it commits");
    assert_eq!(begin(&ground, &key("m2"), LONG).await, Grip::Dead { other_payload: false });
    assert!(!end(&ground, "m2", fence, None).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_message_goes_to_the_new_name_of_its_consumer() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let mut ground = Ground::new(database.url()).await;
    let (fence, _) = begun(&ground, &key("m1"), LONG).await;
    let sales = hapax_core::ConsumerName::new("sales").expect("a name");
    assert_eq!(ground.store.rename(&ground.consumer, &sales).await.expect("it is renamed"), 1);
    ground.consumer = sales;
    assert_eq!(renew(&ground, &[("m1", fence)], LONG).await, [true]);
    assert!(end(&ground, "m1", fence, Some(b"done")).await);
}
