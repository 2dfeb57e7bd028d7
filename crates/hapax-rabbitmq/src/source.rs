//! A queue one consumes from.

use std::fmt;
use std::sync::Arc;

use hapax_core::{Capabilities, Error, Fetched, Source};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::intake::{Intake, source_name};
use crate::ledger::{Ledger, RabbitSettler, Receipt, Supply};
use crate::{RabbitMq, error};

/// Below this, restarts and lost connections alone can use a quorum queue's limit up.
const SMALL_DELIVERY_LIMIT: i64 = 20;
const DELIVERY_LIMIT: &str = "x-delivery-limit";

/// A queue of a broker as a [`Source`], made by [`RabbitMq::source`].
///
/// A task of its own keeps the connection: it reconnects for as long as it takes, from 100 ms to 5 s
/// between attempts, and a lost broker is no error of [`next`](Source::next). What was in hand when a
/// connection was lost comes again with `redelivered` set, and its late acks are discarded.
///
/// Errors come from [`prepare`](Source::prepare) only: `QueueMissing` and `BrokerRefused`
/// (`ErrorKind::Setup`), and `BrokerUnavailable` if there is no connection within
/// [`connect_timeout`](RabbitMq::connect_timeout). After a first success all of these are retried with
/// a warning, a deleted queue included.
///
/// On a quorum queue every lost connection counts towards `x-delivery-limit` for each delivery that
/// was prefetched or in hand: let that limit be generous or unset, since Hapax counts attempts itself.
pub struct RabbitSource {
    broker: RabbitMq,
    queue: String,
    prefetch: Option<u16>,
    declare: bool,
    arguments: Vec<(String, AMQPValue)>,
    ledger: Arc<Ledger>,
    intake: Option<RunningIntake>,
}

/// The task, which also ends when the source is dropped.
struct RunningIntake {
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl RabbitSource {
    pub(crate) fn new(broker: RabbitMq, queue: String) -> Self {
        let ledger = Arc::new(Ledger::new(&queue));
        Self { broker, queue, prefetch: None, declare: false, arguments: Vec::new(), ledger, intake: None }
    }

    /// How many unsettled deliveries the broker sends ahead. Default: as many as the consumer can have
    /// in hand, which is twice workers × batch and at least 8 a worker.
    #[must_use]
    pub fn prefetch(mut self, deliveries: u16) -> Self {
        self.prefetch = Some(deliveries);
        self
    }

    /// Declares the queue, durable, whenever a connection is made. Without this nothing is declared,
    /// and a queue that does not exist is an error.
    #[must_use]
    pub fn declare(mut self) -> Self {
        self.declare = true;
        self
    }

    /// An argument for [`declare`](Self::declare), such as `("x-queue-type", "quorum")`.
    #[must_use]
    pub fn argument(mut self, name: &str, value: impl Into<Argument>) -> Self {
        let Argument(value) = value.into();
        self.arguments.push((name.to_owned(), value));
        self
    }

    fn intake(&self, in_flight: usize) -> Result<Intake, Error> {
        Ok(Intake {
            broker: self.broker.clone(),
            queue: name("queue", &self.queue)?,
            prefetch: self.prefetch_for(in_flight),
            declare: self.declare,
            arguments: self.arguments()?,
        })
    }

    fn arguments(&self) -> Result<FieldTable, Error> {
        let mut table = FieldTable::default();
        for (argument, value) in &self.arguments {
            table.insert(name("queue argument", argument)?, value.clone());
        }
        self.warn_of_a_small_delivery_limit(&table);
        Ok(table)
    }

    fn prefetch_for(&self, in_flight: usize) -> u16 {
        let needed = u16::try_from(in_flight).unwrap_or(u16::MAX).max(1);
        let Some(wanted) = self.prefetch else { return needed };
        if wanted < needed / 2 {
            tracing::warn!(
                queue = %self.queue, prefetch = wanted, in_flight = needed,
                "the prefetch is less than half of what the workers can have in hand: batches stay small"
            );
        }
        wanted.max(1) // 0 would mean: without limit
    }

    fn warn_of_a_small_delivery_limit(&self, arguments: &FieldTable) {
        if let Some(AMQPValue::LongLongInt(limit)) = arguments.inner().get(DELIVERY_LIMIT)
            && *limit < SMALL_DELIVERY_LIMIT
        {
            tracing::warn!(
                queue = %self.queue, limit,
                "a small x-delivery-limit: lost connections alone may make the broker drop messages"
            );
        }
    }
}

/// A name of 1 to 255 bytes, as AMQP wants them.
fn name(what: &str, text: &str) -> Result<ShortString, Error> {
    match ShortString::try_new(text) {
        Ok(name) if !text.is_empty() => Ok(name),
        _ => Err(error::misconfigured(format!("the name of a {what} has 1 to 255 bytes"))),
    }
}

/// The value of a queue argument: a text, a whole number or a boolean.
#[derive(Clone, Debug)]
pub struct Argument(AMQPValue);

impl From<&str> for Argument {
    fn from(text: &str) -> Self {
        Self(AMQPValue::LongString(text.into()))
    }
}

impl From<i64> for Argument {
    fn from(number: i64) -> Self {
        Self(AMQPValue::LongLongInt(number))
    }
}

impl From<bool> for Argument {
    fn from(value: bool) -> Self {
        Self(AMQPValue::Boolean(value))
    }
}

impl fmt::Debug for RabbitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSource")
            .field("broker", &self.broker)
            .field("queue", &self.queue)
            .field("prefetch", &self.prefetch)
            .field("declare", &self.declare)
            .finish_non_exhaustive()
    }
}

impl Source for RabbitSource {
    type Receipt = Receipt;
    type Settler = RabbitSettler;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().knowing_redelivered()
    }

    fn settler(&self) -> RabbitSettler {
        RabbitSettler::new(Arc::clone(&self.ledger))
    }

    fn name(&self) -> String {
        source_name(&self.queue)
    }

    async fn prepare(&mut self, in_flight: usize) -> Result<(), Error> {
        if self.intake.is_some() || self.ledger.is_closed() {
            return Ok(());
        }
        let intake = self.intake(in_flight)?;
        let first = intake.first().await?;
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
