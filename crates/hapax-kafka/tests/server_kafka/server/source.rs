//! What is special to Kafka as a source.

use std::time::Duration;

use hapax_core::{Code, Envelope, ErrorKind, Identity, Outgoing, Publisher, Source};
use hapax_kafka::Kafka;
use hapax_testkit::process::Subject;
use hapax_testkit::servers::{PrivateKafka, Server, require, unique};

use crate::broker::{SOON, Topic, kafka, kind_and_code, message, quick};
use crate::by_hand::{acks, nothing_comes, numbers, settle, take};
use crate::handover::a_revoked_partition_is_finished_and_committed_first;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_does_not_exist_is_an_error_and_is_not_created() {
    if !require(Server::Kafka) {
        return;
    }
    let (kafka, topic) = (kafka(), unique("missing"));
    for _ in 0..2 {
        let mut source = kafka.source([&topic], "g");
        for error in [source.check().await.unwrap_err(), source.prepare(1).await.unwrap_err()] {
            assert_eq!(kind_and_code(&error), (ErrorKind::Setup, Code::QueueMissing));
            assert!(error.to_string().contains(&topic), "{error}");
        }
    }
}

/// No waiting mends a wrong password, so it is told at once, by source and publisher alike, and shown nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_are_an_error_that_does_not_show_them() {
    if !require(Server::PrivateKafka) {
        return;
    }
    let broker = PrivateKafka::start_refusing().await.unwrap();
    let mut kafka = Kafka::from_url(&broker.url()).unwrap();
    for (name, value) in [
        ("security.protocol", "SASL_PLAINTEXT"),
        ("sasl.mechanism", "SCRAM-SHA-512"),
        ("sasl.username", "someone"),
        ("sasl.password", "hunter2"),
    ] {
        kafka = kafka.property(name, value).unwrap();
    }
    let (mut source, publisher) = (kafka.source(["orders"], "orders"), kafka.publisher());
    let refused = publisher.publish(vec![message("orders", 1)]).await.remove(0);
    for error in [
        source.check().await.unwrap_err(),
        source.prepare(1).await.unwrap_err(),
        publisher.check().await.unwrap_err(),
        publisher.create_topic("orders").await.unwrap_err(),
        refused.unwrap_err(),
    ] {
        assert_eq!(kind_and_code(&error), (ErrorKind::Setup, Code::BrokerRefused), "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("someone") && !shown.contains("hunter2"), "{shown}");
    }
}

#[tokio::test]
async fn what_is_missing_from_the_configuration_is_named() {
    let kafka = Kafka::new(["127.0.0.1:1"]);
    let none: [&str; 0] = [];
    for mut source in
        [kafka.source(none, "g"), kafka.source(["^orders.*"], "g"), kafka.source(["orders"], "")]
    {
        let error = source.prepare(1).await.unwrap_err();
        assert_eq!(kind_and_code(&error), (ErrorKind::Setup, Code::ConfigWrongValue));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_topics_are_read_by_one_group() {
    if !require(Server::Kafka) {
        return;
    }
    let (one, two) = (Topic::created(&kafka(), "one", 1).await, Topic::created(&kafka(), "two", 2).await);
    one.publish(0..5).await;
    two.publish(5..10).await;
    let mut source = kafka().source([&one.name, &two.name], unique("group"));
    let batch = take(&mut source, 10).await;
    let mut came = numbers(&batch);
    came.sort_unstable();
    assert_eq!(came, (0..10).collect::<Vec<_>>());
    settle(&source, acks(batch)).await;
    source.close().await;
    one.delete().await;
    two.delete().await;
}

/// Two consumers of one topic, each with its own group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_group_gets_every_message() {
    if !require(Server::Kafka) {
        return;
    }
    let topic = Topic::created(&kafka(), "shared", 1).await;
    topic.publish(0..3).await;
    for _ in 0..2 {
        let mut source = kafka().source([&topic.name], unique("group"));
        let batch = take(&mut source, 3).await;
        assert_eq!(numbers(&batch), [0, 1, 2]);
        settle(&source, acks(batch)).await;
        source.close().await;
    }
    topic.delete().await;
}

/// The broker-made id is there for whoever asks for it, and differs from record to record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_has_an_id_of_the_brokers_making() {
    if !require(Server::Kafka) {
        return;
    }
    let topic = Topic::created(&kafka(), "ids", 1).await;
    topic.publish([1, 1]).await;
    let mut source = kafka().source([&topic.name], unique("group"));
    let batch = take(&mut source, 2).await;
    let identity: Identity = "broker-id".parse().unwrap();
    let ids: Vec<_> =
        batch.iter().map(|delivery| identity.of(&delivery.envelope).unwrap().to_string()).collect();
    assert!(ids[0].ends_with(&format!("/{}/0/0", topic.name)) && ids[1].ends_with("/0/1"), "{ids:?}");
    topic.delete().await;
}

/// Ids travel byte for byte, and none of them is another; which of them may be one is the identity rule's to say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_36_ids_come_through_byte_for_byte() {
    if !require(Server::Kafka) {
        return;
    }
    let topic = Topic::created(&kafka(), "bytes", 1).await;
    let long = ["x".repeat(255), "x".repeat(256), "x".repeat(1024)];
    let ids = ["abc", "ABC", "abc ", "abć", "a\\b", "nul\0", &long[0], &long[1], &long[2]];
    let messages = ids.map(|id| Outgoing::to_queue(&topic.name, Envelope::new("").with_id(id)));
    topic.publisher.publish_all(messages.to_vec()).await.unwrap();
    let mut source = kafka().source([&topic.name], unique("group"));
    let came = take(&mut source, ids.len()).await;
    let came: Vec<_> =
        came.iter().map(|delivery| delivery.envelope.properties.message_id.clone().unwrap()).collect();
    assert_eq!(came, ids);
    topic.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_18_a_revoked_partition_is_finished_and_committed_first_eager() {
    if !require(Server::Kafka) {
        return;
    }
    let topic = Topic::created(&kafka(), "eager", 2).await;
    let kafka = kafka().property("partition.assignment.strategy", "range").unwrap();
    a_revoked_partition_is_finished_and_committed_first(&kafka, &topic.name).await;
    topic.delete().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_18_a_revoked_partition_is_finished_and_committed_first_cooperative() {
    if !require(Server::Kafka) {
        return;
    }
    let topic = Topic::created(&kafka(), "cooperative", 2).await;
    a_revoked_partition_is_finished_and_committed_first(&kafka(), &topic.name).await;
    topic.delete().await;
}

const VICTIM: &str = "server::source::takes_deliveries_until_it_is_killed";
const VICTIM_TOPIC: &str = "HAPAX_KAFKA_VICTIM";

/// Does nothing by itself; the test below runs it in a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_deliveries_until_it_is_killed() {
    let Ok(topic) = std::env::var(VICTIM_TOPIC) else { return };
    let mut source = kafka().source([&topic], &topic).commit_every(Duration::from_millis(1));
    let mut batch = take(&mut source, 10).await;
    let polled = batch.split_off(4);
    settle(&source, acks(batch)).await;
    let committed = take(&mut source, 1).await; // four acks and a round of the loop later
    println!("holding {}", polled.len() + committed.len());
    std::future::pending::<()>().await;
}

/// Polled, and killed before anything was claimed: every record that was not acked comes again, none before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_19_killed_between_poll_and_claim_returns_the_records() {
    if !require(Server::Kafka) {
        return;
    }
    let topic = Topic::created(&kafka(), "killed", 1).await;
    topic.publish(0..20).await;
    let victim = Subject::new(std::env::current_exe().unwrap()).arg("--exact").arg(VICTIM).arg("--nocapture");
    let mut victim = victim.env(VICTIM_TOPIC, &topic.name).start().unwrap();
    victim.wait_output("holding 7", SOON).await;
    victim.kill().unwrap();
    victim.wait_killed(SOON).await;

    let mut source = quick(kafka()).source([&topic.name], &topic.name);
    let first = take(&mut source, 1).await;
    let from = numbers(&first)[0];
    assert!(from <= 4, "no offset was committed early, but it goes on at {from}");
    let rest = take(&mut source, usize::try_from(19 - from).unwrap()).await;
    assert_eq!(numbers(&rest), (from + 1..20).collect::<Vec<_>>());
    assert!(nothing_comes(&mut source).await);
    settle(&source, acks(first)).await;
    settle(&source, acks(rest)).await;
    source.close().await;
    topic.delete().await;
}
