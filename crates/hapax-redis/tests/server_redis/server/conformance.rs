//! The suite that every source passes.

use hapax_core::{Envelope, Outgoing, Publisher};
use hapax_redis::{RedisPublisher, RedisSource};
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

hapax_testkit::source_conformance!(OnRedis);
