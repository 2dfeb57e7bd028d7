//! The tests' own hand on the broker, and the ways to it.

use std::time::Duration;

use async_nats::jetstream::{self, consumer};
use hapax_core::{Code, Envelope, Error, ErrorKind, Outgoing, Publisher};
use hapax_nats::{Nats, NatsSource};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{address, nats_url, unique};

/// Longer than anything here takes, so that a test fails instead of hanging.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// The consumer of each test's stream.
pub(crate) const CONSUMER: &str = "orders";
/// Short enough to be waited for.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(1);

/// A stream of this test's own, which goes when it is dropped. Its subject is its name.
pub(crate) struct Stream {
    pub(crate) name: String,
    js: jetstream::Context,
}

impl Stream {
    /// With a durable consumer, whose ack wait is the usual one.
    pub(crate) async fn declared(prefix: &str) -> Self {
        Self::with_consumer(prefix, config(Duration::from_secs(30))).await
    }

    pub(crate) async fn with_consumer(prefix: &str, config: consumer::Config) -> Self {
        let stream = Self::named(prefix).await;
        stream.create().await;
        stream.create_consumer(config).await;
        stream
    }

    pub(crate) async fn named(prefix: &str) -> Self {
        let client = async_nats::connect(nats_url()).await.unwrap();
        Self { name: unique(prefix), js: jetstream::new(client) }
    }

    pub(crate) async fn create(&self) {
        let subjects = vec![self.name.clone()];
        let config = jetstream::stream::Config { name: self.name.clone(), subjects, ..Default::default() };
        self.js.create_stream(config).await.unwrap();
    }

    pub(crate) async fn create_consumer(&self, config: consumer::Config) {
        self.js.create_consumer_on_stream(config, &self.name).await.unwrap();
    }

    pub(crate) async fn delete_consumer(&self) {
        self.js.delete_consumer_from_stream(CONSUMER, &self.name).await.unwrap();
    }

    pub(crate) async fn exists(&self) -> bool {
        self.js.get_stream(&self.name).await.is_ok()
    }

    /// Has a limit drop all messages but the last ones.
    pub(crate) async fn keep(&self, last: i64) {
        let config = self.js.get_stream(&self.name).await.unwrap().cached_info().config.clone();
        let limited = jetstream::stream::Config { max_messages: last, ..config };
        self.js.update_stream(limited).await.unwrap();
    }

    /// How many messages the stream has stored.
    pub(crate) async fn stored(&self) -> u64 {
        self.js.get_stream(&self.name).await.unwrap().info().await.unwrap().state.messages
    }

    /// How many messages are delivered and unacked, and how many were never delivered.
    pub(crate) async fn unacked_and_undelivered(&self) -> (usize, u64) {
        let stream = self.js.get_stream(&self.name).await.unwrap();
        let info = stream.consumer_info(CONSUMER).await.unwrap();
        (info.num_ack_pending, info.num_pending)
    }

    pub(crate) async fn all_acked(&self) -> bool {
        self.unacked_and_undelivered().await == (0, 0)
    }
}

impl Drop for Stream {
    /// On a thread of its own: a test's runtime cannot wait for itself.
    fn drop(&mut self) {
        let deleting = async {
            let js = jetstream::new(async_nats::connect(nats_url()).await.unwrap());
            let _ = js.delete_stream(&self.name).await; // a test may have deleted it
        };
        let delete = || tokio::runtime::Runtime::new().unwrap().block_on(deleting);
        std::thread::scope(|scope| drop(scope.spawn(delete).join()));
    }
}

pub(crate) fn config(ack_wait: Duration) -> consumer::Config {
    consumer::Config {
        durable_name: Some(CONSUMER.into()),
        ack_policy: consumer::AckPolicy::Explicit,
        ack_wait,
        ..Default::default()
    }
}

pub(crate) fn nats() -> Nats {
    Nats::new(&nats_url()).unwrap()
}

pub(crate) fn through(proxy: &Proxy) -> Nats {
    Nats::new(&proxy.route(&nats_url()).unwrap()).unwrap()
}

pub(crate) fn proxy() -> Proxy {
    Proxy::start(address(&nats_url()).unwrap()).unwrap()
}

pub(crate) fn source_of(broker: &Nats, stream: &Stream) -> NatsSource {
    broker.source(&stream.name, CONSUMER)
}

/// Publishes messages whose bodies and ids are these numbers.
pub(crate) async fn publish(stream: &Stream, numbers: impl IntoIterator<Item = u32>) {
    let publisher = nats().publisher();
    let messages = numbers.into_iter().map(|number| message(&stream.name, number)).collect();
    publisher.publish(messages).await.into_iter().for_each(|sent| sent.unwrap());
}

pub(crate) fn message(subject: &str, number: u32) -> Outgoing {
    Outgoing::to_queue(subject, Envelope::new(number.to_string()).with_id(number.to_string()))
}

pub(crate) fn kind_and_code(error: &Error) -> (ErrorKind, Code) {
    (error.kind(), error.code())
}
