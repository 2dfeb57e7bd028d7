//! The publisher.

use std::time::Duration;

use hapax_core::{Code, ErrorKind, Outgoing, Publisher as _, Source as _};
use hapax_testkit::servers::{Server, eventually, require, unique};

use crate::broker::{Queue, SMALL, SOON, keyed, kind_and_code, message, proxy, publish, sqs, through};
use crate::by_hand::{numbers, source, take};

#[tokio::test]
async fn each_message_has_a_result_of_its_own() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::of_small_messages("own_result").await;
    let nowhere = unique("nowhere");
    let mut messages: Vec<_> = (0..12).map(|number| message(&queue.name, number)).collect();
    messages[2].routing_key.clone_from(&nowhere);
    messages[4].envelope.body = "x".repeat(SMALL + 1).into();
    messages[5].envelope.body = "x".repeat(1 << 20).into();
    messages[6].routing_key.clear();
    let results = sqs().publisher().publish(messages).await;
    assert_eq!(results.len(), 12);
    let failed: Vec<_> = results
        .iter()
        .enumerate()
        .filter_map(|(n, result)| result.as_ref().err().map(|error| (n, kind_and_code(error))))
        .collect();
    assert_eq!(
        failed,
        [
            (2, (ErrorKind::NotFound, Code::NotPublished)),
            (4, (ErrorKind::Statement, Code::NotPublished)),
            (5, (ErrorKind::Statement, Code::NotPublished)),
            (6, (ErrorKind::Statement, Code::NotPublished)),
        ]
    );
    assert!(results[2].as_ref().unwrap_err().to_string().contains(&nowhere));
    let mut source = source(&sqs(), &queue, 100).await;
    let mut arrived = numbers(&take(&mut source, 8).await);
    arrived.sort_unstable();
    assert_eq!(arrived, [0, 1, 3, 7, 8, 9, 10, 11]);
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn a_destination_names_the_queue_and_the_routing_key_the_key_in_it() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("destination", 30).await;
    let routed =
        Outgoing { destination: queue.url.clone(), routing_key: "ada".into(), ..keyed("", 1, "bob") };
    sqs().publisher().publish_all(vec![routed]).await.unwrap();
    let mut source = source(&sqs(), &queue, 1).await;
    assert_eq!(take(&mut source, 1).await[0].envelope.properties.key.as_deref(), Some("ada"));
    source.close().await;
    queue.delete().await;
}

#[tokio::test]
async fn an_answer_that_never_comes_is_a_failure() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("unanswered", 30).await;
    let proxy = proxy();
    let publisher = through(&proxy).connect_timeout(Duration::from_secs(1)).publisher();
    let publish = async |number| publisher.publish(vec![message(&queue.name, number)]).await.remove(0);
    publish(1).await.unwrap();
    proxy.swallow();
    let error = publish(2).await.unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::NotPublished), "{error}");
    assert_eq!(queue.messages().await, 3, "and yet SQS has it, by both attempts");
    proxy.heal();
    eventually("it publishes again", SOON, async || publish(3).await.is_ok()).await;
    queue.delete().await;
}

#[tokio::test]
async fn a_publisher_declares_and_deletes_a_queue_on_request() {
    if !require(Server::Sqs) {
        return;
    }
    let publisher = sqs().publisher();
    for name in [unique("declared"), format!("{}.fifo", unique("declared"))] {
        assert!(sqs().source(&name).check().await.is_err(), "nothing is declared by itself");
        publisher.declare_queue(&name).await.unwrap();
        publisher.declare_queue(&name).await.unwrap();
        sqs().source(&name).check().await.unwrap();
        publisher.publish_all(vec![message(&name, 1)]).await.unwrap();
        publisher.delete_queue(&name).await.unwrap();
        publisher.delete_queue(&name).await.unwrap();
        assert!(sqs().source(&name).check().await.is_err());
        let gone = publisher.publish(vec![message(&name, 1)]).await.remove(0).unwrap_err();
        assert_eq!(kind_and_code(&gone), (ErrorKind::NotFound, Code::NotPublished), "{gone}");
    }
    let refused = publisher.declare_queue("no queue's name!").await.unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused), "{refused}");
}

#[tokio::test]
async fn many_messages_are_published_by_tens() {
    if !require(Server::Sqs) {
        return;
    }
    let queue = Queue::standard("many", 30).await;
    publish(&queue, 0..57).await;
    assert_eq!(queue.messages().await, 57);
    queue.delete().await;
}
