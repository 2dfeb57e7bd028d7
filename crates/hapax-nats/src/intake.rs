//! The task that stays connected and takes in what a consumer delivers.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer;
use async_nats::{HeaderMap, Message, StatusCode, Subscriber};
use futures::StreamExt;
use hapax_core::{Error, ErrorKind, Settler};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::Nats;
use crate::ack_subject::AckSubject;
use crate::api::Declared;
use crate::backoff::Backoff;
use crate::envelope;
use crate::error;
use crate::ledger::{Ledger, Received};
use crate::link::Link;
use crate::settler::NatsSettler;

/// The most messages taken in under one lock.
const CHUNK: usize = 256;
/// How long one request for messages stands before it is made again.
const STANDING: Duration = Duration::from_secs(30);
/// The goodbye waits this long for deliveries that are still in hand. They will come again.
const PATIENCE: Duration = Duration::from_secs(2);
/// A connection that lasted this long was a good one; what ended it has nothing to do with earlier failures.
const STEADY: Duration = Duration::from_secs(10);
/// A pause after an answer that asking again at once would only repeat.
const PAUSE: Duration = Duration::from_millis(250);
/// How long the request at the goodbye stands.
const MOMENT: Duration = Duration::from_millis(1);
/// Below this, restarts and lost connections alone can use the limit up.
const SMALL_MAX_DELIVER: i64 = 20;

/// What to consume, and how.
#[derive(Clone, Debug)]
pub(crate) struct Intake {
    pub(crate) broker: Nats,
    pub(crate) stream: String,
    pub(crate) consumer: String,
    pub(crate) capacity: usize,
    pub(crate) declare: Option<Declared>,
}

/// A connection to a consumer that is there.
pub(crate) struct Found {
    link: Arc<Link>,
    pub(crate) ack_wait: Duration,
}

/// Why no more messages come on a connection.
enum Loss {
    Connection,
    /// In words.
    Consumer(String),
}

/// What a message that is none says about the request it answers.
enum Status {
    /// It stands.
    Alive,
    /// It has ended, and another one is to be made.
    Over,
    /// It has ended, and there is a reason to wait.
    Held,
    Lost(String),
}

impl Intake {
    /// The first connection. What no waiting will mend is an error at once, and so is a broker that
    /// cannot be reached before the time is up.
    pub(crate) async fn first(&self) -> Result<Found, Error> {
        self.in_time(|| self.find(true)).await
    }

    /// The same without declaring anything.
    pub(crate) async fn look(&self) -> Result<(), Error> {
        match self.in_time(|| self.find(false)).await {
            // It would be declared.
            Err(missing) if self.declare.is_some() && error::is_missing(&missing) => Ok(()),
            found => found.map(drop),
        }
    }

    async fn in_time<F>(&self, attempt: impl Fn() -> F) -> Result<Found, Error>
    where
        F: Future<Output = Result<Found, Error>>,
    {
        let limit = self.broker.time_to_connect();
        let deadline = Instant::now() + limit;
        let mut backoff = Backoff::new();
        loop {
            let cause = match timeout_at(deadline, attempt()).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(cause)) => cause,
                Err(_) => error::connect_timed_out(&self.broker.address(), limit),
            };
            let wait = backoff.wait();
            if cause.kind() == ErrorKind::Setup || Instant::now() + wait >= deadline {
                return Err(cause);
            }
            tracing::warn!(stream = %self.stream, error = %cause, "not connected yet, trying again");
            sleep(wait).await;
        }
    }

    /// Takes in deliveries until told to stop, whatever happens to the broker meanwhile.
    pub(crate) async fn run(self, first: Found, ledger: Arc<Ledger>, stop: CancellationToken) {
        let mut link = first.link;
        let mut backoff = Backoff::new();
        loop {
            let since = Instant::now();
            ledger.begin(Arc::clone(&link));
            let mut inbox = None;
            let loss = tokio::select! {
                loss = self.take_in(&link, &ledger, &mut inbox) => loss,
                () = stop.cancelled() => return self.leave(inbox, &ledger).await,
            };
            self.report(&loss);
            ledger.end();
            ledger.metrics.connections_lost.increment(1);
            drop((inbox, link));
            if since.elapsed() > STEADY {
                backoff = Backoff::new();
            }
            link = tokio::select! {
                again = self.find_again(&mut backoff) => again.link,
                () = stop.cancelled() => return self.leave(None, &ledger).await,
            };
            ledger.metrics.reconnects.increment(1);
            tracing::info!(stream = %self.stream, consumer = %self.consumer, "consuming again");
        }
    }

    fn report(&self, loss: &Loss) {
        let (stream, consumer) = (&self.stream, &self.consumer);
        match loss {
            Loss::Connection => tracing::warn!(%stream, %consumer, "lost the broker, reconnecting"),
            Loss::Consumer(reason) => {
                tracing::warn!(%stream, %consumer, %reason, "the consumer delivers nothing; trying again");
            }
        }
    }

    /// Tries until it succeeds. After a first success even a missing consumer or refused credentials
    /// are somebody's mistake in passing, and no reason to end a consumer.
    async fn find_again(&self, backoff: &mut Backoff) -> Found {
        loop {
            sleep(backoff.wait()).await;
            match self.find(true).await {
                Ok(found) => return found,
                Err(cause) => {
                    tracing::warn!(stream = %self.stream, error = %cause, "cannot consume, trying again");
                }
            }
        }
    }

    async fn find(&self, may_declare: bool) -> Result<Found, Error> {
        let link = self.broker.open().await?;
        let (api, stream, consumer) = (self.broker.api(), &self.stream, &self.consumer);
        if let Some(declared) = self.declare.as_ref().filter(|_| may_declare) {
            api.declare(&link, stream, consumer, declared).await?;
        }
        let info = api.consumer(&link, stream, consumer).await?;
        self.refuse_unfit(&info.config)?;
        self.warn_of_small_limits(&info.config);
        Ok(Found { link: Arc::new(link), ack_wait: shortest_ack_wait(&info.config) })
    }

    fn refuse_unfit(&self, config: &consumer::Config) -> Result<(), Error> {
        let reason = if config.deliver_subject.is_some() {
            "it is a push consumer, and a pull consumer is needed"
        } else if config.ack_policy != consumer::AckPolicy::Explicit {
            "its ack policy must be `explicit`, so that each message is acked for itself"
        } else {
            return Ok(());
        };
        let what = format!("consumer \"{}\" of stream \"{}\"", self.consumer, self.stream);
        Err(error::unfit(&what, reason))
    }

    fn warn_of_small_limits(&self, config: &consumer::Config) {
        let (stream, consumer) = (&self.stream, &self.consumer);
        if (1..SMALL_MAX_DELIVER).contains(&config.max_deliver) {
            tracing::warn!(
                %stream, %consumer, max_deliver = config.max_deliver,
                "a small max_deliver: lost connections alone may make the broker give up messages; \
                 Hapax counts failures itself"
            );
        }
        let pending = usize::try_from(config.max_ack_pending).unwrap_or(usize::MAX);
        if config.max_ack_pending > 0 && pending < self.capacity {
            tracing::warn!(
                %stream, %consumer, max_ack_pending = config.max_ack_pending, in_flight = self.capacity,
                "max_ack_pending is less than what the workers can have in hand: batches stay small"
            );
        }
    }

    /// Returns when the connection or the consumer is lost.
    async fn take_in(&self, link: &Link, ledger: &Arc<Ledger>, inbox: &mut Option<Subscriber>) -> Loss {
        tokio::select! {
            loss = self.pull(link, ledger, inbox) => loss,
            () = link.lost() => Loss::Connection,
            () = keep_buffered(ledger) => Loss::Connection, // never: it goes on for ever
        }
    }

    /// Asks for as many messages as there is room for, again and again.
    async fn pull(&self, link: &Link, ledger: &Ledger, inbox: &mut Option<Subscriber>) -> Loss {
        let (client, address) = (&link.client, link.client.new_inbox());
        let subject = self.broker.api().next(&self.stream, &self.consumer);
        let Ok(subscribed) = client.subscribe(address.clone()).await else { return Loss::Connection };
        let messages = inbox.insert(subscribed);
        loop {
            let room = ledger.room(self.capacity).await;
            let since = Instant::now();
            let request = self.request(room).into();
            if client.publish_with_reply(subject.clone(), address.clone(), request).await.is_err() {
                return Loss::Connection;
            }
            let lost = tokio::select! {
                lost = self.receive(ledger, messages, room) => lost,
                words = link.refusal(&subject, since) => Some(Loss::Consumer(words)),
            };
            if let Some(lost) = lost {
                return lost;
            }
        }
    }

    fn request(&self, room: usize) -> String {
        let heartbeat = self.heartbeat();
        json!({
            "batch": room,
            "expires": nanoseconds(STANDING.max(heartbeat * 3)),
            "idle_heartbeat": nanoseconds(heartbeat),
        })
        .to_string()
    }

    fn heartbeat(&self) -> Duration {
        self.broker.heartbeat_period().min(STANDING / 3)
    }

    /// Takes in what answers one request; nothing if it has come to its end as it should.
    async fn receive(&self, ledger: &Ledger, inbox: &mut Subscriber, room: usize) -> Option<Loss> {
        let silence = self.heartbeat() * 3;
        let cluster = ledger.cluster();
        let mut left = room;
        let mut chunks = inbox.ready_chunks(CHUNK);
        while left > 0 {
            let chunk = match timeout(silence, chunks.next()).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Some(Loss::Connection),
                Err(_) => return Some(Loss::Consumer(format!("no sign of life for {silence:?}"))),
            };
            let end = chunk.iter().filter_map(status).find(|status| !matches!(status, Status::Alive));
            let received: Vec<_> =
                chunk.into_iter().filter_map(|message| self.received(cluster.as_deref(), message)).collect();
            left = left.saturating_sub(received.len());
            ledger.receive(received);
            match end {
                None | Some(Status::Alive) => {}
                Some(Status::Over) => return None,
                Some(Status::Held) => {
                    sleep(PAUSE).await;
                    return None;
                }
                Some(Status::Lost(reason)) => return Some(Loss::Consumer(reason)),
            }
        }
        None
    }

    /// Takes nothing more, lets what is in hand be settled, and hands back the rest.
    async fn leave(&self, inbox: Option<Subscriber>, ledger: &Arc<Ledger>) {
        ledger.close();
        let settler = NatsSettler::new(Arc::clone(ledger));
        if let Some(inbox) = inbox {
            let _ = timeout(PATIENCE, self.drain(inbox, ledger)).await;
        }
        settler.give_up(ledger.give_up_buffered()).await;
        if timeout(PATIENCE, ledger.drained()).await.is_err() {
            tracing::debug!("closing with deliveries in hand; they are handed back");
        }
        settler.give_up(ledger.give_up()).await;
        ledger.end();
    }

    /// Takes in what is on its way, so that it can be handed back.
    async fn drain(&self, mut inbox: Subscriber, ledger: &Ledger) {
        let cluster = ledger.cluster();
        if inbox.drain().await.is_err() {
            return;
        }
        while let Some(message) = inbox.next().await {
            ledger.receive(self.received(cluster.as_deref(), message).into_iter().collect());
        }
        if let Some(message) = self.last_word(ledger).await {
            ledger.receive(self.received(cluster.as_deref(), message).into_iter().collect());
        }
    }

    /// One more request, which is over at once. By it the server drops the one that nobody listens to any more.
    ///
    /// Otherwise it would do so over the first message that is handed back, and (2.9 does) mislay that until
    /// its ack wait has passed. The answer may be a message.
    async fn last_word(&self, ledger: &Ledger) -> Option<Message> {
        let link = ledger.link(Instant::now()).await?;
        let subject = self.broker.api().next(&self.stream, &self.consumer);
        let request = json!({ "batch": 1, "expires": nanoseconds(MOMENT) }).to_string();
        link.ask(&subject, HeaderMap::new(), request.into(), PATIENCE).await.ok()
    }

    /// A delivery, but nothing for a message that only speaks about one.
    fn received(&self, cluster: Option<&str>, message: Message) -> Option<Received> {
        if message.status.is_some() {
            return None;
        }
        let Some(reply) = message.reply.clone() else { return self.stray() };
        let Some(ack) = AckSubject::parse(&reply) else { return self.stray() };
        let (sequence, redelivered) = (ack.sequence, ack.delivered > 1);
        let envelope = envelope::from_message(&source_name(&self.stream), cluster, message, &ack);
        Some(Received { envelope, ack: reply.to_string(), sequence, redelivered })
    }

    fn stray(&self) -> Option<Received> {
        tracing::warn!(stream = %self.stream, "something that is no delivery came to our inbox");
        None
    }
}

/// Extends what lies in the buffer: while the store is away, nobody takes it out.
async fn keep_buffered(ledger: &Arc<Ledger>) {
    let settler = NatsSettler::new(Arc::clone(ledger));
    loop {
        sleep(ledger.ack_wait() / 3).await;
        let buffered = ledger.buffered();
        if !buffered.is_empty() {
            settler.extend(buffered).await; // one that was taken or settled meanwhile does not matter
        }
    }
}

fn status(message: &Message) -> Option<Status> {
    let description = message.description.as_deref().unwrap_or_default();
    Some(match message.status? {
        StatusCode::IDLE_HEARTBEAT => Status::Alive,
        StatusCode::NOT_FOUND | StatusCode::TIMEOUT => Status::Over,
        StatusCode::NO_RESPONDERS => Status::Lost("nobody answers for it".into()),
        _ if description.to_ascii_lowercase().contains("deleted") => Status::Lost(description.into()),
        // 409: too many waiting requests, too many unacked messages, another leader.
        _ => Status::Held,
    })
}

/// The server's clock for the next delivery of a message; a backoff list replaces the ack wait.
fn shortest_ack_wait(config: &consumer::Config) -> Duration {
    let configured = std::iter::once(config.ack_wait).chain(config.backoff.iter().copied());
    configured.filter(|wait| !wait.is_zero()).min().unwrap_or(Duration::from_secs(30))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How a stream is called in logs and dead letters.
pub(crate) fn source_name(stream: &str) -> String {
    format!("nats:{stream}")
}
