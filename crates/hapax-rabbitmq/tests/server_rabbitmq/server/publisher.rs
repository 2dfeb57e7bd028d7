//! The publisher.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_core::{Code, ErrorKind, Publisher, Source};
use hapax_testkit::servers::{Server, eventually, require, unique};

use crate::broker::{Queue, SOON, kind_and_code, message, proxy, publish, rabbit, through};
use crate::by_hand::{numbers, source, take};

#[tokio::test]
async fn one_message_that_closes_the_channel_does_not_condemn_the_others() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("missing_exchange").await;
    let publisher = rabbit().publisher();
    let mut messages: Vec<_> = (0..10).map(|number| message(&queue.name, number)).collect();
    messages[4].destination = unique("no_exchange");
    messages[6].envelope.properties.kind = Some("x".repeat(256));
    messages[7].envelope.headers.set("big", "x".repeat(200_000));
    let results = publisher.publish(messages).await;
    let failed: Vec<_> = results
        .iter()
        .enumerate()
        .filter_map(|(n, result)| result.as_ref().err().map(|e| (n, kind_and_code(e))))
        .collect();
    assert_eq!(
        failed,
        [
            (4, (ErrorKind::NotFound, Code::NotPublished)),
            (6, (ErrorKind::Statement, Code::NotPublished)),
            (7, (ErrorKind::Statement, Code::NotPublished)),
        ]
    );
    let mut source = source(&rabbit(), &queue, 100).await;
    let mut arrived = BTreeSet::new();
    while arrived.len() < 7 {
        arrived.extend(numbers(&take(&mut source, 1).await));
    }
    assert_eq!(arrived, BTreeSet::from([0, 1, 2, 3, 5, 8, 9]));
    source.close().await;
    publisher.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_confirm_that_never_comes_is_a_failure() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::declared("unconfirmed").await;
    let proxy = proxy();
    let publisher = through(&proxy).publisher().confirm_timeout(Duration::from_millis(500));
    let publish = async |number| publisher.publish(vec![message(&queue.name, number)]).await.remove(0);
    publish(1).await.unwrap();
    proxy.swallow();
    let error = publish(2).await.unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::NotPublished));
    eventually("and yet the broker has it", SOON, async || queue.ready().await == 2).await;
    proxy.heal();
    eventually("it publishes again", SOON, async || publish(3).await.is_ok()).await;
    publisher.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_publisher_declares_a_queue_on_request() {
    if !require(Server::RabbitMq) {
        return;
    }
    let queue = Queue::named("declared_to_send").await;
    let publisher = rabbit().publisher();
    publisher.declare_queue(&queue.name).await.unwrap();
    publisher.declare_queue(&queue.name).await.unwrap();
    publish(&queue, [1]).await;
    assert_eq!(queue.ready().await, 1);
    publisher.close().await;
    queue.delete().await;
}
