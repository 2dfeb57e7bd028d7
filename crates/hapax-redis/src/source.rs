//! A stream that one consumes from as a member of a group.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Capabilities, Error, Fetched, Source};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Redis;
use crate::envelope::{BODY, Place};
use crate::error;
use crate::intake::{Intake, OURS, source_name};
use crate::ledger::{Ledger, Receipt, Supply};
use crate::script::Seat;
use crate::settler::RedisSettler;

const LEASE: Duration = Duration::from_secs(30);
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// A stream as a [`Source`], for a consumer group, made by [`Redis::source`].
///
/// Each source has a name of its own in the group. A task keeps two connections, one of which waits for new
/// entries: it reconnects for as long as it takes, from 100 ms to 5 s between attempts, and a lost server is no
/// error of [`next`](Source::next). A delivery is leased: it comes again, to whichever instance, with
/// `redelivered` set, when it has lain idle for a [`lease`](Self::lease) without an extension, which the consumer
/// sends three times within one. The clock is the server's.
///
/// Errors come from [`prepare`](Source::prepare) only: `QueueMissing` and `BrokerRefused`
/// (`ErrorKind::Setup`), and `BrokerUnavailable` if there is no connection within
/// [`connect_timeout`](Redis::connect_timeout). After a first success all of these are retried with
/// a warning, a deleted stream included.
///
/// A stream that is trimmed before the group has read it loses messages. The source warns when it sees that.
pub struct RedisSource {
    broker: Redis,
    seat: Arc<Seat>,
    prefetch: Option<usize>,
    declare: bool,
    lease: Duration,
    body_field: String,
    ledger: Arc<Ledger>,
    intake: Option<RunningIntake>,
}

/// The task, which also ends when the source is dropped.
struct RunningIntake {
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl RedisSource {
    pub(crate) fn new(broker: Redis, stream: String, group: String) -> Self {
        let consumer = format!("{OURS}{}", uuid::Uuid::now_v7());
        let ledger = Arc::new(Ledger::new(&stream, &group, LEASE));
        let seat = Arc::new(Seat { stream, group, consumer });
        let (prefetch, declare, lease, intake) = (None, false, LEASE, None);
        Self { broker, seat, prefetch, declare, lease, body_field: BODY.into(), ledger, intake }
    }

    /// How many deliveries are in hand or in the buffer at most. Default: as many as the consumer can have
    /// in hand, which is twice workers × batch and at least 8 a worker.
    #[must_use]
    pub fn prefetch(mut self, deliveries: usize) -> Self {
        self.prefetch = Some(deliveries);
        self
    }

    /// Creates the group, from the stream's first entry on, and the stream if need be, whenever a connection is
    /// made. Without this nothing is created, and a group that does not exist is an error.
    #[must_use]
    pub fn declare(mut self) -> Self {
        self.declare = true;
        self
    }

    /// How long a delivery is ours without a sign of life. Default: 30 s. All instances of a group should have the
    /// same: each takes over what has lain idle for its own lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.ledger = Arc::new(Ledger::new(&self.seat.stream, &self.seat.group, lease));
        self
    }

    /// The field that holds the body. Default: `body`. The body of an entry without it is all its fields as a JSON
    /// object.
    #[must_use]
    pub fn body_field(mut self, name: impl Into<String>) -> Self {
        self.body_field = name.into();
        self
    }

    fn intake(&self, in_flight: usize) -> Result<Intake, Error> {
        if self.lease < SHORTEST_LEASE {
            return Err(error::misconfigured(format!("a lease is {SHORTEST_LEASE:?} or more")));
        }
        let Seat { stream, group, .. } = &*self.seat;
        if stream.is_empty() || group.is_empty() {
            return Err(error::misconfigured("a stream and its group have names"));
        }
        let place = Place {
            source: self.name(),
            stream: stream.clone(),
            database: self.broker.database(),
            body_field: self.body_field.clone(),
        };
        Ok(Intake {
            broker: self.broker.clone(),
            seat: Arc::clone(&self.seat),
            place,
            capacity: self.capacity(in_flight),
            lease: self.lease,
            declare: self.declare,
        })
    }

    fn capacity(&self, in_flight: usize) -> usize {
        let needed = in_flight.max(1);
        let Some(wanted) = self.prefetch else { return needed };
        if wanted < needed / 2 {
            tracing::warn!(
                stream = %self.seat.stream, prefetch = wanted, in_flight = needed,
                "the prefetch is less than half of what the workers can have in hand: batches stay small"
            );
        }
        wanted.max(1)
    }
}

impl fmt::Debug for RedisSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSource")
            .field("broker", &self.broker)
            .field("stream", &self.seat.stream)
            .field("group", &self.seat.group)
            .field("prefetch", &self.prefetch)
            .field("declare", &self.declare)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl Source for RedisSource {
    type Receipt = Receipt;
    type Settler = RedisSettler;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().knowing_redelivered().extending_every(self.lease / 3)
    }

    fn settler(&self) -> RedisSettler {
        RedisSettler::new(Arc::clone(&self.ledger), Arc::clone(&self.seat))
    }

    fn name(&self) -> String {
        source_name(&self.seat.stream)
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
