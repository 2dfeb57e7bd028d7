//! The embedded queue: a source and publisher in the store's own database.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{
    Capabilities, Code, Delivery, Envelope, Error, ErrorKind, Fetched, Outgoing, Publisher, Settle,
    Settlement, Settler, Source, Store, StoreReceipt, micros,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::dialect::{Dialect, int, text};
use crate::error::{Result, failed, unreadable};
use crate::store::SqlStore;
use crate::value::{Value, values};

/// How long a delivery is in hand before somebody else may have it, unless it is extended.
const LEASE: Duration = Duration::from_secs(30);
/// How often it is extended.
const EXTEND: Duration = Duration::from_secs(10);
/// How long to wait for the database after a failed fetch: at first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A row of the embedded queue in hand: its number, and the fence that tells its lease from later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueReceipt {
    number: i64,
    fence: i64,
}

impl<D: Dialect> SqlStore<D> {
    /// A queue of this store by name, as a [`Source`]. A queue exists as long as there are messages in it.
    pub fn queue(&self, name: impl Into<String>) -> Queue<D> {
        let poll = (Duration::from_millis(200), Duration::from_secs(1));
        Queue {
            settler: QueueSettler { store: self.clone(), lease: LEASE },
            name: name.into(),
            poll,
            pause: poll.0,
            not_before: None,
            sent: self.inner.sent.subscribe(),
            ready: VecDeque::new(),
            fetching: None,
            is_connected: true,
        }
    }

    /// Puts messages into a queue, all or none, and wakes those who wait for it in this process.
    pub async fn send(&self, queue: &str, messages: &[Envelope]) -> Result<()> {
        self.send_each(messages.iter().map(|message| (queue, message))).await
    }

    /// Puts each message into its queue, all or none.
    pub(crate) async fn send_each<'m, Q: AsRef<str>>(
        &self,
        messages: impl Iterator<Item = (Q, &'m Envelope)>,
    ) -> Result<()> {
        let mut held = self.connections().side_transaction().await?;
        for (queue, message) in messages {
            self.send_in(held.conn(), queue.as_ref(), message).await?;
        }
        held.commit().await?;
        self.inner.sent.send_replace(());
        Ok(())
    }

    /// Puts a message into a queue inside a transaction that is open on `conn`, a handler's or the
    /// user's own. Consumers see it at their next poll. One round trip.
    pub async fn send_in(&self, conn: &mut D::Connection, queue: &str, message: &Envelope) -> Result<()> {
        let bound = values![queue, message.label(), &message.body];
        let sent = D::execute(conn, &self.sql().send, bound).await;
        sent.map(drop).map_err(failed::<D>("cannot put a message into the queue"))
    }

    async fn lease_queued(&self, queue: String, max: usize, lease: Duration) -> Result<Vec<Queued>> {
        let cannot = failed::<D>("cannot fetch from the queue");
        if D::ONE_WRITER && !self.any(&self.sql().queue_peek, &queue).await? {
            return Ok(Vec::new()); // without queueing up behind those who write
        }
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let mut held = self.connections().side_writer().await?;
        let answer = held.fetch(&self.sql().queue_lease, values![queue, max, micros(lease)]).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        let mut queued = rows.iter().map(Queued::read::<D>).collect::<Result<Vec<_>, _>>().map_err(cannot)?;
        queued.sort_by_key(|queued| queued.receipt.number);
        Ok(queued)
    }
}

/// A leased row.
struct Queued {
    receipt: QueueReceipt,
    label: String,
    body: Vec<u8>,
}

impl Queued {
    fn read<D: Dialect>(row: &D::Row) -> Result<Self, sqlx::Error> {
        let receipt = QueueReceipt { number: int::<D>(row, 0)?, fence: int::<D>(row, 1)? };
        Ok(Self { receipt, label: text::<D>(row, 2)?, body: D::bytes(row, 3)? })
    }

    fn delivery(self, queue: &str, store: u64) -> Result<Delivery<QueueReceipt>> {
        let QueueReceipt { number, fence } = self.receipt;
        let mut envelope = Envelope::from_label(&self.label, Bytes::from(self.body))
            .map_err(unreadable("a queued message's label"))?;
        envelope.origin.source = format!("queue:{queue}");
        envelope.origin.position = Some(number.to_string());
        let mut delivery = Delivery::new(envelope, self.receipt);
        delivery.redelivered = fence > 1;
        delivery.in_store = Some(StoreReceipt { store, number, fence });
        Ok(delivery)
    }
}

/// A queue in the store's own database.
///
/// A handler's transaction on the same store deletes the row with the effect, so that an ack costs
/// nothing. Messages come in the order of their numbers; what is handed back or whose lease ended
/// comes again before later ones.
pub struct Queue<D: Dialect> {
    settler: QueueSettler<D>,
    name: String,
    poll: (Duration, Duration),
    /// How long to wait after the next empty fetch.
    pause: Duration,
    /// A pause that is not over. Kept here, so that a cancelled `next` does not begin it anew.
    not_before: Option<Instant>,
    sent: watch::Receiver<()>,
    /// Leased for a `next` that was cancelled.
    ready: VecDeque<Queued>,
    /// A fetch under way. A task, so that a cancelled `next` loses nothing.
    fetching: Option<JoinHandle<Result<Vec<Queued>>>>,
    is_connected: bool,
}

impl<D: Dialect> Queue<D> {
    /// How often to look for messages that somebody else sent: when there were some lately, and at least.
    /// Default: 200 ms and 1 s.
    #[must_use]
    pub fn poll_every(mut self, busy: Duration, idle: Duration) -> Self {
        self.poll = (busy, idle.max(busy));
        self.pause = busy;
        self
    }

    /// How long a delivery stays in hand without being extended. Default: 30 s; extended every third of it.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settler.lease = lease;
        self
    }

    /// Puts messages into it, all or none.
    pub async fn send(&self, messages: &[Envelope]) -> Result<()> {
        self.settler.store.send(&self.name, messages).await
    }

    /// How many messages lie in it, those in somebody's hands included. One round trip.
    pub async fn depth(&self) -> Result<u64> {
        let (store, cannot) = (&self.settler.store, failed::<D>("cannot count the queue"));
        let mut held = store.connections().side().await?;
        let answer = held.fetch(&store.sql().queue_depth, values![self.name.as_str()]).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        rows.first().map_or(Ok(0), |row| int::<D>(row, 0)).map(i64::unsigned_abs).map_err(cannot)
    }

    fn hand_over(&mut self, max: usize) -> Result<Fetched<QueueReceipt>> {
        let store = self.settler.store.instance();
        let count = self.ready.len().min(max.max(1));
        let batch = self.ready.drain(..count).map(|queued| queued.delivery(&self.name, store));
        batch.collect::<Result<_>>().map(Fetched::Batch)
    }

    /// Waits out the pause, or for something to be sent.
    async fn rest(&mut self) {
        let Some(until) = self.not_before else { return };
        let woken = async {
            if self.sent.changed().await.is_err() {
                std::future::pending::<()>().await; // the store outlives its queues
            }
        };
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = woken, if self.is_connected => {}
        }
        self.not_before = None;
    }

    async fn fetch(&mut self, max: usize) -> Result<Vec<Queued>> {
        let settler = &self.settler;
        let fetching = self.fetching.get_or_insert_with(|| {
            let (store, queue, lease) = (settler.store.clone(), self.name.clone(), settler.lease);
            self.sent.mark_unchanged(); // what is sent from here on wakes the next pause
            tokio::spawn(async move { store.lease_queued(queue, max.max(1), lease).await })
        });
        let fetched = fetching.await;
        self.fetching = None;
        fetched.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Unavailable, Code::StoreUnavailable, "a fetch was stopped")
                .because(error))
        })
    }

    /// Takes in what a fetch brought, and decides how long to wait where it brought nothing.
    fn take_in(&mut self, fetched: Result<Vec<Queued>>) -> Result<()> {
        match fetched {
            Ok(queued) if queued.is_empty() => {
                self.come_back();
                self.not_before = Some(Instant::now() + self.pause);
                self.pause = (self.pause * 2).min(self.poll.1);
            }
            Ok(queued) => {
                self.come_back();
                self.pause = self.poll.0;
                self.ready.extend(queued);
            }
            Err(error) if error.kind() == ErrorKind::Setup => return Err(error),
            Err(error) => self.back_off(&error),
        }
        Ok(())
    }

    fn come_back(&mut self) {
        if !self.is_connected {
            tracing::debug!(queue = %self.name, "the store answers again");
            self.is_connected = true;
            self.pause = self.poll.0;
        }
    }

    fn back_off(&mut self, error: &Error) {
        if self.is_connected {
            tracing::debug!(queue = %self.name, %error, "the store does not answer");
            self.is_connected = false;
            self.pause = BACK_OFF.0;
        }
        self.not_before = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(BACK_OFF.1);
    }
}

impl<D: Dialect> Source for Queue<D> {
    type Receipt = QueueReceipt;
    type Settler = QueueSettler<D>;

    fn capabilities(&self) -> Capabilities {
        let every = if self.settler.lease == LEASE { EXTEND } else { self.settler.lease / 3 };
        Capabilities::none().knowing_redelivered().ordered().extending_every(every)
    }

    fn settler(&self) -> Self::Settler {
        self.settler.clone()
    }

    fn name(&self) -> String {
        format!("queue:{}", self.name)
    }

    async fn next(&mut self, max: usize) -> Result<Fetched<QueueReceipt>> {
        loop {
            if !self.ready.is_empty() {
                return self.hand_over(max);
            }
            if self.fetching.is_none() {
                self.rest().await;
            }
            let fetched = self.fetch(max).await;
            self.take_in(fetched)?;
        }
    }

    fn is_connected(&self) -> bool {
        self.is_connected
    }

    async fn close(&mut self) {
        let (fetching, ready) = (self.fetching.take(), std::mem::take(&mut self.ready));
        hand_back_rest(self.settler.clone(), fetching, ready).await;
    }
}

/// Hands back what was leased and never handed over. If it fails, the leases end by themselves.
async fn hand_back_rest<D: Dialect>(
    settler: QueueSettler<D>,
    fetching: Option<JoinHandle<Result<Vec<Queued>>>>,
    mut ready: VecDeque<Queued>,
) {
    if let Some(fetching) = fetching
        && let Ok(Ok(queued)) = fetching.await
    {
        ready.extend(queued);
    }
    let receipts: Vec<_> = ready.into_iter().map(|queued| queued.receipt).collect();
    let _ = settler.settle_as(Settle::HandBack, &receipts).await;
}

impl<D: Dialect> Drop for Queue<D> {
    /// Hands back what was fetched for a `next` that was cancelled, where there is still a runtime to do it.
    fn drop(&mut self) {
        let (fetching, ready) = (self.fetching.take(), std::mem::take(&mut self.ready));
        if fetching.is_none() && ready.is_empty() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(hand_back_rest(self.settler.clone(), fetching, ready));
        }
    }
}

impl<D: Dialect> fmt::Debug for Queue<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The half of a [`Queue`] that settles and extends.
pub struct QueueSettler<D: Dialect> {
    store: SqlStore<D>,
    lease: Duration,
}

impl<D: Dialect> QueueSettler<D> {
    /// Changes the rows that are still ours and answers with their numbers.
    async fn change(&self, sql: &D::Sql, receipts: &[QueueReceipt]) -> Result<HashSet<i64>, Error> {
        self.change_with(sql, receipts, None).await
    }

    async fn change_with(
        &self,
        sql: &D::Sql,
        receipts: &[QueueReceipt],
        lease: Option<Duration>,
    ) -> Result<HashSet<i64>, Error> {
        let cannot = failed::<D>("cannot settle deliveries of the queue");
        let fences = receipts.iter().map(|QueueReceipt { number, fence }| format!("{number}:{fence}"));
        let mut bound = values![
            receipts.iter().map(|receipt| receipt.number).collect::<Value>(),
            fences.collect::<Value>(),
        ];
        bound.extend(lease.map(|lease| micros(lease).into()));
        let mut held = self.store.connections().side_writer().await?;
        let answer = held.fetch(sql, bound).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        rows.iter().map(|row| int::<D>(row, 0)).collect::<Result<_, _>>().map_err(cannot)
    }

    /// One round trip for all settlements of a verdict.
    async fn settle_as(&self, verdict: Settle, receipts: &[QueueReceipt]) -> Result<HashSet<i64>, Error> {
        match verdict {
            _ if receipts.is_empty() => Ok(HashSet::new()),
            Settle::Ack => self.change(&self.store.sql().queue_ack, receipts).await,
            Settle::HandBack => {
                let changed = self.change(&self.store.sql().queue_hand_back, receipts).await;
                self.store.inner.sent.send_replace(()); // it is to be had again, now
                changed
            }
            _ => Ok(HashSet::new()),
        }
    }
}

impl<D: Dialect> Settler<QueueReceipt> for QueueSettler<D> {
    async fn settle(&self, settlements: Vec<Settlement<QueueReceipt>>) -> Vec<Result<(), Error>> {
        let of = |verdict| {
            let these = settlements.iter().filter(move |settlement| settlement.verdict == verdict);
            these.map(|settlement| settlement.receipt).collect::<Vec<_>>()
        };
        let acked = self.settle_as(Settle::Ack, &of(Settle::Ack)).await;
        let handed_back = self.settle_as(Settle::HandBack, &of(Settle::HandBack)).await;
        let result = |settlement: &Settlement<QueueReceipt>| match settlement.verdict {
            Settle::Ack => entry(&acked, settlement.receipt),
            Settle::HandBack => entry(&handed_back, settlement.receipt),
            _ => Ok(()),
        };
        settlements.iter().map(result).collect()
    }

    async fn extend(&self, receipts: Vec<QueueReceipt>) -> Vec<Result<(), Error>> {
        let sql = &self.store.sql().queue_extend;
        let extended = self.change_with(sql, &receipts, Some(self.lease)).await;
        receipts.iter().map(|receipt| entry(&extended, *receipt)).collect()
    }
}

/// One delivery's part in the answer for all.
fn entry(changed: &Result<HashSet<i64>, Error>, receipt: QueueReceipt) -> Result<(), Error> {
    match changed {
        Ok(changed) if changed.contains(&receipt.number) => Ok(()),
        Ok(_) => {
            let context = "the delivery's lease had ended and somebody else has it";
            Err(Error::new(ErrorKind::NotFound, Code::NotFound, context))
        }
        Err(error) => Err(Error::new(error.kind(), error.code(), error.to_string())),
    }
}

impl<D: Dialect> Clone for QueueSettler<D> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), lease: self.lease }
    }
}

impl<D: Dialect> fmt::Debug for QueueSettler<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueSettler").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Publishes to the queues of this store: the routing key names the queue.
impl<D: Dialect> Publisher for SqlStore<D> {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        let mut results = Vec::with_capacity(messages.len());
        // Neighbours that go to one queue share a transaction.
        for group in messages.chunk_by(|one, next| one.routing_key == next.routing_key) {
            let envelopes: Vec<_> = group.iter().map(|message| message.envelope.clone()).collect();
            let sent = self.send(&group[0].routing_key, &envelopes).await;
            results.extend(group.iter().map(|_| match &sent {
                Ok(()) => Ok(()),
                Err(error) => Err(Error::new(error.kind(), Code::NotPublished, error.to_string())),
            }));
        }
        results
    }
}
