//! A broker by its URL, for programs that learn only when they start which one they use.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use hapax_core::{Code, Error, ErrorKind, Outgoing, Publisher};

use crate::BoxSource;

/// What a URL may begin with, and the cargo feature that has the broker.
const SCHEMES: [(&str, &str); 8] = [
    ("amqp", "rabbitmq"),
    ("amqps", "rabbitmq"),
    ("kafka", "kafka"),
    ("nats", "nats"),
    ("tls", "nats"),
    ("sqs", "sqs"),
    ("redis", "redis"),
    ("rediss", "redis"),
];

/// Any of the brokers that this build has, so that a program changes its broker by changing a URL.
///
/// ```no_run
/// # async fn example() -> Result<(), hapax::Error> {
/// let broker = hapax::Broker::open(&std::env::var("BROKER").unwrap_or_default()).await?;
/// let payments = broker.source("payments", "orders"); // a queue, and who reads it
/// let publisher = broker.publisher();
/// # drop((payments, publisher));
/// # Ok(())
/// # }
/// ```
///
/// | URL | broker | the queue is | the reader is |
/// |---|---|---|---|
/// | `amqp://`, `amqps://` | `RabbitMQ` | a queue | |
/// | `kafka://host:9092,host:9092` | Kafka | a topic | a consumer group |
/// | `nats://`, `tls://` | NATS `JetStream` | a subject, and the stream of that name with `_` for `.` | a durable consumer |
/// | `sqs://` (as AWS's usual variables and files say), `sqs://host:port?region=…` | SQS | a queue | |
/// | `redis://`, `rediss://` | Redis Streams | a stream | a consumer group |
///
/// What a URL cannot say is said to the broker's own type, which turns into this one (`From`). Clones share it.
#[derive(Clone, Debug)]
pub struct Broker {
    kind: Arc<dyn Kind>,
    declares: bool,
}

/// A queue that is to be a source.
#[allow(dead_code, reason = "not every broker has readers, and a build without brokers reads nothing")]
struct Reading<'q> {
    queue: &'q str,
    /// Under which name the broker remembers how far it was read.
    reader: &'q str,
    declares: bool,
}

/// What the adapters' own types have in common.
trait Kind: fmt::Debug + Send + Sync {
    fn source(&self, reading: &Reading<'_>) -> BoxSource;
    fn publisher(&self) -> BrokerPublisher;
}

impl Broker {
    /// A broker by its URL. Connects to nothing.
    ///
    /// # Errors
    ///
    /// `Code::ConfigWrongValue` if it is no URL of a broker, `Code::NotAvailable` if this build was made without that
    /// broker. Neither repeats the URL.
    #[allow(clippy::unused_async, reason = "some brokers read their settings from outside")]
    pub async fn open(url: &str) -> Result<Self, Error> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        match SCHEMES.iter().find(|(known, _)| *known == scheme).map(|(_, feature)| *feature) {
            #[cfg(feature = "rabbitmq")]
            Some("rabbitmq") => Ok(hapax_rabbitmq::RabbitMq::new(url)?.into()),
            #[cfg(feature = "kafka")]
            Some("kafka") => Ok(hapax_kafka::Kafka::from_url(url)?.into()),
            #[cfg(feature = "redis")]
            Some("redis") => Ok(hapax_redis::Redis::new(url)?.into()),
            #[cfg(feature = "nats")]
            Some("nats") => Ok(hapax_nats::Nats::new(url)?.into()),
            #[cfg(feature = "sqs")]
            Some("sqs") if url == "sqs://" => Ok(hapax_sqs::Sqs::from_env().await.into()),
            #[cfg(feature = "sqs")]
            Some("sqs") => Ok(hapax_sqs::Sqs::from_url(url)?.into()),
            Some(feature) => Err(left_out(feature)),
            None => Err(unknown()),
        }
    }

    /// Its sources make what they read where it is missing, and its reader, with the broker's defaults. Without this
    /// nothing is declared on a broker.
    #[must_use]
    pub fn declare(mut self) -> Self {
        self.declares = true;
        self
    }

    /// A queue as a source; `reader` is the name under which the broker remembers how far it was read, where a queue
    /// can have several readers.
    pub fn source(&self, queue: &str, reader: &str) -> BoxSource {
        self.kind.source(&Reading { queue, reader, declares: self.declares })
    }

    /// A publisher with a connection of its own. It connects when it is first used.
    pub fn publisher(&self) -> BrokerPublisher {
        self.kind.publisher()
    }
}

fn unknown() -> Error {
    let known = SCHEMES.map(|(scheme, _)| format!("{scheme}://")).join(", ");
    let context = format!("the URL names no broker that Hapax knows: begin it with one of {known}");
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context)
}

fn left_out(feature: &str) -> Error {
    let context = format!("this build was made without `{feature}`: build it with `--features {feature}`");
    Error::new(ErrorKind::Setup, Code::NotAvailable, context)
}

/// Publishes to a [`Broker`]. Clones share one connection.
#[derive(Clone)]
pub struct BrokerPublisher(Arc<dyn Hand>);

/// What the adapters' publishers have in common.
trait Hand: Send + Sync {
    fn check(&self) -> BoxFuture<'_, Result<(), Error>>;
    fn declare<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    fn delete<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    fn close(&self) -> BoxFuture<'_, ()>;
    fn publish(&self, messages: Vec<Outgoing>) -> BoxFuture<'_, Vec<Result<(), Error>>>;
}

impl BrokerPublisher {
    /// Whether the broker can be reached with these credentials.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` or `Code::BrokerUnavailable`.
    pub async fn check(&self) -> Result<(), Error> {
        self.0.check().await
    }

    /// Makes a queue if it is not there, with the broker's defaults.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` if it may not be made, or is there as something else; `Code::BrokerUnavailable`.
    pub async fn declare(&self, queue: &str) -> Result<(), Error> {
        self.0.declare(queue).await
    }

    /// Deletes a queue with what is in it, which is no change if there is none.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` if it may not be deleted, `Code::BrokerUnavailable`.
    pub async fn delete(&self, queue: &str) -> Result<(), Error> {
        self.0.delete(queue).await
    }

    /// Closes the connection. A later call opens another one.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

impl fmt::Debug for BrokerPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BrokerPublisher").finish()
    }
}

impl Publisher for BrokerPublisher {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        self.0.publish(messages).await
    }
}

/// Makes a kind of broker of an adapter's own types: the broker, its publisher, and how a queue becomes a source.
#[cfg(any(feature = "rabbitmq", feature = "kafka", feature = "nats", feature = "sqs", feature = "redis"))]
macro_rules! kind {
    (
        $broker:ty, $publisher:ty, $source:expr,
        declare: $declare:ident, delete: $delete:ident, close: $close:expr
    ) => {
        impl Kind for $broker {
            fn source(&self, reading: &Reading<'_>) -> BoxSource {
                let source = $source(self, reading);
                BoxSource::new(if reading.declares { source.declare() } else { source })
            }

            fn publisher(&self) -> BrokerPublisher {
                BrokerPublisher(Arc::new(Self::publisher(self)))
            }
        }

        impl From<$broker> for Broker {
            fn from(broker: $broker) -> Self {
                Self { kind: Arc::new(broker), declares: false }
            }
        }

        impl Hand for $publisher {
            fn check(&self) -> BoxFuture<'_, Result<(), Error>> {
                Box::pin(Self::check(self))
            }

            fn declare<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<(), Error>> {
                Box::pin(self.$declare(queue))
            }

            fn delete<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<(), Error>> {
                Box::pin(self.$delete(queue))
            }

            fn close(&self) -> BoxFuture<'_, ()> {
                let close: fn(&Self) -> BoxFuture<'_, ()> = $close;
                close(self)
            }

            fn publish(&self, messages: Vec<Outgoing>) -> BoxFuture<'_, Vec<Result<(), Error>>> {
                Box::pin(Publisher::publish(self, messages))
            }
        }
    };
}

#[cfg(feature = "rabbitmq")]
kind!(
    hapax_rabbitmq::RabbitMq,
    hapax_rabbitmq::RabbitPublisher,
    |broker: &hapax_rabbitmq::RabbitMq, reading: &Reading<'_>| broker.source(reading.queue),
    declare: declare_queue, delete: delete_queue, close: |publisher| Box::pin(publisher.close())
);

#[cfg(feature = "nats")]
kind!(
    hapax_nats::Nats,
    hapax_nats::NatsPublisher,
    |broker: &hapax_nats::Nats, reading: &Reading<'_>| {
        broker.source(reading.queue.replace('.', "_"), reading.reader).subjects([reading.queue])
    },
    declare: declare_queue, delete: delete_queue, close: |publisher| Box::pin(publisher.close())
);

#[cfg(feature = "sqs")]
kind!(
    hapax_sqs::Sqs,
    hapax_sqs::SqsPublisher,
    |broker: &hapax_sqs::Sqs, reading: &Reading<'_>| broker.source(reading.queue),
    declare: declare_queue, delete: delete_queue, close: |_| Box::pin(std::future::ready(())) // each message is a request of its own
);

#[cfg(feature = "kafka")]
kind!(
    hapax_kafka::Kafka, hapax_kafka::KafkaPublisher,
    |broker: &hapax_kafka::Kafka, reading: &Reading<'_>| broker.source([reading.queue], reading.reader),
    declare: create_topic, delete: delete_topic, close: |publisher| Box::pin(publisher.close())
);

#[cfg(feature = "redis")]
kind!(
    hapax_redis::Redis, hapax_redis::RedisPublisher,
    |broker: &hapax_redis::Redis, reading: &Reading<'_>| broker.source(reading.queue, reading.reader),
    declare: declare_queue, delete: delete_queue, close: |publisher| Box::pin(publisher.close())
);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_no_broker_is_refused_without_being_repeated() {
        for url in ["", "localhost", "http://me:hunter2@host", "amqp:host"] {
            let error = Broker::open(url).await.unwrap_err();
            assert_eq!(error.code(), Code::ConfigWrongValue, "{url}");
            assert!(
                !error.to_string().contains("hunter2") && error.to_string().contains("amqp://"),
                "{error}"
            );
        }
    }
}
