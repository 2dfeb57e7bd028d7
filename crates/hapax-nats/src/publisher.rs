//! Publishing with a stream's acknowledgement.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::response::Response;
use futures::future::{MaybeDone, maybe_done};
use futures::poll;
use hapax_core::{Error, Outgoing, Publisher};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::Nats;
use crate::api::check_name;
use crate::envelope::{Sendable, sendable};
use crate::error;
use crate::line::Line;
use crate::link::{Link, Unanswered};
use crate::metrics::PublisherMetrics;
use crate::source::stream_subjects;

const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// Publishes to the streams of a broker, made by [`Nats::publisher`]. Clones share one connection.
///
/// A message counts as published when a stream has acknowledged it; with a stream on disk and replicas, that
/// is when a majority has it. A batch costs one round trip: all are sent, in order, then the
/// acknowledgements are awaited.
///
/// The message id is the stream's dedup id (`Nats-Msg-Id`): a copy within the stream's duplicate window is
/// acknowledged and not stored again, which counts as published. The copy of a dead letter has a dedup id of
/// its own, so that the stream takes it, and the message id in the header `hapax-message-id`.
///
/// It connects when it is first used, and again on the next call after the connection was lost. While
/// attempts fail, calls in between (100 ms to 5 s) fail at once with the last attempt's error. The last
/// clone that is dropped closes the connection in the background.
///
/// # Errors
///
/// Per message, with `Code::NotPublished` unless the broker cannot be reached:
///
/// | `ErrorKind` | why |
/// |---|---|
/// | `NotFound` | no stream takes messages for the subject |
/// | `Statement` | the stream or the server refused it (too large, full, no permission), or it is no subject |
/// | `Unavailable` | the connection or the acknowledgement did not come: it may have been published, so publish it again under its id |
/// | `Setup` | `Code::BrokerRefused`: the credentials, or a server that is too old |
#[derive(Clone)]
pub struct NatsPublisher {
    ack_timeout: Duration,
    recognise_copies: bool,
    shared: Arc<Shared>,
}

struct Shared {
    line: Mutex<Line>,
    metrics: PublisherMetrics,
}

type Sending<F> = Pin<Box<MaybeDone<F>>>;

impl NatsPublisher {
    pub(crate) fn new(broker: Nats) -> Self {
        let shared = Shared { line: Mutex::new(Line::new(broker)), metrics: PublisherMetrics::new() };
        Self { ack_timeout: ACK_TIMEOUT, recognise_copies: true, shared: Arc::new(shared) }
    }

    /// How long to wait for each acknowledgement. Default: 10 s.
    #[must_use]
    pub fn ack_timeout(mut self, limit: Duration) -> Self {
        self.ack_timeout = limit;
        self
    }

    /// Publishes without a dedup id: the stream stores copies as copies, and the message id travels in the
    /// header `hapax-message-id`. For streams to which one message is sent under several subjects, and for
    /// whoever wants to see a duplicate.
    #[must_use]
    pub fn without_deduplication(mut self) -> Self {
        self.recognise_copies = false;
        self
    }

    /// Whether the broker can be reached with these credentials. One round trip, and those of connecting.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` or `Code::BrokerUnavailable`.
    pub async fn check(&self) -> Result<(), Error> {
        let link = self.link().await?;
        let lost = || error::unanswered("the server", Unanswered::TimedOut(self.ack_timeout));
        match timeout(self.ack_timeout, link.client.flush()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(cause)) => Err(lost().because(cause)),
            Err(_) => Err(lost()),
        }
    }

    /// Creates a stream on disk for these subjects (none: its own name) if there is none of this name. One
    /// that exists is left as it is. Two round trips.
    ///
    /// # Errors
    ///
    /// `Code::ConfigWrongValue` if a name or a subject is none, `Code::BrokerRefused` if it may not be
    /// created or another stream has a subject of these, `Code::BrokerUnavailable` if the broker cannot be
    /// reached.
    pub async fn declare_stream(&self, stream: &str, subjects: &[&str]) -> Result<(), Error> {
        check_name("stream", stream)?;
        let subjects: Vec<String> = subjects.iter().map(|&subject| subject.to_owned()).collect();
        let subjects = stream_subjects(stream, &subjects)?;
        let (link, broker) = (self.link().await?, self.broker().await);
        broker.api().declare_stream(&link, stream, &subjects).await
    }

    /// Deletes a stream with its messages and consumers, which is no change if there is none. One round trip.
    ///
    /// # Errors
    ///
    /// As those of [`declare_stream`](Self::declare_stream).
    pub async fn delete_stream(&self, stream: &str) -> Result<(), Error> {
        check_name("stream", stream)?;
        let (link, broker) = (self.link().await?, self.broker().await);
        broker.api().delete_stream(&link, stream).await
    }

    /// Creates the stream for one subject: it has the subject's name, with `_` for `.`.
    ///
    /// # Errors
    ///
    /// As those of [`declare_stream`](Self::declare_stream).
    pub async fn declare_queue(&self, subject: &str) -> Result<(), Error> {
        self.declare_stream(&subject.replace('.', "_"), &[subject]).await
    }

    /// Deletes the stream that [`declare_queue`](Self::declare_queue) creates.
    ///
    /// # Errors
    ///
    /// As those of [`declare_stream`](Self::declare_stream).
    pub async fn delete_queue(&self, subject: &str) -> Result<(), Error> {
        self.delete_stream(&subject.replace('.', "_")).await
    }

    /// Closes the connection. A later call opens another one.
    pub async fn close(&self) {
        self.shared.line.lock().await.close();
    }

    async fn link(&self) -> Result<Arc<Link>, Error> {
        self.shared.line.lock().await.link().await
    }

    async fn broker(&self) -> Nats {
        self.shared.line.lock().await.broker().clone()
    }

    /// Sends a message and waits for its acknowledgement. The first poll queues it.
    async fn send(&self, link: &Link, message: Sendable) -> Result<(), Error> {
        let Sendable { subject, headers, payload } = message;
        let answer = link.ask(&subject, headers, payload, self.ack_timeout).await;
        let answer = answer.map_err(|cause| error::unpublished(&subject, cause))?;
        self.acknowledged(&subject, &answer)
    }

    fn acknowledged(&self, subject: &str, answer: &Message) -> Result<(), Error> {
        match serde_json::from_slice::<Response<PublishAck>>(&answer.payload) {
            Ok(Response::Ok(ack)) => {
                self.shared.metrics.swallowed.increment(u64::from(ack.duplicate));
                Ok(())
            }
            Ok(Response::Err { error }) => Err(error::not_stored(subject, &error)),
            Err(_) => Err(error::not_an_ack(subject)),
        }
    }

    fn count(&self, results: &[Result<(), Error>]) {
        let published = results.iter().filter(|result| result.is_ok()).count();
        self.shared.metrics.published.increment(published as u64);
        self.shared.metrics.not_published.increment((results.len() - published) as u64);
    }
}

impl fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPublisher")
            .field("ack_timeout", &self.ack_timeout)
            .field("recognise_copies", &self.recognise_copies)
            .finish_non_exhaustive()
    }
}

impl Publisher for NatsPublisher {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        if messages.is_empty() {
            return Vec::new();
        }
        let results = match self.link().await {
            Ok(link) => {
                let sending = messages.iter().map(|message| {
                    let message = sendable(message, self.recognise_copies);
                    async { self.send(&link, message?).await }
                });
                in_order(sending).await
            }
            Err(cause) => messages.iter().map(|_| Err(error::again(&cause))).collect(),
        };
        self.count(&results);
        results
    }
}

/// Begins all in order, then waits for each.
async fn in_order<F>(sending: impl Iterator<Item = F>) -> Vec<Result<(), Error>>
where
    F: Future<Output = Result<(), Error>>,
{
    let mut begun: Vec<Sending<F>> = Vec::new();
    for message in sending {
        let mut message = Box::pin(maybe_done(message));
        let _ = poll!(message.as_mut()); // queues it now, hence in this order
        begun.push(message);
    }
    let mut results = Vec::with_capacity(begun.len());
    for mut message in begun {
        message.as_mut().await;
        results.extend(message.as_mut().take_output()); // always there: it was just awaited
    }
    results
}
