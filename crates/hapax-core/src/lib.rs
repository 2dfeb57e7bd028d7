//! The vocabulary of Hapax: message, identity, claim, store and source. No driver, no runtime.
//!
//! Applications depend on [`hapax`](https://docs.rs/hapax); adapters for a database or a broker depend
//! on this crate alone. A message's way is: [`Source`] → [`Format`] (identity) → [`Store::begin_claim`]
//! → handler → [`Store::finish`] → [`Settler::settle`].

mod call;
mod claim;
mod code;
#[macro_use]
pub mod crash;
mod digest;
mod envelope;
mod error;
mod failure;
mod format;
mod identity;
mod message;
mod outbox;
mod payload;
mod pointer;
mod publication;
mod publisher;
mod retry;
mod running;
mod source;
mod store;
mod timestamp;

pub use call::{CallRecords, CallRequest, CallRow, CallState, idempotency_key};
pub use claim::{Claim, ClaimRequest, Key, Place};
pub use code::{Code, UnknownCode};
pub use digest::Digest;
pub use envelope::{
    DEAD_LETTER_HEADER, Envelope, Headers, MESSAGE_ID_HEADER, MESSAGE_TYPE_HEADER, Origin, Properties,
    SENT_AT_HEADER,
};
pub use error::{BoxError, Error, ErrorKind};
pub use failure::{Failure, Fault, OrReject, Result, Verdict};
pub use format::{Format, SentAtRule, TypeRule, Unreadable};
pub use identity::{Identity, NotAnIdentity, Part};
pub use message::{ConsumerName, Message, MessageId, NotAConsumerName, NotAnId, Prepared, RawMessage};
pub use outbox::{
    NotSent, OnFailure, Outbox, OutboxFilter, OutboxNumber, OutboxRow, OutboxState, Take, Then, Unsent,
};
pub use payload::{Body, Event, Payload};
pub use pointer::{NotAPointer, Pointer};
pub use publication::{
    BUCKETS, CAUSATION_ID_HEADER, Cause, Destination, NotPublishable, OutboxBuffer, OutboxEntry, Publication,
    Publishable, Stamp,
};
pub use publisher::{Outgoing, Publisher};
pub use retry::Retry;
pub use running::{Fence, Grip, Running};
pub use source::{Capabilities, Delivery, Fetched, Lane, Settle, Settlement, Settler, Source};
pub use store::{
    Burial, ConsumerStore, DeadFilter, DeadLetter, DeadLetters, DeadNumber, Inbox, InboxRow, InboxState,
    InstanceBeat, InstanceId, Instances, Parking, Purged, Redrive, Retention, Settled, Start, Store,
    StoreReceipt, Transaction, TxMeta, Versions, Waiting, WaitingDepth, WaitingRoom, WaitingRow,
};
pub use timestamp::{NotATimestamp, Timestamp, micros};
