//! Taking a message.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use hapax_core::{Claim, Digest, Identity, Inbox as _, InboxState, Key, Timestamp};

use super::StoreFixture;
use super::by_hand::{ByHand, failed, id, key, message, other_payload};

const DUPLICATE: Claim = Claim::Duplicate { other_payload: false };

/// From the first delivery to the first duplicate.
pub async fn a_new_message_takes_effect_once<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    assert_eq!(orders.deliver(&message("a")).await, Claim::New);
    for _ in 0..3 {
        assert_eq!(orders.deliver(&message("a")).await, DUPLICATE);
    }
    assert_eq!(fixture.total("a").await, 1);
    assert_eq!(orders.state("a").await, Some(InboxState::Done));
}

/// A handler fails once after the id was noted, and the message comes again.
pub async fn case_01_a_message_that_failed_is_new_again<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let mut tx = orders.take(key("a")).await;
    ByHand::<F>::add(&mut tx, "a", 1).await;
    orders.roll_back(tx).await;

    assert_eq!(orders.state("a").await, None);
    assert_eq!(orders.deliver(&message("a")).await, Claim::New);
    assert_eq!(orders.deliver(&message("a")).await, DUPLICATE);
    assert_eq!(fixture.total("a").await, 1);
}

/// The claim came to nothing because its connection went, and the message comes again.
pub async fn case_06_a_claim_that_was_lost_leaves_no_mark<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let (tx, claims) = orders.claim(&[key("a"), key("b")]).await;
    assert_eq!(claims, [Claim::New, Claim::New]);
    hapax_core::Store::abort(&orders.store, tx).await;

    assert_eq!(orders.answer_when_free(key("a")).await, Claim::New);
    assert_eq!(orders.deliver(&message("a")).await, Claim::New);
    assert_eq!(fixture.total("a").await, 1);
}

/// One event, two consumers, one database.
pub async fn case_07_two_consumers_keep_their_own_records<F: StoreFixture>(fixture: &F) {
    let (orders, mails) = (ByHand::new(fixture), ByHand::named(fixture, "mails"));
    for consumer in [&orders, &mails] {
        assert_eq!(consumer.deliver(&message("a")).await, Claim::New);
        assert_eq!(consumer.deliver(&message("a")).await, DUPLICATE);
    }
    assert_eq!(fixture.total("a").await, 2);
}

/// A store may take keys in any order, but it answers in theirs.
pub async fn answers_stand_in_the_order_of_the_keys<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.deliver(&message("m-done")).await;
    orders.park(&failed(&message("z-waiting"))).await;
    orders.bury(&message("a-dead")).await;

    let batch = ["z-waiting", "y-new", "m-done", "b-new", "a-dead"].map(key);
    let waiting = Claim::Waiting { other_payload: false };
    let dead = Claim::Dead { other_payload: false };
    assert_eq!(orders.answers(&batch).await, [waiting, Claim::New, DUPLICATE, Claim::New, dead]);
}

/// All of a batch's messages commit together, however many they are.
pub async fn a_large_batch_commits_whole_or_not_at_all<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let batch: Vec<Key> = (0..500).map(|n| key(&format!("message {n}"))).collect();
    let (tx, claims) = orders.claim(&batch).await;
    assert!(claims.iter().all(|claim| *claim == Claim::New) && claims.len() == batch.len());
    orders.roll_back(tx).await;

    let (tx, claims) = orders.claim(&batch).await;
    assert!(claims.iter().all(|claim| *claim == Claim::New), "rolled back means never claimed");
    orders.finish(tx).await;
    assert!(orders.answers(&batch).await.iter().all(|claim| *claim == DUPLICATE));
}

/// Ids that a collation, a padding rule, a pattern or an escape would merge.
pub async fn case_36_ids_are_told_apart_byte_for_byte<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let long = "x".repeat(255);
    let texts = [
        "abc",
        "ABC",
        "abc ",
        " abc",
        "abć",
        "abc\u{301}",
        "abc\u{107}",
        "abc\u{200b}",
        r"a\b",
        r"a\\b",
        "a%",
        "a_",
        "a'b",
        "a\"b",
        "a\nb",
        "a\tb",
        "ß",
        "ss",
        "İ",
        "i",
        "💶",
        "0",
        "00",
        "0.0",
        "null",
        "{a,b}",
        &long,
        &long[1..],
    ];
    let batch = texts.map(key);
    let (tx, claims) = orders.claim(&batch).await;
    assert!(claims.iter().all(|claim| *claim == Claim::New), "merged: {claims:?}");
    orders.finish(tx).await;

    let rows = orders.store.look(&orders.consumer, &texts.map(id)).await.expect("the inbox answers");
    for (text, row) in texts.iter().zip(rows) {
        assert_eq!(row.expect("each has a row of its own").id.as_str(), *text);
        assert_eq!(orders.answer(key(text)).await, DUPLICATE);
    }
    for absent in ["Abc", "abc  ", "a", "aXb", "a\\", ""] {
        let Ok(absent) = hapax_core::MessageId::new(absent) else { continue };
        assert_eq!(orders.answer(Key::new(absent, Digest::of(b""))).await, Claim::New);
    }
}

/// Two fields that would read the same without a separator.
pub async fn case_37_ids_of_several_fields_do_not_run_together<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let identity = Identity::fields(["header:tenant", "header:event"]).expect("an identity");
    for (tenant, event) in [("a", "bc"), ("ab", "c")] {
        let envelope =
            hapax_core::Envelope::new("").with_header("tenant", tenant).with_header("event", event);
        let id = identity.of(&envelope).expect("both fields are there");
        assert_eq!(orders.deliver(&message(id.as_str())).await, Claim::New);
        assert_eq!(orders.deliver(&message(id.as_str())).await, DUPLICATE);
    }
}

/// A producer's bug that would otherwise vanish as a duplicate.
pub async fn case_47_another_payload_under_a_known_id_shows<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    orders.deliver(&message("done")).await;
    orders.park(&failed(&message("waiting"))).await;
    orders.bury(&message("dead")).await;

    let copies = ["done", "waiting", "dead"].map(other_payload);
    let expected = [
        Claim::Duplicate { other_payload: true },
        Claim::Waiting { other_payload: true },
        Claim::Dead { other_payload: true },
    ];
    assert_eq!(orders.answers(&copies).await, expected);
}

/// What a row keeps, to the last bit and microsecond.
pub async fn a_row_keeps_digest_and_times_exactly<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let sent_at = Timestamp::from_micros(1_700_000_000_123_457);
    let digests = [i64::MIN, -1, 0, 1, i64::MAX].map(Digest::from_i64);
    for (n, digest) in digests.into_iter().enumerate() {
        let id = id(&n.to_string());
        let key = Key { sent_at: Some(sent_at), ..Key::new(id.clone(), digest) };
        let before = Timestamp::now().minus(super::by_hand::LONG);
        let tx = orders.take(key.clone()).await;
        orders.finish(tx).await;

        let rows = orders.store.look(&orders.consumer, &[id]).await.expect("the inbox answers");
        let row = rows[0].as_ref().expect("the row is there");
        assert_eq!((row.digest, row.sent_at), (digest, Some(sent_at)));
        assert!(row.processed_at > before, "processed_at is a time of now");
        assert_eq!(orders.answer(key).await, DUPLICATE, "the digest is the same");
    }
}

/// Claims, commits and looks in another process see what this one committed.
pub async fn another_process_sees_what_is_done<F: StoreFixture>(fixture: &F) {
    let (here, there) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    here.deliver(&message("a")).await;
    assert_eq!(there.deliver(&message("a")).await, DUPLICATE);
    assert_eq!(there.deliver(&message("b")).await, Claim::New);
    assert_eq!(here.answers(&[key("b"), key("c")]).await, [DUPLICATE, Claim::New]);
}
