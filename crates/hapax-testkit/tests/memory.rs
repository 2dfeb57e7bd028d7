//! The memory store and broker do what every store and source must do.

mod store {
    use hapax_core::BoxError;
    use hapax_testkit::conformance::store::StoreFixture;
    use hapax_testkit::memory::{MemoryStore, MemoryTx};

    struct InMemory(MemoryStore);

    impl StoreFixture for InMemory {
        type Store = MemoryStore;

        async fn fresh() -> Option<Self> {
            Some(Self(MemoryStore::new()))
        }

        fn store(&self) -> MemoryStore {
            self.0.clone()
        }

        async fn reopened(&self) -> MemoryStore {
            self.0.reopen()
        }

        async fn add(tx: &mut MemoryTx, account: &str, n: i64) -> Result<(), BoxError> {
            Ok(tx.add(account, n)?)
        }

        async fn total(&self, account: &str) -> i64 {
            self.0.number(account)
        }
    }

    hapax_testkit::store_conformance!(InMemory);
}

mod source {
    use hapax_core::Envelope;
    use hapax_testkit::conformance::source::SourceFixture;
    use hapax_testkit::memory::{MemoryBroker, MemorySource};

    const QUEUE: &str = "payments";

    /// As RabbitMQ is: deliveries stay in hand as long as the connection does.
    struct Connected(MemoryBroker);

    impl SourceFixture for Connected {
        type Source = MemorySource;

        async fn fresh() -> Option<Self> {
            Some(Self(MemoryBroker::new()))
        }

        async fn publish(&self, envelope: Envelope) {
            self.0.publish(QUEUE, envelope);
        }

        async fn source(&self) -> MemorySource {
            self.0.source(QUEUE)
        }

        async fn drop_connections(&self) -> bool {
            self.0.drop_connections();
            true
        }
    }

    mod connected {
        use super::*;

        hapax_testkit::source_conformance!(Connected);
    }

    /// As SQS is: deliveries are taken away from whoever is slow, and each key is a lane.
    struct Leased(MemoryBroker);

    impl SourceFixture for Leased {
        type Source = MemorySource;
        const KNOWS_WHAT_IT_HOLDS: bool = true;

        async fn fresh() -> Option<Self> {
            Some(Self(MemoryBroker::new()))
        }

        async fn publish(&self, envelope: Envelope) {
            self.0.publish(QUEUE, envelope);
        }

        async fn source(&self) -> MemorySource {
            self.0.source(QUEUE).with_lanes().with_visibility(std::time::Duration::from_millis(500))
        }
    }

    mod leased {
        use super::*;

        hapax_testkit::source_conformance!(Leased);
    }
}
