//! The broker comes and goes.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use hapax_core::{Code, ErrorKind, Publisher as _};

use super::super::source::by_hand::{ByHand, distinct, message};
use super::{PublisherFixture, to_queue};
use crate::conformance::LIMIT;
use crate::servers::eventually;

/// What was handed over while the broker was away is an error that says "again", and is sent once it is back, by the
/// same publisher.
pub async fn case_26_while_the_broker_is_away_nothing_counts_as_sent<F: PublisherFixture>(fixture: &F) {
    let publisher = fixture.publisher().await;
    publisher.publish_all(vec![to_queue(fixture, message("before"))]).await.expect("the broker is there");
    fixture.cut_off().await;
    let sent = publisher.publish(vec![to_queue(fixture, message("during"))]).await.remove(0);
    let error = sent.expect_err("nobody can have taken it");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(matches!(error.code(), Code::NotPublished | Code::BrokerUnavailable), "{error}");
    fixture.heal().await;
    eventually("the broker is found again", LIMIT, async || {
        publisher.publish_all(vec![to_queue(fixture, message("during"))]).await.is_ok()
    })
    .await;
    let mut source = ByHand::<F>::open(fixture).await;
    let mut came = std::collections::BTreeSet::new();
    while came.len() < 2 {
        let batch = source.take(1).await;
        came.extend(distinct(&batch).into_iter().map(str::to_owned));
        source.ack(batch).await;
    }
    assert_eq!(came.into_iter().collect::<Vec<_>>(), ["before", "during"]);
}
