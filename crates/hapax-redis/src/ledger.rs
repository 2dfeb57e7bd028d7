//! What of the group's is in our hands, and until when.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::{Delivery, Envelope};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::link::Link;
use crate::metrics::SourceMetrics;

/// Numbered across all sources of the process, so that one's receipt means nothing to another.
static NEXT_RECEIPT: AtomicU64 = AtomicU64::new(1);

/// What the server wants to see again, as far as this process keeps it.
///
/// The server acks an entry of the group whoever has it now. Therefore each delivery has a receipt of its own
/// here, and what is sent for it is done only if the entry is with this consumer still, delivered as often as then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(u64);

/// A message just received.
pub(crate) struct Received {
    pub(crate) envelope: Envelope,
    pub(crate) entry: String,
    /// How often the entry was delivered, this time included.
    pub(crate) deliveries: u64,
}

/// A delivery that is ours.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) entry: Arc<str>,
    pub(crate) deliveries: u64,
    pub(crate) until: Instant,
}

/// Shared by the task that receives, the source that hands over and the settlers.
pub(crate) struct Ledger {
    page: Mutex<Page>,
    link: watch::Sender<Option<Arc<Link>>>,
    /// How long a delivery is ours without a sign of life.
    pub(crate) lease: Duration,
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
    of_entry: HashMap<Arc<str>, Receipt>,
    /// Received and not handed over yet; held like all others.
    buffer: VecDeque<Delivery<Receipt>>,
    closed: bool,
}

impl Page {
    fn remove(&mut self, receipt: Receipt) -> Option<Held> {
        let held = self.held.remove(&receipt)?;
        self.of_entry.remove(&held.entry);
        Some(held)
    }

    /// Forgets what the server gives to somebody else by now, and says how much that was.
    fn expire(&mut self, now: Instant) -> u64 {
        let before = self.held.len();
        let Self { held, of_entry, buffer, .. } = self;
        held.retain(|_, held| {
            let is_ours = held.until > now;
            if !is_ours {
                of_entry.remove(&held.entry);
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
    pub(crate) fn new(stream: &str, group: &str, lease: Duration) -> Self {
        Self {
            page: Mutex::default(),
            link: watch::Sender::new(None),
            lease,
            arrived: Notify::new(),
            settled: Notify::new(),
            metrics: SourceMetrics::of(stream, group),
        }
    }

    fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server's clock began earlier, when it sent the message: hence a tenth less.
    fn ours_for(&self) -> Duration {
        self.lease.mul_f64(0.9)
    }

    pub(crate) fn begin(&self, link: Arc<Link>) {
        self.link.send_replace(Some(link));
    }

    /// The connection is lost. What is in hand stays ours: leases are not bound to a connection.
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

    /// Takes in what the server sent.
    pub(crate) fn receive(&self, messages: Vec<Received>) {
        self.metrics.deliveries.increment(messages.len() as u64);
        let until = Instant::now() + self.ours_for();
        let mut page = self.page();
        for Received { envelope, entry, deliveries } in messages {
            let receipt = Receipt(NEXT_RECEIPT.fetch_add(1, Ordering::Relaxed));
            let entry: Arc<str> = entry.into();
            if let Some(taken_away) = page.of_entry.insert(Arc::clone(&entry), receipt) {
                page.held.remove(&taken_away);
                page.buffer.retain(|delivery| *delivery.receipt() != taken_away);
                self.metrics.expired.increment(1);
            }
            page.held.insert(receipt, Held { entry, deliveries, until });
            let mut delivery = Delivery::new(envelope, receipt);
            delivery.redelivered = deliveries > 1;
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
            let _ = timeout(self.lease / 3, settled).await; // what runs out makes room, too
        }
    }

    fn expire(&self) {
        let expired = self.page().expire(Instant::now());
        if expired > 0 {
            self.metrics.expired.increment(expired);
            tracing::debug!(deliveries = expired, "leases ended; the entries will be delivered again");
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
            let _ = timeout(self.lease / 3, settled).await; // what runs out is gone, too
        }
    }

    fn in_hand(&self) -> usize {
        let page = self.page();
        page.held.len() - page.buffer.len()
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
        page.of_entry.clear();
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

    /// A delivery is not ours any more, says the server.
    pub(crate) fn lose(&self, receipt: Receipt) {
        let mut page = self.page();
        page.remove(receipt);
        page.buffer.retain(|delivery| *delivery.receipt() != receipt);
        drop(page);
        self.settled.notify_waiters();
    }

    /// The server heard at `heard_after` or later that a delivery is being worked on.
    pub(crate) fn renew(&self, receipt: Receipt, heard_after: Instant) {
        let until = heard_after + self.ours_for();
        if let Some(held) = self.page().held.get_mut(&receipt) {
            held.until = held.until.max(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(entry: &str) -> Received {
        Received { envelope: Envelope::new(""), entry: entry.to_owned(), deliveries: 1 }
    }

    fn ledger() -> Ledger {
        Ledger::new("s", "g", Duration::from_secs(10))
    }

    fn take(ledger: &Ledger) -> Vec<Receipt> {
        match ledger.take(100) {
            Supply::Batch(batch) => batch.iter().map(|delivery| *delivery.receipt()).collect(),
            _ => Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_receipt_is_good_until_the_lease_has_passed() {
        let ledger = ledger();
        ledger.receive(vec![received("1-0"), received("2-0")]);
        let receipts = take(&ledger);
        tokio::time::advance(Duration::from_secs(6)).await;
        ledger.renew(receipts[1], Instant::now());
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(ledger.held(receipts[0]).is_none() && ledger.release(receipts[0]).is_none());
        assert_eq!(ledger.release(receipts[1]).map(|held| held.entry.to_string()), Some("2-0".into()));
        assert!(ledger.release(receipts[1]).is_none(), "settled once");
    }

    #[tokio::test(start_paused = true)]
    async fn case_14_what_lay_in_the_buffer_for_too_long_is_not_handed_over() {
        let ledger = ledger();
        ledger.receive(vec![received("1-0")]);
        tokio::time::advance(Duration::from_secs(10)).await;
        ledger.receive(vec![received("2-0")]);
        let receipts = take(&ledger);
        assert_eq!(receipts.len(), 1);
        assert_eq!(ledger.release(receipts[0]).map(|held| held.entry.to_string()), Some("2-0".into()));
        assert_eq!(ledger.room(5).await, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_again_was_taken_from_whoever_had_it() {
        let ledger = ledger();
        ledger.receive(vec![received("1-0")]);
        let before = take(&ledger);
        ledger.receive(vec![received("1-0")]);
        assert!(ledger.release(before[0]).is_none());
        assert_eq!(take(&ledger).len(), 1);
        assert_eq!(ledger.room(5).await, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_runs_out_makes_room() {
        let ledger = ledger();
        ledger.receive(vec![received("1-0")]);
        assert_eq!(ledger.room(1).await, 1);
    }
}
