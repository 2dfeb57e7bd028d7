//! Which partitions are ours now, and what of them is in our hands.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hapax_core::{Delivery, Envelope, Error, Lane, Settle, Settlement};
use tokio::sync::Notify;

use crate::lane::Progress;
use crate::metrics::SourceMetrics;

/// Epochs are numbered across all sources of the process, so that one's receipt means nothing to another.
static NEXT_EPOCH: AtomicU64 = AtomicU64::new(1);

/// Bytes of a partition that are held ready at most, but for one message.
const MOST_READY_BYTES: usize = 8 * 1024 * 1024;
/// Records that may be delivered behind one that is not settled. What is behind it is delivered again if this
/// process ends, so the number has a limit.
const MOST_UNCOMMITTED: usize = 100_000;

/// What a delivery is settled by: its offset, and the assignment of its partition that it is good for.
///
/// Each time a partition is assigned, a new epoch begins. A settlement that comes after its epoch is
/// discarded: the partition is another's by then, or its records were delivered anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    epoch: u64,
    offset: i64,
}

/// A partition by its topic and number.
pub(crate) type Place = (String, i32);

/// Shared by the thread that receives, the source that hands over and the settlers.
pub(crate) struct Ledger {
    book: Mutex<Book>,
    /// There may be something to hand over.
    arrived: Notify,
    /// Something was settled, for tasks.
    settled: Notify,
    /// Something was settled, for the thread.
    bell: Condvar,
    pub(crate) metrics: SourceMetrics,
}

/// The state of the assignment. Its lock is never held across an await or a call of the client.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is told by somebody else")]
struct Book {
    partitions: BTreeMap<u64, Partition>,
    epochs: HashMap<Arc<str>, HashMap<i32, u64>>,
    /// The epoch that was served last, so that no partition starves another.
    served: u64,
    lost: Vec<Lane>,
    /// Records that are held ready of one partition.
    buffer: usize,
    commit_failed: bool,
    failed: Option<Error>,
    connected: bool,
    /// The group has given us our part, which may be nothing.
    joined: bool,
    closed: bool,
}

struct Partition {
    topic: Arc<str>,
    number: i32,
    lane: Lane,
    progress: Progress,
    paused: bool,
}

/// What a source has to hand over.
pub(crate) enum Supply {
    Batch(Vec<Delivery<Receipt>>),
    Lost(Vec<Lane>),
    Failed(Error),
    Nothing,
    Closed,
}

/// Partitions to stop and to go on fetching.
#[derive(Default)]
pub(crate) struct Flow {
    pub(crate) pause: Vec<Place>,
    pub(crate) resume: Vec<Place>,
}

/// What is to be done about a partition that goes.
pub(crate) struct Parted {
    /// How far it may be committed.
    pub(crate) commits: Vec<(Place, i64)>,
    /// Deliveries of it that are still in hand.
    pub(crate) in_hand: usize,
}

impl Book {
    fn of(&mut self, topic: &str, number: i32) -> Option<(u64, &mut Partition)> {
        let epoch = *self.epochs.get(topic)?.get(&number)?;
        Some((epoch, self.partitions.get_mut(&epoch)?))
    }

    fn in_hand(&self) -> usize {
        self.partitions.values().map(|partition| partition.progress.in_hand()).sum()
    }

    fn in_hand_of(&mut self, places: &[Place]) -> usize {
        let of = |(topic, number): &Place| Some(self.of(topic, *number)?.1.progress.in_hand());
        places.iter().filter_map(of).sum()
    }

    fn remove(&mut self, (topic, number): &Place) -> Option<Partition> {
        let epoch = self.epochs.get_mut(topic.as_str())?.remove(number)?;
        self.partitions.remove(&epoch)
    }

    /// The epochs of partitions with something ready, beginning behind the one served last.
    fn waiting(&self) -> Vec<u64> {
        let ready =
            |(epoch, partition): (&u64, &Partition)| (partition.progress.ready() > 0).then_some(*epoch);
        let behind = self.partitions.range(self.served + 1..).filter_map(ready);
        behind.chain(self.partitions.range(..=self.served).filter_map(ready)).collect()
    }

    fn batch(&mut self, max: usize) -> Vec<Delivery<Receipt>> {
        let waiting = self.waiting();
        let share = (max / waiting.len().max(1)).max(1);
        let mut batch = Vec::new();
        for epoch in waiting {
            let Some(partition) = self.partitions.get_mut(&epoch) else { continue };
            for (offset, envelope) in partition.progress.take(share.min(max - batch.len())) {
                let mut delivery = Delivery::new(envelope, Receipt { epoch, offset });
                delivery.lane = Some(partition.lane.clone());
                batch.push(delivery);
            }
            self.served = epoch;
            if batch.len() == max {
                break;
            }
        }
        batch
    }
}

impl Partition {
    fn place(&self) -> Place {
        (self.topic.to_string(), self.number)
    }

    fn is_full(&self, buffer: usize) -> bool {
        let progress = &self.progress;
        progress.ready() >= buffer
            || progress.ready_bytes() >= MOST_READY_BYTES
            || progress.uncommitted() >= MOST_UNCOMMITTED
    }

    /// So far below full that fetching is worth a request again.
    fn is_low(&self, buffer: usize) -> bool {
        let progress = &self.progress;
        progress.ready() <= buffer / 4
            && progress.ready_bytes() <= MOST_READY_BYTES / 4
            && progress.uncommitted() <= MOST_UNCOMMITTED / 4 * 3
    }
}

impl Ledger {
    pub(crate) fn new(group: &str) -> Self {
        Self {
            book: Mutex::default(),
            arrived: Notify::new(),
            settled: Notify::new(),
            bell: Condvar::new(),
            metrics: SourceMetrics::of(group),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many records of a partition are held ready.
    pub(crate) fn set_buffer(&self, records: usize) {
        self.book().buffer = records.max(1);
    }

    /// Begins an epoch of each partition.
    pub(crate) fn assign(&self, places: Vec<Place>) {
        self.metrics.assigned.increment(places.len() as u64);
        let mut book = self.book();
        book.joined = true;
        for place in places {
            book.remove(&place);
            let (topic, number) = place;
            let lane = Lane(format!("{topic}/{number}").into());
            let topic: Arc<str> = topic.into();
            let epoch = NEXT_EPOCH.fetch_add(1, Ordering::Relaxed);
            book.epochs.entry(Arc::clone(&topic)).or_default().insert(number, epoch);
            let partition = Partition { topic, number, lane, progress: Progress::default(), paused: false };
            book.partitions.insert(epoch, partition);
        }
    }

    /// Takes in a record, if its partition is ours.
    pub(crate) fn receive(&self, topic: &str, number: i32, offset: i64, envelope: Envelope) {
        let mut book = self.book();
        if let Some((_, partition)) = book.of(topic, number)
            && partition.progress.receive(offset, envelope)
        {
            self.metrics.deliveries.increment(1);
        }
    }

    /// What was received may be handed over now.
    pub(crate) fn announce(&self) {
        self.arrived.notify_one();
    }

    /// Which partitions are too full to be fetched from, and which no longer are. They count as paused and
    /// resumed from now on.
    pub(crate) fn flow(&self) -> Flow {
        let mut book = self.book();
        let buffer = book.buffer;
        let mut flow = Flow::default();
        for partition in book.partitions.values_mut() {
            if !partition.paused && partition.is_full(buffer) {
                partition.paused = true;
                flow.pause.push(partition.place());
            } else if partition.paused && partition.is_low(buffer) {
                partition.paused = false;
                flow.resume.push(partition.place());
            }
        }
        flow
    }

    /// Hands nothing of these partitions over any more, waits at most so long until what is in hand of them is
    /// settled, and ends their epochs. What is in hand then is announced as lost. Blocks the thread.
    pub(crate) fn part(&self, places: &[Place], patience: Duration) -> Parted {
        let mut book = self.book();
        for (topic, number) in places {
            if let Some((_, partition)) = book.of(topic, *number) {
                partition.progress.leave();
            }
        }
        let until = Instant::now() + patience;
        loop {
            let in_hand = book.in_hand_of(places);
            let left = until.saturating_duration_since(Instant::now());
            if book.closed || in_hand == 0 || left.is_zero() {
                break;
            }
            book = self.bell.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut parted = Parted { commits: Vec::new(), in_hand: 0 };
        for place in places {
            let Some(mut partition) = book.remove(place) else { continue };
            if let Some(position) = partition.progress.due() {
                parted.commits.push((place.clone(), position));
            }
            if partition.progress.in_hand() > 0 {
                parted.in_hand += partition.progress.in_hand();
                book.lost.push(partition.lane);
            }
        }
        drop(book);
        self.arrived.notify_one();
        self.settled.notify_waiters();
        parted
    }

    /// Hands over at most `max` of what is there.
    pub(crate) fn take(&self, max: usize) -> Supply {
        let mut book = self.book();
        if !book.lost.is_empty() {
            return Supply::Lost(std::mem::take(&mut book.lost));
        }
        if book.closed {
            return Supply::Closed;
        }
        if let Some(error) = book.failed.take() {
            return Supply::Failed(error);
        }
        match book.batch(max.max(1)) {
            batch if batch.is_empty() => Supply::Nothing,
            batch => Supply::Batch(batch),
        }
    }

    /// Waits until [`take`](Self::take) may have something. One waiter at a time.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }

    /// Settles what the current epochs still have in hand.
    pub(crate) fn settle(&self, settlements: &[Settlement<Receipt>]) {
        let mut handed_back = false;
        let mut book = self.book();
        for Settlement { receipt, verdict } in settlements {
            let partition = book.partitions.get_mut(&receipt.epoch);
            let settled =
                partition.is_some_and(|partition| partition.progress.settle(receipt.offset, *verdict));
            match (settled, verdict) {
                (true, Settle::HandBack) => {
                    self.metrics.hand_backs.increment(1);
                    handed_back = true;
                }
                (true, _) => self.metrics.acks.increment(1),
                (false, _) => {
                    self.metrics.stale.increment(1);
                    tracing::debug!("discarded a settlement: its partition is gone or it is settled already");
                }
            }
        }
        drop(book);
        if handed_back {
            self.arrived.notify_one();
        }
        self.bell.notify_all();
        self.settled.notify_waiters();
    }

    /// How far each partition may be committed, where the broker was not told yet.
    pub(crate) fn due(&self) -> Vec<(Place, i64)> {
        let mut book = self.book();
        let partitions = book.partitions.values_mut();
        let commits = partitions.filter_map(|partition| Some((partition.place(), partition.progress.due()?)));
        commits.collect()
    }

    /// Whether there is something to commit and nothing in hand: then there is no reason to wait, unless the last
    /// commit failed.
    pub(crate) fn is_idle_with_commits(&self) -> bool {
        let book = self.book();
        let mut partitions = book.partitions.values();
        !book.commit_failed
            && book.in_hand() == 0
            && partitions.any(|partition| partition.progress.has_to_commit())
    }

    /// A commit succeeded.
    pub(crate) fn told(&self) {
        self.book().commit_failed = false;
    }

    /// A commit failed: everything is to be committed once more.
    pub(crate) fn untell(&self) {
        let mut book = self.book();
        book.commit_failed = true;
        book.partitions.values_mut().for_each(|partition| partition.progress.untold());
    }

    /// Waits until everything handed over has been settled, or can no longer be.
    pub(crate) async fn drained(&self) {
        loop {
            let settled = self.settled.notified();
            if self.book().in_hand() == 0 {
                return;
            }
            settled.await;
        }
    }

    pub(crate) fn has_paused(&self) -> bool {
        self.book().partitions.values().any(|partition| partition.paused)
    }

    /// Notes whether a broker answers, and says whether that is news.
    pub(crate) fn set_connected(&self, connected: bool) -> bool {
        std::mem::replace(&mut self.book().connected, connected) != connected
    }

    /// Whether what is there would come: the brokers answer, and the group has given us our part.
    pub(crate) fn is_consuming(&self) -> bool {
        let book = self.book();
        book.connected && book.joined
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.book().connected
    }

    /// Ends the source with an error.
    pub(crate) fn fail(&self, error: Error) {
        self.book().failed = Some(error);
        self.arrived.notify_one();
    }

    /// Nothing will be handed over any more, and nobody waits for what is in hand.
    pub(crate) fn close(&self) {
        self.book().closed = true;
        self.arrived.notify_one();
        self.bell.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.book().closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: i32) -> Place {
        ("orders".into(), number)
    }

    fn receive(ledger: &Ledger, number: i32, offsets: std::ops::Range<i64>) {
        offsets.for_each(|offset| ledger.receive("orders", number, offset, Envelope::new("")));
    }

    fn batch(ledger: &Ledger, max: usize) -> Vec<Delivery<Receipt>> {
        match ledger.take(max) {
            Supply::Batch(batch) => batch,
            _ => Vec::new(),
        }
    }

    fn acks(batch: Vec<Delivery<Receipt>>) -> Vec<Settlement<Receipt>> {
        batch.into_iter().map(Delivery::ack).collect()
    }

    #[test]
    fn no_partition_starves_another() {
        let ledger = Ledger::new("g");
        ledger.assign((0..3).map(place).collect());
        (0..3).for_each(|number| receive(&ledger, number, 0..100));
        let lanes = |batch: &[Delivery<Receipt>]| {
            let mut lanes: Vec<_> = batch.iter().map(|delivery| delivery.lane.clone().unwrap().0).collect();
            lanes.dedup();
            lanes
        };
        assert_eq!(lanes(&batch(&ledger, 30)).len(), 3);
        let (first, second) = (batch(&ledger, 1), batch(&ledger, 1));
        assert_ne!(lanes(&first), lanes(&second));
    }

    #[test]
    fn a_receipt_of_an_earlier_assignment_settles_nothing() {
        let ledger = Ledger::new("g");
        ledger.assign(vec![place(0)]);
        receive(&ledger, 0, 0..1);
        let stale = batch(&ledger, 1);
        ledger.assign(vec![place(0)]);
        receive(&ledger, 0, 0..1);
        assert_eq!(batch(&ledger, 1).len(), 1);
        ledger.settle(&acks(stale));
        assert!(ledger.due().is_empty());
    }

    #[test]
    fn case_18_a_lost_partition_commits_nothing_and_is_announced() {
        let ledger = Ledger::new("g");
        ledger.assign(vec![place(0), place(1)]);
        receive(&ledger, 0, 0..2);
        receive(&ledger, 1, 0..1);
        let in_hand = batch(&ledger, 10);
        assert_eq!(ledger.part(&[place(0)], Duration::ZERO).in_hand, 2);
        ledger.settle(&acks(in_hand));
        assert_eq!(ledger.due(), [(place(1), 1)], "the other partition goes on");
        assert!(matches!(ledger.take(1), Supply::Lost(lanes) if *lanes == [Lane("orders/0".into())]));
    }

    #[test]
    fn case_18_a_revoked_partition_waits_for_what_is_in_hand() {
        let ledger = Arc::new(Ledger::new("g"));
        ledger.assign(vec![place(0)]);
        receive(&ledger, 0, 0..5);
        let in_hand = batch(&ledger, 3);
        let (handler, settling) = (Arc::clone(&ledger), acks(in_hand));
        let handler = std::thread::spawn(move || settling.into_iter().for_each(|ack| handler.settle(&[ack])));
        let parted = ledger.part(&[place(0)], Duration::from_secs(30));
        handler.join().unwrap();
        assert_eq!((parted.in_hand, parted.commits), (0, vec![(place(0), 3)]));
        assert!(matches!(ledger.take(1), Supply::Nothing), "what was buffered is the next owner's");
    }

    #[test]
    fn a_full_partition_pauses_and_a_low_one_goes_on() {
        let ledger = Ledger::new("g");
        ledger.set_buffer(8);
        ledger.assign(vec![place(0)]);
        receive(&ledger, 0, 0..8);
        assert_eq!(ledger.flow().pause, [place(0)]);
        assert!(ledger.flow().pause.is_empty() && ledger.has_paused());
        assert_eq!(batch(&ledger, 5).len(), 5);
        assert!(ledger.flow().resume.is_empty());
        assert_eq!(batch(&ledger, 1).len(), 1);
        assert_eq!(ledger.flow().resume, [place(0)]);
    }
}
