//! The publisher.

use std::time::Duration;

use futures::StreamExt;
use hapax_core::{Code, DEAD_LETTER_HEADER, ErrorKind, Identity, Publisher, Source};
use hapax_testkit::servers::{Server, eventually, require, unique};

use crate::broker::{SOON, Stream, kind_and_code, message, nats, proxy, publish, through};
use crate::by_hand::{numbers, source, take};

#[tokio::test]
async fn each_message_has_a_result_of_its_own() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("results").await;
    let nowhere = unique("nowhere");
    let mut messages: Vec<_> = (0..10).map(|number| message(&stream.name, number)).collect();
    messages[2].routing_key.clone_from(&nowhere);
    messages[4].routing_key = format!("{}.*", stream.name);
    messages[6].envelope.body = vec![0; 2 << 20].into();
    let results = nats().publisher().publish(messages).await;
    let failed: Vec<_> = results
        .iter()
        .enumerate()
        .filter_map(|(n, result)| result.as_ref().err().map(|e| (n, kind_and_code(e))))
        .collect();
    assert_eq!(
        failed,
        [
            (2, (ErrorKind::NotFound, Code::NotPublished)),
            (4, (ErrorKind::Statement, Code::NotPublished)),
            (6, (ErrorKind::Statement, Code::NotPublished)),
        ]
    );
    assert!(results[2].as_ref().unwrap_err().to_string().contains(&nowhere));
    let mut source = source(&nats(), &stream, 100).await;
    assert_eq!(numbers(&take(&mut source, 7).await), [0, 1, 3, 5, 7, 8, 9]);
    source.close().await;
}

#[tokio::test]
async fn whoever_answers_and_is_no_stream_has_stored_nothing() {
    if !require(Server::Nats) {
        return;
    }
    let subject = unique("service");
    let client = async_nats::connect(hapax_testkit::servers::nats_url()).await.unwrap();
    let mut requests = client.subscribe(subject.clone()).await.unwrap();
    client.flush().await.unwrap();
    let service = async {
        let request = requests.next().await.unwrap();
        client.publish(request.reply.unwrap(), "thank you".into()).await.unwrap();
    };
    let publisher = nats().publisher();
    let (results, ()) = tokio::join!(publisher.publish(vec![message(&subject, 1)]), service);
    let error = results.into_iter().next().unwrap().unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::NotFound, Code::NotPublished));
}

#[tokio::test]
async fn case_25_a_relays_second_try_is_swallowed_and_counts_as_sent() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("swallowed").await;
    publish(&stream, [1, 2]).await;
    publish(&stream, [1, 2, 3]).await;
    assert_eq!(stream.stored().await, 3);
    let copies = nats().publisher().without_deduplication();
    copies.publish_all(vec![message(&stream.name, 1)]).await.unwrap();
    assert_eq!(stream.stored().await, 4, "a copy that is to be one");
}

#[tokio::test]
async fn a_dead_letters_copy_is_not_taken_for_the_message_that_died() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("episodes").await;
    publish(&stream, [1]).await;
    let publisher = nats().publisher();
    let mut copy = message(&stream.name, 1);
    for number in ["7", "7", "8"] {
        copy.envelope.headers.set(DEAD_LETTER_HEADER, number);
        publisher.publish_all(vec![copy.clone()]).await.unwrap();
    }
    assert_eq!(stream.stored().await, 3, "the message, letter 7 once, letter 8");
    let mut source = source(&nats(), &stream, 10).await;
    for delivery in take(&mut source, 3).await {
        assert_eq!(Identity::standard().of(&delivery.envelope).unwrap().as_str(), "1");
    }
    source.close().await;
}

#[tokio::test]
async fn an_acknowledgement_that_never_comes_is_a_failure() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("unacknowledged").await;
    let proxy = proxy();
    let publisher = through(&proxy).publisher().ack_timeout(Duration::from_millis(500));
    let publish = async |number| publisher.publish(vec![message(&stream.name, number)]).await.remove(0);
    publish(1).await.unwrap();
    proxy.swallow();
    let error = publish(2).await.unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::NotPublished));
    eventually("and yet the broker has it", SOON, async || stream.stored().await == 2).await;
    proxy.sever();
    proxy.heal();
    eventually("it publishes again", SOON, async || publish(2).await.is_ok()).await;
    assert_eq!(stream.stored().await, 2, "under the same id it is the same message");
}

#[tokio::test]
async fn a_publisher_creates_a_stream_on_request_and_changes_none() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::named("created").await;
    let publisher = nats().publisher();
    publisher.declare_stream(&stream.name, &[]).await.unwrap();
    publisher.declare_stream(&stream.name, &["other.>"]).await.unwrap();
    publisher.publish_all(vec![message(&stream.name, 1)]).await.unwrap();
    assert_eq!(stream.stored().await, 1, "its subject is its name still");

    let overlapping = unique("overlapping");
    let refused = publisher.declare_stream(&overlapping, &[&stream.name]).await.unwrap_err();
    assert_eq!(kind_and_code(&refused), (ErrorKind::Setup, Code::BrokerRefused));
    publisher.delete_stream(&stream.name).await.unwrap();
    publisher.delete_stream(&stream.name).await.unwrap();
    assert!(!stream.exists().await);

    let subject = unique("a.b");
    publisher.declare_queue(&subject).await.unwrap();
    publisher.publish_all(vec![message(&subject, 1)]).await.unwrap();
    publisher.delete_queue(&subject).await.unwrap();
}

#[tokio::test]
async fn a_full_stream_refuses_for_itself() {
    if !require(Server::Nats) {
        return;
    }
    let name = unique("full");
    let js =
        async_nats::jetstream::new(async_nats::connect(hapax_testkit::servers::nats_url()).await.unwrap());
    let config = async_nats::jetstream::stream::Config {
        name: name.clone(),
        max_messages: 1,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    js.create_stream(config).await.unwrap();
    let results = nats().publisher().publish(vec![message(&name, 1), message(&name, 2)]).await;
    assert!(results[0].is_ok());
    let error = results[1].as_ref().unwrap_err();
    assert_eq!(kind_and_code(error), (ErrorKind::Statement, Code::NotPublished), "{error}");
    js.delete_stream(&name).await.unwrap();
}

#[tokio::test]
async fn a_check_says_whether_the_broker_answers() {
    if !require(Server::Nats) {
        return;
    }
    nats().publisher().check().await.unwrap();
    let proxy = proxy();
    proxy.cut();
    let error = through(&proxy).publisher().check().await.unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::BrokerUnavailable));
    let mut source = through(&proxy).connect_timeout(Duration::from_millis(300)).source("any", "any");
    assert_eq!(source.check().await.unwrap_err().code(), Code::BrokerUnavailable);
}
