//! What becomes of a source's messages in a consumer: nothing on the way through a broker may make two ids one, or
//! an amount another.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use hapax::{
    Body, Code, Consumer, DeadFilter, DeadLetters as _, Envelope, Format, Identity, Message, Retry, Summary,
};

use super::SourceFixture;
use super::by_hand::{ByHand, message};
use crate::conformance::SOON;
use crate::memory::{MemoryStore, MemoryTx};
use crate::servers::eventually;

/// The consumer of a case, before it has handlers.
type Orders<F> = Consumer<MemoryStore, <F as SourceFixture>::Source>;

/// Adds one to what is called like the message's id.
async fn count(tx: &mut MemoryTx, message: Message<Body>) -> hapax::Result {
    tx.add(message.id().as_str(), 1)?;
    Ok(())
}

/// What a run left behind.
struct Left {
    store: MemoryStore,
    summary: Summary,
}

impl Left {
    /// How often each message took effect.
    fn effects(&self) -> BTreeMap<String, i64> {
        self.store.rows().keys().map(|key| (key.clone(), self.store.number(key))).collect()
    }

    /// The codes under which messages were set aside.
    async fn reasons(&self) -> Vec<String> {
        let all = DeadFilter { limit: 1_000, ..DeadFilter::default() };
        let letters = self.store.dead(&all).await.expect("letters are listed");
        let mut reasons: Vec<String> = letters.into_iter().map(|letter| letter.reason).collect();
        reasons.sort();
        reasons
    }
}

/// Runs a consumer until so many deliveries have ended; then nothing may be left on the broker.
async fn run<F: SourceFixture>(
    fixture: &F,
    deliveries: u64,
    set_up: impl FnOnce(Orders<F>) -> Orders<F>,
) -> Left {
    let store = MemoryStore::new();
    let consumer = Consumer::new("orders", store.clone(), fixture.source().await).expect("a name");
    let consumer = consumer
        .retry(Retry::exponential().attempts(3).first(Duration::from_millis(5)))
        .concurrency(2)
        .on("Paid", count);
    let consumer = set_up(consumer);
    let health = consumer.health();
    let ended = eventually("every delivery has ended", SOON, async || {
        let Summary { handled, duplicates, dead, .. } = health.summary();
        handled + duplicates + dead >= deliveries
    });
    let summary = consumer.run_until(ended).await.expect("it runs");
    fixture.publish(message("last")).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let last = source.take_one().await;
    assert_eq!(
        last.envelope.properties.message_id.as_deref(),
        Some("last"),
        "everything before it was acked"
    );
    source.ack(vec![last]).await;
    Left { store, summary }
}

/// Ids that look alike are told apart, on whatever way the broker carries them.
pub async fn case_36_ids_are_told_apart_byte_for_byte<F: SourceFixture>(fixture: &F) {
    let longest = "x".repeat(255);
    let ids =
        ["abc", "ABC", "abc ", " abc", "ab\u{107}", "abc\u{301}", "a\\b", "a\"b", "a,b:c;d=e", &longest];
    for id in ids.into_iter().chain(ids) {
        fixture.publish(message(id)).await;
    }
    let left = run(fixture, 2 * ids.len() as u64, |consumer| consumer).await;
    assert_eq!(left.effects(), ids.into_iter().map(|id| (id.to_owned(), 1)).collect());
    assert_eq!((left.summary.handled, left.summary.duplicates), (ids.len() as u64, ids.len() as u64));
}

/// Ids of several fields do not run together, and a missing field is no id.
pub async fn case_37_ids_of_several_fields_do_not_run_together<F: SourceFixture>(fixture: &F) {
    for body in [r#"{"a":"a","b":"bc"}"#, r#"{"a":"ab","b":"c"}"#, r#"{"a":"ab"}"#] {
        fixture.publish(Envelope::new(body).with_type("Paid")).await;
    }
    let fields = Identity::fields(["json:/a", "json:/b"]).expect("an identity");
    let left = run(fixture, 3, |consumer| consumer.format(Format::default().identity(fields))).await;
    assert_eq!((left.summary.handled, left.summary.dead), (2, 1));
    assert_eq!(left.reasons().await, [Code::IdMissing.as_str()]);
}

/// Messages without an id are set aside, each: what the broker calls a delivery is no id.
pub async fn case_38_messages_without_an_id_are_set_aside_each<F: SourceFixture>(fixture: &F) {
    for _ in 0..2 {
        fixture.publish(Envelope::new("{}").with_type("Paid")).await;
    }
    fixture.publish(message("with an id")).await;
    let left = run(fixture, 3, |consumer| consumer).await;
    assert_eq!(left.effects(), [("with an id".to_owned(), 1)].into());
    assert_eq!(left.reasons().await, [Code::IdMissing.as_str(), Code::IdMissing.as_str()]);
}

/// A payload that is no JSON, or too large, is set aside with the reason, and the consumer goes on.
pub async fn case_39_a_payload_that_cannot_be_used_is_set_aside<F: SourceFixture>(fixture: &F) {
    #[derive(serde::Deserialize)]
    struct Typed {
        order: i64,
    }
    async fn typed(tx: &mut MemoryTx, message: Message<Typed>) -> hapax::Result {
        tx.add(message.id().as_str(), message.order)?;
        Ok(())
    }
    let json = |id: &str, body: String| Envelope::new(body).with_id(id).with_type("Typed");
    fixture.publish(json("broken", "{\"order\":".into())).await;
    fixture.publish(json("lacking", "{}".into())).await;
    fixture.publish(json("large", format!("{{\"order\":1,\"rest\":\"{}\"}}", "x".repeat(100_000)))).await;
    fixture.publish(json("good", "{\"order\":1}".into())).await;
    let format = Format::default().max_payload(50_000);
    let left = run(fixture, 4, |consumer| consumer.format(format).on("Typed", typed)).await;
    assert_eq!(left.effects(), [("good".to_owned(), 1)].into());
    let [undecodable, large] = [Code::PayloadUndecodable, Code::PayloadTooLarge].map(Code::as_str);
    assert_eq!(left.reasons().await, [undecodable, undecodable, large]);
}

/// Digits that a float would lose arrive as they were sent.
pub async fn case_40_amounts_arrive_digit_for_digit<F: SourceFixture>(fixture: &F) {
    async fn keep(tx: &mut MemoryTx, message: Message<Body>) -> hapax::Result {
        let body = std::str::from_utf8(message.payload())?.to_owned();
        tx.add(body, 1)?;
        Ok(())
    }
    let amounts = [r#"{"amount":2500.10}"#, r#"{"amount":9007199254740993}"#, r#"{"amount":1e400}"#];
    for (n, body) in amounts.into_iter().enumerate() {
        fixture.publish(Envelope::new(body).with_id(format!("payment {n}")).with_type("Amount")).await;
    }
    let left = run(fixture, 3, |consumer| consumer.on("Amount", keep)).await;
    assert_eq!(left.effects(), amounts.into_iter().map(|body| (body.to_owned(), 1)).collect());
}

/// A type nobody handles, and no type at all, are set aside and not silently acked.
pub async fn case_41_a_type_nobody_handles_is_set_aside<F: SourceFixture>(fixture: &F) {
    fixture.publish(Envelope::new("{}").with_id("unknown").with_type("Unheard")).await;
    fixture.publish(Envelope::new("{}").with_id("typeless")).await;
    fixture.publish(message("known")).await;
    let left = run(fixture, 3, |consumer| consumer).await;
    assert_eq!(left.effects(), [("known".to_owned(), 1)].into());
    assert_eq!(left.reasons().await, [Code::TypeMissing.as_str(), Code::TypeUnknown.as_str()]);
}

/// Of a batch of a hundred two fail at first: all take effect once, and two were retried.
pub async fn case_42_a_batch_in_which_two_fail<F: SourceFixture>(fixture: &F) {
    async fn fail_at_first(tx: &mut MemoryTx, message: Message<Body>) -> hapax::Result {
        tx.add(message.id().as_str(), 1)?;
        let fails = ["message 033", "message 066"].contains(&message.id().as_str());
        if fails && message.attempt() == 1 { Err("not yet".into()) } else { Ok(()) }
    }
    let ids: Vec<String> = (0..100).map(|n| format!("message {n:03}")).collect();
    for id in &ids {
        fixture.publish(message(id).with_type("Fails at first")).await;
    }
    let left = run(fixture, 100, |consumer| consumer.batch(100).on("Fails at first", fail_at_first)).await;
    assert_eq!(left.effects(), ids.into_iter().map(|id| (id, 1)).collect());
    assert_eq!((left.summary.handled, left.summary.retried, left.summary.dead), (100, 2, 0));
}

/// Copies of a message take effect once, wherever they come from.
pub async fn case_09_a_copy_that_is_sent_again_has_no_effect<F: SourceFixture>(fixture: &F) {
    for _ in 0..3 {
        fixture.publish(message("payment")).await;
    }
    let left = run(fixture, 3, |consumer| consumer).await;
    assert_eq!(left.effects(), [("payment".to_owned(), 1)].into());
    assert_eq!((left.summary.handled, left.summary.duplicates), (1, 2));
}
