//! The suites that every source and every publisher passes.

use std::time::Duration;

use hapax_core::{Envelope, Outgoing, Publisher, Timestamp};
use hapax_kafka::{Kafka, KafkaPublisher, KafkaSource};
use hapax_testkit::conformance::publisher::PublisherFixture;
use hapax_testkit::conformance::source::SourceFixture;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{PrivateKafka, Server, require, unique};

use crate::broker::behind_a_proxy;

const MICROS_PER_MILLI: i64 = 1_000;

/// A topic of one partition, on a broker whose connections can be cut.
struct OnKafka {
    kafka: Kafka,
    publisher: KafkaPublisher,
    topic: String,
    proxy: Proxy,
    _broker: PrivateKafka,
}

impl SourceFixture for OnKafka {
    type Source = KafkaSource;

    async fn fresh() -> Option<Self> {
        if !require(Server::PrivateKafka) {
            return None;
        }
        let (broker, proxy, kafka) = behind_a_proxy().await;
        let (publisher, topic) = (kafka.publisher(), unique("conformance"));
        publisher.create_topic_of(&topic, 1).await.unwrap();
        Some(Self { kafka, publisher, topic, proxy, _broker: broker })
    }

    async fn publish(&self, envelope: Envelope) {
        let message = Outgoing::to_queue(&self.topic, envelope);
        self.publisher.publish(vec![message]).await.remove(0).unwrap();
    }

    async fn source(&self) -> KafkaSource {
        self.kafka.source([&self.topic], "conformance")
    }

    async fn drop_connections(&self) -> bool {
        self.proxy.sever();
        true
    }

    /// Partitions belong to a member of the group, not to a connection.
    fn receipts_outlive_connections() -> bool {
        true
    }

    /// Kafka keeps whole milliseconds.
    fn carried(envelope: Envelope) -> Envelope {
        let mut carried = envelope;
        carried.properties.broker_id = None;
        carried.properties.timestamp = carried
            .properties
            .timestamp
            .map(|time| Timestamp::from_micros(time.as_micros() / MICROS_PER_MILLI * MICROS_PER_MILLI));
        carried
    }
}

impl PublisherFixture for OnKafka {
    type Publisher = KafkaPublisher;

    async fn publisher(&self) -> KafkaPublisher {
        self.kafka.publisher().confirm_timeout(Duration::from_secs(5))
    }

    fn queue(&self) -> String {
        self.topic.clone()
    }

    fn nowhere(&self) -> Option<String> {
        Some(format!("{}.gone", self.topic))
    }

    /// More than the client sends (`message.max.bytes`).
    fn too_large(&self) -> Option<usize> {
        Some(32 << 20)
    }

    async fn cut_off(&self) {
        self.proxy.cut();
    }

    async fn heal(&self) {
        self.proxy.heal();
    }
}

hapax_testkit::source_conformance!(OnKafka);
hapax_testkit::publisher_conformance!(OnKafka);
