//! How messages come in.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::collections::BTreeSet;

use hapax_core::{Envelope, Fetched, Headers, Properties, Source as _, Timestamp};
use tokio::task::JoinSet;

use super::by_hand::{ByHand, distinct, id, ids, message, numbered, publish_all};
use super::{SourceFixture, comparable};
use crate::conformance::{SOON, cancelled_after};

/// Body, headers and properties come through as they were published.
pub async fn a_message_comes_through_byte_for_byte<F: SourceFixture>(fixture: &F) {
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let bodies = [Vec::new(), every_byte.clone(), every_byte.repeat(4_096), b"{\"a\": 1.0}\n".to_vec()];
    let mut source = ByHand::<F>::open(fixture).await;
    for (n, mut body) in bodies.into_iter().enumerate() {
        body.truncate(F::LARGEST_BODY);
        let sent = Envelope { body: body.into(), ..labelled(&n.to_string()) };
        fixture.publish(sent.clone()).await;
        let delivery = source.take_one().await;
        let came = comparable(delivery.envelope.clone());
        let expected = comparable(F::carried(sent));
        assert_eq!(came.headers, expected.headers);
        assert_eq!(came.properties, expected.properties);
        assert!(came.body == expected.body, "body {n} came out different");
        assert_ne!(delivery.envelope.origin.source, "", "an operator wants to know where it came from");
        source.ack(vec![delivery]).await;
    }
}

fn labelled(id: &str) -> Envelope {
    Envelope {
        headers: [("hapax-sent-at", "2026-11-30T10:00:00Z"), ("quotes", "\\ ' \" {}"), ("text", " 💶\r\n ")]
            .into_iter()
            .collect::<Headers>(),
        properties: Properties {
            message_id: Some(id.into()),
            kind: Some("Paid".into()),
            correlation_id: Some(" c ".into()),
            content_type: Some("application/octet-stream".into()),
            key: Some("ada".into()),
            timestamp: Some(Timestamp::from_micros(1_700_000_000_000_000)),
            broker_id: None,
        },
        ..Envelope::default()
    }
}

/// Each message comes once, and no batch is larger than asked for.
pub async fn every_message_comes_once_in_batches_of_max<F: SourceFixture>(fixture: &F) {
    let published = numbered(25);
    publish_all(fixture, &published).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let mut came = Vec::new();
    while came.len() < published.len() {
        let batch = tokio::time::timeout(SOON, source.next(4)).await.expect("more is there");
        came.extend(ids(&batch).into_iter().map(str::to_owned));
        source.ack(batch).await;
    }
    came.sort();
    assert_eq!(came, published);
}

/// The first delivery of a message is not marked as another.
pub async fn a_first_delivery_is_not_redelivered<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(3)).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let batch = source.take(3).await;
    assert!(batch.iter().all(|delivery| !delivery.redelivered));
    source.ack(batch).await;
}

/// A check, which an operator may run beside those that work, takes nothing from them.
pub async fn a_check_takes_no_message<F: SourceFixture>(fixture: &F) {
    publish_all(fixture, &numbered(3)).await;
    let mut checked = fixture.source().await;
    checked.check().await.expect("the queue is there");
    let mut source = ByHand::<F>::open(fixture).await;
    let batch = source.take(3).await;
    assert!(batch.iter().all(|delivery| !delivery.redelivered));
    source.ack(batch).await;
    checked.close().await;
}

/// An empty queue is waited at: what is published meanwhile comes.
pub async fn it_waits_for_what_is_published<F: SourceFixture>(fixture: &F) {
    let mut source = ByHand::<F>::open(fixture).await;
    for id in ["a", "b"] {
        let (delivery, ()) = tokio::join!(source.take_one(), fixture.publish(message(id)));
        assert_eq!(super::by_hand::id(&delivery), id);
        source.ack(vec![delivery]).await;
    }
}

/// A worker's task is cancelled at every await of `next`: what was on its way comes with a later call. Only
/// what the broker hands over anew may come twice.
pub async fn case_43_a_fetch_cancelled_anywhere_loses_nothing<F: SourceFixture>(fixture: &F) {
    let published = numbered(30);
    publish_all(fixture, &published).await;
    let mut source = ByHand::<F>::open(fixture).await;
    let mut came = BTreeSet::new();
    let all = async {
        for polls in (0..6).cycle() {
            let Some(fetched) = cancelled_after(polls, source.source.next(2)).await else { continue };
            let Ok(Fetched::Batch(batch)) = fetched else { panic!("a batch, and no end") };
            for delivery in &batch {
                assert!(
                    came.insert(id(delivery).to_owned()) || delivery.redelivered,
                    "{} came twice",
                    id(delivery)
                );
            }
            source.ack(batch).await;
            if came.len() == published.len() {
                break;
            }
        }
    };
    let all = tokio::time::timeout(SOON, all).await;
    assert!(all.is_ok(), "only these came: {came:?}");
}

/// More messages than may be in hand at a time all come, as room is made.
pub async fn a_small_limit_lets_everything_through<F: SourceFixture>(fixture: &F) {
    let published = numbered(12);
    publish_all(fixture, &published).await;
    let mut source = ByHand::<F>::open_for(fixture, 2).await;
    let mut came = BTreeSet::new();
    while came.len() < published.len() {
        let batch = tokio::time::timeout(SOON, source.next(2)).await.expect("more is there");
        came.extend(distinct(&batch).into_iter().map(str::to_owned));
        source.ack(batch).await;
    }
}

/// Two sources on one queue share its messages: each goes to one of them. Only what the broker hands over anew, and
/// says so, may come twice.
pub async fn two_sources_share_a_queue<F: SourceFixture>(fixture: &F) {
    let published = numbered(40);
    let mut tasks = JoinSet::new();
    let (counted, mut count) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..2 {
        let (mut source, counted) = (ByHand::<F>::open_for(fixture, 3).await, counted.clone());
        tasks.spawn(async move {
            loop {
                let batch = source.next(3).await;
                let came: Vec<(String, bool)> =
                    batch.iter().map(|delivery| (id(delivery).to_owned(), delivery.redelivered)).collect();
                source.ack(batch).await;
                if counted.send(came).is_err() {
                    return;
                }
            }
        });
    }
    publish_all(fixture, &published).await;
    let mut came = BTreeSet::new();
    while came.len() < published.len() {
        let some = tokio::time::timeout(SOON, count.recv()).await.expect("more is there");
        for (id, redelivered) in some.expect("the sources go on") {
            assert!(came.insert(id.clone()) || redelivered, "{id} came twice");
        }
    }
    tasks.shutdown().await;
    assert!(came.iter().eq(&published));
}
