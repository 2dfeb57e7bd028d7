//! Adding messages to streams.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures::future::{MaybeDone, maybe_done};
use futures::poll;
use hapax_core::{Error, Outgoing, Publisher};
use redis::{Cmd, Value, cmd};
use tokio::sync::Mutex;

use crate::Redis;
use crate::envelope::{destination, each_field};
use crate::error;
use crate::line::Line;
use crate::link::Link;
use crate::metrics::PublisherMetrics;

/// Publishes to the streams of a server, made by [`Redis::publisher`]. Clones share one connection.
///
/// A message counts as published when the server has added it to its stream. How safe it is then is the server's
/// setting: with `appendfsync always` it is on disk, with the usual `everysec` a crash can lose a second.
/// A batch costs one round trip: all are sent, in order, then the answers are awaited.
///
/// A stream is not created by publishing to it, unless [`creating_streams`](Self::creating_streams). It connects
/// when it is first used, and again on the next call after the connection was lost. While attempts fail, calls in
/// between (100 ms to 5 s) fail at once with the last attempt's error. The last clone that is dropped closes the
/// connection in the background.
///
/// # Errors
///
/// Per message, with `Code::NotPublished` unless the server cannot be reached:
///
/// | `ErrorKind` | why |
/// |---|---|
/// | `NotFound` | there is no such stream |
/// | `Statement` | the server refused it: the key is no stream, no permission, another node's key |
/// | `Unavailable` | the server is full, read-only or loading; or the answer did not come: it may have been published, so publish it again under its id |
/// | `Setup` | `Code::BrokerRefused`: the credentials |
#[derive(Clone)]
pub struct RedisPublisher {
    max_length: Option<u64>,
    creates: bool,
    shared: Arc<Shared>,
}

struct Shared {
    line: Mutex<Line>,
    metrics: PublisherMetrics,
}

type Sending<F> = Pin<Box<MaybeDone<F>>>;

impl RedisPublisher {
    pub(crate) fn new(broker: Redis) -> Self {
        let shared = Shared { line: Mutex::new(Line::new(broker)), metrics: PublisherMetrics::new() };
        Self { max_length: None, creates: false, shared: Arc::new(shared) }
    }

    /// Trims each stream to about so many entries when it publishes (`MAXLEN ~`). Default: nothing is trimmed.
    /// What is trimmed before a group has read it is lost to that group.
    #[must_use]
    pub fn max_length(mut self, entries: u64) -> Self {
        self.max_length = Some(entries);
        self
    }

    /// Creates a stream by publishing to it. A misspelt name then is a stream that nobody reads.
    #[must_use]
    pub fn creating_streams(mut self) -> Self {
        self.creates = true;
        self
    }

    /// Whether the server can be reached with these credentials. One round trip, and those of connecting.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` or `Code::BrokerUnavailable`.
    pub async fn check(&self) -> Result<(), Error> {
        let (link, address) = self.link().await?;
        link.ask(&cmd("PING")).await.map(drop).map_err(|cause| error::connecting(&address, cause))
    }

    /// Creates a stream and a group that reads it from its first entry on, which is no change if they exist. One
    /// round trip.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` if it may not be created or the key is no stream, `Code::BrokerUnavailable` if the
    /// server cannot be reached.
    pub async fn declare_group(&self, stream: &str, group: &str) -> Result<(), Error> {
        let (link, _) = self.link().await?;
        let mut create = cmd("XGROUP");
        create.arg("CREATE").arg(stream).arg(group).arg("0").arg("MKSTREAM");
        match link.ask(&create).await {
            Ok(_) => Ok(()),
            Err(cause) if cause.code() == Some("BUSYGROUP") => Ok(()), // it is there
            Err(cause) => Err(error::stream(&format!("stream \"{stream}\""), cause)),
        }
    }

    /// Creates a stream, which is no change if it exists. A group of the stream's name is created with it, since
    /// Redis has no other way to an empty stream.
    ///
    /// # Errors
    ///
    /// As those of [`declare_group`](Self::declare_group).
    pub async fn declare_queue(&self, stream: &str) -> Result<(), Error> {
        self.declare_group(stream, stream).await
    }

    /// Deletes a stream with its entries and groups, which is no change if there is none. One round trip.
    ///
    /// # Errors
    ///
    /// As those of [`declare_group`](Self::declare_group).
    pub async fn delete_queue(&self, stream: &str) -> Result<(), Error> {
        let (link, _) = self.link().await?;
        let deleted = link.ask(cmd("DEL").arg(stream)).await;
        deleted.map(drop).map_err(|cause| error::stream(&format!("stream \"{stream}\""), cause))
    }

    /// Closes the connection. A later call opens another one.
    pub async fn close(&self) {
        self.shared.line.lock().await.close();
    }

    async fn link(&self) -> Result<(Arc<Link>, String), Error> {
        let mut line = self.shared.line.lock().await;
        let address = line.broker().address();
        Ok((line.link().await?, address))
    }

    fn command(&self, message: &Outgoing) -> Cmd {
        let mut add = cmd("XADD");
        add.arg(destination(message).0);
        if !self.creates {
            add.arg("NOMKSTREAM");
        }
        if let Some(entries) = self.max_length {
            add.arg("MAXLEN").arg("~").arg(entries);
        }
        add.arg("*");
        each_field(message, |name, value| {
            add.arg(name).arg(value);
        });
        add
    }

    /// Sends a message and waits for its answer. The first poll queues it.
    async fn send(&self, link: &Link, message: &Outgoing) -> Result<(), Error> {
        let (stream, _) = destination(message);
        if stream.is_empty() {
            return Err(error::unsendable("it has no destination"));
        }
        match link.ask(&self.command(message)).await {
            Ok(Value::Nil) => Err(error::no_stream(stream)),
            Ok(_) => Ok(()),
            Err(cause) => Err(error::unpublished(stream, cause)),
        }
    }

    fn count(&self, results: &[Result<(), Error>]) {
        let published = results.iter().filter(|result| result.is_ok()).count();
        self.shared.metrics.published.increment(published as u64);
        self.shared.metrics.not_published.increment((results.len() - published) as u64);
    }
}

impl fmt::Debug for RedisPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPublisher")
            .field("max_length", &self.max_length)
            .field("creates", &self.creates)
            .finish_non_exhaustive()
    }
}

impl Publisher for RedisPublisher {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        if messages.is_empty() {
            return Vec::new();
        }
        let results = match self.link().await {
            Ok((link, _)) => in_order(messages.iter().map(|message| self.send(&link, message))).await,
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
