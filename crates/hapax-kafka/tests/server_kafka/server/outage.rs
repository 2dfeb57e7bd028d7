//! A broker that comes and goes.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_core::{Code, ErrorKind, Fetched, Publisher, Source};
use hapax_testkit::servers::{Server, eventually, require, unique};
use tokio::time::timeout;

use crate::broker::{SOON, Topic, behind_a_proxy, kind_and_code, message};
use crate::by_hand::{acks, numbers, settle, take};

/// Longer than the group waits for a silent member.
const AWAY: Duration = Duration::from_secs(8);

/// With deliveries in hand and publishes unconfirmed: nothing is lost, what comes again are duplicates, and neither
/// side needs a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_17_a_broker_that_was_away_loses_nothing() {
    if !require(Server::PrivateKafka) {
        return;
    }
    let (_broker, proxy, kafka) = behind_a_proxy().await;
    let topic = Topic::created(&kafka, "away", 1).await;
    topic.publish(0..20).await;
    let mut source = kafka.source([&topic.name], unique("group"));
    let in_hand = take(&mut source, 10).await;
    let mut handled: BTreeSet<u32> = BTreeSet::new();

    proxy.cut();
    eventually("it notices", SOON, async || !source.is_connected()).await;
    let publisher = kafka.publisher().confirm_timeout(Duration::from_secs(1));
    let error = publisher.publish(vec![message(&topic.name, 20)]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let unconfirmed = tokio::spawn({
        let (publisher, message) = (topic.publisher.clone(), message(&topic.name, 21));
        async move { publisher.publish(vec![message]).await.remove(0) }
    });
    handled.extend(numbers(&in_hand));
    settle(&source, acks(in_hand)).await;
    tokio::time::sleep(AWAY).await; // the outage itself
    proxy.heal();

    unconfirmed.await.unwrap().expect("it was sent again by itself");
    let expected: BTreeSet<u32> = (0..20).chain([21]).collect();
    let all = async {
        while !handled.is_superset(&expected) {
            if let Fetched::Batch(batch) = source.next(10).await.unwrap() {
                handled.extend(numbers(&batch));
                settle(&source, acks(batch)).await;
            }
        }
    };
    let all = timeout(SOON, all).await;
    assert!(all.is_ok(), "only these came: {handled:?}");
    eventually("it says so", SOON, async || source.is_connected()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_without_a_broker_ends() {
    if !require(Server::PrivateKafka) {
        return;
    }
    let (mut broker, _proxy, kafka) = behind_a_proxy().await;
    let topic = Topic::created(&kafka, "closing", 1).await;
    topic.publish(0..5).await;
    let mut source = kafka.source([&topic.name], unique("group"));
    let batch = take(&mut source, 5).await;
    broker.stop().await.unwrap();
    settle(&source, acks(batch)).await;
    timeout(SOON, source.close()).await.expect("the goodbye has an end");
    assert!(!source.is_connected());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_silent_is_unavailable() {
    if !require(Server::PrivateKafka) {
        return;
    }
    let (_broker, proxy, kafka) = behind_a_proxy().await;
    proxy.stall();
    let kafka = kafka.connect_timeout(Duration::from_secs(2));
    let error = kafka.source(["t"], "g").prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::BrokerUnavailable));
    proxy.heal();
}
