//! Publishing with an idempotent producer.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use hapax_core::{Error, ErrorKind, Outgoing, Publisher};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

use crate::backoff::Backoff;
use crate::context::{PlainContext, Trouble};
use crate::envelope::{route, to_headers, to_millis};
use crate::metrics::PublisherMetrics;
use crate::{Kafka, error, topics};

type Client = FutureProducer<PlainContext>;

const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);
/// The client reports a message that was not confirmed in time itself, a little late.
const GRACE: Duration = Duration::from_secs(2);
/// How long one question to the cluster may take before it is asked again.
const ANSWER: Duration = Duration::from_secs(1);
/// How long a full send queue is given to empty before it is tried again.
const QUEUE_FULL: Duration = Duration::from_millis(5);
/// The broker's own default for the number of partitions or replicas.
const BROKERS_DEFAULT: i32 = -1;

/// Publishes to a cluster, made by [`Kafka::publisher`]. Clones share one client.
///
/// A message counts as published when the leader and all replicas in sync have it (`acks=all`). The producer is
/// idempotent: its retries neither double nor reorder messages. A batch costs about one round trip: all are
/// sent, in order, then the confirmations are awaited; the first message to a topic costs another.
///
/// The topic is the message's `destination`, and its key the `routing_key`, or else the ordering key among its
/// properties. Without a destination, the routing key is the topic. Messages of one key go to one partition, the
/// one that Java clients choose (`partitioner=murmur2_random`).
///
/// # Errors
///
/// Per message, with `Code::NotPublished` unless the cluster cannot be reached:
///
/// | `ErrorKind` | why |
/// |---|---|
/// | `NotFound` | there is no such topic; none is created in passing |
/// | `Statement` | the broker refused it (too large, no permission), or Kafka cannot carry it |
/// | `Unavailable` | the confirmation did not come: it may have been published, so publish it again under its id |
/// | `Setup` | `Code::BrokerRefused`: the credentials, or a broker too old for idempotent producers (0.11) |
#[derive(Clone)]
pub struct KafkaPublisher {
    confirm_timeout: Duration,
    shared: Arc<Shared>,
}

struct Shared {
    broker: Kafka,
    client: Mutex<Option<Opened>>,
    metrics: PublisherMetrics,
}

/// A client and the topics that it found.
#[derive(Clone)]
struct Opened {
    client: Client,
    trouble: Trouble,
    found: Arc<Mutex<HashSet<String>>>,
}

impl Opened {
    fn found(&self) -> MutexGuard<'_, HashSet<String>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KafkaPublisher {
    pub(crate) fn new(broker: Kafka) -> Self {
        let shared = Shared { broker, client: Mutex::default(), metrics: PublisherMetrics::new() };
        Self { confirm_timeout: CONFIRM_TIMEOUT, shared: Arc::new(shared) }
    }

    /// How long to wait for the confirmation of a message. Default: 30 s. To be set before the first message.
    #[must_use]
    pub fn confirm_timeout(mut self, limit: Duration) -> Self {
        self.confirm_timeout = limit;
        self
    }

    /// Whether the cluster can be reached with these credentials. One round trip, and those of connecting.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` or `Code::BrokerUnavailable`.
    pub async fn check(&self) -> Result<(), Error> {
        self.reach().await
    }

    async fn reach(&self) -> Result<(), Error> {
        let all_topics = |client: &Client, limit| match client.client().fetch_metadata(None, limit) {
            Ok(_) => Ok(()),
            Err(cause) => Err(error::unanswered(&cause)),
        };
        self.ask(&self.open()?, all_topics).await
    }

    /// Asks the cluster until it answers, or until it is clear that it will not. The client tells of a refused login in
    /// its reports only, and meanwhile answers nothing.
    async fn ask<T: Send + 'static>(
        &self,
        opened: &Opened,
        question: impl Fn(&Client, Duration) -> Result<T, Error> + Clone + Send + 'static,
    ) -> Result<T, Error> {
        let (limit, address) = (self.shared.broker.time_to_connect(), self.shared.broker.address());
        let deadline = Instant::now() + limit;
        let mut backoff = Backoff::new();
        loop {
            let (question, client) = (question.clone(), opened.client.clone());
            let left = deadline.saturating_duration_since(Instant::now()).min(ANSWER);
            match spawn_blocking(move || question(&client, left)).await {
                Ok(Ok(answer)) => {
                    opened.trouble.forget();
                    return Ok(answer);
                }
                Ok(Err(cause)) if cause.kind() == ErrorKind::Setup => return Err(cause),
                _ => {}
            }
            if let Some(refusal) = opened.trouble.refusal(&address) {
                return Err(refusal);
            }
            let wait = backoff.wait();
            if Instant::now() + wait >= deadline {
                return Err(error::no_answer(&address, limit, &opened.trouble));
            }
            sleep(wait).await;
        }
    }

    /// Creates a topic with the broker's default number of partitions and replicas, and waits until it can be
    /// used. If there is one of that name, nothing is changed.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` if it may not be created, `Code::QueueMissing` if the name is none,
    /// `Code::BrokerUnavailable` if the cluster cannot be reached.
    pub async fn create_topic(&self, name: &str) -> Result<(), Error> {
        self.create_topic_as(
            name,
            NewTopic::new(name, BROKERS_DEFAULT, TopicReplication::Fixed(BROKERS_DEFAULT)),
        )
        .await
    }

    /// The same with so many partitions.
    ///
    /// # Errors
    ///
    /// As [`create_topic`](Self::create_topic).
    pub async fn create_topic_of(&self, name: &str, partitions: u16) -> Result<(), Error> {
        let replicas = TopicReplication::Fixed(BROKERS_DEFAULT);
        self.create_topic_as(name, NewTopic::new(name, partitions.into(), replicas)).await
    }

    async fn create_topic_as(&self, name: &str, topic: NewTopic<'_>) -> Result<(), Error> {
        self.reach().await?;
        let created = self.admin()?.create_topics([&topic], &self.in_time()).await;
        match self.outcome(created)? {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => self.until_usable(name).await,
            Err((_, code)) => Err(error::topic(name, code)),
        }
    }

    /// Deletes a topic with what is in it, which is no change if there is none.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` if it may not be deleted, `Code::BrokerUnavailable` if the cluster cannot be reached.
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        self.reach().await?;
        let deleted = self.admin()?.delete_topics(&[name], &self.in_time()).await;
        if let Some(opened) = self.lock().as_ref() {
            opened.found().remove(name);
        }
        match self.outcome(deleted)? {
            Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => Ok(()),
            Err((_, code)) => Err(error::topic(name, code)),
        }
    }

    /// Waits until what was sent is confirmed or given up, and closes the connections. A later call opens others.
    pub async fn close(&self) {
        let opened = self.lock().take();
        if let Some(Opened { client, .. }) = opened {
            let limit = self.confirm_timeout;
            // Fails where messages were left; their calls have been told.
            let _ = spawn_blocking(move || client.flush(limit)).await;
        }
    }

    fn admin(&self) -> Result<AdminClient<PlainContext>, Error> {
        let config = self.shared.broker.config(&[]);
        AdminClient::from_config_and_context(&config, PlainContext::default())
            .map_err(|cause| error::settings(&cause))
    }

    fn in_time(&self) -> AdminOptions {
        let limit = Some(self.shared.broker.time_to_connect());
        AdminOptions::new().request_timeout(limit).operation_timeout(limit)
    }

    /// The answer about the one topic that was asked about.
    fn outcome<T>(&self, answer: Result<Vec<T>, KafkaError>) -> Result<T, Error> {
        let answer = answer.map_err(|cause| error::unanswered(&cause))?.pop();
        let (address, limit) = (self.shared.broker.address(), self.shared.broker.time_to_connect());
        answer.ok_or_else(|| error::no_answer(&address, limit, &Trouble::default()))
    }

    async fn until_usable(&self, topic: &str) -> Result<(), Error> {
        let opened = self.open()?;
        let deadline = Instant::now() + self.shared.broker.time_to_connect();
        let mut backoff = Backoff::new();
        loop {
            let found = self.find(&opened, topic).await;
            let wait = backoff.wait();
            if found.is_ok() || Instant::now() + wait >= deadline {
                return found;
            }
            sleep(wait).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Opened>> {
        self.shared.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<Opened, Error> {
        let mut client = self.lock();
        if let Some(opened) = client.as_ref() {
            return Ok(opened.clone());
        }
        let timeout = self.confirm_timeout.as_millis().max(1).to_string();
        let config = self.shared.broker.config(&[
            ("enable.idempotence", "true"),
            ("acks", "all"),
            ("message.timeout.ms", &timeout),
            ("partitioner", "murmur2_random"),
            // The broker knows its limit; the client's own, a little below the usual one, would get in first.
            ("message.max.bytes", "16777216"),
            // A topic that was found and has gone is reported soon.
            ("topic.metadata.propagation.max.ms", "2000"),
        ]);
        let context = PlainContext::default();
        let trouble = context.trouble.clone();
        let made =
            Client::from_config_and_context(&config, context).map_err(|cause| error::settings(&cause))?;
        Ok(client.insert(Opened { client: made, trouble, found: Arc::default() }).clone())
    }

    /// Whether there is such a topic. Asks once for each.
    async fn find(&self, opened: &Opened, topic: &str) -> Result<(), Error> {
        if opened.found().contains(topic) {
            return Ok(());
        }
        let name = topic.to_owned();
        let partitions = move |client: &Client, limit| topics::partitions(client.client(), &name, limit);
        self.ask(opened, partitions).await?;
        opened.found().insert(topic.to_owned());
        Ok(())
    }

    /// Sends a message, without waiting for its confirmation.
    async fn send(
        &self,
        opened: &Opened,
        message: &Outgoing,
        deadline: Instant,
    ) -> Result<DeliveryFuture, Error> {
        let (topic, key) = route(message);
        if topic.is_empty() {
            return Err(error::unsendable("it names no topic"));
        }
        if topic.contains('\0') {
            return Err(error::unsendable("the name of its topic has a NUL in it"));
        }
        self.find(opened, topic).await.map_err(error::destination)?;
        let mut record = FutureRecord::to(topic).payload(&message.envelope.body[..]);
        record.key = key;
        record.timestamp = to_millis(&message.envelope);
        let mut record = record.headers(to_headers(&message.envelope));
        loop {
            match opened.client.send_result(record) {
                Ok(sending) => return Ok(sending),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), again))
                    if Instant::now() < deadline =>
                {
                    record = again;
                    sleep(QUEUE_FULL).await;
                }
                Err((cause, _)) => return Err(self.failed(opened, topic, &cause)),
            }
        }
    }

    async fn confirmed(
        &self,
        opened: &Opened,
        message: &Outgoing,
        sent: Result<DeliveryFuture, Error>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let (topic, _) = route(message);
        match timeout_at(deadline, sent?).await {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err((cause, _)))) => Err(self.failed(opened, topic, &cause)),
            Ok(Err(_)) => Err(self.failed(opened, topic, &KafkaError::Canceled)),
            Err(_) => {
                let cause = KafkaError::MessageProduction(RDKafkaErrorCode::MessageTimedOut);
                Err(self.failed(opened, topic, &cause))
            }
        }
    }

    fn failed(&self, opened: &Opened, topic: &str, cause: &KafkaError) -> Error {
        opened.found().remove(topic);
        if let Some((code, reason)) = opened.client.client().fatal_error() {
            // It sends nothing any more: the next call gets another.
            self.lock().take();
            opened.trouble.note(code, &reason);
        } else if has_lost_its_place(cause) {
            self.lock().take();
        }
        error::not_published(topic, cause, &opened.trouble, &self.shared.broker.address())
    }

    fn count(&self, results: &[Result<(), Error>]) {
        let published = results.iter().filter(|result| result.is_ok()).count();
        self.shared.metrics.published.increment(published as u64);
        self.shared.metrics.not_published.increment((results.len() - published) as u64);
    }
}

/// Whether the brokers take nothing more from this client: after messages that were given up, some do not know the numbers
/// with which it goes on. Another client begins anew.
fn has_lost_its_place(cause: &KafkaError) -> bool {
    use RDKafkaErrorCode::{
        InvalidProducerEpoch, OutOfOrderSequenceNumber, ProducerFenced, UnknownProducerId,
    };
    matches!(
        cause.rdkafka_error_code(),
        Some(InvalidProducerEpoch | OutOfOrderSequenceNumber | ProducerFenced | UnknownProducerId)
    )
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher")
            .field("broker", &self.shared.broker)
            .field("confirm_timeout", &self.confirm_timeout)
            .finish_non_exhaustive()
    }
}

impl Publisher for KafkaPublisher {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        if messages.is_empty() {
            return Vec::new();
        }
        let opened = match self.open() {
            Ok(opened) => opened,
            Err(cause) => return messages.iter().map(|_| Err(error::again(&cause))).collect(),
        };
        let deadline = Instant::now() + self.confirm_timeout + GRACE;
        let mut sent = Vec::with_capacity(messages.len());
        for message in &messages {
            sent.push(self.send(&opened, message, deadline).await);
        }
        let confirmations =
            messages.iter().zip(sent).map(|(message, sent)| self.confirmed(&opened, message, sent, deadline));
        let results = join_all(confirmations).await;
        self.count(&results);
        results
    }
}
