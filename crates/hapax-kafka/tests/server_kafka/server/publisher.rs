//! What is special to Kafka as something to publish to.

use std::time::Duration;

use hapax_core::{Code, Envelope, ErrorKind, Outgoing, Publisher, Source};
use hapax_kafka::Kafka;
use hapax_testkit::servers::{Server, require, unique};

use crate::broker::{Topic, kafka, kind_and_code, message};
use crate::by_hand::{numbers, take};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_has_a_result_of_its_own() {
    if !require(Server::Kafka) {
        return;
    }
    let topic = Topic::created(&kafka(), "results", 1).await;
    let missing = unique("missing");
    let huge = Outgoing::to_queue(&topic.name, Envelope::new(vec![0; 20 * 1024 * 1024]));
    let nowhere = Outgoing::to_queue("", Envelope::new(""));
    let batch = vec![message(&topic.name, 0), message(&missing, 1), huge, nowhere, message(&topic.name, 2)];
    let results = topic.publisher.publish(batch).await;
    let errors: Vec<_> = results.iter().map(|result| result.as_ref().err().map(kind_and_code)).collect();
    let refused = |kind| Some((kind, Code::NotPublished));
    let (not_found, statement) = (refused(ErrorKind::NotFound), refused(ErrorKind::Statement));
    assert_eq!(errors, [None, not_found, statement, statement, None], "{results:?}");

    let mut source = kafka().source([&topic.name], unique("group"));
    assert_eq!(numbers(&take(&mut source, 2).await), [0, 2]);
    let error = kafka().source([&missing], "g").check().await.unwrap_err();
    assert_eq!(error.code(), Code::QueueMissing, "publishing created nothing");
    topic.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_a_key_is_kept_over_many_partitions_and_calls() {
    if !require(Server::Kafka) {
        return;
    }
    let topic = Topic::created(&kafka(), "keys", 3).await;
    let keyed = |number: u32| Outgoing {
        routing_key: ["ada", "bob", "cyd", "dee"][number as usize % 4].into(),
        destination: topic.name.clone(),
        ..message("", number)
    };
    for call in 0..5 {
        topic.publisher.publish_all((call * 40..call * 40 + 40).map(keyed).collect()).await.unwrap();
    }
    let mut source = kafka().source([&topic.name], unique("group"));
    let came = take(&mut source, 200).await;
    for key in ["ada", "bob", "cyd", "dee"] {
        let of_key = came.iter().filter(|delivery| delivery.envelope.properties.key.as_deref() == Some(key));
        let of_key = numbers(of_key);
        assert!(of_key.is_sorted() && of_key.len() == 50, "{key}: {of_key:?}");
    }
    topic.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_created_and_deleted_on_request_however_often() {
    if !require(Server::Kafka) {
        return;
    }
    let (publisher, topic) = (kafka().publisher(), unique("declared"));
    publisher.check().await.unwrap();
    for _ in 0..2 {
        publisher.create_topic_of(&topic, 2).await.unwrap();
    }
    publisher.publish_all(vec![message(&topic, 0)]).await.unwrap();
    for _ in 0..2 {
        publisher.delete_topic(&topic).await.unwrap();
    }
    publisher.create_topic(&topic).await.unwrap();
    publisher.publish_all(vec![message(&topic, 1)]).await.unwrap();
    publisher.delete_topic(&topic).await.unwrap();
    publisher.close().await;
    publisher.check().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_not_there_is_unavailable() {
    let nowhere = Kafka::new(["127.0.0.1:1"]).connect_timeout(Duration::from_secs(1));
    let publisher = nowhere.publisher().confirm_timeout(Duration::from_secs(1));
    let gone = (ErrorKind::Unavailable, Code::BrokerUnavailable);
    assert_eq!(kind_and_code(&publisher.check().await.unwrap_err()), gone);
    assert_eq!(kind_and_code(&publisher.create_topic("t").await.unwrap_err()), gone);
    let error = publisher.publish(vec![message("t", 0)]).await.remove(0).unwrap_err();
    assert_eq!(kind_and_code(&error), gone);
    let error = nowhere.source(["t"], "g").prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&error), gone);
}
