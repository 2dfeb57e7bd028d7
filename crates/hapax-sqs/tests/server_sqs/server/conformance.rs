//! The suites that every source and every publisher passes.

use std::time::Duration;

use hapax_core::{Envelope, Outgoing, Publisher as _};
use hapax_sqs::{SqsPublisher, SqsSource};
use hapax_testkit::conformance::publisher::PublisherFixture;
use hapax_testkit::conformance::source::SourceFixture;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{Server, require};

use crate::broker::{Queue, proxy, sqs, through};

/// In seconds: what a slow machine keeps.
const VISIBILITY: u32 = 3;

/// A queue, and a way to it that can be cut.
struct OnSqs {
    queue: Queue,
    proxy: Proxy,
    publisher: SqsPublisher,
}

impl SourceFixture for OnSqs {
    type Source = SqsSource;
    /// What is not text travels as Base64, in less than 1 MiB with its attributes.
    const LARGEST_BODY: usize = 700 * 1024;
    const KNOWS_WHAT_IT_HOLDS: bool = true;

    async fn fresh() -> Option<Self> {
        if !require(Server::Sqs) {
            return None;
        }
        let queue = Queue::standard("conformance", VISIBILITY).await;
        Some(Self { queue, proxy: proxy(), publisher: sqs().publisher() })
    }

    async fn publish(&self, envelope: Envelope) {
        self.publisher.publish(vec![Outgoing::to_queue(&self.queue.name, envelope)]).await.remove(0).unwrap();
    }

    async fn source(&self) -> SqsSource {
        through(&self.proxy).source(&self.queue.name).wait_time(Duration::from_secs(1))
    }

    async fn drop_connections(&self) -> bool {
        self.proxy.sever();
        true
    }
}

impl PublisherFixture for OnSqs {
    type Publisher = SqsPublisher;

    async fn publisher(&self) -> SqsPublisher {
        through(&self.proxy).publisher()
    }

    fn queue(&self) -> String {
        self.queue.name.clone()
    }

    fn nowhere(&self) -> Option<String> {
        Some(format!("{}-gone", self.queue.name))
    }

    fn too_large(&self) -> Option<usize> {
        Some(2 << 20)
    }

    async fn cut_off(&self) {
        self.proxy.cut();
    }

    async fn heal(&self) {
        self.proxy.heal();
    }
}

impl Drop for OnSqs {
    fn drop(&mut self) {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(self.queue.delete()));
    }
}

hapax_testkit::source_conformance!(OnSqs);
hapax_testkit::publisher_conformance!(OnSqs);
