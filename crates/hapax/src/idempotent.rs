//! Without a source: a decorator around a handler that somebody else calls.

use std::future::Future;
use std::time::Duration;

use hapax_core::{
    Cause, ClaimRequest, Code, ConsumerName, Error, ErrorKind, Failure, Fault, Fence, Grip, Key, Result,
    Running, Transaction as _,
};
use tracing::warn;

use crate::handler::HandlerFn;
use crate::lease::{check_lease, under_lease};

/// An ordinary handler, without a transaction.
pub trait Handle<M>: Send + Sync {
    /// Handles a message.
    fn handle(&self, message: M) -> impl Future<Output = Result> + Send;
}

impl<M, F, Fut> Handle<M> for F
where
    M: Send,
    F: FnOnce(M) -> Fut + Clone + Send + Sync,
    Fut: Future<Output = Result> + Send,
{
    fn handle(&self, message: M) -> impl Future<Output = Result> + Send {
        self.clone()(message)
    }
}

/// How a wrapped handler answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran, and the message is recorded.
    Handled,
    /// The message was recorded before; the handler did not run.
    Duplicate,
    /// Eager only: somebody else is at it; the handler did not run. Ask again.
    InProgress {
        /// Until their lease ends, if they do not renew it.
        ends_in: Duration,
    },
}

/// The idempotent consumer as a decorator around a handler, lazy by default: look → handle → record.
///
/// Without a transaction the message takes effect *at least* once: a crash between the handler and
/// the record lets it run again, and two copies at the same moment can both run. With
/// [`handle_in`](Self::handle_in) the record commits with the handler's changes, and the copy that
/// loses the race rolls back: once.
///
/// ```
/// use hapax::{Digest, Idempotent, Key, MessageId, Outcome};
/// use hapax_testkit::memory::MemoryStore;
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let send = Idempotent::wrap(async |address: String| -> hapax::Result {
///     println!("mail to {address}");
///     Ok(())
/// })
/// .with("mail", store)?;
///
/// let key = Key::new(MessageId::new("m1")?, Digest::of(b"a@b"));
/// assert_eq!(send.handle(&key, "a@b".into()).await.expect("sent"), Outcome::Handled);
/// assert_eq!(send.handle(&key, "a@b".into()).await.expect("seen"), Outcome::Duplicate);
/// # Ok(()) }
/// ```
///
/// [`eager`](Self::eager) records first: record as in progress → handle → mark done, under a lease. Of two copies at
/// the same moment one runs. If the process dies in between, the message is *not* lost with it: when the lease has
/// ended, the next copy takes it over.
#[derive(Clone, Debug)]
pub struct Idempotent<H, S = ()> {
    handler: H,
    store: S,
    consumer: Option<ConsumerName>,
    lease: Option<Duration>,
}

impl<H> Idempotent<H> {
    /// Wraps a handler.
    pub fn wrap(handler: H) -> Self {
        Self { handler, store: (), consumer: None, lease: None }
    }

    /// Records a message before it is handled, under a lease that is renewed while the handler runs. Zero is refused
    /// by [`with`](Self::with).
    #[must_use]
    pub fn eager(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Names the consumer and the store that keeps its inbox.
    pub fn with<S: Running>(self, consumer: impl AsRef<str>, store: S) -> Result<Idempotent<H, S>, Error> {
        let consumer = ConsumerName::new(consumer)
            .map_err(|error| Error::new(ErrorKind::Setup, Code::ConfigWrongValue, error.to_string()))?;
        self.lease.map_or(Ok(()), check_lease)?;
        Ok(Idempotent { handler: self.handler, store, consumer: Some(consumer), lease: self.lease })
    }
}

impl<H, S: Running> Idempotent<H, S> {
    /// Handles a message that is not recorded, then records it: at least once. Two round trips, and those that
    /// renew a lease.
    pub async fn handle<M>(&self, key: &Key, message: M) -> Result<Outcome>
    where
        H: Handle<M>,
    {
        if let Some(lease) = self.lease {
            return self.handle_eagerly(key, lease, message).await;
        }
        if self.is_recorded(key).await? {
            return Ok(Outcome::Duplicate);
        }
        self.handler.handle(message).await?;
        self.store.record(self.consumer(), key).await?;
        Ok(Outcome::Handled)
    }

    /// The same with a handler that takes a transaction: the record is its last statement, so that the
    /// message takes effect once. A lost race rolls the handler's changes back.
    pub async fn handle_in<M>(&self, key: &Key, message: M) -> Result<Outcome>
    where
        H: for<'a> HandlerFn<'a, S::Tx, M> + Clone,
    {
        if let Some(lease) = self.lease {
            return self.handle_eagerly_in(key, lease, message).await;
        }
        if self.is_recorded(key).await? {
            return Ok(Outcome::Duplicate);
        }
        let (mut tx, _) = self.store.begin_claim(&ClaimRequest::none(self.consumer())).await?;
        tx.meta().outbox.caused_by(Some(Cause::new(key.id.clone())));
        let recorded = match self.handler.clone().call(&mut tx, message).await {
            Ok(()) => self.store.record_in(&mut tx, self.consumer(), key).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        match recorded {
            Ok(true) => {
                self.store
                    .finish(tx)
                    .await
                    .map_err(|error| Failure::Retry(Fault::new(error.code(), error)))?;
                Ok(Outcome::Handled)
            }
            Ok(false) => {
                self.store.roll_back(tx).await;
                Ok(Outcome::Duplicate)
            }
            Err(failure) => {
                self.store.roll_back(tx).await;
                Err(failure)
            }
        }
    }

    async fn handle_eagerly<M>(&self, key: &Key, lease: Duration, message: M) -> Result<Outcome>
    where
        H: Handle<M>,
    {
        let fence = match self.begin(key, lease).await? {
            Begun::Ours(fence) => fence,
            Begun::Not(outcome) => return Ok(outcome),
        };
        let handled = self.under_lease(key, fence, lease, self.handler.handle(message)).await;
        if let Err(failure) = handled {
            self.give_up(key, fence).await;
            return Err(failure);
        }
        // If the lease ended and somebody else took over, theirs is the record; this effect cannot be undone.
        self.store.end_running(self.consumer(), &key.id, fence, None).await?;
        Ok(Outcome::Handled)
    }

    /// The transaction claims with the fence, so that one who comes too late after a pause finds that it has been
    /// taken over before it changes anything; and nobody takes over while it is open.
    async fn handle_eagerly_in<M>(&self, key: &Key, lease: Duration, message: M) -> Result<Outcome>
    where
        H: for<'a> HandlerFn<'a, S::Tx, M> + Clone,
    {
        let fence = match self.begin(key, lease).await? {
            Begun::Ours(fence) => fence,
            Begun::Not(outcome) => return Ok(outcome),
        };
        let keys = [Key { fence: Some(fence), ..key.clone() }];
        let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(self.consumer()) };
        let (mut tx, claims) = self.store.begin_claim(&request).await?;
        if !claims.iter().all(|claim| claim.is_ours()) {
            self.store.roll_back(tx).await;
            return Ok(Outcome::InProgress { ends_in: lease });
        }
        tx.meta().outbox.caused_by(Some(Cause::new(key.id.clone())));
        if let Err(failure) = self.handler.clone().call(&mut tx, message).await {
            self.store.roll_back(tx).await;
            self.give_up(key, fence).await;
            return Err(failure);
        }
        self.store.finish(tx).await?;
        Ok(Outcome::Handled)
    }

    async fn begin(&self, key: &Key, lease: Duration) -> Result<Begun> {
        let grip = self.store.begin_running(self.consumer(), key, lease, Duration::ZERO).await?;
        Ok(match grip {
            Grip::Ours { fence, .. } => Begun::Ours(fence),
            Grip::Running { ends_in, .. } => Begun::Not(Outcome::InProgress { ends_in }),
            Grip::Busy | Grip::Held => Begun::Not(Outcome::InProgress { ends_in: lease }),
            _ => Begun::Not(Outcome::Duplicate),
        })
    }

    async fn under_lease<W: Future>(&self, key: &Key, fence: Fence, lease: Duration, work: W) -> W::Output {
        let running = [(key.id.clone(), fence)];
        let renew = async || self.store.renew_running(self.consumer(), &running, lease).await.map(drop);
        under_lease(lease, renew, work).await
    }

    async fn give_up(&self, key: &Key, fence: Fence) {
        if let Err(error) = self.store.drop_running(self.consumer(), &key.id, fence).await {
            warn!(%error, message_id = %key.id, "a lease was not given up; it ends by itself");
        }
    }

    async fn is_recorded(&self, key: &Key) -> Result<bool> {
        let rows = self.store.look(self.consumer(), std::slice::from_ref(&key.id)).await?;
        Ok(rows.into_iter().flatten().next().is_some())
    }

    fn consumer(&self) -> &ConsumerName {
        // `with` is the only way to a store, and it sets the name.
        self.consumer.as_ref().expect("a wrapped handler has a consumer name once it has a store")
    }
}

enum Begun {
    Ours(Fence),
    Not(Outcome),
}
