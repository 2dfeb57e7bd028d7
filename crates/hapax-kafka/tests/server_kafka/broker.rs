//! The tests' own hand on a broker.

use std::time::Duration;

use hapax_core::{Code, Envelope, Error, ErrorKind, Outgoing, Publisher};
use hapax_kafka::{Kafka, KafkaPublisher};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{PrivateKafka, kafka_url, unique};

/// Longer than anything here takes, so that a test fails instead of hanging.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// A topic of this test's own.
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) publisher: KafkaPublisher,
}

impl Topic {
    pub(crate) async fn created(kafka: &Kafka, prefix: &str, partitions: u16) -> Self {
        let topic = Self { name: unique(prefix), publisher: kafka.publisher() };
        topic.publisher.create_topic_of(&topic.name, partitions).await.unwrap();
        topic
    }

    /// Publishes messages whose bodies and ids are these numbers.
    pub(crate) async fn publish(&self, numbers: impl IntoIterator<Item = u32>) {
        publish(&self.publisher, &self.name, numbers).await;
    }

    pub(crate) async fn delete(self) {
        self.publisher.delete_topic(&self.name).await.unwrap();
    }
}

pub(crate) async fn publish(publisher: &KafkaPublisher, topic: &str, numbers: impl IntoIterator<Item = u32>) {
    let messages = numbers.into_iter().map(|number| message(topic, number)).collect();
    for result in publisher.publish(messages).await {
        result.unwrap();
    }
}

pub(crate) fn message(topic: &str, number: u32) -> Outgoing {
    Outgoing::to_queue(topic, Envelope::new(number.to_string()).with_id(number.to_string()))
}

/// The shared broker.
pub(crate) fn kafka() -> Kafka {
    quick(Kafka::from_url(&kafka_url()).unwrap())
}

/// Tansu lets a group wait for members that may still come, for half as long as a member may be silent. So this is
/// short, and long enough for a busy machine: Tansu keeps the leader of a group for ever if that goes while the group
/// rebalances.
pub(crate) fn quick(kafka: Kafka) -> Kafka {
    let kafka = kafka.property("session.timeout.ms", "4000").unwrap();
    kafka.property("heartbeat.interval.ms", "300").unwrap()
}

/// A broker of this test's own, behind a proxy.
pub(crate) async fn behind_a_proxy() -> (PrivateKafka, Proxy, Kafka) {
    let (private, proxy) = PrivateKafka::start_behind().await.unwrap();
    let kafka = quick(Kafka::from_url(&private.url()).unwrap());
    (private, proxy, kafka)
}

pub(crate) fn kind_and_code(error: &Error) -> (ErrorKind, Code) {
    (error.kind(), error.code())
}
