//! Takes deliveries from the source and hands them to the workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hapax_core::{
    ConsumerStore, Delivery, Envelope, Error, Fetched, Format, Lane, MessageId, Settler, Source, crash_point,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
    match format.read(envelope) {
        Ok(message) => Content::Message(message),
        Err(unreadable) => Content::Unreadable(unreadable),
    }
}

impl Content {
    /// A message of the waiting room is known by the id it was parked under, which an operator may
    /// have given it.
    pub(crate) fn take_id(&mut self, id: MessageId) {
        match self {
            Self::Message(message) => message.id = id,
            Self::Unreadable(unreadable) => unreadable.id = Some(id),
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
        while let Some((mut permits, max)) = self.room_to_fetch(&room).await {
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
                        let permit = permits.pop();
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

    /// Waits until the store is there, the brake lets something pass and there is room.
    async fn room_to_fetch(&self, room: &Arc<Semaphore>) -> Option<(Vec<OwnedSemaphorePermit>, usize)> {
        if !self.outage.wait(&self.stop).await {
            return None;
        }
        let pass = self.brake.pass(&self.stop).await?;
        let first = tokio::select! {
            () = self.stop.cancelled() => return None,
            permit = Arc::clone(room).acquire_owned() => permit.ok()?,
        };
        let most = if pass == Pass::Probe { 1 } else { LARGEST };
        let more = std::iter::from_fn(|| Arc::clone(room).try_acquire_owned().ok());
        let permits: Vec<_> = std::iter::once(first).chain(more.take(most - 1)).collect();
        let max = permits.len();
        Some((permits, max))
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
