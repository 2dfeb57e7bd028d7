//! Publishing with confirms, mandatory routing and returns.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{MaybeDone, maybe_done};
use futures::poll;
use hapax_core::{Error, Outgoing, Publisher};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Confirmation, ErrorKind as Lapin, PublisherConfirm};
use tokio::time::{Instant, timeout_at};

use crate::RabbitMq;
use crate::confirms::{Answer, Outcome, outcomes};
use crate::envelope::{header_size, short, to_properties};
use crate::error;
use crate::line::{Line, Opened};
use crate::metrics::PublisherMetrics;

const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);
/// A return is a failure, so every message must say that it wants to be returned.
const MANDATORY: BasicPublishOptions = BasicPublishOptions { mandatory: true, immediate: false };

/// Publishes to a broker, made by [`RabbitMq::publisher`]. Clones share one connection.
///
/// A message counts as published when the broker has confirmed it *and* not returned it: a message
/// that can be routed nowhere is acked and returned. Messages are persistent. A batch costs one round
/// trip: all are sent, in order, then the confirms are awaited. Each concurrent call has a channel of
/// its own.
///
/// It connects when it is first used, and again on the next call after the connection was lost. While
/// attempts fail, calls in between (100 ms to 5 s) fail at once with the last attempt's error. The last
/// clone that is dropped closes the connection in the background; [`close`](Self::close) it where the
/// runtime may end first.
///
/// # Errors
///
/// Per message, with `Code::NotPublished` unless the broker cannot be reached:
///
/// | `ErrorKind` | why |
/// |---|---|
/// | `NotFound` | it was returned as unroutable, or the exchange does not exist |
/// | `Statement` | the broker refused it (nack, no permission, too large), or AMQP cannot carry it |
/// | `Unavailable` | the connection or the confirm did not come: it may have been published, so publish it again under its id |
/// | `Setup` | `Code::BrokerRefused`: the credentials or the virtual host |
///
/// If the broker closes the channel over one message of a batch, the unconfirmed ones are published
/// again one by one, so that only that one fails; copies of the others are possible.
#[derive(Clone)]
pub struct RabbitPublisher {
    confirm_timeout: Duration,
    shared: Arc<Shared>,
}

struct Shared {
    line: tokio::sync::Mutex<Line>,
    /// Channels with nothing under way.
    idle: Mutex<Vec<ConfirmChannel>>,
    metrics: PublisherMetrics,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let idle = std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.line.get_mut().keep(channels(idle));
    }
}

impl RabbitPublisher {
    pub(crate) fn new(broker: RabbitMq) -> Self {
        let line = tokio::sync::Mutex::new(Line::new(broker));
        let shared = Shared { line, idle: Mutex::default(), metrics: PublisherMetrics::new() };
        Self { confirm_timeout: CONFIRM_TIMEOUT, shared: Arc::new(shared) }
    }

    /// How long to wait for the confirms of one call. Default: 30 s. A broker with a memory or disk
    /// alarm reads nothing until it has recovered.
    #[must_use]
    pub fn confirm_timeout(mut self, limit: Duration) -> Self {
        self.confirm_timeout = limit;
        self
    }

    /// Whether the broker can be reached with these credentials. Two round trips, and those of connecting.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` or `Code::BrokerUnavailable`.
    pub async fn check(&self) -> Result<(), Error> {
        let Opened { channel, .. } = self.open().await?;
        done_with(&channel).await;
        Ok(())
    }

    /// Declares a durable queue, which is no change if it exists as one. Three round trips.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` if it exists with other properties or may not be declared,
    /// `Code::BrokerUnavailable` if the broker cannot be reached.
    pub async fn declare_queue(&self, name: &str) -> Result<(), Error> {
        let queue = short("queue name", name)?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let Opened { channel, .. } = self.open().await?;
        let declared = channel.queue_declare(queue, durable, FieldTable::default()).await;
        done_with(&channel).await;
        declared.map(drop).map_err(|cause| error::queue(name, cause))
    }

    /// Deletes a queue with what is in it, which is no change if there is none. Three round trips.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` if it may not be deleted, `Code::BrokerUnavailable` if the broker cannot be
    /// reached.
    pub async fn delete_queue(&self, name: &str) -> Result<(), Error> {
        let queue = short("queue name", name)?;
        let Opened { channel, .. } = self.open().await?;
        let deleted = channel.queue_delete(queue, QueueDeleteOptions::default()).await;
        done_with(&channel).await;
        deleted.map(drop).map_err(|cause| error::queue(name, cause))
    }

    /// Closes the connection. A later call opens another one.
    pub async fn close(&self) {
        let mut line = self.shared.line.lock().await;
        let idle = std::mem::take(&mut *self.idle());
        line.close(channels(idle)).await;
    }

    /// Publishes all at once, on one channel.
    async fn pipeline(&self, messages: &[Outgoing]) -> Vec<Outcome> {
        let deadline = Instant::now() + self.confirm_timeout;
        let channel = match self.channel(deadline).await {
            Ok(channel) => channel,
            Err(cause) => {
                return messages.iter().map(|_| Outcome::Settled(Err(error::again(&cause)))).collect();
            }
        };
        let sending = channel.send(messages).await;
        let mut answers = Vec::with_capacity(messages.len());
        for message in sending {
            answers.push(match message {
                Ok(sending) => self.answer(sending, deadline).await,
                Err(cause) => Answer::Unsendable(cause),
            });
        }
        if answers.iter().all(Answer::is_final) {
            self.idle().push(channel);
        }
        outcomes(messages, answers)
    }

    async fn answer(
        &self,
        sending: Sending<impl Future<Output = lapin::Result<PublisherConfirm>>>,
        deadline: Instant,
    ) -> Answer {
        match timeout_at(deadline, confirmed(sending)).await {
            Ok(Ok(confirmation)) => confirmation.into(),
            Ok(Err(cause)) if closes_the_channel(&cause) => Answer::ChannelClosed(cause),
            Ok(Err(cause)) => Answer::Failed(error::unconfirmed(cause)),
            Err(_) => Answer::Failed(error::confirm_timed_out(self.confirm_timeout)),
        }
    }

    /// Publishes one message with nothing beside it.
    async fn single(&self, message: &Outgoing) -> Result<(), Error> {
        match self.pipeline(std::slice::from_ref(message)).await.pop() {
            Some(Outcome::ChannelClosed(cause)) => Err(error::refused(cause)),
            Some(Outcome::Settled(result)) => result,
            None => Ok(()), // never: one message has one outcome
        }
    }

    async fn channel(&self, deadline: Instant) -> Result<ConfirmChannel, Error> {
        while let Some(idle) = self.take_idle() {
            if idle.channel.status().connected() {
                return Ok(idle);
            }
        }
        let Opened { channel, frame_max } = self.open().await?;
        match timeout_at(deadline, channel.confirm_select(ConfirmSelectOptions::default())).await {
            Ok(Ok(())) => Ok(ConfirmChannel { channel, frame_max }),
            Ok(Err(cause)) => Err(error::unconfirmed(cause)),
            Err(_) => Err(error::confirm_timed_out(self.confirm_timeout)),
        }
    }

    async fn open(&self) -> Result<Opened, Error> {
        self.shared.line.lock().await.channel().await
    }

    fn take_idle(&self) -> Option<ConfirmChannel> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<ConfirmChannel>> {
        self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, results: &[Result<(), Error>]) {
        let published = results.iter().filter(|result| result.is_ok()).count();
        self.shared.metrics.published.increment(published as u64);
        self.shared.metrics.not_published.increment((results.len() - published) as u64);
    }
}

impl fmt::Debug for RabbitPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitPublisher")
            .field("confirm_timeout", &self.confirm_timeout)
            .finish_non_exhaustive()
    }
}

impl Publisher for RabbitPublisher {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        if messages.is_empty() {
            return Vec::new();
        }
        let mut results = Vec::with_capacity(messages.len());
        for (message, outcome) in messages.iter().zip(self.pipeline(&messages).await) {
            results.push(match outcome {
                Outcome::Settled(result) => result,
                Outcome::ChannelClosed(cause) if messages.len() == 1 => Err(error::refused(cause)),
                Outcome::ChannelClosed(_) => self.single(message).await,
            });
        }
        self.count(&results);
        results
    }
}

/// A channel in confirm mode. It serves one call at a time, so that all confirms and returns on it are
/// that call's.
struct ConfirmChannel {
    channel: Channel,
    frame_max: usize,
}

fn channels(idle: Vec<ConfirmChannel>) -> Vec<Channel> {
    idle.into_iter().map(|idle| idle.channel).collect()
}

/// Closes a channel that is not used again and waits for it, so that no goodbye of the connection can come
/// in between.
async fn done_with(channel: &Channel) {
    let _ = channel.close(200, "OK".into()).await; // fails where the broker has closed it already
}

type Sending<F> = Pin<Box<MaybeDone<F>>>;

impl ConfirmChannel {
    /// Sends messages in order, and does not wait until they are written.
    async fn send<'a>(
        &'a self,
        messages: &'a [Outgoing],
    ) -> Vec<Result<Sending<impl Future<Output = lapin::Result<PublisherConfirm>> + use<'a>>, Error>> {
        let mut sent = Vec::with_capacity(messages.len());
        for message in messages {
            let sending = self.sending(message).map(|sending| Box::pin(maybe_done(sending)));
            sent.push(match sending {
                Ok(mut sending) => {
                    let _ = poll!(sending.as_mut()); // lapin queues the frames now, hence in this order
                    Ok(sending)
                }
                Err(cause) => Err(cause),
            });
        }
        sent
    }

    fn sending<'a>(
        &'a self,
        message: &'a Outgoing,
    ) -> Result<impl Future<Output = lapin::Result<PublisherConfirm>> + use<'a>, Error> {
        if header_size(message) > self.frame_max {
            return Err(error::unsendable(format!("its headers do not fit into {} bytes", self.frame_max)));
        }
        let exchange = short("exchange", &message.destination)?;
        let routing_key = short("routing key", &message.routing_key)?;
        let properties = to_properties(&message.envelope)?;
        Ok(self.channel.basic_publish(exchange, routing_key, MANDATORY, &message.envelope.body, properties))
    }
}

async fn confirmed(
    mut sending: Sending<impl Future<Output = lapin::Result<PublisherConfirm>>>,
) -> lapin::Result<Confirmation> {
    sending.as_mut().await;
    match sending.as_mut().take_output() {
        Some(written) => written?.await,
        None => Err(Lapin::FutureCompleted.into()), // never: the output is taken once
    }
}

/// Whether the error took the channel with all that was under way on it, and left the connection.
fn closes_the_channel(error: &lapin::Error) -> bool {
    error.is_amqp_soft_error() || matches!(error.kind(), Lapin::InvalidChannelState(..))
}
