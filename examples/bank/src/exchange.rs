//! The topic exchange `banking.events` and who is bound to it: on RabbitMQ, or embedded in two databases.

use hapax::rabbitmq::{RabbitMq, RabbitPublisher};
use hapax::{BoxError, BoxPublisher, Error, Outgoing, Publisher};
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, ExchangeKind};

use crate::events::{
    CREDIT_REJECTED, CREDIT_REQUESTED, CREDITED, DEBIT_REJECTED, DEBITED, Kind, OPENED, REFUND_REQUESTED,
    REQUESTED,
};

/// The account service's queue and what it is bound to.
pub(crate) const ACCOUNTS: Binding =
    Binding { queue: "account-service", kinds: &[REQUESTED, CREDIT_REQUESTED, REFUND_REQUESTED] };

/// The transfer service's queue and what it is bound to.
pub(crate) const TRANSFERS: Binding = Binding {
    queue: "transfer-service",
    kinds: &[OPENED, DEBITED, DEBIT_REJECTED, CREDITED, CREDIT_REJECTED],
};

/// A queue and the kinds of messages that reach it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    pub(crate) queue: &'static str,
    kinds: &'static [Kind],
}

impl Binding {
    fn takes(&self, routing_key: &str) -> bool {
        self.kinds.iter().any(|kind| kind.route == routing_key)
    }

    /// The queue's name on a broker, where others may have an exchange, too.
    pub(crate) fn queue_on(&self, exchange: &str) -> String {
        format!("{exchange}.{}", self.queue)
    }
}

/// The queue in which the latest 1,000 messages can be read, all kinds. It also sees to it that none is unroutable.
pub(crate) fn log_of(exchange: &str) -> String {
    format!("{exchange}.log")
}

/// The exchange, to publish to.
pub(crate) enum Exchange {
    /// On RabbitMQ, under a name.
    RabbitMq { publisher: RabbitPublisher, name: String },
    /// A queue in the other service's database, and what is bound to it; what nobody is bound to goes nowhere.
    Embedded { queues: BoxPublisher, peer: Binding },
}

impl Publisher for Exchange {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        match self {
            Self::RabbitMq { publisher, name } => {
                let named = |message| Outgoing { destination: name.clone(), ..message };
                publisher.publish(messages.into_iter().map(named).collect()).await
            }
            Self::Embedded { queues, peer } => {
                let bound: Vec<_> = messages.iter().map(|message| peer.takes(&message.routing_key)).collect();
                let queued = messages.into_iter().filter(|message| peer.takes(&message.routing_key));
                let queued = queued.map(|message| Outgoing::to_queue(peer.queue, message.envelope));
                let mut answers = queues.publish(queued.collect()).await.into_iter();
                bound
                    .into_iter()
                    .map(|bound| if bound { answers.next().unwrap_or(Ok(())) } else { Ok(()) })
                    .collect()
            }
        }
    }
}

/// Declares the exchange, the queues and their bindings, which is no change if they are there.
pub(crate) async fn declare(url: &str, exchange: &str) -> Result<(), BoxError> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(exchange.into(), ExchangeKind::Topic, durable, FieldTable::default()).await?;

    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut latest = FieldTable::default();
    latest.insert("x-max-length".into(), AMQPValue::LongInt(1_000));
    channel.queue_declare(log_of(exchange).into(), durable, latest).await?;
    let (log, all) = (log_of(exchange), QueueBindOptions::default());
    channel.queue_bind(log.into(), exchange.into(), "#".into(), all, FieldTable::default()).await?;
    for binding in [ACCOUNTS, TRANSFERS] {
        let queue = binding.queue_on(exchange);
        channel.queue_declare(queue.as_str().into(), durable, FieldTable::default()).await?;
        for kind in binding.kinds {
            let (queue, route) = (queue.as_str().into(), kind.route.into());
            channel
                .queue_bind(queue, exchange.into(), route, QueueBindOptions::default(), FieldTable::default())
                .await?;
        }
    }
    connection.close(200, "".into()).await?;
    Ok(())
}

/// Deletes the exchange and its queues with what is in them.
pub(crate) async fn delete(url: &str, exchange: &str) -> Result<(), BoxError> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.exchange_delete(exchange.into(), lapin::options::ExchangeDeleteOptions::default()).await?;
    connection.close(200, "".into()).await?;
    let publisher = RabbitMq::new(url)?.publisher();
    for queue in [ACCOUNTS.queue_on(exchange), TRANSFERS.queue_on(exchange), log_of(exchange)] {
        publisher.delete_queue(&queue).await?;
    }
    publisher.close().await;
    Ok(())
}
