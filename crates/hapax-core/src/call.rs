//! Calls to the outside, on record: what was asked, under which key, and what came back.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::publication::hashed;
use crate::{ConsumerName, Error, Fence, MessageId, Store, Timestamp};

type Result<T, E = Error> = std::result::Result<T, E>;

/// A call that is about to be made while a message is handled.
#[derive(Clone, Copy, Debug)]
pub struct CallRequest<'c> {
    /// In whose name.
    pub consumer: &'c ConsumerName,
    /// The message.
    pub id: &'c MessageId,
    /// Which of the message's calls.
    pub label: &'c str,
    /// What is asked, exactly.
    pub request: &'c [u8],
    /// How long it is ours without a sign of life.
    pub lease: Duration,
    /// How long from now the other side knows the key; counted when the call is first made.
    pub key_valid_for: Duration,
}

impl CallRequest<'_> {
    /// The key that goes with this call however often it is made: what the other side tells copies by. See
    /// [`idempotency_key`].
    pub fn idempotency_key(&self) -> String {
        idempotency_key(self.consumer, self.id, self.label)
    }
}

/// A key for a call to the outside that is made while a message is handled: a hash of consumer, message and label, in
/// the form of a UUID. It is the same for every delivery and attempt, and after every restart.
pub fn idempotency_key(consumer: &ConsumerName, id: &MessageId, label: &str) -> String {
    hashed(&["call", consumer.as_str(), id.as_str(), label]).to_string()
}

/// What a store knows of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallState {
    /// Recorded as in progress, and ours to make.
    Ours {
        /// What it is renewed and ended with.
        fence: Fence,
        /// It was begun before and has no result: the other side may know of it.
        begun_before: bool,
        /// What the other side tells copies of it by: the key it was first begun with, also if the consumer has
        /// been renamed since.
        key: String,
    },
    /// It was made, with this result.
    Finished(Bytes),
    /// Somebody else is making it.
    Running {
        /// Until their lease ends, if they do not renew it.
        ends_in: Duration,
    },
    /// It was begun, has no result, and its key may mean nothing to the other side any more.
    Expired,
    /// Under this label another request is on record.
    OtherRequest,
}

/// A call as an operator reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRow {
    /// Which of the message's calls.
    pub label: String,
    /// The key under which it is made, each time.
    pub key: String,
    /// What was asked, exactly.
    pub request: Bytes,
    /// What came back; none while it is unknown.
    pub result: Option<Bytes>,
    /// When it was first made.
    pub started_at: Timestamp,
    /// When its result was recorded.
    pub finished_at: Option<Timestamp>,
    /// While it has no result: until when somebody is at it.
    pub lease_until: Option<Timestamp>,
    /// Until when it may be repeated under the same key.
    pub key_valid_until: Timestamp,
}

/// The record of calls. Each operation is a transaction of its own on the reserved connections, one round trip
/// where nothing else is said.
pub trait CallRecords: Store {
    /// Records a call as in progress, or says what is known of it. Two round trips if it is on record already.
    fn begin_call(&self, call: &CallRequest<'_>) -> impl Future<Output = Result<CallState>> + Send;

    /// Sets the end of the lease anew, and says whether the call is still ours.
    fn renew_call(&self, call: &CallRequest<'_>, fence: Fence) -> impl Future<Output = Result<bool>> + Send;

    /// Records the result, and says whether the call was still ours; if it was not, nothing is changed.
    fn end_call(
        &self,
        call: &CallRequest<'_>,
        fence: Fence,
        result: &[u8],
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Ends the lease at once, without a result: the next attempt makes the call again, under the same key.
    fn release_call(&self, call: &CallRequest<'_>, fence: Fence) -> impl Future<Output = Result<()>> + Send;

    /// The calls of a message, in the order in which they were first made.
    fn calls(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
    ) -> impl Future<Output = Result<Vec<CallRow>>> + Send;
}
