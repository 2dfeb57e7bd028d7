//! Groups that change, and errors on demand: on librdkafka's mock cluster, which speaks the protocol over TCP in this
//! process. Unlike Kafka it takes no commits while a group rebalances eagerly; that is shown in [`crate::server`].

use std::collections::BTreeMap;
use std::time::Duration;

use hapax_core::{Code, Delivery, Envelope, ErrorKind, Fetched, Outgoing, Publisher, Source};
use hapax_kafka::{Kafka, OffsetReset, Receipt};
use hapax_testkit::servers::eventually;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::time::{sleep, timeout};

use crate::broker::{SOON, kind_and_code, publish};
use crate::by_hand::{acks, loss, numbers, settle, take};
use crate::handover::{a_revoked_partition_is_finished_and_committed_first, spread};

const TOPIC: &str = "orders";
const GROUP: &str = "orders";
const COOPERATIVE: &str = "cooperative-sticky";
const EAGER: &str = "range";

type Cluster = MockCluster<'static, DefaultProducerContext>;

fn cluster(partitions: i32) -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, partitions, 1).unwrap();
    cluster
}

fn kafka(cluster: &Cluster) -> Kafka {
    let kafka = Kafka::new([cluster.bootstrap_servers()]);
    let kafka = kafka.property("session.timeout.ms", "3000").unwrap();
    kafka.property("heartbeat.interval.ms", "200").unwrap()
}

fn with_protocol(cluster: &Cluster, strategy: &str) -> Kafka {
    kafka(cluster).property("partition.assignment.strategy", strategy).unwrap()
}

/// What the broker knows of the group: the offset of each partition.
fn committed(cluster: &Cluster, partitions: i32) -> Vec<Option<i64>> {
    let client = committer(cluster);
    let mut list = TopicPartitionList::new();
    list.add_partition_range(TOPIC, 0, partitions - 1);
    let known = client.committed_offsets(list, SOON).unwrap();
    let offset = |element: &rdkafka::topic_partition_list::TopicPartitionListElem<'_>| match element.offset()
    {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    };
    known.elements().iter().map(offset).collect()
}

fn committer(cluster: &Cluster) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", GROUP);
    config.create().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_18_a_revoked_partition_is_finished_and_committed_first_cooperative() {
    let cluster = cluster(2);
    // The mock cluster lets a rebalance wait for a member for a second less than this; Kafka for the poll interval.
    let kafka = with_protocol(&cluster, COOPERATIVE).property("session.timeout.ms", "6000").unwrap();
    a_revoked_partition_is_finished_and_committed_first(&kafka, TOPIC).await;
}

async fn what_is_not_finished_in_time_is_announced_and_never_committed(strategy: &str) {
    let cluster = cluster(1);
    let kafka = with_protocol(&cluster, strategy);
    spread(&kafka, TOPIC, 0..10).await;
    // Among members, the one whose random id sorts first gets the only partition: with enough others that is another.
    let mut first = kafka.source([TOPIC], GROUP).drain(Duration::from_millis(200));
    first.prepare(100).await.unwrap();
    let in_hand = take(&mut first, 10).await;
    let mut members = Vec::new();
    let lost = loop {
        let mut member = kafka.source([TOPIC], GROUP);
        member.prepare(100).await.unwrap();
        members.push(member);
        if let Ok(lost) = timeout(Duration::from_secs(6), loss(&mut first)).await {
            break lost;
        }
        assert!(members.len() < 8, "one of nine members keeps a partition for ever");
    };
    assert_eq!(lost.iter().map(|lane| &*lane.0).collect::<Vec<_>>(), ["orders/0"]);
    settle(&first, acks(in_hand)).await;
    first.close().await;
    drop(members);

    assert_eq!(committed(&cluster, 1), [None], "the former owner committed nothing");
    let mut next = kafka.source([TOPIC], GROUP);
    assert_eq!(numbers(&take(&mut next, 10).await), (0..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_18_what_is_not_finished_in_time_is_announced_and_never_committed_eager() {
    what_is_not_finished_in_time_is_announced_and_never_committed(EAGER).await;
}

/// The group has thrown the member out: its partitions may be another's already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_18_a_lost_partition_is_announced_and_nothing_of_it_committed() {
    let cluster = cluster(1);
    let kafka = kafka(&cluster);
    spread(&kafka, TOPIC, 0..5).await;
    let mut source = kafka.source([TOPIC], GROUP);
    source.prepare(100).await.unwrap();
    let stale = take(&mut source, 5).await;
    cluster.request_errors(RDKafkaApiKey::Heartbeat, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID]);
    assert_eq!(loss(&mut source).await.len(), 1);

    let again = take(&mut source, 5).await;
    assert_eq!(numbers(&again), numbers(&stale), "it comes again, to whoever has the partition now");
    settle(&source, acks(stale)).await;
    source.close().await;
    assert_eq!(committed(&cluster, 1), [None], "late acks commit nothing");
    drop(again);
}

/// A handler that runs longer than a member may be silent, with more behind it than is held ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_13_a_long_handler_keeps_its_partition_while_others_go_on() {
    let cluster = cluster(2);
    let kafka = kafka(&cluster).property("max.poll.interval.ms", "3000").unwrap();
    spread(&kafka, TOPIC, 0..1_000).await;
    let mut source = kafka.source([TOPIC], GROUP);
    source.prepare(10).await.unwrap();
    let mut slow = take(&mut source, 1).await;
    let slow = slow.remove(0);
    let mut others = 0;
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    while tokio::time::Instant::now() < until {
        match timeout(Duration::from_millis(100), source.next(5)).await {
            Ok(Ok(Fetched::Batch(batch))) if others < 500 => {
                others += batch.len();
                settle(&source, acks(batch)).await;
            }
            Ok(Ok(Fetched::Batch(batch))) => {
                // Nothing is fetched by the consumer for the rest of the time.
                settle(&source, batch.into_iter().map(Delivery::hand_back).collect()).await;
                sleep(Duration::from_millis(100)).await;
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    }
    settle(&source, vec![slow.ack()]).await;
    let rest = take(&mut source, 999 - others).await;
    let mut distinct = numbers(&rest);
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 999 - others, "nothing came twice, so nothing was lost to the group");
    settle(&source, acks(rest)).await;
    source.close().await;
    let committed: i64 = committed(&cluster, 2).into_iter().flatten().sum();
    assert_eq!(committed, 1_000);
}

/// Order within a partition, and partitions side by side: one that is stuck holds up none but itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_lanes_that_do_not_wait_for_each_other() {
    let cluster = cluster(3);
    let kafka = kafka(&cluster);
    spread(&kafka, TOPIC, 0..90).await;
    let mut source = kafka.source([TOPIC], GROUP);
    source.prepare(100).await.unwrap();
    let all = take(&mut source, 90).await;
    let mut lanes: BTreeMap<String, Vec<Delivery<Receipt>>> = BTreeMap::new();
    for delivery in all {
        let lane = delivery.lane.as_ref().map(|lane| lane.0.to_string());
        lanes.entry(lane.unwrap()).or_default().push(delivery);
    }
    assert_eq!(lanes.keys().collect::<Vec<_>>(), ["orders/0", "orders/1", "orders/2"]);
    for deliveries in lanes.values() {
        let offsets: Vec<_> = deliveries.iter().map(offset_of).collect();
        assert!(offsets.is_sorted(), "{offsets:?}");
    }
    let stuck = lanes.remove("orders/1").unwrap();
    let expected = |number: usize| Some(i64::try_from(number).unwrap());
    let ends: Vec<_> = lanes.values().map(|deliveries| expected(deliveries.len())).collect();
    settle(&source, acks(lanes.into_values().flatten().collect())).await;
    let others = async || {
        let committed = committed(&cluster, 3);
        [committed[0], committed[2]] == ends[..] && committed[1].is_none()
    };
    eventually("the other lanes are committed", SOON, others).await;
    drop(stuck);
}

fn offset_of(delivery: &Delivery<Receipt>) -> i64 {
    let position = delivery.envelope.origin.position.as_deref().unwrap();
    position.split_once('/').unwrap().1.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_the_broker_refuses_is_repeated() {
    let cluster = cluster(1);
    let kafka = kafka(&cluster);
    spread(&kafka, TOPIC, 0..3).await;
    let mut source = kafka.source([TOPIC], GROUP);
    let batch = take(&mut source, 3).await;
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[error, error]);
    settle(&source, acks(batch)).await;
    eventually("committed", SOON, async || committed(&cluster, 1) == [Some(3)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_offsets_expired_begins_at_the_earliest_record() {
    let cluster = cluster(1);
    let kafka = kafka(&cluster);
    spread(&kafka, TOPIC, 0..5).await;
    commit_out_of_range(&cluster);
    let mut source = kafka.source([TOPIC], GROUP);
    assert_eq!(numbers(&take(&mut source, 5).await), [0, 1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_offsets_expired_fails_if_told_so() {
    let cluster = cluster(1);
    let kafka = kafka(&cluster);
    spread(&kafka, TOPIC, 0..5).await;
    commit_out_of_range(&cluster);
    for group in [GROUP, "new"] {
        let mut source = kafka.source([TOPIC], group).offset_reset(OffsetReset::Error);
        let error = timeout(SOON, source.next(5)).await.unwrap().unwrap_err();
        assert_eq!(kind_and_code(&error), (ErrorKind::Setup, Code::SourceUnreadable));
        assert!(error.to_string().contains(group), "{error}");
    }
}

/// As after a retention that was shorter than the consumer's absence, or a topic that was made anew.
fn commit_out_of_range(cluster: &Cluster) {
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(TOPIC, 0, Offset::Offset(1_000)).unwrap();
    committer(cluster).commit(&offsets, CommitMode::Sync).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_too_old_for_an_idempotent_producer_is_refused() {
    let cluster = cluster(1);
    cluster.apiversion(RDKafkaApiKey::InitProducerId, None, None).unwrap();
    let publisher = kafka(&cluster).publisher().confirm_timeout(Duration::from_secs(5));
    let message = Outgoing::to_queue(TOPIC, Envelope::new("x"));
    let error = publisher.publish(vec![message]).await.remove(0).unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Setup, Code::BrokerRefused), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_may_not_read_is_told_so() {
    let cluster = cluster(1);
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.topic_error(TOPIC, denied).unwrap();
    let error = kafka(&cluster).source([TOPIC], GROUP).prepare(1).await.unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Setup, Code::BrokerRefused));
}

/// What the broker could do at the moment is tried again under the same sequence; what it never will is an error of
/// that message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_is_repeated_by_the_client_and_doubles_nothing() {
    let cluster = cluster(1);
    let kafka = kafka(&cluster);
    let publisher = kafka.publisher();
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
        ],
    );
    publish(&publisher, TOPIC, 0..10).await;
    let mut source = kafka.source([TOPIC], GROUP);
    assert_eq!(numbers(&take(&mut source, 10).await), (0..10).collect::<Vec<_>>());

    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED],
    );
    let message = Outgoing::to_queue(TOPIC, Envelope::new("x"));
    let error = publisher.publish(vec![message.clone()]).await.remove(0).unwrap_err();
    assert_eq!(kind_and_code(&error), (ErrorKind::Statement, Code::NotPublished), "{error}");
    publisher.publish(vec![message]).await.remove(0).unwrap();
}
