//! Keeps what is in hand from being taken away, and tells the store that this instance lives.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax_core::{ConsumerName, Fence, MessageId, Place, Running, Settler, WaitingRoom};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// How long a waiting message is ours without a sign of life.
pub(crate) const WAITING_LEASE: Duration = Duration::from_secs(30);
/// How often leases of waiting messages are renewed: three times within a lease.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// Something in hand that has to be extended.
#[derive(Clone)]
enum Held<R> {
    Delivery(R),
    Waiting(Place),
    Running(MessageId, Fence),
}

/// What is in hand now. Entries remove themselves when their job is dropped.
pub(crate) struct Hands<R> {
    held: Mutex<HashMap<u64, Held<R>>>,
    next: AtomicU64,
}

/// An entry in [`Hands`].
pub(crate) struct Kept {
    hands: Arc<dyn Forget>,
    number: u64,
}

trait Forget: Send + Sync {
    fn forget(&self, number: u64);
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.hands.forget(self.number);
    }
}

impl<R: Send + Sync> Forget for Hands<R> {
    fn forget(&self, number: u64) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

impl<R: Clone + Send + Sync + 'static> Hands<R> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { held: Mutex::default(), next: AtomicU64::new(0) })
    }

    pub(crate) fn keep_delivery(self: &Arc<Self>, receipt: R) -> Kept {
        self.keep(Held::Delivery(receipt))
    }

    pub(crate) fn keep_waiting(self: &Arc<Self>, place: Place) -> Kept {
        self.keep(Held::Waiting(place))
    }

    pub(crate) fn keep_running(self: &Arc<Self>, id: MessageId, fence: Fence) -> Kept {
        self.keep(Held::Running(id, fence))
    }

    fn keep(self: &Arc<Self>, held: Held<R>) -> Kept {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(number, held);
        Kept { hands: Arc::clone(self) as Arc<dyn Forget>, number }
    }

    fn receipts(&self) -> Vec<R> {
        self.those(|held| if let Held::Delivery(receipt) = held { Some(receipt.clone()) } else { None })
    }

    fn places(&self) -> Vec<Place> {
        self.those(|held| if let Held::Waiting(place) = held { Some(*place) } else { None })
    }

    fn running(&self) -> Vec<(MessageId, Fence)> {
        self.those(|held| if let Held::Running(id, fence) = held { Some((id.clone(), *fence)) } else { None })
    }

    fn those<K>(&self, kind: impl Fn(&Held<R>) -> Option<K>) -> Vec<K> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).values().filter_map(kind).collect()
    }
}

/// Extends deliveries as often as their broker wants, until `done`.
pub(crate) async fn extend_deliveries<R, T>(
    hands: Arc<Hands<R>>,
    settler: T,
    every: Duration,
    done: CancellationToken,
) where
    R: Clone + Send + Sync + 'static,
    T: Settler<R>,
{
    while !wait(every, &done).await {
        let receipts = hands.receipts();
        if receipts.is_empty() {
            continue;
        }
        for error in settler.extend(receipts).await.into_iter().filter_map(Result::err) {
            debug!(%error, "a delivery could not be extended");
        }
    }
}

/// Renews the leases of waiting messages, until `done`.
pub(crate) async fn renew_waiting<R, S>(
    hands: Arc<Hands<R>>,
    store: S,
    consumer: ConsumerName,
    done: CancellationToken,
) where
    R: Clone + Send + Sync + 'static,
    S: WaitingRoom,
{
    while !wait(RENEW_EVERY, &done).await {
        let places = hands.places();
        if places.is_empty() {
            continue;
        }
        if let Err(error) = store.renew(&consumer, &places, WAITING_LEASE).await {
            warn!(%error, "leases of waiting messages could not be renewed");
        }
    }
}

/// Renews the leases of messages in progress, three times within a lease, until `done`.
pub(crate) async fn renew_running<R, S>(
    hands: Arc<Hands<R>>,
    store: S,
    consumer: ConsumerName,
    lease: Duration,
    done: CancellationToken,
) where
    R: Clone + Send + Sync + 'static,
    S: Running,
{
    while !wait(lease / 3, &done).await {
        let running = hands.running();
        if running.is_empty() {
            continue;
        }
        if let Err(error) = store.renew_running(&consumer, &running, lease).await {
            warn!(%error, "leases of messages in progress could not be renewed");
        }
    }
}

/// Waits a period; true when it is over for good.
pub(crate) async fn wait(period: Duration, done: &CancellationToken) -> bool {
    tokio::select! {
        () = done.cancelled() => true,
        () = tokio::time::sleep(period) => false,
    }
}
