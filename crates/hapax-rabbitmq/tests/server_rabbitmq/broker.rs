//! The tests' own hand on the broker, and the ways to it.

use std::time::Duration;

use hapax_core::{Code, Envelope, Error, ErrorKind, Outgoing, Publisher};
use hapax_rabbitmq::RabbitMq;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{address, rabbitmq_url, unique};
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};

/// Longer than anything here takes, so that a test fails instead of hanging.
pub(crate) const SOON: Duration = Duration::from_secs(30);

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

pub(crate) fn rabbit() -> RabbitMq {
    RabbitMq::new(&rabbitmq_url()).unwrap()
}

pub(crate) fn through(proxy: &Proxy) -> RabbitMq {
    RabbitMq::new(&proxy.route(&rabbitmq_url()).unwrap()).unwrap()
}

pub(crate) fn proxy() -> Proxy {
    Proxy::start(address(&rabbitmq_url()).unwrap()).unwrap()
}

/// Publishes messages whose bodies and ids are these numbers.
pub(crate) async fn publish(queue: &Queue, numbers: impl IntoIterator<Item = u32>) {
    let publisher = rabbit().publisher();
    for result in
        publisher.publish(numbers.into_iter().map(|number| message(&queue.name, number)).collect()).await
    {
        result.unwrap();
    }
    publisher.close().await;
}

pub(crate) fn message(queue: &str, number: u32) -> Outgoing {
    Outgoing::to_queue(queue, Envelope::new(number.to_string()).with_id(number.to_string()))
}

pub(crate) fn kind_and_code(error: &Error) -> (ErrorKind, Code) {
    (error.kind(), error.code())
}
