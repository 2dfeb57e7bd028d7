//! The guard of naturally idempotent handlers.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use hapax_core::{ErrorKind, Versions as _};
use tokio::task::JoinSet;

use super::StoreFixture;
use super::by_hand::{ByHand, Tx};

/// An absolute write ("status = shipped", version 7) arrives after version 8.
pub async fn case_45_an_older_version_is_not_newer<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let arrivals =
        [(5, true), (8, true), (7, false), (8, false), (9, true), (i64::MIN, false), (i64::MAX, true)];
    for (version, expected) in arrivals {
        assert_eq!(noted(&orders, "order 1", version).await, expected, "version {version}");
    }
}

/// The first version of an entity may be any number.
pub async fn the_first_version_is_newer_than_none<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for version in [0, -1, i64::MIN, i64::MAX] {
        assert!(noted(&orders, &format!("order of version {version}"), version).await);
    }
}

/// The note outlives the entity: a late copy of an old version does not bring a deleted one back.
pub async fn case_45_a_deleted_entity_stays_deleted<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    assert!(applied(&orders, "order 1", 1, 100).await);
    assert!(applied(&orders, "order 1", 2, -100).await, "version 2 deletes it");
    assert!(!applied(&orders, "order 1", 1, 100).await);
    assert_eq!(fixture.total("order 1").await, 0);
}

/// Entities and consumers do not share versions.
pub async fn versions_belong_to_entity_and_consumer<F: StoreFixture>(fixture: &F) {
    let (orders, mails) = (ByHand::new(fixture), ByHand::named(fixture, "mails"));
    assert!(noted(&orders, "order 1", 5).await);
    for entity in ["order 2", "ORDER 1", "order 1 "] {
        assert!(noted(&orders, entity, 1).await, "{entity}");
    }
    assert!(noted(&mails, "order 1", 1).await);
}

/// The note is the handler's: it goes with its transaction.
pub async fn a_rolled_back_note_is_forgotten<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    assert!(noted(&orders, "order 1", 5).await);
    let mut tx = orders.begin().await;
    assert!(note(&orders, &mut tx, "order 1", 9).await.expect("the version is noted"));
    assert!(
        !note(&orders, &mut tx, "order 1", 8).await.expect("the version is noted"),
        "it reads its own note"
    );
    orders.roll_back(tx).await;
    assert!(noted(&orders, "order 1", 6).await);
}

/// Many versions at once: the value ends at the newest, and no version is applied twice.
pub async fn versions_noted_at_once_end_at_the_newest<F: StoreFixture>(fixture: &F) {
    let mut tasks = JoinSet::new();
    for n in 0..20_i64 {
        let orders = ByHand::new(fixture);
        tasks.spawn(async move { applied(&orders, "order 1", n % 10, 1).await });
    }
    let applied = tasks.join_all().await.into_iter().filter(|applied| *applied).count();
    assert!((1..=10).contains(&applied), "{applied} of 10 versions were applied");
    assert_eq!(fixture.total("order 1").await, i64::try_from(applied).expect("a small number"));
    let orders = ByHand::new(fixture);
    assert!(!noted(&orders, "order 1", 9).await);
    assert!(noted(&orders, "order 1", 10).await);
}

/// Notes a version in a transaction of its own.
async fn noted<F: StoreFixture>(orders: &ByHand<F>, entity: &str, version: i64) -> bool {
    let mut tx = orders.begin().await;
    let newer = note(orders, &mut tx, entity, version).await.expect("the version is noted");
    orders.finish(tx).await;
    newer
}

/// Applies a version with an effect if it is newer; a transaction that the database undid runs again.
async fn applied<F: StoreFixture>(orders: &ByHand<F>, entity: &str, version: i64, n: i64) -> bool {
    loop {
        let mut tx = orders.begin().await;
        match note(orders, &mut tx, entity, version).await {
            Ok(newer) => {
                if newer {
                    ByHand::<F>::add(&mut tx, entity, n).await;
                }
                orders.finish(tx).await;
                return newer;
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Busy), "{error}");
                orders.roll_back(tx).await;
                tokio::task::yield_now().await;
            }
        }
    }
}

async fn note<F: StoreFixture>(
    orders: &ByHand<F>,
    tx: &mut Tx<F>,
    entity: &str,
    version: i64,
) -> Result<bool, hapax_core::Error> {
    orders.store.newer(tx, &orders.consumer, entity, version).await
}
