//! Without a source: a decorator around a handler that somebody else calls.

use std::future::Future;

use hapax_core::{
    Cause, ClaimRequest, Code, ConsumerName, Error, ErrorKind, Failure, Fault, Inbox, Key, Result,
    Transaction as _,
};

use crate::handler::HandlerFn;

/// An ordinary handler, without a transaction.
pub trait Handle<M>: Send + Sync {
    /// Handles a message.
    fn handle(&self, message: M) -> impl Future<Output = Result> + Send;
}

impl<M, F, Fut> Handle<M> for F
where
    M: Send,
    F: Fn(M) -> Fut + Send + Sync,
    Fut: Future<Output = Result> + Send,
{
    fn handle(&self, message: M) -> impl Future<Output = Result> + Send {
        self(message)
    }
}

/// How a wrapped handler answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran, and the message is recorded.
    Handled,
    /// The message was recorded before; the handler did not run.
    Duplicate,
}

/// The lazy idempotent consumer as a decorator: look → handle → record.
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
#[derive(Clone, Debug)]
pub struct Idempotent<H, S = ()> {
    handler: H,
    store: S,
    consumer: Option<ConsumerName>,
}

impl<H> Idempotent<H> {
    /// Wraps a handler.
    pub fn wrap(handler: H) -> Self {
        Self { handler, store: (), consumer: None }
    }

    /// Names the consumer and the store that keeps its inbox.
    pub fn with<S: Inbox>(self, consumer: impl AsRef<str>, store: S) -> Result<Idempotent<H, S>, Error> {
        let consumer = ConsumerName::new(consumer)
            .map_err(|error| Error::new(ErrorKind::Setup, Code::ConfigWrongValue, error.to_string()))?;
        Ok(Idempotent { handler: self.handler, store, consumer: Some(consumer) })
    }
}

impl<H, S: Inbox> Idempotent<H, S> {
    /// Handles a message that is not recorded, then records it: at least once. Two round trips.
    pub async fn handle<M>(&self, key: &Key, message: M) -> Result<Outcome>
    where
        H: Handle<M>,
    {
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

    async fn is_recorded(&self, key: &Key) -> Result<bool> {
        let rows = self.store.look(self.consumer(), std::slice::from_ref(&key.id)).await?;
        Ok(rows.into_iter().flatten().next().is_some())
    }

    fn consumer(&self) -> &ConsumerName {
        // `with` is the only way to a store, and it sets the name.
        self.consumer.as_ref().expect("a wrapped handler has a consumer name once it has a store")
    }
}
