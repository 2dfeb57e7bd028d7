//! The thread that is a member of the group and takes in what its partitions deliver.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hapax_core::{Error, ErrorKind};
use rdkafka::Message;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::commit::Committer;
use crate::context::Trouble;
use crate::ledger::Ledger;
use crate::rebalance::{self, GroupContext};
use crate::{Kafka, envelope, error, topics};

type GroupConsumer = BaseConsumer<GroupContext>;

/// The most records taken in before the thread looks after its other duties.
const CHUNK: usize = 64;
/// How long a poll waits for records, and so how late a commit or a stop may be noticed.
const POLL: Duration = Duration::from_millis(20);
/// The same while a full partition is paused, which is to go on as soon as there is room.
const POLL_PAUSED: Duration = Duration::from_millis(2);
/// How long one question to the cluster may take before it is asked again.
const ANSWER: Duration = Duration::from_secs(1);
/// How long to listen for what the client reports beside an answer that did not come.
const REPORTS: Duration = Duration::from_millis(50);

/// What to consume, and how.
pub(crate) struct Intake {
    pub(crate) broker: Kafka,
    pub(crate) topics: Vec<String>,
    pub(crate) group: String,
    /// librdkafka's word for where a group without a valid offset begins.
    pub(crate) reset: &'static str,
    pub(crate) drain: Duration,
    pub(crate) commit_every: Duration,
    pub(crate) ledger: Arc<Ledger>,
}

/// A thread that was started.
pub(crate) struct Started {
    /// Answers once: it consumes, or why it does not.
    pub(crate) ready: oneshot::Receiver<Result<(), Error>>,
    /// Closed when the thread has left the group.
    pub(crate) gone: oneshot::Receiver<()>,
}

impl Intake {
    /// Starts the thread, which consumes until told to stop.
    pub(crate) fn start(self, stop: CancellationToken) -> Started {
        let (tell_ready, ready) = oneshot::channel();
        let (still_here, gone) = oneshot::channel::<()>();
        thread::spawn(move || {
            let _still_here = still_here;
            let subscribed = self.subscribe(&stop);
            let (consumer, failed) = match subscribed {
                Ok(consumer) => (Some(consumer), Ok(())),
                Err(cause) => (None, Err(cause)),
            };
            let _ = tell_ready.send(failed); // nobody listens where the source was dropped meanwhile
            if let Some(consumer) = consumer {
                self.run(&consumer, &stop);
                self.ledger.close();
                drop(consumer); // leaves the group
                self.ledger.set_connected(false);
            }
        });
        Started { ready, gone }
    }

    /// Whether the topics are there and the group may read them. Joins nothing. Blocks the thread.
    pub(crate) fn look(&self, stop: &CancellationToken) -> Result<(), Error> {
        self.connect(stop).map(drop)
    }

    fn subscribe(&self, stop: &CancellationToken) -> Result<GroupConsumer, Error> {
        let consumer = self.connect(stop)?;
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(|cause| error::group(&self.group, &cause))?;
        self.ledger.set_connected(true);
        Ok(consumer)
    }

    /// A client for which the cluster has answered. What no waiting will mend is an error at once.
    fn connect(&self, stop: &CancellationToken) -> Result<GroupConsumer, Error> {
        let consumer = self.client()?;
        let trouble = consumer.context().trouble.clone();
        let (limit, address) = (self.broker.time_to_connect(), self.broker.address());
        let deadline = Instant::now() + limit;
        let mut backoff = Backoff::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let found = self.find(&consumer, left.min(ANSWER));
            let Err(cause) = found else { return Ok(consumer) };
            hear(&consumer);
            if let Some(refusal) = trouble.refusal(&address) {
                return Err(refusal);
            }
            let wait = backoff.wait();
            match cause.kind() {
                ErrorKind::Setup => return Err(cause),
                _ if stop.is_cancelled() => return Err(cause),
                _ if Instant::now() + wait >= deadline => {
                    return Err(error::no_answer(&address, limit, &trouble));
                }
                _ => thread::sleep(wait),
            }
            tracing::warn!(group = %self.group, error = %cause, "not connected yet, trying again");
        }
    }

    fn client(&self) -> Result<GroupConsumer, Error> {
        let config = self.broker.config(&[
            ("group.id", &self.group),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", self.reset),
            ("isolation.level", "read_committed"),
            ("partition.assignment.strategy", "cooperative-sticky"),
            // What was fetched ahead of a pause is fetched again after it.
            ("queued.min.messages", "2000"),
        ]);
        let context = GroupContext {
            ledger: Arc::clone(&self.ledger),
            trouble: Trouble::default(),
            group: self.group.clone(),
            drain: self.drain,
        };
        BaseConsumer::from_config_and_context(&config, context).map_err(|cause| error::settings(&cause))
    }

    fn find(&self, consumer: &GroupConsumer, limit: Duration) -> Result<(), Error> {
        let mut partitions = rdkafka::TopicPartitionList::new();
        for topic in &self.topics {
            let count = topics::partitions(consumer.client(), topic, limit)?;
            partitions.add_partition_range(topic, 0, count - 1);
        }
        let offsets = consumer.committed_offsets(partitions, limit);
        offsets.map(drop).map_err(|cause| error::group(&self.group, &cause))
    }

    fn run(&self, consumer: &GroupConsumer, stop: &CancellationToken) {
        thread::scope(|scope| {
            let (committer, commits) = Committer::new();
            scope.spawn(|| commits.serve(consumer));
            self.take_turns(consumer, &committer, stop);
        });
        let commits = self.ledger.due();
        if !commits.is_empty() && self.ledger.is_connected() {
            consumer.context().commit_now(consumer, &commits);
        }
    }

    fn take_turns(&self, consumer: &GroupConsumer, committer: &Committer, stop: &CancellationToken) {
        let cluster = consumer.client().fetch_cluster_id(ANSWER).unwrap_or_default();
        let mut watch = Watch::default();
        let mut last = Instant::now();
        while !stop.is_cancelled() {
            if self.take_in(consumer, &cluster) {
                self.found_again(&mut watch);
            }
            self.pause_and_resume(consumer);
            let is_time = last.elapsed() >= self.commit_every || self.ledger.is_idle_with_commits();
            if is_time && committer.is_free() {
                committer.commit(self.ledger.due());
                last = Instant::now();
            }
            self.watch(consumer, &mut watch);
        }
    }

    /// Serves the client's callbacks and takes in what has come, and says whether something has.
    fn take_in(&self, consumer: &GroupConsumer, cluster: &str) -> bool {
        let mut wait = if self.ledger.has_paused() { POLL_PAUSED } else { POLL };
        let mut received = false;
        for _ in 0..CHUNK {
            match consumer.poll(wait) {
                None => break,
                Some(Err(cause)) => self.report(&cause),
                Some(Ok(record)) => {
                    let envelope = envelope::from_record(cluster, &record);
                    self.ledger.receive(record.topic(), record.partition(), record.offset(), envelope);
                    received = true;
                }
            }
            wait = Duration::ZERO;
        }
        if received {
            self.ledger.announce();
        }
        received
    }

    fn report(&self, cause: &KafkaError) {
        if let KafkaError::MessageConsumptionFatal(_) = cause {
            return self.ledger.fail(error::fatal(&self.group, cause));
        }
        match cause.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AutoOffsetReset) => self.ledger.fail(error::no_offset(&self.group)),
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                if self.ledger.set_connected(false) {
                    self.ledger.metrics.connections_lost.increment(1);
                    tracing::warn!(group = %self.group, "lost the brokers, reconnecting");
                }
            }
            Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::Resolve) => {
                tracing::debug!(group = %self.group, error = %cause, "lost a connection to a broker");
            }
            _ => tracing::warn!(group = %self.group, error = %cause, "trouble with the broker, going on"),
        }
    }

    /// A full partition is not fetched from while the client is polled as ever: the group takes partitions
    /// away from members that do not poll.
    fn pause_and_resume(&self, consumer: &GroupConsumer) {
        let flow = self.ledger.flow();
        let paused = flow.pause.is_empty() || consumer.pause(&rebalance::partitions(&flow.pause)).is_ok();
        let resumed = flow.resume.is_empty() || consumer.resume(&rebalance::partitions(&flow.resume)).is_ok();
        if !paused || !resumed {
            tracing::debug!(group = %self.group, "a partition that is no longer ours could not be paused or resumed");
        }
    }

    /// While no broker answers, asks from time to time.
    fn watch(&self, consumer: &GroupConsumer, watch: &mut Watch) {
        let due = watch.next.is_none_or(|next| Instant::now() >= next);
        if self.ledger.is_connected() || !due {
            return;
        }
        let Some(topic) = self.topics.first() else { return };
        match topics::partitions(consumer.client(), topic, ANSWER) {
            Err(cause) if cause.kind() == ErrorKind::Unavailable => {
                tracing::warn!(group = %self.group, error = %cause, "cannot consume, trying again");
                watch.next = Some(Instant::now() + watch.backoff.wait());
            }
            _ => self.found_again(watch),
        }
    }

    fn found_again(&self, watch: &mut Watch) {
        if self.ledger.set_connected(true) {
            *watch = Watch::default();
            self.ledger.metrics.reconnects.increment(1);
            tracing::info!(group = %self.group, "consuming again");
        }
    }
}

/// Serves what the client reports. Each poll serves one report, and as nothing is subscribed, nothing else comes.
fn hear(consumer: &GroupConsumer) {
    let until = Instant::now() + REPORTS;
    while Instant::now() < until {
        let _ = consumer.poll(REPORTS / 5);
    }
}

/// When to look next whether a broker answers.
struct Watch {
    backoff: Backoff,
    next: Option<Instant>,
}

impl Default for Watch {
    fn default() -> Self {
        Self { backoff: Backoff::new(), next: None }
    }
}
