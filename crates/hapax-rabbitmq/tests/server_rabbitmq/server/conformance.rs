//! The suites that every source and every publisher passes.

use hapax_core::{Envelope, Outgoing, Publisher, Timestamp};
use hapax_rabbitmq::{RabbitPublisher, RabbitSource};
use hapax_testkit::conformance::publisher::PublisherFixture;
use hapax_testkit::conformance::source::SourceFixture;

use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{Server, require};

use crate::broker::{Queue, proxy, rabbit, through};

const MICROS_PER_SECOND: i64 = 1_000_000;

/// A queue, and a way to it that can be cut.
struct OnRabbitMq {
    queue: Queue,
    proxy: Proxy,
    publisher: RabbitPublisher,
}

impl SourceFixture for OnRabbitMq {
    type Source = RabbitSource;

    async fn fresh() -> Option<Self> {
        if !require(Server::RabbitMq) {
            return None;
        }
        let queue = Queue::declared("conformance").await;
        Some(Self { queue, proxy: proxy(), publisher: rabbit().publisher() })
    }

    async fn publish(&self, envelope: Envelope) {
        self.publisher.publish(vec![Outgoing::to_queue(&self.queue.name, envelope)]).await.remove(0).unwrap();
    }

    async fn source(&self) -> RabbitSource {
        through(&self.proxy).source(&self.queue.name)
    }

    async fn drop_connections(&self) -> bool {
        self.proxy.sever();
        true
    }

    /// AMQP has no ordering key, and whole seconds only.
    fn carried(envelope: Envelope) -> Envelope {
        let mut carried = envelope;
        carried.properties.key = None;
        carried.properties.broker_id = None;
        carried.properties.timestamp = carried
            .properties
            .timestamp
            .map(|time| Timestamp::from_micros(time.as_micros() / MICROS_PER_SECOND * MICROS_PER_SECOND));
        carried
    }
}

impl PublisherFixture for OnRabbitMq {
    type Publisher = RabbitPublisher;

    async fn publisher(&self) -> RabbitPublisher {
        through(&self.proxy).publisher()
    }

    fn queue(&self) -> String {
        self.queue.name.clone()
    }

    fn nowhere(&self) -> Option<String> {
        Some(format!("{}.gone", self.queue.name))
    }

    /// The broker's limit is 128 MiB: whether it is kept to is tried on a private one, with a smaller limit.
    fn too_large(&self) -> Option<usize> {
        None
    }

    async fn cut_off(&self) {
        self.proxy.cut();
    }

    async fn heal(&self) {
        self.proxy.heal();
    }
}

impl Drop for OnRabbitMq {
    fn drop(&mut self) {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(self.queue.delete()));
    }
}

hapax_testkit::source_conformance!(OnRabbitMq);
hapax_testkit::publisher_conformance!(OnRabbitMq);
