//! A durable consumer of a stream that one consumes from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Capabilities, Error, Fetched, Source};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Nats;
use crate::api::{Declared, check_name, is_subject};
use crate::error;
use crate::intake::{Intake, source_name};
use crate::ledger::{Ledger, Receipt, Supply};
use crate::settler::NatsSettler;

const ACK_WAIT: Duration = Duration::from_secs(30);
/// What a server takes if nothing is said.
const USUAL_ACK_PENDING: i64 = 1_000;

/// A durable pull consumer of a `JetStream` stream as a [`Source`], made by [`Nats::source`].
///
/// A task of its own keeps the connection and asks for as many messages as there is room for: it reconnects
/// for as long as it takes, from 100 ms to 5 s between attempts, and a lost broker is no error of
/// [`next`](Source::next). A delivery stays in hand over a lost connection; it comes again, with
/// `redelivered` set, when its ack wait passes without an ack and without an extension, which the consumer
/// sends three times within an ack wait.
///
/// Errors come from [`prepare`](Source::prepare) only: `QueueMissing` and `BrokerRefused`
/// (`ErrorKind::Setup`), and `BrokerUnavailable` if there is no connection within
/// [`connect_timeout`](Nats::connect_timeout). After a first success all of these are retried with
/// a warning, a deleted consumer included.
///
/// The consumer's `max_deliver` should be unset: each time the ack wait passes counts as a delivery, and over
/// the limit the server gives the message up without a word. Hapax counts failures itself.
pub struct NatsSource {
    broker: Nats,
    stream: String,
    consumer: String,
    prefetch: Option<usize>,
    declare: bool,
    subjects: Vec<String>,
    ack_wait: Duration,
    ledger: Arc<Ledger>,
    intake: Option<RunningIntake>,
}

/// The task, which also ends when the source is dropped.
struct RunningIntake {
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl NatsSource {
    pub(crate) fn new(broker: Nats, stream: String, consumer: String) -> Self {
        let ledger = Arc::new(Ledger::new(&stream, &consumer));
        let (prefetch, declare, subjects, ack_wait, intake) = (None, false, Vec::new(), ACK_WAIT, None);
        Self { broker, stream, consumer, prefetch, declare, subjects, ack_wait, ledger, intake }
    }

    /// How many deliveries are in hand or in the buffer at most. Default: as many as the consumer can have
    /// in hand, which is twice workers × batch and at least 8 a worker.
    #[must_use]
    pub fn prefetch(mut self, deliveries: usize) -> Self {
        self.prefetch = Some(deliveries);
        self
    }

    /// Creates the stream (on disk) and the durable consumer (explicit acks, from the stream's first message)
    /// where they are missing, whenever a connection is made. What is there is left as it is. Without this
    /// nothing is created, and what does not exist is an error.
    #[must_use]
    pub fn declare(mut self) -> Self {
        self.declare = true;
        self
    }

    /// The subjects of a stream that is [declared](Self::declare). Default: the stream's name.
    #[must_use]
    pub fn subjects<S: Into<String>>(mut self, subjects: impl IntoIterator<Item = S>) -> Self {
        self.subjects = subjects.into_iter().map(Into::into).collect();
        self
    }

    /// The ack wait of a consumer that is [declared](Self::declare): how long the server waits for a sign of
    /// life before it delivers a message again. Default: 30 s. One that exists keeps its own, which the source
    /// reads.
    #[must_use]
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = wait;
        self
    }

    fn intake(&self, in_flight: usize) -> Result<Intake, Error> {
        check_name("stream", &self.stream)?;
        check_name("consumer", &self.consumer)?;
        let capacity = self.capacity(in_flight);
        Ok(Intake {
            broker: self.broker.clone(),
            stream: self.stream.clone(),
            consumer: self.consumer.clone(),
            capacity,
            declare: self.declare.then(|| self.declared(capacity)).transpose()?,
        })
    }

    fn declared(&self, capacity: usize) -> Result<Declared, Error> {
        if self.ack_wait < Duration::from_millis(100) {
            return Err(error::misconfigured("an ack wait is 100 ms or more"));
        }
        let subjects = stream_subjects(&self.stream, &self.subjects)?;
        // Room for two instances like this one.
        let needed = i64::try_from(capacity).unwrap_or(i64::MAX).saturating_mul(2);
        Ok(Declared { subjects, ack_wait: self.ack_wait, max_ack_pending: needed.max(USUAL_ACK_PENDING) })
    }

    fn capacity(&self, in_flight: usize) -> usize {
        let needed = in_flight.max(1);
        let Some(wanted) = self.prefetch else { return needed };
        if wanted < needed / 2 {
            tracing::warn!(
                stream = %self.stream, prefetch = wanted, in_flight = needed,
                "the prefetch is less than half of what the workers can have in hand: batches stay small"
            );
        }
        wanted.max(1)
    }
}

/// The subjects of a new stream: its name, if none are given. Wildcards are welcome here.
pub(crate) fn stream_subjects(stream: &str, subjects: &[String]) -> Result<Vec<String>, Error> {
    if subjects.is_empty() {
        return Ok(vec![stream.to_owned()]);
    }
    for subject in subjects {
        let literal = subject.split('.').map(|token| if matches!(token, "*" | ">") { "x" } else { token });
        if !is_subject(&literal.collect::<Vec<_>>().join(".")) {
            return Err(error::misconfigured(format!("\"{subject}\" is not a subject of NATS")));
        }
    }
    Ok(subjects.to_vec())
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSource")
            .field("broker", &self.broker)
            .field("stream", &self.stream)
            .field("consumer", &self.consumer)
            .field("prefetch", &self.prefetch)
            .field("declare", &self.declare)
            .finish_non_exhaustive()
    }
}

impl Source for NatsSource {
    type Receipt = Receipt;
    type Settler = NatsSettler;

    /// How often deliveries are to be extended is known once it is [prepared](Source::prepare): a third of the
    /// consumer's ack wait.
    fn capabilities(&self) -> Capabilities {
        Capabilities::none().knowing_redelivered().extending_every(self.ledger.ack_wait() / 3)
    }

    fn settler(&self) -> NatsSettler {
        NatsSettler::new(Arc::clone(&self.ledger))
    }

    fn name(&self) -> String {
        source_name(&self.stream)
    }

    async fn prepare(&mut self, in_flight: usize) -> Result<(), Error> {
        if self.intake.is_some() || self.ledger.is_closed() {
            return Ok(());
        }
        let intake = self.intake(in_flight)?;
        let first = intake.first().await?;
        self.ledger.learn_ack_wait(first.ack_wait);
        let stop = CancellationToken::new();
        let task = tokio::spawn(intake.run(first, Arc::clone(&self.ledger), stop.clone()));
        self.intake = Some(RunningIntake { task, stop: stop.drop_guard() });
        Ok(())
    }

    async fn check(&mut self) -> Result<(), Error> {
        self.intake(1)?.look().await
    }

    async fn next(&mut self, max: usize) -> Result<Fetched<Receipt>, Error> {
        self.prepare(max).await?;
        loop {
            match self.ledger.take(max) {
                Supply::Batch(deliveries) => return Ok(Fetched::Batch(deliveries)),
                Supply::Closed => return Ok(Fetched::Ended),
                Supply::Nothing => self.ledger.arrival().await,
            }
        }
    }

    fn is_connected(&self) -> bool {
        self.ledger.is_connected()
    }

    async fn close(&mut self) {
        if let Some(RunningIntake { task, stop }) = self.intake.take() {
            drop(stop);
            let _ = task.await; // fails only if the task panicked or the runtime is going down
        }
        self.ledger.close();
    }
}
