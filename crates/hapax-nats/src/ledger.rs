//! What of the broker's is in our hands, and until when.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hapax_core::{Delivery, Envelope};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::link::Link;
use crate::metrics::SourceMetrics;

/// Numbered across all sources of the process, so that one's receipt means nothing to another.
static NEXT_RECEIPT: AtomicU64 = AtomicU64::new(1);
/// What the server takes if a consumer's configuration does not say.
const USUAL_ACK_WAIT: Duration = Duration::from_secs(30);

/// What the broker wants to see again, as far as this process keeps it.
///
/// The server acks by the message's number in the stream, whichever delivery of it is meant, and so would
/// take a late ack for one of the next delivery. Therefore each delivery has a receipt of its own here, which
/// is good until the ack wait has passed without an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(u64);

/// A message just received.
pub(crate) struct Received {
    pub(crate) envelope: Envelope,
    /// Where acks go.
    pub(crate) ack: String,
    /// Its number in the stream.
    pub(crate) sequence: u64,
    pub(crate) redelivered: bool,
}

/// A delivery that is ours.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) ack: Arc<str>,
    pub(crate) until: Instant,
    sequence: u64,
}

/// Shared by the task that receives, the source that hands over and the settlers.
pub(crate) struct Ledger {
    page: Mutex<Page>,
    link: watch::Sender<Option<Arc<Link>>>,
    ack_wait: OnceLock<Duration>,
    /// There may be something to hand over.
    arrived: Notify,
    /// There may be less in hand.
    settled: Notify,
    pub(crate) metrics: SourceMetrics,
}

/// Its lock is never held across an await.
#[derive(Default)]
struct Page {
    held: HashMap<Receipt, Held>,
    /// The receipt of each message in hand: what comes again was taken from us.
    of_sequence: HashMap<u64, Receipt>,
    /// Received and not handed over yet; held like all others.
    buffer: VecDeque<Delivery<Receipt>>,
    closed: bool,
}

impl Page {
    fn remove(&mut self, receipt: Receipt) -> Option<Held> {
        let held = self.held.remove(&receipt)?;
        self.of_sequence.remove(&held.sequence);
        Some(held)
    }

    /// Forgets what the server gives to somebody else by now, and says how much that was.
    fn expire(&mut self, now: Instant) -> u64 {
        let before = self.held.len();
        let Self { held, of_sequence, buffer, .. } = self;
        held.retain(|_, held| {
            let is_ours = held.until > now;
            if !is_ours {
                of_sequence.remove(&held.sequence);
            }
            is_ours
        });
        let expired = before - held.len();
        if expired > 0 {
            buffer.retain(|delivery| held.contains_key(delivery.receipt()));
        }
        expired as u64
    }
}

/// What a source has to hand over.
pub(crate) enum Supply {
    Batch(Vec<Delivery<Receipt>>),
    Nothing,
    Closed,
}

impl Ledger {
    pub(crate) fn new(stream: &str, consumer: &str) -> Self {
        Self {
            page: Mutex::default(),
            link: watch::Sender::new(None),
            ack_wait: OnceLock::new(),
            arrived: Notify::new(),
            settled: Notify::new(),
            metrics: SourceMetrics::of(stream, consumer),
        }
    }

    fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a delivery is ours without a sign of life.
    pub(crate) fn ack_wait(&self) -> Duration {
        self.ack_wait.get().copied().unwrap_or(USUAL_ACK_WAIT)
    }

    pub(crate) fn learn_ack_wait(&self, ack_wait: Duration) {
        let _ = self.ack_wait.set(ack_wait); // what was learnt first stays: extensions follow it
    }

    /// The server's clock began earlier, when it sent the message: hence a tenth less.
    fn lease(&self) -> Duration {
        self.ack_wait().mul_f64(0.9)
    }

    pub(crate) fn begin(&self, link: Arc<Link>) {
        self.link.send_replace(Some(link));
    }

    /// The connection is lost. What is in hand stays ours: acks are not bound to a connection.
    pub(crate) fn end(&self) {
        self.link.send_replace(None);
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
        self.link.borrow().as_ref().is_some_and(|link| !link.is_lost())
    }

    /// A connection, waited for if there is none now.
    pub(crate) async fn link(&self, until: Instant) -> Option<Arc<Link>> {
        let mut links = self.link.subscribe();
        let usable = |link: &Option<Arc<Link>>| link.as_ref().is_some_and(|link| !link.is_lost());
        match timeout_at(until, links.wait_for(usable)).await {
            Ok(Ok(link)) => link.clone(),
            _ => None,
        }
    }

    /// Takes in what the broker sent.
    pub(crate) fn receive(&self, messages: Vec<Received>) {
        self.metrics.deliveries.increment(messages.len() as u64);
        let until = Instant::now() + self.lease();
        let mut page = self.page();
        for Received { envelope, ack, sequence, redelivered } in messages {
            let receipt = Receipt(NEXT_RECEIPT.fetch_add(1, Ordering::Relaxed));
            let held = Held { ack: ack.into(), until, sequence };
            if let Some(taken_away) = page.of_sequence.insert(sequence, receipt) {
                page.held.remove(&taken_away);
                page.buffer.retain(|delivery| *delivery.receipt() != taken_away);
                self.metrics.expired.increment(1);
            }
            page.held.insert(receipt, held);
            let mut delivery = Delivery::new(envelope, receipt);
            delivery.redelivered = redelivered;
            page.buffer.push_back(delivery);
        }
        drop(page);
        self.arrived.notify_one();
    }

    /// Hands over at most `max` of what is there and still ours.
    pub(crate) fn take(&self, max: usize) -> Supply {
        self.expire();
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

    /// Waits until less than `capacity` is in hand, and answers with the difference.
    pub(crate) async fn room(&self, capacity: usize) -> usize {
        loop {
            let settled = self.settled.notified();
            self.expire();
            let room = capacity.saturating_sub(self.page().held.len());
            if room > 0 {
                return room;
            }
            let _ = timeout(self.ack_wait() / 3, settled).await; // what runs out makes room, too
        }
    }

    fn expire(&self) {
        let expired = self.page().expire(Instant::now());
        if expired > 0 {
            self.metrics.expired.increment(expired);
            tracing::debug!(deliveries = expired, "ack wait passed; the broker will deliver them again");
        }
    }

    /// What lies in the buffer: nobody else extends it.
    pub(crate) fn buffered(&self) -> Vec<Receipt> {
        self.page().buffer.iter().map(|delivery| *delivery.receipt()).collect()
    }

    /// Waits until everything handed over has been settled, or has run out.
    pub(crate) async fn drained(&self) {
        loop {
            let settled = self.settled.notified();
            self.expire();
            if self.in_hand() == 0 {
                return;
            }
            let _ = timeout(self.ack_wait() / 3, settled).await; // what runs out is gone, too
        }
    }

    fn in_hand(&self) -> usize {
        let page = self.page();
        page.held.len() - page.buffer.len()
    }

    /// The cluster of the server that we are connected to, if it has a name.
    pub(crate) fn cluster(&self) -> Option<String> {
        self.link.borrow().as_ref().and_then(|link| link.client.server_info().cluster)
    }

    /// Takes out what was never handed over.
    pub(crate) fn give_up_buffered(&self) -> Vec<Held> {
        let mut page = self.page();
        let buffered = std::mem::take(&mut page.buffer);
        buffered.iter().filter_map(|delivery| page.remove(*delivery.receipt())).collect()
    }

    /// Takes everything out that is ours, handed over or not.
    pub(crate) fn give_up(&self) -> Vec<Held> {
        self.expire();
        let mut page = self.page();
        page.buffer.clear();
        page.of_sequence.clear();
        page.held.drain().map(|(_, held)| held).collect()
    }

    /// Takes a delivery out to settle it; none if it is not ours any more.
    pub(crate) fn release(&self, receipt: Receipt) -> Option<Held> {
        let released = self.page().remove(receipt).filter(|held| held.until > Instant::now());
        self.settled.notify_waiters();
        released
    }

    /// A delivery that is ours.
    pub(crate) fn held(&self, receipt: Receipt) -> Option<Held> {
        self.page().held.get(&receipt).filter(|held| held.until > Instant::now()).cloned()
    }

    /// The server heard at `heard_after` or later that a delivery is being worked on.
    pub(crate) fn renew(&self, receipt: Receipt, heard_after: Instant) {
        let until = heard_after + self.lease();
        if let Some(held) = self.page().held.get_mut(&receipt) {
            held.until = held.until.max(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(sequence: u64) -> Received {
        let envelope = Envelope::new(sequence.to_string());
        Received { envelope, ack: format!("ack.{sequence}"), sequence, redelivered: false }
    }

    fn ledger(ack_wait: Duration) -> Ledger {
        let ledger = Ledger::new("s", "c");
        ledger.learn_ack_wait(ack_wait);
        ledger
    }

    fn take(ledger: &Ledger) -> Vec<Receipt> {
        match ledger.take(100) {
            Supply::Batch(batch) => batch.iter().map(|delivery| *delivery.receipt()).collect(),
            _ => Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_receipt_is_good_until_the_ack_wait_has_passed() {
        let ledger = ledger(Duration::from_secs(10));
        ledger.receive(vec![received(1), received(2)]);
        let receipts = take(&ledger);
        tokio::time::advance(Duration::from_secs(6)).await;
        ledger.renew(receipts[1], Instant::now());
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(ledger.held(receipts[0]).is_none() && ledger.release(receipts[0]).is_none());
        assert_eq!(ledger.release(receipts[1]).map(|held| held.sequence), Some(2));
        assert!(ledger.release(receipts[1]).is_none(), "settled once");
    }

    #[tokio::test(start_paused = true)]
    async fn case_14_what_lay_in_the_buffer_for_too_long_is_not_handed_over() {
        let ledger = ledger(Duration::from_secs(10));
        ledger.receive(vec![received(1)]);
        tokio::time::advance(Duration::from_secs(10)).await;
        ledger.receive(vec![received(2)]);
        let receipts = take(&ledger);
        assert_eq!(receipts.len(), 1);
        assert_eq!(ledger.release(receipts[0]).map(|held| held.sequence), Some(2));
        assert_eq!(ledger.room(5).await, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_again_was_taken_from_whoever_had_it() {
        let ledger = ledger(Duration::from_secs(10));
        ledger.receive(vec![received(1)]);
        let before = take(&ledger);
        ledger.receive(vec![received(1)]);
        assert!(ledger.release(before[0]).is_none());
        assert_eq!(take(&ledger).len(), 1);
        assert_eq!(ledger.room(5).await, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_runs_out_makes_room() {
        let ledger = ledger(Duration::from_secs(10));
        ledger.receive(vec![received(1)]);
        assert_eq!(ledger.room(1).await, 1);
    }
}
