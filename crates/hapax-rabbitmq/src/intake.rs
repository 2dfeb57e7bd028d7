//! The task that stays connected and takes in what a queue delivers.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hapax_core::{Error, ErrorKind};
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::RabbitMq;
use crate::backoff::Backoff;
use crate::envelope;
use crate::error;
use crate::ledger::{Ledger, Received};
use crate::link::Link;

/// The most deliveries taken in under one lock.
const CHUNK: usize = 256;
/// How long the goodbye waits for deliveries that are still in hand. They will come again.
const PATIENCE: Duration = Duration::from_secs(2);
/// A connection that lasted this long was a good one; what ended it has nothing to do with earlier failures.
const STEADY: Duration = Duration::from_secs(10);

/// What to consume, and how.
#[derive(Clone, Debug)]
pub(crate) struct Intake {
    pub(crate) broker: RabbitMq,
    pub(crate) queue: ShortString,
    pub(crate) prefetch: u16,
    pub(crate) declare: bool,
    pub(crate) arguments: FieldTable,
}

/// A channel that consumes.
pub(crate) struct Subscription {
    link: Link,
    channel: Arc<Channel>,
    consumer: Consumer,
}

impl Intake {
    /// The first subscription. What no waiting will mend is an error at once, and so is a broker that
    /// cannot be reached before the time is up.
    pub(crate) async fn first(&self) -> Result<Subscription, Error> {
        self.in_time(|| self.subscribe()).await
    }

    /// The same without a subscription, which the broker would answer with messages.
    pub(crate) async fn look(&self) -> Result<(), Error> {
        self.in_time(|| self.find()).await
    }

    async fn in_time<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let limit = self.broker.time_to_connect();
        let deadline = Instant::now() + limit;
        let mut backoff = Backoff::new();
        loop {
            let cause = match timeout_at(deadline, attempt()).await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(cause)) => cause,
                Err(_) => error::connect_timed_out(&self.broker.address(), limit),
            };
            let wait = backoff.wait();
            if cause.kind() == ErrorKind::Setup || Instant::now() + wait >= deadline {
                return Err(cause);
            }
            tracing::warn!(queue = %self.queue, error = %cause, "not connected yet, trying again");
            sleep(wait).await;
        }
    }

    /// Takes in deliveries until told to stop, whatever happens to the broker meanwhile.
    pub(crate) async fn run(self, first: Subscription, ledger: Arc<Ledger>, stop: CancellationToken) {
        let mut subscription = first;
        let mut backoff = Backoff::new();
        loop {
            let since = Instant::now();
            ledger.begin(Arc::clone(&subscription.channel));
            tokio::select! {
                () = subscription.take_in(self.queue.as_str(), &ledger) => {}
                () = stop.cancelled() => return subscription.leave(&ledger).await,
            }
            ledger.end();
            ledger.metrics.connections_lost.increment(1);
            drop(subscription);
            if since.elapsed() > STEADY {
                backoff = Backoff::new();
            }
            subscription = tokio::select! {
                again = self.resubscribe(&mut backoff) => again,
                () = stop.cancelled() => return ledger.close(),
            };
            ledger.metrics.reconnects.increment(1);
            tracing::info!(queue = %self.queue, "consuming again");
        }
    }

    /// Tries until it succeeds. After a first success even a missing queue or refused credentials
    /// are somebody's mistake in passing, and no reason to end a consumer.
    async fn resubscribe(&self, backoff: &mut Backoff) -> Subscription {
        loop {
            sleep(backoff.wait()).await;
            match self.subscribe().await {
                Ok(subscription) => return subscription,
                Err(cause) => {
                    tracing::warn!(queue = %self.queue, error = %cause, "cannot consume, trying again");
                }
            }
        }
    }

    async fn subscribe(&self) -> Result<Subscription, Error> {
        let mut link = self.broker.open().await?;
        let (channel, consumer) = self.answer(self.consume(&link)).await?;
        link.keep(channel.clone());
        Ok(Subscription { link, channel: Arc::new(channel), consumer })
    }

    /// A queue that is declared by a subscription need not be there yet.
    async fn find(&self) -> Result<(), Error> {
        let mut link = self.broker.open().await?;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let asked = async {
            let channel = link.channel().await?;
            link.keep(channel.clone());
            if !self.declare {
                channel.queue_declare(self.queue.clone(), passive, FieldTable::default()).await?;
            }
            Ok(())
        };
        let found = self.answer(asked).await;
        link.close().await;
        found
    }

    /// What the broker answers about the queue, in time.
    async fn answer<T>(&self, asked: impl Future<Output = lapin::Result<T>>) -> Result<T, Error> {
        let limit = self.broker.time_to_connect();
        match timeout(limit, asked).await {
            Ok(answer) => answer.map_err(|cause| error::queue(self.queue.as_str(), cause)),
            Err(_) => Err(error::connect_timed_out(&self.broker.address(), limit)),
        }
    }

    async fn consume(&self, link: &Link) -> lapin::Result<(Channel, Consumer)> {
        let channel = link.channel().await?;
        let queue = || self.queue.clone();
        if self.declare {
            let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(queue(), durable, self.arguments.clone()).await?;
        }
        channel.basic_qos(self.prefetch, BasicQosOptions::default()).await?;
        let named_by_the_broker = "".into();
        let consumer = channel
            .basic_consume(
                queue(),
                named_by_the_broker,
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        Ok((channel, consumer))
    }
}

impl Subscription {
    /// Returns when the connection, the channel or the queue is lost.
    async fn take_in(&mut self, queue: &str, ledger: &Ledger) {
        let source = source_name(queue);
        let mut chunks = (&mut self.consumer).ready_chunks(CHUNK);
        while let Some(chunk) = chunks.next().await {
            let mut received = Vec::with_capacity(chunk.len());
            for delivery in chunk {
                match delivery {
                    Ok(delivery) => received.push(receive(&source, delivery)),
                    Err(cause) => return report_loss(queue, &cause),
                }
            }
            ledger.receive(received);
        }
        tracing::warn!(
            queue,
            "the broker cancelled the consumer: the queue was deleted or moved; trying again"
        );
    }

    /// Takes nothing more, lets what is in hand be settled, and closes the connection, by which the
    /// broker gets back what was never handed over.
    async fn leave(self, ledger: &Ledger) {
        ledger.close();
        let goodbye = async {
            let _ = self.channel.basic_cancel(self.consumer.tag(), BasicCancelOptions::default()).await;
            ledger.drained().await;
        };
        if timeout(PATIENCE, goodbye).await.is_err() {
            tracing::debug!("closing with deliveries in hand; the broker will deliver them again");
        }
        ledger.end();
        self.link.close().await;
    }
}

fn report_loss(queue: &str, cause: &lapin::Error) {
    if let lapin::ErrorKind::ParsingError(_) = cause.kind() {
        // The client ends the connection over what it cannot parse, and then it is the next message again.
        tracing::error!(
            queue,
            error = %cause,
            "the queue holds a message that cannot be read, such as one whose type or message id is not UTF-8; \
             remove it with another client"
        );
    } else {
        tracing::warn!(queue, error = %cause, "lost the broker, reconnecting");
    }
}

fn receive(source: &str, delivery: Delivery) -> Received {
    let (tag, redelivered) = (delivery.delivery_tag, delivery.redelivered);
    Received { tag, redelivered, envelope: envelope::from_delivery(source, delivery) }
}

/// How a queue is called in logs and dead letters.
pub(crate) fn source_name(queue: &str) -> String {
    format!("rabbitmq:{queue}")
}
