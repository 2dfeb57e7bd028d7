//! The suites that every source and every publisher passes.

use hapax_core::{Envelope, Outgoing, Publisher};
use hapax_redis::{RedisPublisher, RedisSource};
use hapax_testkit::conformance::publisher::PublisherFixture;
use hapax_testkit::conformance::source::SourceFixture;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{Server, require};

use crate::broker::{LEASE, Stream, proxy, redis, source_of, through};

/// A stream, and a way to it that can be cut.
struct OnRedis {
    stream: Stream,
    proxy: Proxy,
    publisher: RedisPublisher,
}

impl SourceFixture for OnRedis {
    type Source = RedisSource;

    const KNOWS_WHAT_IT_HOLDS: bool = true;

    async fn fresh() -> Option<Self> {
        if !require(Server::Redis) {
            return None;
        }
        let stream = Stream::declared("conformance");
        Some(Self { stream, proxy: proxy(), publisher: redis().publisher() })
    }

    async fn publish(&self, envelope: Envelope) {
        let sent = self.publisher.publish(vec![Outgoing::to_queue(&self.stream.name, envelope)]).await;
        sent.into_iter().for_each(|result| result.unwrap());
    }

    async fn source(&self) -> RedisSource {
        source_of(&through(&self.proxy), &self.stream).lease(LEASE)
    }

    async fn drop_connections(&self) -> bool {
        self.proxy.sever();
        true
    }
}

impl PublisherFixture for OnRedis {
    type Publisher = RedisPublisher;

    async fn publisher(&self) -> RedisPublisher {
        through(&self.proxy).publisher()
    }

    fn queue(&self) -> String {
        self.stream.name.clone()
    }

    fn nowhere(&self) -> Option<String> {
        Some(format!("{}.gone", self.stream.name))
    }

    /// Redis takes half a GiB in a field: its own tests have a smaller limit.
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

hapax_testkit::source_conformance!(OnRedis);
hapax_testkit::publisher_conformance!(OnRedis);
