//! Claims and what is kept beside them.

use std::time::Duration;

use hapax_core::{
    Claim, Code, ConsumerName, Digest, ErrorKind, Inbox, InboxState, InstanceId, Instances, Retention, Start,
    Store, Versions, WaitingRoom,
};

use super::{Fixture, Run, consumer, id, is, key, long_ago, message, parking};

pub(crate) async fn case_36_ids_are_kept_byte_for_byte<D: Run>(db: Fixture<D>) {
    let longest = "x".repeat(255);
    let ids =
        ["abc", "ABC", "abc ", "abć", "abc\u{301}", r"a\b", "a'b", "\"", "\u{1}", "$1 {now} %", &longest];
    for text in ids {
        assert_eq!(db.handle(key(text)).await.unwrap(), Claim::New, "{text:?}");
    }
    let (tx, claims) = db.begin(&ids.map(key)).await;
    db.store.roll_back(tx).await;
    assert_eq!(claims, [Claim::Duplicate { other_payload: false }; 11]);
    let rows = db.store.look(&consumer(), &ids.map(id)).await.unwrap();
    let found: Vec<_> = rows.into_iter().map(|row| row.unwrap().id).collect();
    assert_eq!(found, ids.map(id));
}

pub(crate) async fn a_claim_lasts_only_with_its_transaction<D: Run>(db: Fixture<D>) {
    assert_eq!(db.ask(key("a")).await, Claim::New);
    assert_eq!(db.handle(key("a")).await.unwrap(), Claim::New);
    let (tx, claims) = db.begin(&[key("b"), key("a"), key("0")]).await;
    assert_eq!(claims, [Claim::New, Claim::Duplicate { other_payload: false }, Claim::New]);
    db.store.finish(tx).await.unwrap();
    assert_eq!(db.ask(key("0")).await, Claim::Duplicate { other_payload: false });
    assert_eq!(db.effects().await, 1);
}

pub(crate) async fn another_payload_under_a_known_id_is_told<D: Run>(db: Fixture<D>) {
    db.handle(key("a")).await.unwrap();
    let mut other = key("a");
    other.digest = Digest::of(b"something else");
    assert_eq!(db.ask(other).await, Claim::Duplicate { other_payload: true });
}

pub(crate) async fn purged_messages_are_ambiguous<D: Run>(db: Fixture<D>) {
    let sent = |text: &str, seconds| {
        let mut key = key(text);
        key.sent_at = Some(long_ago(seconds));
        key
    };
    db.handle(sent("a", 10)).await.unwrap();
    db.handle(sent("b", 20)).await.unwrap();
    db.handle(key("unsaid")).await.unwrap();
    db.execute(&format!("UPDATE {} SET processed_at = 1", db.table("inbox"))).await;
    let purged = db.store.purge(&consumer(), Duration::from_mins(1), 2).await.unwrap();
    assert_eq!(purged.rows, 2);
    let purged = db.store.purge(&consumer(), Duration::from_mins(1), 2).await.unwrap();
    assert_eq!((purged.rows, purged.horizon), (1, Some(long_ago(20))));
    assert_eq!(db.store.horizon(&consumer()).await.unwrap(), Some(long_ago(20)));
    assert_eq!(db.ask(sent("a", 10)).await, Claim::Ambiguous);
    assert_eq!(db.ask(sent("c", 20)).await, Claim::Ambiguous);
    assert_eq!(db.ask(sent("d", 21)).await, Claim::New);
    assert_eq!(db.ask(key("unsaid")).await, Claim::New);
}

pub(crate) async fn case_04_of_many_rivals_one_commits<D: Run>(db: Fixture<D>) {
    let rivals = (0..20).map(|_| async {
        loop {
            match db.handle(key("a")).await {
                Ok(Claim::Busy) => tokio::task::yield_now().await,
                Ok(claim) => break claim,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let claims = futures::future::join_all(rivals).await;
    assert_eq!(claims.iter().filter(|claim| **claim == Claim::New).count(), 1, "{claims:?}");
    assert_eq!(db.effects().await, 1);
}

/// Where the database takes one writer at a time, the rival waits for its turn instead.
pub(crate) async fn a_rival_is_busy_and_then_a_duplicate<D: Run>(db: Fixture<D>) {
    let (mut first, claims) = db.begin(&[key("a"), key("b")]).await;
    assert_eq!(claims, [Claim::New, Claim::New]);
    if D::MANY_WRITERS {
        let (mut second, claims) = db.begin(&[key("c"), key("b")]).await;
        assert_eq!(claims, [Claim::New, Claim::Busy]);
        db.effect(&mut second).await;
        db.store.finish(second).await.unwrap();
    }
    db.effect(&mut first).await;
    db.store.finish(first).await.unwrap();
    assert_eq!(db.ask(key("b")).await, Claim::Duplicate { other_payload: false });
}

pub(crate) async fn a_claim_works_in_a_transaction_of_the_users_own<D: Run>(db: Fixture<D>) {
    // A transaction of the store's serves as the user's: `claim_in` asks for no more than a connection.
    let (mut tx, _) = db.begin(&[]).await;
    assert_eq!(db.store.claim_in(tx.conn(), &consumer(), &key("a")).await.unwrap(), Claim::New);
    db.store.finish(tx).await.unwrap();
    let (mut tx, _) = db.begin(&[]).await;
    let claim = db.store.claim_in(tx.conn(), &consumer(), &key("a")).await.unwrap();
    assert_eq!(claim, Claim::Duplicate { other_payload: false });
    db.store.roll_back(tx).await;
}

pub(crate) async fn records_move_with_their_consumer<D: Run>(db: Fixture<D>) {
    let to = ConsumerName::new("orders-2").unwrap();
    for text in ["a", "b"] {
        db.handle(key(text)).await.unwrap();
    }
    db.store.enlist(&consumer(), &InstanceId("i".into())).await.unwrap();
    db.store.enlist(&to, &InstanceId("i".into())).await.unwrap();
    assert_eq!(db.store.rename(&consumer(), &to).await.unwrap(), 2);
    assert_eq!(db.ask(key("a")).await, Claim::New);
    assert!(db.store.look(&to, &[id("a")]).await.unwrap()[0].is_some());
    db.handle(key("a")).await.unwrap();
    let error = db.store.rename(&consumer(), &to).await.unwrap_err();
    assert!(is(&error, ErrorKind::Setup, Code::NameTaken), "{error}");
}

pub(crate) async fn a_lazy_record_is_made_once<D: Run>(db: Fixture<D>) {
    assert!(db.store.record(&consumer(), &key("a")).await.unwrap());
    assert!(!db.store.record(&consumer(), &key("a")).await.unwrap());
    let (mut tx, _) = db.begin(&[]).await;
    assert!(!db.store.record_in(&mut tx, &consumer(), &key("a")).await.unwrap());
    assert!(db.store.record_in(&mut tx, &consumer(), &key("b")).await.unwrap());
    db.store.finish(tx).await.unwrap();
    let row = db.store.look(&consumer(), &[id("b")]).await.unwrap().remove(0).unwrap();
    assert_eq!((row.state, row.digest), (InboxState::Done, Digest::of(b"b")));

    // One that waits is recorded only from its place.
    let (mut tx, _) = db.begin(&[key("w")]).await;
    db.store.park(&mut tx, &consumer(), &parking(&message("w"), None)).await.unwrap();
    db.store.finish(tx).await.unwrap();
    assert!(!db.store.record(&consumer(), &key("w")).await.unwrap());
    let mut placed = key("w");
    placed.place = Some(db.store.waiting(&consumer(), &id("w")).await.unwrap().unwrap().place);
    assert!(db.store.record(&consumer(), &placed).await.unwrap());
    assert_eq!(db.store.depth(&consumer()).await.unwrap().total, 0);
}

pub(crate) async fn suspects_are_charged_as_long_as_they_are_free<D: Run>(db: Fixture<D>) {
    let (orders, suspect) = (consumer(), key("a"));
    let charge = || db.store.charge_start(&orders, &suspect, 2);
    assert_eq!(charge().await.unwrap(), Start::Charged);
    assert_eq!(charge().await.unwrap(), Start::Charged);
    assert_eq!(charge().await.unwrap(), Start::Spent(2));
    assert_eq!(db.store.starts(&consumer(), &id("a")).await.unwrap(), 2);
    let (mut tx, _) = db.begin(&[key("a")]).await;
    hapax_core::Transaction::meta(&mut tx).erased_starts.push(id("a"));
    db.store.finish(tx).await.unwrap();
    assert_eq!(db.store.starts(&consumer(), &id("a")).await.unwrap(), 0);
    assert_eq!(charge().await.unwrap(), Start::NotNeeded);
}

pub(crate) async fn instances_are_known_until_they_leave<D: Run>(db: Fixture<D>) {
    let instance = |name: &str| InstanceId(name.to_owned());
    let (one, two, hour) = (instance("one"), instance("two"), Duration::from_hours(1));
    db.store.enlist(&consumer(), &one).await.unwrap();
    db.store.enlist(&consumer(), &two).await.unwrap();
    let others = db.store.beat(&consumer(), &one, hour).await.unwrap();
    assert_eq!(others.iter().map(|beat| &beat.instance).collect::<Vec<_>>(), [&two]);
    db.store.leave(&consumer(), &two).await.unwrap();
    assert!(db.store.beat(&consumer(), &one, hour).await.unwrap().is_empty());
    db.execute(&format!("UPDATE {} SET beat_at = 1", db.table("instances"))).await;
    assert!(db.store.beat(&consumer(), &two, hour).await.unwrap().is_empty());
}

pub(crate) async fn an_older_version_is_not_newer<D: Run>(db: Fixture<D>) {
    let (mut tx, _) = db.begin(&[]).await;
    for (version, newer) in [(8, true), (7, false), (8, false), (9, true), (i64::MIN, false)] {
        let answer = db.store.newer(&mut tx, &consumer(), "order 1", version).await.unwrap();
        assert_eq!(answer, newer, "{version}");
    }
    db.store.finish(tx).await.unwrap();
}
