//! The waiting room and dead letters.

use std::time::Duration;

use hapax_core::{
    Claim, Code, DeadFilter, DeadLetters, DeadNumber, Digest, ErrorKind, Inbox, InboxState, Key, RawMessage,
    Redrive, Settled, Store, Transaction, Waiting, WaitingRoom,
};

use super::{Fixture, Run, burial, consumer, id, is, key, message, parking};

const LEASE: Duration = Duration::from_mins(1);

impl<D: Run> Fixture<D> {
    async fn park(&self, message: &RawMessage, order: Option<&str>) -> Claim {
        let mut key = Key::of(message);
        key.order = order.map(str::to_owned);
        let (mut tx, claims) = self.begin(&[key]).await;
        self.store.park(&mut tx, &consumer(), &parking(message, order)).await.unwrap();
        self.store.finish(tx).await.unwrap();
        claims[0]
    }

    async fn bury(&self, message: &RawMessage, order: Option<&str>) -> DeadNumber {
        let (mut tx, _) = self.begin(&[Key::of(message)]).await;
        let number = self.store.bury(&mut tx, &consumer(), &burial(message, order)).await.unwrap();
        self.store.finish(tx).await.unwrap();
        number
    }

    async fn lease(&self) -> Vec<Waiting> {
        self.store.lease(&consumer(), 10, LEASE).await.unwrap()
    }

    async fn leased(&self) -> Vec<String> {
        self.lease().await.iter().map(|waiting| waiting.id.to_string()).collect()
    }

    /// Handles a message of the waiting room.
    async fn resume(&self, waiting: &Waiting) -> Claim {
        let mut key = key(waiting.id.as_str());
        (key.place, key.order) = (Some(waiting.place), waiting.order.clone());
        let (mut tx, claims) = self.begin(&[key]).await;
        tx.meta().settled.push(Settled::Waiting(waiting.place));
        self.effect(&mut tx).await;
        self.store.finish(tx).await.unwrap();
        claims[0]
    }

    async fn redrive(&self, number: DeadNumber) -> Result<(), hapax_core::Error> {
        self.store.redrive(&Redrive { number, id: None, by: "op" }).await
    }

    async fn state(&self, text: &str) -> Option<InboxState> {
        self.store.look(&consumer(), &[id(text)]).await.unwrap().remove(0).map(|row| row.state)
    }
}

fn all() -> DeadFilter {
    DeadFilter { limit: 100, ..DeadFilter::default() }
}

pub(crate) async fn a_parked_message_is_leased_when_it_is_due<D: Run>(db: Fixture<D>) {
    let (now, later) = (message("now"), message("later"));
    assert_eq!(db.park(&now, None).await, Claim::New);
    let (mut tx, _) = db.begin(&[Key::of(&later)]).await;
    let mut deferred = parking(&later, None);
    (deferred.wait, deferred.code, deferred.failures) = (Duration::from_hours(1), None, 0);
    db.store.park(&mut tx, &consumer(), &deferred).await.unwrap();
    db.store.finish(tx).await.unwrap();

    let depth = db.store.depth(&consumer()).await.unwrap();
    assert_eq!((depth.total, depth.due), (2, 1));
    assert!(depth.next.unwrap() > Duration::from_mins(50), "{depth:?}");
    assert_eq!(db.ask(key("now")).await, Claim::Waiting { other_payload: false });

    let waiting = db.lease().await.remove(0);
    assert_eq!((waiting.id.as_str(), waiting.failures, waiting.leased_before), ("now", 1, false));
    assert_eq!(waiting.envelope, now.envelope);
    assert!(db.lease().await.is_empty());
    assert_eq!(db.resume(&waiting).await, Claim::New);
    assert_eq!(db.ask(key("now")).await, Claim::Duplicate { other_payload: false });
    assert_eq!(db.store.depth(&consumer()).await.unwrap().total, 1);
}

pub(crate) async fn leases_end_and_are_told_apart<D: Run>(db: Fixture<D>) {
    db.park(&message("a"), None).await;
    let first = db.lease().await.remove(0);
    db.store.give_back(&consumer(), &[first.place]).await.unwrap();
    let second = db.lease().await.remove(0);
    assert!(!second.leased_before, "given back untouched");
    db.store.renew(&consumer(), &[second.place], Duration::ZERO).await.unwrap(); // ends at once
    let third = db.lease().await.remove(0);
    assert!(third.leased_before, "whoever had it may have died");

    // Parked again at the same place, with its history.
    let mut placed = key("a");
    placed.place = Some(third.place);
    let (mut tx, claims) = db.begin(&[placed]).await;
    assert_eq!(claims, [Claim::New]);
    let again = message("a");
    let mut twice = parking(&again, None);
    twice.failures = 2;
    let before = db.store.waiting(&consumer(), &id("a")).await;
    if D::MANY_WRITERS {
        assert_eq!(before.unwrap().unwrap().failures, 1);
    }
    db.store.park(&mut tx, &consumer(), &twice).await.unwrap();
    db.store.finish(tx).await.unwrap();
    let fourth = db.lease().await.remove(0);
    assert_eq!((fourth.place, fourth.failures, fourth.leased_before), (first.place, 2, false));
}

pub(crate) async fn case_49_messages_of_a_key_keep_their_order<D: Run>(db: Fixture<D>) {
    let key_1 = Some("key 1");
    assert_eq!(db.park(&message("1"), key_1).await, Claim::New);
    assert_eq!(db.park(&message("2"), key_1).await, Claim::Held);
    assert_eq!(db.park(&message("3"), key_1).await, Claim::Held);
    assert_eq!(db.park(&message("other"), Some("key 2")).await, Claim::New);
    assert_eq!(db.store.depth(&consumer()).await.unwrap().due, 2, "the first of each key");

    let due = db.lease().await;
    assert_eq!(due.iter().map(|waiting| waiting.id.as_str()).collect::<Vec<_>>(), ["1", "other"]);
    assert_eq!(due[0].order.as_deref(), key_1);
    assert_eq!(db.resume(&due[0]).await, Claim::New);
    let second = db.lease().await.remove(0);
    assert_eq!(second.id.as_str(), "2");

    // The second dies: what is behind it stays behind it, also over a redrive.
    let mut placed = key("2");
    (placed.place, placed.order) = (Some(second.place), second.order.clone());
    let (mut tx, claims) = db.begin(&[placed]).await;
    assert_eq!(claims, [Claim::New]);
    let number = db.store.bury(&mut tx, &consumer(), &burial(&message("2"), key_1)).await.unwrap();
    db.store.finish(tx).await.unwrap();
    assert!(db.lease().await.is_empty());
    let mut late = key("4");
    late.order = key_1.map(str::to_owned);
    assert_eq!(db.ask(late.clone()).await, Claim::Held);
    db.redrive(number).await.unwrap();
    let redriven = db.lease().await.remove(0);
    assert_eq!((redriven.id.as_str(), redriven.place, redriven.failures), ("2", second.place, 0));
    assert_eq!(db.resume(&redriven).await, Claim::New);
    let third = db.lease().await.remove(0);
    assert_eq!(db.resume(&third).await, Claim::New);
    assert_eq!(db.ask(late).await, Claim::New);
}

pub(crate) async fn case_10_one_of_two_operators_redrives<D: Run>(db: Fixture<D>) {
    let number = db.bury(&message("a"), None).await;
    assert_eq!(db.store.count_dead(&all()).await.unwrap(), 1);
    let (one, two) = tokio::join!(db.redrive(number), db.redrive(number));
    let slower = one.err().or(two.err()).expect("one of them is too late");
    assert!(is(&slower, ErrorKind::NotFound, Code::RedriveLost), "{slower}");
    assert_eq!(db.leased().await, ["a"]);
    assert!(db.store.dead(&all()).await.unwrap().is_empty());
    let who = format!("SELECT count(*) FROM {} WHERE redriven_by = 'op'", db.table("dead_letters"));
    assert_eq!(db.count(&who).await, 1);
    let unknown = db.redrive(DeadNumber(number.0 + 100)).await.unwrap_err();
    assert!(is(&unknown, ErrorKind::NotFound, Code::NotFound), "{unknown}");
}

pub(crate) async fn a_redriven_letter_is_handled_once<D: Run>(db: Fixture<D>) {
    db.park(&message("a"), None).await;
    let failed_at = db.count(&format!("SELECT first_failed_at FROM {}", db.table("waiting"))).await;
    let waiting = db.lease().await.remove(0);
    let mut placed = key("a");
    placed.place = Some(waiting.place);
    let (mut tx, _) = db.begin(&[placed]).await;
    let number = db.store.bury(&mut tx, &consumer(), &burial(&message("a"), None)).await.unwrap();
    db.store.finish(tx).await.unwrap();
    assert_eq!(db.ask(key("a")).await, Claim::Dead { other_payload: false });
    let letter = db.store.dead(&all()).await.unwrap().remove(0);
    assert_eq!((letter.number, letter.failures, letter.reason.as_str()), (number, 2, "HX0040"));
    assert_eq!(letter.envelope, message("a").envelope);
    assert_eq!(letter.first_failed_at.as_micros(), failed_at, "the first failure outlives the retries");

    db.redrive(number).await.unwrap();
    let redriven = db.lease().await.remove(0);
    assert_eq!(db.resume(&redriven).await, Claim::New);
    assert_eq!(db.resume(&redriven).await, Claim::Duplicate { other_payload: false });
    assert_eq!(db.state("a").await, Some(InboxState::Done));
}

pub(crate) async fn letters_without_id_need_one<D: Run>(db: Fixture<D>) {
    let nameless = message("x");
    let mut letter = burial(&nameless, Some("k"));
    letter.id = None;
    let (mut tx, _) = db.begin(&[]).await;
    let number = db.store.bury(&mut tx, &consumer(), &letter).await.unwrap();
    db.store.finish(tx).await.unwrap();
    let error = db.redrive(number).await.unwrap_err();
    assert_eq!(error.code(), Code::RedriveNeedsId);
    let mut ordered = key("y");
    ordered.order = Some("k".into());
    assert_eq!(db.ask(ordered).await, Claim::Held);
    db.store.redrive(&Redrive { number, id: Some(&id("x")), by: "op" }).await.unwrap();
    assert_eq!(db.leased().await, ["x"]);
}

pub(crate) async fn another_payload_set_aside_leaves_the_row_as_it_is<D: Run>(db: Fixture<D>) {
    db.handle(key("a")).await.unwrap();
    let mut other = message("a");
    other.digest = Digest::of(b"another");
    let number = db.bury(&other, None).await;
    assert_eq!(db.state("a").await, Some(InboxState::Done));
    db.redrive(number).await.unwrap();
    let again = db.lease().await.remove(0);
    assert_eq!(db.resume(&again).await, Claim::Duplicate { other_payload: false });
}

pub(crate) async fn discarding_frees_the_key_and_keeps_the_row<D: Run>(db: Fixture<D>) {
    let number = db.bury(&message("a"), Some("k")).await;
    assert_eq!(db.park(&message("b"), Some("k")).await, Claim::Held);
    assert!(db.lease().await.is_empty());
    assert_eq!(db.store.depth(&consumer()).await.unwrap().due, 0);
    db.store.discard(number).await.unwrap();
    assert_eq!(db.leased().await, ["b"]);
    assert_eq!(db.state("a").await, Some(InboxState::Dead));
    assert_eq!(db.store.discard(number).await.unwrap_err().code(), Code::RedriveLost);
    assert_ne!(db.bury(&message("c"), None).await, number, "numbers are never given twice");
}
