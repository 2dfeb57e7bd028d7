//! A queue as a source.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Capabilities, Code, Delivery, Error, ErrorKind, Fetched, Settler as _, Source};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Sqs;
use crate::backoff::Backoff;
use crate::error;
use crate::intake::Intake;
use crate::line::{Line, Queue, USUAL_VISIBILITY, is_fifo, name_of, source_name};
use crate::metrics::SourceMetrics;
use crate::receipt::Receipt;
use crate::settle::SqsSettler;
use crate::shelf::{Shelf, Supply};

/// As long as SQS allows, and as AWS advises: an empty queue costs three requests a minute.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Receives from a queue, made by [`Sqs::source`].
///
/// It asks for messages only while somebody waits in [`next`](Source::next), ten in a request, with up to eight
/// requests at once while they come back full. SQS waits with its answer until there is a message.
///
/// A delivery is kept from others for the queue's visibility, and extended three times within it while it is in hand,
/// for 12 hours at most. The time is counted from before the request was sent. What lies here until its visibility has
/// passed is never handed out.
///
/// On a FIFO queue (`….fifo`) each message group is a lane, and if a delivery goes back, those after it in its group
/// are not started either.
///
/// # Errors
///
/// Of [`prepare`](Source::prepare) and [`check`](Source::check), which look the queue up (`GetQueueUrl`,
/// `GetQueueAttributes`): `QueueMissing`, `BrokerRefused` (credentials, permissions), `BrokerUnavailable` after
/// [`connect_timeout`](Sqs::connect_timeout), `ConfigMissingValue` without a region, `ConfigWrongValue` for a visibility
/// of zero. Later the source tries again, for as long as it takes, with 0.1 s to 5 s between attempts.
pub struct SqsSource {
    broker: Sqs,
    queue: String,
    visibility: Option<Duration>,
    wait: Duration,
    declare: bool,
    line: Arc<Line>,
    shelf: Arc<Shelf>,
    in_flight: usize,
    intake: Option<RunningIntake>,
}

/// The task, which also ends when the source is dropped.
struct RunningIntake {
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl SqsSource {
    pub(crate) fn new(broker: Sqs, queue: String) -> Self {
        let line = Arc::new(Line::new(broker.client(), queue.clone(), None));
        let shelf = Arc::new(Shelf::new(SourceMetrics::of(name_of(&queue))));
        let (visibility, wait, declare) = (None, LONGEST_WAIT, false);
        Self { broker, queue, visibility, wait, declare, line, shelf, in_flight: 1, intake: None }
    }

    /// For how long a delivery is kept from others unless it is extended; in whole seconds, 1 s to 12 h. Default: the
    /// queue's own visibility. It has to outlast a pause of the process.
    #[must_use]
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = Some(visibility);
        self.line = Arc::new(Line::new(self.broker.client(), self.queue.clone(), self.visibility));
        self
    }

    /// How long a request waits for a message; in whole seconds. Default and most: 20 s, and no more than half the
    /// visibility, since nobody says at which moment of the wait a message was taken.
    #[must_use]
    pub fn wait_time(mut self, wait: Duration) -> Self {
        self.wait = wait.min(LONGEST_WAIT);
        self
    }

    /// Creates the queue if it is missing, with SQS's usual attributes, as
    /// [`declare_queue`](crate::SqsPublisher::declare_queue) does. Without this nothing is created, and a queue that does
    /// not exist is an error.
    #[must_use]
    pub fn declare(mut self) -> Self {
        self.declare = true;
        self
    }

    /// Looks the queue up. What no waiting will mend is an error at once, and so is an SQS that cannot be reached
    /// before the time is up.
    async fn look(&self) -> Result<Queue, Error> {
        self.broker.check_set_up()?;
        let limit = self.broker.time_to_connect();
        let deadline = Instant::now() + limit;
        let mut backoff = Backoff::new();
        loop {
            let cause = match timeout_at(deadline, self.line.find()).await {
                Ok(Ok(queue)) => return Ok(queue),
                Ok(Err(cause)) => cause,
                Err(_) => error::no_answer(limit),
            };
            let is_to_be_made = self.declare && cause.code() == Code::QueueMissing;
            if is_to_be_made {
                self.broker.publisher().declare_queue(&self.queue).await?;
            }
            let wait = backoff.wait();
            if !is_to_be_made && cause.kind() == ErrorKind::Setup || Instant::now() + wait >= deadline {
                return Err(cause);
            }
            tracing::warn!(queue = %self.name(), error = %cause, "the queue was not found yet, trying again");
            sleep(wait).await;
        }
    }

    fn intake(&self, queue: Queue) -> Intake {
        let wait = Duration::from_secs(self.wait.min(queue.visibility / 2).as_secs());
        Intake {
            client: self.broker.patient_client(wait),
            queue,
            wait,
            shelf: Arc::clone(&self.shelf),
            settler: self.settler(),
        }
    }
}

impl fmt::Debug for SqsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSource")
            .field("broker", &self.broker)
            .field("queue", &self.queue)
            .field("visibility", &self.visibility)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl Source for SqsSource {
    type Receipt = Receipt;
    type Settler = SqsSettler;

    fn capabilities(&self) -> Capabilities {
        let visibility = self.line.queue().map_or(USUAL_VISIBILITY, |queue| queue.visibility);
        let all = Capabilities::none().knowing_redelivered().extending_every(visibility / 3);
        if is_fifo(&self.queue) { all.ordered() } else { all }
    }

    fn settler(&self) -> SqsSettler {
        SqsSettler::new(Arc::clone(&self.line), Arc::clone(&self.shelf))
    }

    fn name(&self) -> String {
        source_name(&self.queue)
    }

    async fn prepare(&mut self, in_flight: usize) -> Result<(), Error> {
        if self.intake.is_some() || self.shelf.is_closed() {
            return Ok(());
        }
        let queue = self.line.keep(self.look().await?);
        self.in_flight = in_flight.max(1);
        self.shelf.set_connected(true);
        let stop = CancellationToken::new();
        let task = tokio::spawn(self.intake(queue).run(stop.clone()));
        self.intake = Some(RunningIntake { task, stop: stop.drop_guard() });
        Ok(())
    }

    async fn check(&mut self) -> Result<(), Error> {
        self.look().await.map(drop)
    }

    async fn next(&mut self, max: usize) -> Result<Fetched<Receipt>, Error> {
        self.prepare(max).await?;
        loop {
            match self.shelf.take(max.min(self.in_flight)) {
                Supply::Batch(deliveries) => return Ok(Fetched::Batch(deliveries)),
                Supply::Closed => return Ok(Fetched::Ended),
                Supply::Nothing => self.shelf.arrival().await,
            }
        }
    }

    fn is_connected(&self) -> bool {
        self.shelf.is_connected()
    }

    async fn close(&mut self) {
        if let Some(RunningIntake { task, stop }) = self.intake.take() {
            drop(stop);
            let _ = task.await; // fails only if the task panicked or the runtime is going down
        }
        let rest: Vec<_> = self.shelf.close().into_iter().map(Delivery::hand_back).collect();
        let failed = self.settler().settle(rest).await.into_iter().filter_map(Result::err).count();
        if failed > 0 {
            tracing::debug!(failed, "not handed back: they come again when their visibility has passed");
        }
    }
}
