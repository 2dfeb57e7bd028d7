//! Takes deliveries from the source and hands them to the workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hapax_core::{
    ConsumerStore, Delivery, Envelope, Error, Fetched, Format, Lane, MessageId, RawMessage, Settler, Source,
    Unreadable, crash_point,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, debug_span};

use crate::brake::Pass;
use crate::job::{Content, Hold, Job, Slot};
use crate::shared::Shared;

/// The most deliveries asked for at a time.
const LARGEST: usize = 1_000;

/// How often a wait for deliveries is interrupted to say whether the source is connected.
const LOOK_UP: Duration = Duration::from_millis(500);

/// Reads a message from its envelope.
pub(crate) fn read(format: &Format, envelope: Envelope) -> Content {
    content(format.read(envelope))
}

/// A message of the waiting room, by the id it was parked under.
pub(crate) fn read_known(format: &Format, id: MessageId, envelope: Envelope) -> Content {
    content(format.read_known(id, envelope))
}

fn content(read: Result<RawMessage, Unreadable>) -> Content {
    match read {
        Ok(message) => Content::Message(message),
        Err(unreadable) => Content::Unreadable(unreadable),
    }
}

/// Waits until there is room for one at least, and answers with how much there is.
pub(crate) async fn free_room(room: &Semaphore, stop: &CancellationToken) -> Option<usize> {
    tokio::select! {
        () = stop.cancelled() => None,
        permit = room.acquire() => {
            drop(permit.ok()?);
            Some(room.available_permits().max(1))
        }
    }
}

/// Why fetching ended.
#[derive(Debug)]
pub(crate) enum FetchEnd {
    /// No new messages are to be begun.
    Stopped,
    /// The source has no more.
    Ended,
}

impl<S, T, R> Shared<S, T, R>
where
    S: ConsumerStore,
    T: Settler<R>,
    R: Clone + Send + Sync + 'static,
{
    /// Fetches until told to stop, until the source ends, or until it fails for good.
    pub(crate) async fn fetch<Src>(
        &self,
        source: &mut Src,
        format: &Format,
        room: Arc<Semaphore>,
    ) -> Result<FetchEnd, Error>
    where
        Src: Source<Receipt = R, Settler = T>,
    {
        let extends = source.capabilities().extend_every.is_some();
        while let Some(max) = self.turning(self.room_to_fetch(&room)).await {
            self.vitals.source_connected.store(source.is_connected(), Ordering::Relaxed);
            let span = debug_span!("receive", consumer = %self.consumer);
            let fetched = tokio::select! {
                () = self.stop.cancelled() => break,
                fetched = source.next(max).instrument(span) => fetched?,
                () = tokio::time::sleep(LOOK_UP) => {
                    self.show();
                    continue;
                }
            };
            self.vitals.source_connected.store(source.is_connected(), Ordering::Relaxed);
            self.show();
            match fetched {
                Fetched::Batch(deliveries) => {
                    crash_point!("after-receive");
                    debug!(consumer = %self.consumer, deliveries = deliveries.len(), "received");
                    let jobs = deliveries.into_iter().map(|delivery| {
                        let permit = Arc::clone(&room).try_acquire_owned().ok();
                        self.delivered_job(format, delivery, permit, extends)
                    });
                    let late = self.intake.push(jobs.collect());
                    self.hand_back(late).await;
                }
                Fetched::Lost(lanes) => self.intake.forget(&lanes),
                Fetched::Ended => return Ok(FetchEnd::Ended),
                _ => {}
            }
        }
        Ok(FetchEnd::Stopped)
    }

    /// Waits for something while showing that the loop turns.
    async fn turning<F: Future>(&self, waiting: F) -> F::Output {
        tokio::pin!(waiting);
        loop {
            tokio::select! {
                output = &mut waiting => return output,
                () = tokio::time::sleep(LOOK_UP) => self.show(),
            }
        }
    }

    /// Waits until the store is there, the brake lets something pass and there is room; answers with how
    /// much. Only this loop takes room, so what is there now is there when the deliveries come.
    async fn room_to_fetch(&self, room: &Semaphore) -> Option<usize> {
        if !self.outage.wait(&self.stop).await {
            return None;
        }
        let pass = self.brake.pass(&self.stop).await?;
        let free = free_room(room, &self.stop).await?;
        Some(if pass == Pass::Probe { 1 } else { free.min(LARGEST) })
    }

    fn delivered_job(
        &self,
        format: &Format,
        mut delivery: Delivery<R>,
        permit: Option<OwnedSemaphorePermit>,
        extends: bool,
    ) -> Job<R> {
        let content = read(format, std::mem::take(&mut delivery.envelope));
        let lane: Option<Lane> = delivery.lane.take();
        let suspect = self.suspicion.judge(delivery.redelivered);
        let kept = extends.then(|| self.hands.keep_delivery(delivery.receipt().clone()));
        let mut job = Job::new(content, Hold::Delivery(delivery), Slot { _permit: permit, _kept: kept });
        job.lane = lane;
        job.suspect = suspect;
        job
    }
}
