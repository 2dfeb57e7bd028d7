//! The suites that every source and every publisher passes.

use hapax_core::{Envelope, Outgoing, Publisher};
use hapax_nats::{NatsPublisher, NatsSource};
use hapax_testkit::conformance::publisher::PublisherFixture;
use hapax_testkit::conformance::source::SourceFixture;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{Server, require};

use crate::broker::{ACK_WAIT, Stream, config, nats, proxy, source_of, through};

/// A stream, and a way to it that can be cut.
struct OnNats {
    stream: Stream,
    proxy: Proxy,
    publisher: NatsPublisher,
}

impl SourceFixture for OnNats {
    type Source = NatsSource;

    const KNOWS_WHAT_IT_HOLDS: bool = true;

    /// The server takes a MiB, headers included.
    const LARGEST_BODY: usize = (1 << 20) - 4_096;

    async fn fresh() -> Option<Self> {
        if !require(Server::Nats) {
            return None;
        }
        let stream = Stream::with_consumer("conformance", config(ACK_WAIT)).await;
        // The suite publishes copies, which the stream would recognise.
        Some(Self { stream, proxy: proxy(), publisher: nats().publisher().without_deduplication() })
    }

    async fn publish(&self, envelope: Envelope) {
        let sent = self.publisher.publish(vec![Outgoing::to_queue(&self.stream.name, envelope)]).await;
        sent.into_iter().for_each(|result| result.unwrap());
    }

    async fn source(&self) -> NatsSource {
        source_of(&through(&self.proxy), &self.stream)
    }

    async fn drop_connections(&self) -> bool {
        self.proxy.sever();
        true
    }
}

impl PublisherFixture for OnNats {
    type Publisher = NatsPublisher;

    async fn publisher(&self) -> NatsPublisher {
        through(&self.proxy).publisher()
    }

    fn queue(&self) -> String {
        self.stream.name.clone()
    }

    fn nowhere(&self) -> Option<String> {
        Some(format!("{}.gone", self.stream.name))
    }

    fn too_large(&self) -> Option<usize> {
        Some(Self::LARGEST_BODY + 8_192)
    }

    async fn cut_off(&self) {
        self.proxy.cut();
    }

    async fn heal(&self) {
        self.proxy.heal();
    }
}

hapax_testkit::source_conformance!(OnNats);
hapax_testkit::publisher_conformance!(OnNats);
