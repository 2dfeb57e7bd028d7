//! The suites that every source and every publisher passes.

use std::collections::HashSet;
use std::sync::Mutex;

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
    /// The ids that the stream has.
    published: Mutex<HashSet<String>>,
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
        Some(Self { stream, proxy: proxy(), publisher: nats().publisher(), published: Mutex::default() })
    }

    async fn publish(&self, envelope: Envelope) {
        let id = envelope.properties.message_id.clone().unwrap_or_default();
        let is_copy = !self.published.lock().unwrap().insert(id);
        // A copy is one that the stream would recognise.
        let publisher = self.publisher.clone();
        let publisher = if is_copy { publisher.without_deduplication() } else { publisher };
        let sent = publisher.publish(vec![Outgoing::to_queue(&self.stream.name, envelope)]).await;
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
