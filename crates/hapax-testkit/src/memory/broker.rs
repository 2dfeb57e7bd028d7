//! A broker in memory: queues, deliveries in flight, and what happens to them when a connection goes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::{Code, Envelope, Error, ErrorKind, Outgoing, Publisher};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::queue::{Demand, Offer, Queue, QueueStats};
use super::source::MemorySource;

/// A broker in memory, at least once: what is not acked comes back. Clones are the same broker.
///
/// ```
/// use hapax_core::{Envelope, Fetched, Settler as _, Source as _};
/// use hapax_testkit::memory::MemoryBroker;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let broker = MemoryBroker::new();
/// broker.publish("orders", Envelope::new("{}").with_id("payment-1"));
///
/// let mut source = broker.source("orders");
/// let Ok(Fetched::Batch(batch)) = source.next(10).await else { panic!("a delivery") };
/// let acks = batch.into_iter().map(|delivery| delivery.ack()).collect();
/// source.settler().settle(acks).await;
/// assert_eq!(broker.stats("orders").acked, 1);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    queues: BTreeMap<String, Queue>,
    away: bool,
    numbers: u64,
    tags: u64,
    sources: u64,
}

impl MemoryBroker {
    /// A broker without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a queue, if there is none of this name.
    pub fn declare(&self, queue: &str) {
        self.lock().queue(queue);
    }

    /// Puts a message into a queue, which is made if it is not there.
    pub fn publish(&self, queue: &str, envelope: Envelope) {
        self.change(|state| state.publish(queue, envelope));
    }

    /// Consumes from a queue, which is made if it is not there. Several sources share its messages.
    pub fn source(&self, queue: &str) -> MemorySource {
        let id = self.change(|state| state.attach(queue));
        MemorySource::new(self.clone(), queue, id)
    }

    /// Cuts every connection: whatever is in flight comes back redelivered, and late acks of it are stale.
    pub fn drop_connections(&self) {
        self.change(State::requeue_all);
    }

    /// Stops the broker. Sources wait, publishing fails, and what was in flight comes back redelivered.
    pub fn go_away(&self) {
        self.change(|state| {
            state.requeue_all();
            state.away = true;
        });
    }

    /// Starts the broker again, with all its messages.
    pub fn come_back(&self) {
        self.change(|state| state.away = false);
    }

    /// Gives a lane to somebody else: the sources attached now are told, lose what they have of it in flight,
    /// and get nothing of it until [`give_lane`](Self::give_lane). A source attached later owns it.
    pub fn lose_lane(&self, queue: &str, lane: &str) {
        self.change(|state| state.queue(queue).lose_lane(lane));
    }

    /// Gives a lane back to all sources.
    pub fn give_lane(&self, queue: &str, lane: &str) {
        self.change(|state| state.queue(queue).give_lane(lane));
    }

    /// What has become of a queue's messages so far; all zero for a queue that is not there.
    pub fn stats(&self, queue: &str) -> QueueStats {
        self.lock().queues.get(queue).map(Queue::stats).unwrap_or_default()
    }

    /// The messages that wait to be delivered, in order.
    pub fn ready(&self, queue: &str) -> Vec<Envelope> {
        let state = self.lock();
        state.queues.get(queue).map(Queue::ready).unwrap_or_default()
    }

    /// Waits until a queue's numbers are as wanted.
    pub async fn wait_for(&self, queue: &str, wanted: impl Fn(&QueueStats) -> bool) -> QueueStats {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let stats = self.stats(queue);
            if wanted(&stats) {
                return stats;
            }
            changed.await;
        }
    }

    /// Waits until a queue holds nothing and nothing of it is in flight.
    pub async fn drained(&self, queue: &str) -> QueueStats {
        self.wait_for(queue, |stats| stats.ready == 0 && stats.in_flight == 0).await
    }

    pub(super) fn is_away(&self) -> bool {
        self.lock().away
    }

    /// Completes when something has changed since it was enabled.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.shared.changed.notified()
    }

    pub(super) fn offer(&self, queue: &str, demand: Demand) -> Offer {
        self.lock_and_notify(|state| {
            if state.away {
                return (Offer::Nothing(None), false);
            }
            let offer = state.queues.entry(queue.to_owned()).or_default().offer(&mut state.tags, demand);
            let changed = matches!(offer, Offer::Messages(_));
            (offer, changed)
        })
    }

    pub(super) fn settle(&self, queue: &str, tag: u64, ack: bool) -> Result<(), Error> {
        self.change(|state| state.reachable()?.queue(queue).settle(tag, ack))
    }

    pub(super) fn extend(&self, queue: &str, tag: u64, by: Option<Duration>) -> Result<(), Error> {
        self.change(|state| state.reachable()?.queue(queue).extend(tag, by))
    }

    pub(super) fn holds(&self, queue: &str, tag: u64) -> bool {
        self.lock().queue(queue).holds(tag)
    }

    pub(super) fn detach(&self, queue: &str, source: u64) {
        self.change(|state| state.queue(queue).detach(source));
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.lock_and_notify(|state| (change(state), true))
    }

    fn lock_and_notify<T>(&self, change: impl FnOnce(&mut State) -> (T, bool)) -> T {
        let (value, changed) = change(&mut self.lock());
        if changed {
            self.shared.changed.notify_waiters();
        }
        value
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked in between has not left a queue half written: every change is one call.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher for MemoryBroker {
    /// Routes by destination, or by routing key if that is empty, to a queue of this name. A queue that was
    /// never [declared](MemoryBroker::declare) makes the message unroutable.
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        tokio::task::yield_now().await;
        messages.into_iter().map(|message| self.change(|state| state.route(message))).collect()
    }
}

impl State {
    fn queue(&mut self, name: &str) -> &mut Queue {
        self.queues.entry(name.to_owned()).or_default()
    }

    fn reachable(&mut self) -> Result<&mut Self, Error> {
        if self.away {
            return Err(Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, "the broker is away"));
        }
        Ok(self)
    }

    fn publish(&mut self, queue: &str, envelope: Envelope) {
        self.numbers += 1;
        let number = self.numbers;
        self.queue(queue).publish(number, envelope);
    }

    fn route(&mut self, Outgoing { envelope, destination, routing_key }: Outgoing) -> Result<(), Error> {
        let queue = if destination.is_empty() { routing_key } else { destination };
        if !self.reachable()?.queues.contains_key(&queue) {
            let context = format!("there is no queue `{queue}`");
            return Err(Error::new(ErrorKind::NotFound, Code::NotPublished, context));
        }
        self.publish(&queue, envelope);
        Ok(())
    }

    fn attach(&mut self, queue: &str) -> u64 {
        self.sources += 1;
        let source = self.sources;
        self.queue(queue).attach(source);
        source
    }

    fn requeue_all(&mut self) {
        self.queues.values_mut().for_each(Queue::requeue_all);
    }
}
