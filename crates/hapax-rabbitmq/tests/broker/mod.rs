//! The test's own hand on the broker.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};

use hapax_testkit::servers::{rabbitmq_url, unique};

/// A queue of this test's own.
pub(crate) struct Queue {
    pub(crate) name: String,
    connection: Connection,
}

impl Queue {
    pub(crate) async fn declared(prefix: &str) -> Self {
        let queue = Self::named(prefix).await;
        queue.declare().await;
        queue
    }

    pub(crate) async fn named(prefix: &str) -> Self {
        let connection = Connection::connect(&rabbitmq_url(), ConnectionProperties::default()).await.unwrap();
        Self { name: unique(prefix), connection }
    }

    pub(crate) async fn channel(&self) -> Channel {
        self.connection.create_channel().await.unwrap()
    }

    pub(crate) async fn declare(&self) {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel()
            .await
            .queue_declare(self.name.as_str().into(), durable, FieldTable::default())
            .await
            .unwrap();
    }

    pub(crate) async fn exists(&self) -> bool {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let channel = self.channel().await;
        channel.queue_declare(self.name.as_str().into(), passive, FieldTable::default()).await.is_ok()
    }

    /// Messages that are ready: neither delivered and unacked nor gone.
    pub(crate) async fn ready(&self) -> u32 {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let channel = self.channel().await;
        let queue = channel.queue_declare(self.name.as_str().into(), passive, FieldTable::default()).await;
        queue.unwrap().message_count()
    }

    pub(crate) async fn delete(&self) {
        let channel = self.channel().await;
        channel.queue_delete(self.name.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    }
}
