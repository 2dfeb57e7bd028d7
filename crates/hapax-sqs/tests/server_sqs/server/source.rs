//! The source.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use hapax_core::{Code, Envelope, ErrorKind, Fetched, Outgoing, Publisher as _, Settler as _, Source as _};
use hapax_sqs::Sqs;
use hapax_testkit::servers::{PrivateSqs, Server, eventually, require, sqs_url, unique};
use tokio::time::timeout;

use crate::broker::{Queue, SOON, kind_and_code, proxy, publish, sqs, through};
use crate::by_hand::{acks, nothing_comes, numbers, settle, settle_all, source, take};

#[tokio::test]
async fn a_missing_queue_and_a_visibility_of_zero_are_errors_at_the_start() {
    if !require(Server::Sqs) {
        return;
    }
    let missing = sqs().source(unique("missing")).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&missing), (ErrorKind::Setup, Code::QueueMissing), "{missing}");
    let missing = sqs().source(unique("missing")).check().await.unwrap_err();
    assert_eq!(kind_and_code(&missing), (ErrorKind::Setup, Code::QueueMissing));

    let queue = Queue::standard("zero", 30).await;
    let zero = sqs().source(&queue.name).visibility(Duration::from_millis(999)).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&zero), (ErrorKind::Setup, Code::ConfigWrongValue), "{zero}");
    queue.delete().await;
}

#[tokio::test]
async fn private_refused_credentials_are_errors_that_do_not_show_them() {
    if !require(Server::PrivateSqs) {
        return;
    }
    let closed = PrivateSqs::start_closed().await.unwrap();
    let broker = Sqs::from_url(&closed.url()).unwrap().credentials("AKIAWRONG", "hunter2", None);
    let at_the_source = broker.source("any").prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&at_the_source), (ErrorKind::Setup, Code::BrokerRefused), "{at_the_source}");
    let at_the_check = broker.publisher().check().await.unwrap_err();
    assert_eq!(kind_and_code(&at_the_check), (ErrorKind::Setup, Code::BrokerRefused), "{at_the_check}");
    let message = Outgoing::to_queue("any", Envelope::new("x"));
    let at_a_message = broker.publisher().publish(vec![message]).await.remove(0).unwrap_err();
    assert_eq!(kind_and_code(&at_a_message), (ErrorKind::Setup, Code::BrokerRefused), "{at_a_message}");
    for error in [at_the_source, at_the_check, at_a_message] {
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("AKIA") && !shown.contains("hunter2"), "{shown}");
    }
}

/// What AWS's chain comes to where there is nothing to be found.
#[derive(Debug)]
struct EmptyHanded;

impl ProvideCredentials for EmptyHanded {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(Err(CredentialsError::not_loaded("nothing was found")))
    }
}

#[tokio::test]
async fn credentials_that_nobody_has_are_an_error_at_once() {
    if !require(Server::Sqs) {
        return;
    }
    let nobody = SdkConfig::builder().behavior_version(BehaviorVersion::latest()).build();
    let endpoint = sqs_url().replace("sqs://", "http://");
    let empty_handed =
        nobody.to_builder().credentials_provider(SharedCredentialsProvider::new(EmptyHanded)).build();
    for config in [&nobody, &empty_handed] {
        let broker = Sqs::new(config).region("us-east-1").endpoint_url(&endpoint);
        let error = broker.source("any").prepare(1).await.unwrap_err();
        assert_eq!(kind_and_code(&error), (ErrorKind::Setup, Code::BrokerRefused), "{error}");
    }
    let nowhere = Sqs::new(&nobody).source("any").prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&nowhere), (ErrorKind::Setup, Code::ConfigMissingValue), "{nowhere}");
}

#[tokio::test]
async fn a_broker_that_cannot_be_reached_is_one_error_after_the_timeout() {
    if !require(Server::Sqs) {
        return;
    }
    let proxy = proxy();
    for silent in [false, true] {
        if silent {
            proxy.stall();
        } else {
            proxy.cut();
        }
        let broker = through(&proxy).connect_timeout(Duration::from_millis(400));
        let error = timeout(SOON, broker.source("any").prepare(1)).await.unwrap().unwrap_err();
        assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::BrokerUnavailable), "{error}");
    }
}

#[tokio::test]
async fn a_queue_is_found_by_its_url_and_says_where_a_message_is_from() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("by_url", 30).await;
    publish(&queue, [7]).await;
    let mut source = sqs().source(&queue.url).wait_time(Duration::from_secs(1));
    assert_eq!(source.name(), format!("sqs:{}", queue.name));
    assert_eq!(source.capabilities().extend_every, Some(Duration::from_secs(10)));
    let deliveries = take(&mut source, 1).await;
    let envelope = &deliveries[0].envelope;
    assert_eq!(envelope.origin.source, format!("sqs:{}", queue.name));
    let broker_id = envelope.properties.broker_id.as_deref().unwrap();
    assert!(
        broker_id.starts_with("arn:aws:sqs:us-east-1:") && broker_id.contains(&queue.name),
        "{broker_id}"
    );
    assert!(envelope.properties.timestamp.is_some() && envelope.properties.key.is_none());
    settle_all(&source, acks(deliveries)).await;
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_large_room_is_filled_by_requests_at_once_and_a_batch_is_deleted_by_tens() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("large_room", 30).await;
    publish(&queue, 0..95).await;
    let mut source = source(&sqs(), &queue, 200).await;
    let mut came = BTreeSet::new();
    let mut in_hand = Vec::new();
    while came.len() < 95 {
        let Ok(Ok(Fetched::Batch(batch))) = timeout(SOON, source.next(200)).await else {
            panic!("more is there")
        };
        // SQS may hand a message over twice when it is asked by several at once.
        came.extend(numbers(&batch));
        in_hand.extend(batch);
    }
    settle_all(&source, acks(in_hand)).await;
    assert_eq!(queue.messages().await, 0);
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn headers_that_find_no_attribute_come_through() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("headers", 30).await;
    let mut sent = Envelope::new("").with_id("m").with_type("Paid").with_header("empty", "");
    for n in 0..30 {
        sent.headers.set(format!("header {n}"), format!("value \u{1} {n}"));
    }
    let message = Outgoing::to_queue(&queue.name, sent.clone());
    sqs().publisher().publish(vec![message]).await.remove(0).unwrap();
    let mut source = source(&sqs(), &queue, 1).await;
    let came = take(&mut source, 1).await.remove(0).envelope;
    assert_eq!((came.headers, &came.body), (sent.headers, &sent.body));
    source.close().await;
    queue.delete().await;
}

/// A request whose answer does not come is given up in time; the message is still there, and comes again.
#[tokio::test]
async fn case_17_settling_over_a_silent_network_fails_in_time_and_the_message_comes_again() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("silent", 2).await;
    publish(&queue, [1]).await;
    let proxy = proxy();
    // Not less: a request that waits for a second may take moto two, and its answer must not come too late.
    let mut source = source(&through(&proxy).connect_timeout(Duration::from_secs(2)), &queue, 10).await;
    let in_hand = take(&mut source, 1).await;
    proxy.stall();
    let before = Instant::now();
    let error = settle(&source, acks(in_hand)).await.remove(0).unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::BrokerUnavailable), "{error}");
    assert!(before.elapsed() < Duration::from_secs(10), "two attempts of 2 s");
    assert!(nothing_comes(&mut source, Duration::from_secs(1)).await);
    eventually("the loss is noticed", SOON, async || {
        let _ = timeout(Duration::from_millis(50), source.next(1)).await;
        !source.is_connected()
    })
    .await;
    proxy.sever(); // the held-up request is lost
    proxy.heal();
    let again = take(&mut source, 1).await;
    assert!(again[0].redelivered && source.is_connected());
    settle_all(&source, acks(again)).await;
    source.close().await;
    queue.delete().await;
}

/// A delete that was done and whose answer was lost: sent once more, which does no harm.
#[tokio::test]
async fn an_ack_whose_answer_is_lost_is_sent_again() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("answer_lost", 30).await;
    publish(&queue, [1]).await;
    let proxy = proxy();
    let mut source = source(&through(&proxy), &queue, 10).await;
    let in_hand = take(&mut source, 1).await;
    proxy.swallow_after(b"DeleteMessageBatch");
    settle_all(&source, acks(in_hand)).await;
    assert!(proxy.has_fired());
    assert_eq!(queue.messages().await, 0);
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn closing_hands_back_what_was_received_and_not_handed_over() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("closing", 600).await;
    publish(&queue, 0..10).await;
    let mut first = source(&sqs(), &queue, 10).await;
    // Ten are asked for, and nobody is there any more when they come.
    assert!(timeout(Duration::from_millis(1), first.next(10)).await.is_err());
    first.close().await;
    let mut second = source(&sqs(), &queue, 10).await;
    let deliveries = take(&mut second, 10).await;
    settle_all(&second, acks(deliveries)).await;
    second.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_settler_is_not_for_what_another_queue_s_source_received() {
    if !require(Server::Sqs) {
        return;
    }
    let never_prepared = Sqs::from_url(&sqs_url()).unwrap().source("any").settler();
    let queue = Queue::standard("foreign", 30).await;
    publish(&queue, [1]).await;
    let mut source = source(&sqs(), &queue, 1).await;
    let deliveries = take(&mut source, 1).await;
    let extended = never_prepared.extend(vec![deliveries[0].receipt().clone()]).await;
    assert_eq!(extended[0].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
    let settled = never_prepared.settle(acks(deliveries)).await;
    assert_eq!(settled[0].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(queue.messages().await, 1);
    source.close().await;
    queue.delete().await;
}
