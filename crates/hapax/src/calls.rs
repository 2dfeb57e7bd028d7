//! Calls to the outside, which cannot join a transaction.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use hapax_core::{
    BoxError, CallRecords, CallRequest, CallState, Code, ConsumerName, Error, ErrorKind, Failure, Fault,
    Fence, Message, MessageId, Result, crash_point, idempotency_key,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::lease::{check_lease, under_lease};

/// How long a call is ours without a sign of life, unless told otherwise.
const LEASE: Duration = Duration::from_secs(30);
/// How long the other side knows a key, unless told otherwise.
const KEY_VALID_FOR: Duration = Duration::from_hours(24);
/// The longest that a message waits before it asks again about a call that somebody else is making.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Records what is asked of the outside and what came back, so that a message that comes again gets the recorded
/// answer instead of another call.
///
/// Made for [`Consumer::prepare`](crate::Consumer::prepare), which runs before the transaction begins. No library can
/// make a call happen once by itself: a process may die between the call and the record of its answer. The call is
/// then made *again under the same key*, and the other side tells the copy by it.
///
/// ```
/// use hapax::{Calls, Consumer, Message};
/// use hapax_testkit::memory::{MemoryBroker, MemoryStore, MemoryTx};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Deserialize)]
/// struct OrderPlaced { card: String, amount: String }
/// #[derive(Serialize)]
/// struct Charge { card: String, amount: String }
/// #[derive(Serialize, Deserialize)]
/// struct Charged { receipt: String }
/// # async fn charge_card(_: &Charge, key: &str) -> Result<Charged, std::io::Error> { Ok(Charged { receipt: key.into() }) }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
/// let calls = Calls::new("orders", store.clone())?;
/// let charge = async move |order: Message<OrderPlaced>| {
///     let request = Charge { card: order.card.clone(), amount: order.amount.clone() };
///     let calls = calls.of(&order);
///     calls.run("charge", &request, async |key| Ok(charge_card(&request, key.as_str()).await?)).await
/// };
/// let book = async |tx: &mut MemoryTx, order: Message<OrderPlaced>| -> hapax::Result {
///     let charged: &Charged = order.prepared().ok_or("not charged")?;
///     tx.put("receipt", charged.receipt.clone())?;
///     Ok(())
/// };
/// let consumer = Consumer::new("orders", store.clone(), broker.source("orders"))?
///     .prepare("OrderPlaced", charge)
///     .on("OrderPlaced", book);
/// # broker.publish("orders", hapax::Envelope::new(r#"{"card":"c","amount":"25.00"}"#).with_id("m1").with_type("OrderPlaced"));
/// # consumer.until_idle(std::time::Duration::from_millis(50)).run().await?;
/// # assert!(store.get("receipt").is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Calls<S> {
    store: S,
    consumer: ConsumerName,
    lease: Duration,
    key_valid_for: Duration,
}

impl<S: CallRecords> Calls<S> {
    /// Calls in a consumer's name, on record in a store: the one that holds its inbox, since a call is forgotten
    /// together with its message.
    pub fn new(consumer: impl AsRef<str>, store: S) -> Result<Self, Error> {
        let consumer = ConsumerName::new(consumer)
            .map_err(|error| Error::new(ErrorKind::Setup, Code::ConfigWrongValue, error.to_string()))?;
        Ok(Self { store, consumer, lease: LEASE, key_valid_for: KEY_VALID_FOR })
    }

    /// How long a call is ours without a sign of life; it is renewed while the call takes. After that another
    /// process may make it again. Default 30 s; zero is refused.
    pub fn lease(mut self, lease: Duration) -> Result<Self, Error> {
        check_lease(lease)?;
        self.lease = lease;
        Ok(self)
    }

    /// How long the other side knows a key, from the first time on that it is sent. A call whose end is unknown is
    /// not repeated after that: its message is set aside ([`Code::CallUnknown`]). Default 24 h.
    #[must_use]
    pub fn key_valid_for(mut self, limit: Duration) -> Self {
        self.key_valid_for = limit;
        self
    }

    /// The calls of a message.
    pub fn of<T>(&self, message: &Message<T>) -> MessageCalls<'_, S> {
        self.of_id(message.id())
    }

    /// The calls of a message by its id, outside a consumer.
    pub fn of_id(&self, id: &MessageId) -> MessageCalls<'_, S> {
        MessageCalls { calls: self, id: id.clone() }
    }
}

/// The calls that are made while one message is handled.
#[derive(Clone, Debug)]
pub struct MessageCalls<'c, S> {
    calls: &'c Calls<S>,
    id: MessageId,
}

/// What the other side tells copies of a call by: sent along as `Idempotency-Key` or the like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Its text, 36 characters in the form of a UUID.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<S: CallRecords> MessageCalls<'_, S> {
    /// The key of a call. It depends on consumer, message and label alone, and so is the same for every delivery,
    /// attempt and restart. (A consumer that is renamed has other keys; [`run`](Self::run) keeps to the one that a call
    /// was first made with.) Enough by itself where the other side keeps its answers for as long as copies may come.
    pub fn idempotency_key(&self, label: &str) -> IdempotencyKey {
        IdempotencyKey(idempotency_key(&self.calls.consumer, &self.id, label))
    }

    /// Makes a call that has not been made, and answers with what came back then or now. Two round trips to the
    /// store for a call that is made, at most two for one that was.
    ///
    /// The request, as JSON, is recorded before the call, the answer after it. A call that fails with
    /// [`Failure::Retry`] or [`Failure::Defer`] is made again under the same key when the message comes again, and
    /// so is one whose process died. `label` tells the calls of one message from each other.
    ///
    /// [`Failure::Reject`]: under this label another request is on record ([`Code::CallDiffers`]), or the call
    /// may have happened and its key may not be known any more ([`Code::CallUnknown`]).
    /// [`Failure::Defer`]: another process is making this call.
    pub async fn run<Q, A, F, C>(&self, label: &str, request: &Q, call: F) -> Result<A>
    where
        Q: Serialize + ?Sized,
        A: Serialize + DeserializeOwned,
        F: FnOnce(IdempotencyKey) -> C,
        C: Future<Output = Result<A>>,
    {
        let body = serde_json::to_vec(request).map_err(Failure::reject)?;
        let recorded = CallRequest {
            consumer: &self.calls.consumer,
            id: &self.id,
            label,
            request: &body,
            lease: self.calls.lease,
            key_valid_for: self.calls.key_valid_for,
        };
        let (fence, key) = match self.begin(&recorded).await? {
            Begun::Ours(fence, key) => (fence, IdempotencyKey(key)),
            Begun::Answered(answer) => return read(&answer),
        };
        crash_point!("call-begun");
        let renew = async || self.calls.store.renew_call(&recorded, fence).await.map(drop);
        let called = under_lease(self.calls.lease, renew, call(key)).await;
        crash_point!("call-made");
        let answer = match called {
            Ok(answer) => answer,
            Err(failure) => {
                self.release(&recorded, fence).await;
                return Err(failure);
            }
        };
        let result = serde_json::to_vec(&answer).map_err(Failure::reject)?;
        let ours = self.calls.store.end_call(&recorded, fence, &result).await?;
        crash_point!("call-recorded");
        if ours { Ok(answer) } else { self.answer_of_another(&recorded).await }
    }

    async fn begin(&self, call: &CallRequest<'_>) -> Result<Begun> {
        match self.calls.store.begin_call(call).await? {
            CallState::Ours { fence, begun_before, key } => {
                if begun_before {
                    warn!(consumer = %call.consumer, message_id = %call.id, label = call.label,
                        "a call whose end is unknown is made again under its key");
                }
                Ok(Begun::Ours(fence, key))
            }
            CallState::Finished(answer) => Ok(Begun::Answered(answer.to_vec())),
            CallState::OtherRequest => Err(differs(call)),
            CallState::Expired => Err(unknown(call)),
            CallState::Running { ends_in } => Err(Failure::Defer(ends_in.min(ASK_AGAIN))),
            _ => Err(Failure::Defer(ASK_AGAIN)),
        }
    }

    /// The attempt failed: the next one need not wait until the lease ends.
    async fn release(&self, call: &CallRequest<'_>, fence: Fence) {
        if let Err(error) = self.calls.store.release_call(call, fence).await {
            warn!(%error, label = call.label, "a call's lease was not given up; it ends by itself");
        }
    }

    /// Ours took longer than its lease, and another process has made the call again: what it recorded stands.
    async fn answer_of_another<A: DeserializeOwned>(&self, call: &CallRequest<'_>) -> Result<A> {
        match self.begin(call).await? {
            Begun::Answered(answer) => read(&answer),
            Begun::Ours(fence, _) => {
                self.release(call, fence).await;
                Err(Failure::Defer(Duration::ZERO))
            }
        }
    }
}

enum Begun {
    Ours(Fence, String),
    Answered(Vec<u8>),
}

fn read<A: DeserializeOwned>(answer: &[u8]) -> Result<A> {
    serde_json::from_slice(answer).map_err(|error| {
        let text = format!("the recorded answer is not of the type that is asked for: {error}");
        Failure::Reject(Fault::new(Code::CallDiffers, BoxError::from(text)))
    })
}

fn differs(call: &CallRequest<'_>) -> Failure {
    let text = format!("another request is on record as the call `{}` of message `{}`", call.label, call.id);
    Failure::Reject(Fault::new(Code::CallDiffers, text))
}

fn unknown(call: &CallRequest<'_>) -> Failure {
    let text = format!(
        "the call `{}` was made and never answered, and its key {} is older than the other side keeps keys",
        call.label,
        call.idempotency_key()
    );
    Failure::Reject(Fault::new(Code::CallUnknown, text))
}
