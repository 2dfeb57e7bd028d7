//! A result for each message, in order.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use hapax_core::{Code, Envelope, Error, ErrorKind, Outgoing, Publisher as _};

use super::super::source::by_hand::{ByHand, ids, message, numbered};
use super::{PublisherFixture, to_queue};

fn kinds(results: Vec<Result<(), Error>>) -> Vec<Option<(ErrorKind, Code)>> {
    results.into_iter().map(|result| result.err().map(|error| (error.kind(), error.code()))).collect()
}

/// What the broker has taken is there for whoever reads.
pub async fn what_is_confirmed_can_be_read<F: PublisherFixture>(fixture: &F) {
    let publisher = fixture.publisher().await;
    let sent = numbered(30);
    let outgoing = sent.iter().map(|id| to_queue(fixture, message(id))).collect();
    assert_eq!(kinds(publisher.publish(outgoing).await), vec![None; 30]);
    assert_eq!(publisher.publish(Vec::new()).await.len(), 0, "nothing is no error");
    let mut source = ByHand::<F>::open(fixture).await;
    let batch = source.take(30).await;
    let mut came: Vec<_> = ids(&batch).into_iter().map(str::to_owned).collect();
    came.sort();
    assert_eq!(came, sent);
    source.ack(batch).await;
}

/// Messages of one key, published together and one call after another, are read in that order.
pub async fn the_messages_of_a_key_come_in_their_order<F: PublisherFixture>(fixture: &F) {
    let publisher = fixture.publisher().await;
    let sent = numbered(30);
    let keyed = |id: &String| {
        let mut envelope = message(id);
        envelope.properties.key = Some("order-7".to_owned());
        to_queue(fixture, envelope)
    };
    for together in sent.chunks(10) {
        let results = publisher.publish(together.iter().map(keyed).collect()).await;
        assert_eq!(kinds(results), vec![None; 10]);
    }
    let mut source = ByHand::<F>::open(fixture).await;
    let mut came = Vec::new();
    while came.len() < sent.len() {
        let batch = source.take(1).await;
        came.extend(ids(&batch).into_iter().map(str::to_owned));
        source.ack(batch).await;
    }
    assert_eq!(came, sent);
}

/// A queue that is not there takes its message alone.
pub async fn case_26_what_goes_nowhere_is_an_error_and_the_others_are_sent<F: PublisherFixture>(fixture: &F) {
    let Some(nowhere) = fixture.nowhere() else { return };
    let publisher = fixture.publisher().await;
    let outgoing = vec![
        to_queue(fixture, message("first")),
        Outgoing::to_queue(nowhere, message("lost")),
        to_queue(fixture, message("last")),
    ];
    let results = kinds(publisher.publish(outgoing).await);
    assert_eq!(results, [None, Some((ErrorKind::NotFound, Code::NotPublished)), None]);
    reads(fixture, &["first", "last"]).await;
}

/// So does a message that the broker, or its protocol, cannot take.
pub async fn case_27_what_is_too_large_is_an_error_and_the_others_are_sent<F: PublisherFixture>(fixture: &F) {
    let Some(size) = fixture.too_large() else { return };
    let publisher = fixture.publisher().await;
    let large = Envelope::new(vec![b'x'; size]).with_id("large").with_type("Paid");
    let outgoing = vec![
        to_queue(fixture, message("first")),
        to_queue(fixture, large),
        to_queue(fixture, message("last")),
    ];
    let results = kinds(publisher.publish(outgoing).await);
    assert_eq!(results, [None, Some((ErrorKind::Statement, Code::NotPublished)), None]);
    reads(fixture, &["first", "last"]).await;
}

/// These are in the queue; copies of them may be.
async fn reads<F: PublisherFixture>(fixture: &F, expected: &[&str]) {
    let mut source = ByHand::<F>::open(fixture).await;
    let mut came = std::collections::BTreeSet::new();
    while came.len() < expected.len() {
        let batch = source.take(1).await;
        came.extend(ids(&batch).into_iter().map(str::to_owned));
        source.ack(batch).await;
    }
    assert_eq!(came.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
