//! Topics one consumes from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Capabilities, Error, Fetched, Source};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::intake::{Intake, Started};
use crate::ledger::{Ledger, Receipt, Supply};
use crate::{Kafka, KafkaSettler, envelope, error};

/// How long the goodbye waits for deliveries that are still in hand. They will come again.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the goodbye waits for the client to leave the group.
const LEAVING: Duration = Duration::from_secs(10);
const COMMIT_EVERY: Duration = Duration::from_millis(500);
const DRAIN: Duration = Duration::from_secs(30);
/// librdkafka's default for `max.poll.interval.ms`.
const MAX_POLL_INTERVAL: Duration = Duration::from_mins(5);
/// Fewer records than this held ready of a partition are not worth its fetches.
const SMALLEST_BUFFER: usize = 64;

/// Where a group begins that has no valid offset for a partition: it is new, or its offsets, or the records at
/// them, have expired. Beginning at the end would skip messages silently, and is not among the choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffsetReset {
    /// At the earliest record there is: what was handled before is a duplicate.
    #[default]
    Earliest,
    /// Nowhere: the source ends with an error (`Code::SourceUnreadable`), until somebody has set the offsets. This
    /// holds for a new group, too.
    Error,
}

/// Topics of a cluster as a [`Source`], made by [`Kafka::source`].
///
/// A thread of its own is a member of the group: it polls, so that the group keeps it however long handlers run,
/// pauses a partition of which enough is held ready, and commits offsets. The lane of a delivery is
/// `topic/partition`.
///
/// The offset of a partition is committed when every record delivered before it is acked. What was acked behind
/// an unsettled record comes again after a restart, as a duplicate. When the group takes a partition away in an
/// orderly way, its records in hand are finished, within [`drain`](Self::drain), and committed before it goes.
/// When a partition was lost, nothing is committed for it, and late acks are discarded.
///
/// It reconnects by itself for as long as it takes. A lost connection takes no delivery away: acks stay good as
/// long as the group keeps us. Kafka cannot say whether a record was delivered before.
///
/// Errors come from [`prepare`](Source::prepare): `QueueMissing` and `BrokerRefused` (`ErrorKind::Setup`), and
/// `BrokerUnavailable` if there is no answer within [`connect_timeout`](Kafka::connect_timeout). After a first
/// success these are retried with a warning. [`next`](Source::next) fails with `SourceUnreadable` if there is no
/// valid offset and [`OffsetReset::Error`] was chosen, and with `BrokerRefused` if the client was fenced off by
/// another with its `group.instance.id`.
pub struct KafkaSource {
    broker: Kafka,
    topics: Vec<String>,
    group: String,
    reset: OffsetReset,
    drain: Option<Duration>,
    commit_every: Duration,
    declare: bool,
    ledger: Arc<Ledger>,
    intake: Option<RunningIntake>,
}

/// The thread, which also ends when the source is dropped.
struct RunningIntake {
    /// Until it has answered.
    ready: Option<oneshot::Receiver<Result<(), Error>>>,
    gone: oneshot::Receiver<()>,
    stop: DropGuard,
}

impl KafkaSource {
    pub(crate) fn new(broker: Kafka, topics: Vec<String>, group: String) -> Self {
        let ledger = Arc::new(Ledger::new(&group));
        Self {
            broker,
            topics,
            group,
            reset: OffsetReset::default(),
            drain: None,
            commit_every: COMMIT_EVERY,
            declare: false,
            ledger,
            intake: None,
        }
    }

    /// Where a group begins that has no valid offset. Default: [`OffsetReset::Earliest`].
    #[must_use]
    pub fn offset_reset(mut self, reset: OffsetReset) -> Self {
        self.reset = reset;
        self
    }

    /// How long a partition that is to be given back waits for its messages in hand. Default: 30 s. At most a third
    /// of `max.poll.interval.ms` (5 min), since the whole group waits meanwhile. What is not finished by then goes
    /// on, is not committed, and comes again.
    #[must_use]
    pub fn drain(mut self, limit: Duration) -> Self {
        self.drain = Some(limit);
        self
    }

    /// How often offsets are committed while messages are in hand. Default: 500 ms. If the process is killed, what
    /// was acked since the last commit comes again as duplicates.
    #[must_use]
    pub fn commit_every(mut self, period: Duration) -> Self {
        self.commit_every = period;
        self
    }

    /// Creates topics that are missing, as [`create_topic`](crate::KafkaPublisher::create_topic) does. Without this
    /// nothing is created, and a topic that does not exist is an error.
    #[must_use]
    pub fn declare(mut self) -> Self {
        self.declare = true;
        self
    }

    async fn create_topics(&self) -> Result<(), Error> {
        let publisher = self.broker.publisher();
        for topic in &self.topics {
            publisher.create_topic(topic).await?;
        }
        publisher.close().await;
        Ok(())
    }

    fn intake(&self) -> Result<Intake, Error> {
        if self.topics.is_empty() || self.topics.iter().any(String::is_empty) {
            return Err(error::misconfigured("a Kafka source needs the names of its topics"));
        }
        if self.topics.iter().any(|topic| topic.starts_with('^')) {
            let cause =
                "a Kafka source takes no pattern: what it reads would change by itself. Name its topics";
            return Err(error::misconfigured(cause));
        }
        if self.group.is_empty() {
            return Err(error::misconfigured("a Kafka source needs the name of its consumer group"));
        }
        let interval = self.broker.chosen_millis("max.poll.interval.ms").unwrap_or(MAX_POLL_INTERVAL);
        Ok(Intake {
            broker: self.broker.clone(),
            topics: self.topics.clone(),
            group: self.group.clone(),
            reset: match self.reset {
                OffsetReset::Earliest => "earliest",
                OffsetReset::Error => "error",
            },
            drain: self.drain.unwrap_or(DRAIN).min(interval / 3),
            commit_every: self.commit_every,
            ledger: Arc::clone(&self.ledger),
        })
    }

    /// Waits for the thread's first answer, if it has not come.
    async fn ready(&mut self) -> Result<(), Error> {
        let Some(RunningIntake { ready: Some(ready), .. }) = &mut self.intake else { return Ok(()) };
        let answer = ready.await.unwrap_or_else(|_| Err(error::misconfigured("the consuming thread ended")));
        match (&answer, &mut self.intake) {
            (Ok(()), Some(intake)) => intake.ready = None,
            _ => self.intake = None,
        }
        answer
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource")
            .field("broker", &self.broker)
            .field("topics", &self.topics)
            .field("group", &self.group)
            .field("reset", &self.reset)
            .field("drain", &self.drain)
            .field("commit_every", &self.commit_every)
            .finish_non_exhaustive()
    }
}

impl Source for KafkaSource {
    type Receipt = Receipt;
    type Settler = KafkaSettler;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().ordered().acking_prefixes()
    }

    fn settler(&self) -> KafkaSettler {
        KafkaSettler::new(Arc::clone(&self.ledger))
    }

    fn name(&self) -> String {
        envelope::source_name(&self.topics.join(","))
    }

    async fn prepare(&mut self, in_flight: usize) -> Result<(), Error> {
        if self.intake.is_none() && !self.ledger.is_closed() {
            if self.declare {
                self.create_topics().await?;
            }
            self.ledger.set_buffer(in_flight.max(SMALLEST_BUFFER));
            let stop = CancellationToken::new();
            let Started { ready, gone } = self.intake()?.start(stop.clone());
            self.intake = Some(RunningIntake { ready: Some(ready), gone, stop: stop.drop_guard() });
        }
        self.ready().await
    }

    async fn check(&mut self) -> Result<(), Error> {
        let intake = self.intake()?;
        let stop = CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let looked = tokio::task::spawn_blocking(move || intake.look(&stop)).await;
        looked.unwrap_or_else(|_| Err(error::misconfigured("the look at the broker was interrupted")))
    }

    async fn next(&mut self, max: usize) -> Result<Fetched<Receipt>, Error> {
        self.prepare(max).await?;
        loop {
            match self.ledger.take(max) {
                Supply::Batch(deliveries) => return Ok(Fetched::Batch(deliveries)),
                Supply::Lost(lanes) => return Ok(Fetched::Lost(lanes)),
                Supply::Failed(cause) => return Err(cause),
                Supply::Closed => return Ok(Fetched::Ended),
                Supply::Nothing => self.ledger.arrival().await,
            }
        }
    }

    fn is_connected(&self) -> bool {
        self.ledger.is_consuming()
    }

    async fn close(&mut self) {
        self.ledger.close();
        let Some(RunningIntake { gone, stop, .. }) = self.intake.take() else { return };
        if timeout(PATIENCE, self.ledger.drained()).await.is_err() {
            tracing::debug!("closing with deliveries in hand; they will be delivered again");
        }
        drop(stop);
        // The channel closes when the thread has left the group; without brokers that may take its time.
        let _ = timeout(LEAVING, gone).await;
    }
}
