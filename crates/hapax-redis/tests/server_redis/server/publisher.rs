//! The publisher.

use std::time::Duration;

use hapax_core::{Code, ErrorKind, Publisher, Source};
use hapax_redis::Redis;
use hapax_testkit::servers::{PrivateRedis, Server, eventually, require, unique};

use crate::broker::{GROUP, SOON, Stream, kind_and_code, message, proxy, publish, redis, through};
use crate::by_hand::{numbers, source, take};

#[tokio::test]
async fn each_message_has_a_result_of_its_own() {
    if !require(Server::Redis) {
        return;
    }
    let (stream, text) = (Stream::declared("results"), Stream::named("text"));
    text.ask::<()>(redis::cmd("SET").arg(&text.name).arg("a text"));
    let nowhere = unique("nowhere");
    let mut messages: Vec<_> = (0..10).map(|number| message(&stream.name, number)).collect();
    messages[2].routing_key.clone_from(&nowhere);
    messages[4].routing_key.clone_from(&text.name);
    messages[6].routing_key = String::new();
    let results = redis().publisher().publish(messages).await;
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
    let mut source = source(&redis(), &stream, 100).await;
    assert_eq!(numbers(&take(&mut source, 7).await), [0, 1, 3, 5, 7, 8, 9]);
    source.close().await;
}

#[tokio::test]
async fn an_answer_that_never_comes_is_a_failure() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("unconfirmed");
    let proxy = proxy();
    let publisher = through(&proxy).answer_timeout(Duration::from_millis(500)).publisher();
    let publish = async |number| publisher.publish(vec![message(&stream.name, number)]).await.remove(0);
    publish(1).await.unwrap();
    proxy.swallow();
    let error = publish(2).await.unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::NotPublished));
    eventually("and yet the server has it", SOON, async || stream.length() == 2).await;
    proxy.heal();
    eventually("it publishes again", SOON, async || publish(3).await.is_ok()).await;
}

#[tokio::test]
async fn a_stream_is_created_on_request_only() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::named("created");
    let publisher = redis().publisher();
    assert!(publisher.publish_all(vec![message(&stream.name, 1)]).await.is_err());
    assert!(!stream.exists());
    publisher.clone().creating_streams().publish_all(vec![message(&stream.name, 1)]).await.unwrap();
    assert_eq!(stream.length(), 1);
    publisher.declare_group(&stream.name, GROUP).await.unwrap();
    publisher.declare_group(&stream.name, GROUP).await.unwrap();
    publisher.declare_queue(&stream.name).await.unwrap();
    assert_eq!(stream.length(), 1, "nothing is changed");
    publisher.delete_queue(&stream.name).await.unwrap();
    publisher.delete_queue(&stream.name).await.unwrap();
    assert!(!stream.exists());
}

#[tokio::test]
async fn nothing_is_trimmed_unless_asked() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("trimmed");
    publish(&stream, 0..1_000).await;
    assert_eq!(stream.length(), 1_000);
    let trimming = redis().publisher().max_length(100);
    trimming.publish_all(vec![message(&stream.name, 1)]).await.unwrap();
    assert!((100..1_000).contains(&stream.length()), "about 100: {}", stream.length());
}

#[tokio::test]
async fn a_full_or_read_only_server_is_nobodys_mistake() {
    if !require(Server::PrivateRedis) {
        return;
    }
    let full = PrivateRedis::start_with(&[("maxmemory", "1")]).await.unwrap();
    let broker = Redis::new(&full.url()).unwrap();
    let publisher = broker.publisher().creating_streams();
    let error = publisher.publish(vec![message("orders", 1)]).await.remove(0).unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::NotPublished), "{error}");

    let replica_of = format!("127.0.0.1 {}", full.addr().port());
    let replica = PrivateRedis::start_with(&[("replicaof", &replica_of)]).await.unwrap();
    let publisher = Redis::new(&replica.url()).unwrap().publisher().creating_streams();
    let error = publisher.publish(vec![message("orders", 1)]).await.remove(0).unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::NotPublished), "{error}");
}

#[tokio::test]
async fn a_check_says_whether_the_server_answers() {
    if !require(Server::Redis) {
        return;
    }
    redis().publisher().check().await.unwrap();
    let proxy = proxy();
    proxy.cut();
    let error = through(&proxy).publisher().check().await.unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Unavailable, Code::BrokerUnavailable));
    let mut source = through(&proxy).connect_timeout(Duration::from_millis(300)).source("any", "any");
    assert_eq!(source.check().await.unwrap_err().code(), Code::BrokerUnavailable);
}
