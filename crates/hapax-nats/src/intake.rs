//! The task that stays connected and takes in what a consumer delivers.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer;
use async_nats::{Message, StatusCode, Subscriber};
use futures::{FutureExt, StreamExt};
use hapax_core::{Error, ErrorKind, Settler};
use serde_json::{Value, json};
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
const MOMENT: Duration = Duration::from_millis(20);
/// How long it may take to be answered.
const HEARD: Duration = Duration::from_millis(500);
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

/// The request for messages that stands, and where they come to.
struct Standing {
    inbox: Subscriber,
    /// How many of them are still to come.
    left: usize,
}

/// Where the last requests are answered. Not where other answers come: the client looks for those by their
/// subject, and a message has the one it was published under.
struct Farewell {
    address: String,
    inbox: Subscriber,
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
            let mut standing = None;
            let loss = tokio::select! {
                loss = self.take_in(&link, &ledger, &mut standing) => loss,
                () = stop.cancelled() => return self.leave(standing, &ledger).await,
            };
            self.report(&loss);
            ledger.end();
            ledger.metrics.connections_lost.increment(1);
            drop((standing, link));
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
        self.warn_of_dropped(&link, &info).await;
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

    /// A stream with limits drops messages whether or not they were read. A consumer with a filter cannot tell
    /// how many of these were meant for it, and whoever may not ask about the stream is not told.
    async fn warn_of_dropped(&self, link: &Link, info: &consumer::Info) {
        let begun = info.delivered.consumer_sequence > 0;
        let filtered = !info.config.filter_subject.is_empty() || !info.config.filter_subjects.is_empty();
        if !begun || filtered {
            return;
        }
        let Ok(first) = self.broker.api().first_sequence(link, &self.stream).await else { return };
        let dropped = first.saturating_sub(info.delivered.stream_sequence + 1);
        if dropped > 0 {
            tracing::warn!(
                stream = %self.stream, consumer = %self.consumer, messages = dropped,
                "the stream dropped messages before the consumer had read them: they are lost to it"
            );
        }
    }

    /// Returns when the connection or the consumer is lost.
    async fn take_in(&self, link: &Link, ledger: &Arc<Ledger>, standing: &mut Option<Standing>) -> Loss {
        tokio::select! {
            loss = self.pull(link, ledger, standing) => loss,
            () = link.lost() => Loss::Connection,
            () = keep_buffered(ledger) => Loss::Connection, // never: it goes on for ever
        }
    }

    /// Asks for as many messages as there is room for, again and again.
    async fn pull(&self, link: &Link, ledger: &Ledger, standing: &mut Option<Standing>) -> Loss {
        let (client, address) = (&link.client, link.client.new_inbox());
        let subject = self.broker.api().next(&self.stream, &self.consumer);
        let Ok(inbox) = client.subscribe(address.clone()).await else { return Loss::Connection };
        let standing = standing.insert(Standing { inbox, left: 0 });
        loop {
            standing.left = ledger.room(self.capacity).await;
            let since = Instant::now();
            let request = self.request(standing.left).into();
            if client.publish_with_reply(subject.clone(), address.clone(), request).await.is_err() {
                return Loss::Connection;
            }
            let lost = tokio::select! {
                lost = self.receive(ledger, standing) => lost,
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
    async fn receive(&self, ledger: &Ledger, standing: &mut Standing) -> Option<Loss> {
        let silence = self.heartbeat() * 3;
        let cluster = ledger.cluster();
        let Standing { inbox, left } = standing;
        let mut chunks = inbox.ready_chunks(CHUNK);
        while *left > 0 {
            let chunk = match timeout(silence, chunks.next()).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Some(Loss::Connection),
                Err(_) => return Some(Loss::Consumer(format!("no sign of life for {silence:?}"))),
            };
            let end = chunk.iter().filter_map(status).find(|status| !matches!(status, Status::Alive));
            let received: Vec<_> =
                chunk.into_iter().filter_map(|message| self.received(cluster.as_deref(), message)).collect();
            *left = if end.is_some() { 0 } else { left.saturating_sub(received.len()) };
            ledger.receive(received);
            match end {
                None | Some(Status::Alive | Status::Over) => {}
                Some(Status::Held) => sleep(PAUSE).await,
                Some(Status::Lost(reason)) => return Some(Loss::Consumer(reason)),
            }
        }
        None
    }

    /// Takes nothing more, lets what is in hand be settled, and hands back the rest.
    async fn leave(&self, standing: Option<Standing>, ledger: &Arc<Ledger>) {
        ledger.close();
        let settler = NatsSettler::new(Arc::clone(ledger));
        if let Some(standing) = standing {
            let _ = timeout(PATIENCE, self.dismiss(standing, ledger)).await;
        }
        settler.give_up(ledger.give_up_buffered()).await;
        if timeout(PATIENCE, ledger.drained()).await.is_err() {
            tracing::debug!("closing with deliveries in hand; they are handed back");
        }
        settler.give_up(ledger.give_up()).await;
        ledger.end();
    }

    /// Ends the request that stands, which the server has no word for.
    ///
    /// What it sends to an inbox that is gone would be nobody's until the ack wait has passed. So first the request
    /// gets what there is for it. And a request that nobody listens to any more must be dropped before
    /// anything is handed back: otherwise the server drops it over the first message that is, and (2.9 does)
    /// mislays that for an ack wait.
    async fn dismiss(&self, mut standing: Standing, ledger: &Ledger) {
        let Some(link) = ledger.link(Instant::now()).await else { return };
        let address = link.client.new_inbox();
        let Ok(inbox) = link.client.subscribe(address.clone()).await else { return };
        let mut farewell = Farewell { address, inbox };
        let at_once = json!({ "batch": 1, "no_wait": true });
        while standing.left > 0 && self.last_word(&link, &mut farewell, &at_once, ledger).await {
            while let Some(Some(message)) = standing.inbox.next().now_or_never() {
                standing.left = standing.left.saturating_sub(self.take_back(message, ledger));
            }
        }
        if standing.inbox.drain().await.is_err() {
            return;
        }
        while let Some(message) = standing.inbox.next().await {
            self.take_back(message, ledger);
        }
        let in_a_moment = json!({ "batch": 1, "expires": nanoseconds(MOMENT) });
        self.last_word(&link, &mut farewell, &in_a_moment, ledger).await;
    }

    /// One more request, which is over at once: whether there was a message for it.
    async fn last_word(
        &self,
        link: &Link,
        farewell: &mut Farewell,
        request: &Value,
        ledger: &Ledger,
    ) -> bool {
        let subject = self.broker.api().next(&self.stream, &self.consumer);
        let (address, request) = (farewell.address.clone(), request.to_string());
        if link.client.publish_with_reply(subject, address, request.into()).await.is_err() {
            return false;
        }
        match timeout(HEARD, farewell.inbox.next()).await {
            Ok(Some(message)) => self.take_back(message, ledger) > 0,
            _ => false,
        }
    }

    /// Takes in what is to be handed back, and says how much that is.
    fn take_back(&self, message: Message, ledger: &Ledger) -> usize {
        let received: Vec<_> = self.received(ledger.cluster().as_deref(), message).into_iter().collect();
        let count = received.len();
        ledger.receive(received);
        count
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
