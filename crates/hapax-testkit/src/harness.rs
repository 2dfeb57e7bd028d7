//! Tests of a user's own handlers: what they leave when messages come twice, in disorder, or around a
//! crash.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax::{Consumer, Summary};
use hapax_core::{Claim, ClaimRequest, Code, ConsumerStore, Envelope, Error, ErrorKind, Store};
use tokio::sync::Notify;

use crate::memory::{MemoryBroker, MemorySource};

/// The queue of the harness's own broker.
const QUEUE: &str = "harness";
/// A run has ended when nothing has moved for so long.
const SILENCE: Duration = Duration::from_millis(100);

/// Where the played process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashPoint {
    /// The handlers ran; nothing is committed.
    BeforeCommit,
    /// Everything is committed; nothing is acked.
    AfterCommit,
}

/// A store whose next commit ends the played process, once.
#[derive(Clone)]
pub struct Crashing<S> {
    store: S,
    fuse: Arc<Fuse>,
}

struct Fuse {
    point: CrashPoint,
    lit: AtomicBool,
    burnt: Notify,
}

impl<S: ConsumerStore> Store for Crashing<S> {
    type Tx = S::Tx;

    async fn begin_claim(&self, request: &ClaimRequest<'_>) -> Result<(S::Tx, Vec<Claim>), Error> {
        self.store.begin_claim(request).await
    }

    async fn finish(&self, tx: S::Tx) -> Result<(), Error> {
        if !self.fuse.lit.swap(false, Ordering::SeqCst) {
            return self.store.finish(tx).await;
        }
        match self.fuse.point {
            CrashPoint::BeforeCommit => self.store.roll_back(tx).await,
            CrashPoint::AfterCommit => self.store.finish(tx).await?,
        }
        self.fuse.burnt.notify_one();
        std::future::pending().await // the process is gone
    }

    async fn roll_back(&self, tx: S::Tx) {
        self.store.roll_back(tx).await;
    }

    async fn abort(&self, tx: S::Tx) {
        self.store.abort(tx).await;
    }

    fn kind_of(&self, error: &(dyn StdError + 'static)) -> Option<(ErrorKind, Code)> {
        self.store.kind_of(error)
    }

    async fn ping(&self) -> Result<(), Error> {
        self.store.ping().await
    }

    async fn check(&self) -> Result<(), Error> {
        self.store.check().await
    }

    fn capacity(&self) -> usize {
        self.store.capacity()
    }

    fn instance(&self) -> u64 {
        self.store.instance()
    }
}

crate::delegate_roles!(Crashing<S>, store);

/// A consumer as the harness runs it; configure it as the service does.
pub type Tested<S> = Consumer<Crashing<S>, MemorySource>;

/// Runs a user's handlers on their own store, fed by a broker in memory.
///
/// ```
/// use hapax::{Envelope, Handler, Message};
/// use hapax_testkit::harness::{Crashing, Harness};
/// use hapax_testkit::memory::{MemoryStore, MemoryTx};
///
/// async fn deposit(tx: &mut MemoryTx, amount: Message<i64>) -> hapax::Result {
///     tx.add("balance", *amount)?;
///     Ok(())
/// }
///
/// # #[tokio::main] async fn main() {
/// let store = MemoryStore::new();
/// let harness = Harness::new(store.clone(), |consumer| consumer.on("Deposit", deposit));
/// let messages = [Envelope::new("25").with_id("d1").with_type("Deposit")];
///
/// harness.assert_takes_effect_once(&messages, async || store.number("balance")).await;
/// assert_eq!(store.number("balance"), 25);
/// # }
/// ```
pub struct Harness<S, F> {
    store: S,
    configure: F,
    broker: MemoryBroker,
}

impl<S, F> Harness<S, F>
where
    S: ConsumerStore,
    F: Fn(Tested<S>) -> Tested<S>,
{
    /// A harness around the service's store; `configure` registers its handlers.
    pub fn new(store: S, configure: F) -> Self {
        Self { store, configure, broker: MemoryBroker::new() }
    }

    /// Delivers messages and waits until they are settled.
    ///
    /// # Panics
    ///
    /// If the consumer cannot run.
    pub async fn deliver(&self, messages: &[Envelope]) -> Summary {
        self.publish(messages);
        self.run(None).await.unwrap_or_default()
    }

    /// The same with every message twice, copies side by side.
    pub async fn deliver_twice(&self, messages: &[Envelope]) -> Summary {
        messages.iter().for_each(|message| self.publish(&[message.clone(), message.clone()]));
        self.run(None).await.unwrap_or_default()
    }

    /// The same in reverse order.
    pub async fn deliver_reversed(&self, messages: &[Envelope]) -> Summary {
        messages.iter().rev().for_each(|message| self.publish(std::slice::from_ref(message)));
        self.run(None).await.unwrap_or_default()
    }

    /// Delivers messages to a process that ends at this point of its first transaction; what it had in
    /// hand goes back to the broker. [`resume`](Self::resume) starts it again.
    pub async fn deliver_and_crash(&self, messages: &[Envelope], point: CrashPoint) {
        self.publish(messages);
        self.run(Some(point)).await;
        self.broker.drop_connections();
    }

    /// Runs the process that was ended once more.
    pub async fn resume(&self) -> Summary {
        self.run(None).await.unwrap_or_default()
    }

    /// Proves that these messages take effect once: through a crash before the commit, one after it, and
    /// copies in any order. `snapshot` reads what the handlers change, through a connection of its own.
    ///
    /// # Panics
    ///
    /// With the first difference; it says which mistake makes it.
    pub async fn assert_takes_effect_once<T, Snapshot>(&self, messages: &[Envelope], snapshot: Snapshot)
    where
        T: PartialEq + Debug,
        Snapshot: AsyncFn() -> T,
    {
        let before = snapshot().await;
        self.deliver_and_crash(messages, CrashPoint::BeforeCommit).await;
        assert_eq!(
            snapshot().await,
            before,
            "a rolled-back handler left something: it writes outside its transaction"
        );
        self.resume().await;
        let once = snapshot().await;
        self.deliver_and_crash(messages, CrashPoint::AfterCommit).await;
        self.resume().await;
        assert_eq!(snapshot().await, once, "a copy took effect again after a crash between commit and ack");
        self.deliver_twice(messages).await;
        self.deliver_reversed(messages).await;
        assert_eq!(
            snapshot().await,
            once,
            "a copy took effect again: something but the transaction was changed"
        );
    }

    fn publish(&self, messages: &[Envelope]) {
        messages.iter().for_each(|message| self.broker.publish(QUEUE, message.clone()));
    }

    /// Runs a consumer until it is idle, or until it is ended; then there is no summary.
    async fn run(&self, crash: Option<CrashPoint>) -> Option<Summary> {
        let fuse = Arc::new(Fuse {
            point: crash.unwrap_or(CrashPoint::BeforeCommit),
            lit: AtomicBool::new(crash.is_some()),
            burnt: Notify::new(),
        });
        let store = Crashing { store: self.store.clone(), fuse: Arc::clone(&fuse) };
        let consumer = Consumer::new("harness", store, self.broker.source(QUEUE)).expect("a plain name");
        let consumer = (self.configure)(consumer.until_idle(SILENCE));
        tokio::select! {
            summary = consumer.run() => Some(summary.expect("the consumer cannot run on this store")),
            () = fuse.burnt.notified() => None,
        }
    }
}
