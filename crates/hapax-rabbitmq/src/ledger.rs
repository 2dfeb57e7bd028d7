//! Channel generations: which channel is the current one, and what of it is in our hands.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use futures::future::{BoxFuture, Future, MaybeDone, join_all, maybe_done};
use hapax_core::{Delivery, Envelope, Error, Settle, Settlement, Settler, crash_point};
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::Notify;

use crate::error;
use crate::metrics::SourceMetrics;
use crate::settle::{Frame, Outstanding};

/// Generations are numbered across all sources of the process, so that one's receipt means nothing to another.
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(1);

/// What the broker wants to see again: a delivery tag, and the channel that it is good for.
///
/// Every connection is a new generation. A settlement that comes after its generation is discarded,
/// since the same tag may mean another message by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    generation: u64,
    tag: u64,
}

/// A message just received: its tag, what it says, and whether the broker had sent it before.
pub(crate) struct Received {
    pub(crate) tag: u64,
    pub(crate) envelope: Envelope,
    pub(crate) redelivered: bool,
}

/// Shared by the task that receives, the source that hands over and the settlers.
pub(crate) struct Ledger {
    page: Mutex<Page>,
    /// There may be something to hand over.
    arrived: Notify,
    /// There may be nothing left in hand.
    settled: Notify,
    pub(crate) metrics: SourceMetrics,
}

/// The current generation's page. Its lock is never held across an await.
#[derive(Default)]
struct Page {
    generation: u64,
    channel: Option<Arc<Channel>>,
    outstanding: Outstanding,
    /// Received and not handed over yet; outstanding like all others.
    buffer: VecDeque<Delivery<Receipt>>,
    closed: bool,
}

impl Page {
    fn in_hand(&self) -> usize {
        self.outstanding.len() - self.buffer.len()
    }

    fn turn(&mut self, channel: Option<Arc<Channel>>) {
        self.generation = NEXT_GENERATION.fetch_add(1, Ordering::Relaxed);
        self.channel = channel;
        self.outstanding = Outstanding::default();
        self.buffer.clear();
    }
}

/// What a source has to hand over.
pub(crate) enum Supply {
    Batch(Vec<Delivery<Receipt>>),
    Nothing,
    Closed,
}

impl Ledger {
    pub(crate) fn new(queue: &str) -> Self {
        let (arrived, settled, metrics) = (Notify::new(), Notify::new(), SourceMetrics::of(queue));
        Self { page: Mutex::default(), arrived, settled, metrics }
    }

    fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the generation of a new channel.
    pub(crate) fn begin(&self, channel: Arc<Channel>) {
        self.page().turn(Some(channel));
    }

    /// Ends the current generation: what was not handed over is dropped, since the broker will send
    /// it again, and what was can no longer be settled.
    pub(crate) fn end(&self) {
        self.page().turn(None);
        self.settled.notify_waiters();
    }

    /// Nothing will be handed over any more.
    pub(crate) fn close(&self) {
        self.page().closed = true;
        self.arrived.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.page().closed
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.page().channel.is_some()
    }

    /// Takes in what the current channel received.
    pub(crate) fn receive(&self, messages: Vec<Received>) {
        self.metrics.deliveries.increment(messages.len() as u64);
        let mut page = self.page();
        for Received { tag, envelope, redelivered } in messages {
            let mut delivery = Delivery::new(envelope, Receipt { generation: page.generation, tag });
            delivery.redelivered = redelivered;
            page.outstanding.delivered(tag);
            page.buffer.push_back(delivery);
        }
        drop(page);
        self.arrived.notify_one();
    }

    /// Hands over at most `max` of what is there.
    pub(crate) fn take(&self, max: usize) -> Supply {
        let mut page = self.page();
        let count = page.buffer.len().min(max.max(1));
        match count {
            _ if page.closed => Supply::Closed,
            0 => Supply::Nothing,
            _ => Supply::Batch(page.buffer.drain(..count).collect()),
        }
    }

    /// Waits until [`take`](Self::take) may have something. One waiter at a time.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }

    /// Waits until everything handed over has been settled, or can no longer be.
    pub(crate) async fn drained(&self) {
        loop {
            let settled = self.settled.notified();
            if self.page().in_hand() == 0 {
                return;
            }
            settled.await;
        }
    }

    /// Plans the frames for what the current generation can settle, and queues them.
    ///
    /// Queued under the lock, because the broker must see them in the order in which they were
    /// planned: an ack for a tag that a later `multiple` covered would close the channel.
    fn queue(&self, settlements: &[Settlement<Receipt>]) -> Queued {
        let mut page = self.page();
        let Some(channel) = page.channel.clone() else { return Queued::nothing(settlements.len()) };
        let (places, current): (Vec<_>, Vec<_>) = settlements
            .iter()
            .enumerate()
            .filter(|(_, settlement)| settlement.receipt.generation == page.generation)
            .map(|(place, settlement)| (place, (settlement.receipt.tag, settlement.verdict)))
            .unzip();
        let plan = page.outstanding.settle(&current);
        let mut queued = Queued::nothing(settlements.len());
        for (place, frame) in places.into_iter().zip(plan.frame_of) {
            queued.frame_of[place] = frame;
        }
        queued.sending = plan.frames.into_iter().map(|frame| start(send(channel.clone(), frame))).collect();
        queued
    }
}

type Sending = Pin<Box<MaybeDone<BoxFuture<'static, lapin::Result<()>>>>>;

/// Frames that lapin has queued, and which of them settles which entry.
struct Queued {
    sending: Vec<Sending>,
    frame_of: Vec<Option<usize>>,
}

impl Queued {
    fn nothing(entries: usize) -> Self {
        Self { sending: Vec::new(), frame_of: vec![None; entries] }
    }

    /// Waits until the frames are written, or cannot be.
    async fn written(mut self) -> Vec<Result<(), Error>> {
        join_all(self.sending.iter_mut().map(|frame| frame.as_mut())).await;
        let outcomes: Vec<_> = self.sending.iter_mut().map(|frame| frame.as_mut().take_output()).collect();
        let result = |frame: Option<usize>| match frame.and_then(|frame| outcomes[frame].as_ref()) {
            Some(Err(cause)) => Err(error::settling(cause.clone())),
            Some(Ok(())) | None => Ok(()),
        };
        self.frame_of.into_iter().map(result).collect()
    }
}

fn send(channel: Arc<Channel>, frame: Frame) -> BoxFuture<'static, lapin::Result<()>> {
    Box::pin(async move {
        match frame {
            Frame::Ack(tag) => channel.basic_ack(tag, BasicAckOptions { multiple: false }).await,
            Frame::AckUpTo(tag) => channel.basic_ack(tag, BasicAckOptions { multiple: true }).await,
            Frame::HandBack(tag) => {
                channel.basic_nack(tag, BasicNackOptions { multiple: false, requeue: true }).await
            }
        }
    })
}

/// Polls once, by which lapin queues the frame; the rest of the future waits for it to be written.
fn start(sending: BoxFuture<'static, lapin::Result<()>>) -> Sending {
    let mut sending = Box::pin(maybe_done(sending));
    let _ = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    sending
}

/// Acks and hands back a source's deliveries. Cheap to clone, and used by many workers at once.
///
/// Deliveries that are settled together and lie next to each other cost one frame
/// (`basic.ack` with `multiple`), others one each; no round trip, since AMQP does not confirm acks.
/// A settlement that comes after its connection was lost is discarded with `Ok`: the broker will
/// deliver the message again, as a duplicate.
#[derive(Clone)]
pub struct RabbitSettler {
    ledger: Arc<Ledger>,
}

impl RabbitSettler {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger }
    }

    fn note(&self, settlements: &[Settlement<Receipt>], queued: &Queued) {
        let metrics = &self.ledger.metrics;
        for (Settlement { receipt, verdict }, frame) in settlements.iter().zip(&queued.frame_of) {
            match (frame, verdict) {
                (Some(_), Settle::HandBack) => metrics.hand_backs.increment(1),
                (Some(_), _) => metrics.acks.increment(1),
                (None, _) => {
                    metrics.stale.increment(1);
                    tracing::debug!(
                        ?receipt,
                        "discarded a settlement: its channel is gone or it is settled already"
                    );
                }
            }
        }
    }
}

impl std::fmt::Debug for RabbitSettler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitSettler").finish_non_exhaustive()
    }
}

impl Settler<Receipt> for RabbitSettler {
    async fn settle(&self, settlements: Vec<Settlement<Receipt>>) -> Vec<Result<(), Error>> {
        crash_point!("rabbit-before-ack");
        let queued = self.ledger.queue(&settlements);
        self.note(&settlements, &queued);
        let results = queued.written().await;
        self.ledger.settled.notify_waiters();
        crash_point!("rabbit-after-ack");
        results
    }
}
