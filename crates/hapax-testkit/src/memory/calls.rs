//! The record of calls.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::{CallRecords, CallRequest, CallRow, CallState, ConsumerName, Error, Fence, MessageId};

use super::database::{Database, Scoped};
use super::faults::Op;
use super::running::Since as _;
use super::store::MemoryStore;

/// A call's row.
#[derive(Clone, Debug)]
pub(super) struct CallEntry {
    fence: i64,
    row: CallRow,
}

type CallKey = Scoped<(MessageId, String)>;

impl CallRecords for MemoryStore {
    async fn begin_call(&self, call: &CallRequest<'_>) -> Result<CallState, Error> {
        self.call(Op::Call, |database| Ok(database.begin_call(call))).await
    }

    async fn renew_call(&self, call: &CallRequest<'_>, fence: Fence) -> Result<bool, Error> {
        self.set_lease(call, fence, call.lease).await
    }

    async fn end_call(&self, call: &CallRequest<'_>, fence: Fence, result: &[u8]) -> Result<bool, Error> {
        self.call(Op::Call, |database| {
            let now = database.now();
            let ended = database.call_of(call, fence).map(|row| {
                row.result = Some(Bytes::copy_from_slice(result));
                (row.finished_at, row.lease_until) = (Some(now), None);
            });
            Ok(ended.is_some())
        })
        .await
    }

    async fn release_call(&self, call: &CallRequest<'_>, fence: Fence) -> Result<(), Error> {
        self.set_lease(call, fence, Duration::ZERO).await.map(drop)
    }

    async fn calls(&self, consumer: &ConsumerName, id: &MessageId) -> Result<Vec<CallRow>, Error> {
        self.call(Op::Call, |database| {
            let of_message =
                |((name, (message, _)), _): &(&CallKey, &CallEntry)| name == consumer && message == id;
            let mut rows: Vec<CallRow> =
                database.calls.iter().filter(of_message).map(|(_, entry)| entry.row.clone()).collect();
            rows.sort_by_key(|row| row.started_at);
            Ok(rows)
        })
        .await
    }
}

impl MemoryStore {
    async fn set_lease(&self, call: &CallRequest<'_>, fence: Fence, lease: Duration) -> Result<bool, Error> {
        self.call(Op::Call, |database| {
            let until = database.now().plus(lease);
            let row = database.call_of(call, fence);
            Ok(row.map(|row| row.lease_until = Some(until)).is_some())
        })
        .await
    }
}

impl Database {
    fn begin_call(&mut self, call: &CallRequest<'_>) -> CallState {
        let now = self.now();
        let Some(entry) = self.calls.get_mut(&call_key(call)) else {
            self.calls.insert(call_key(call), self.new_call(call));
            return CallState::Ours { fence: Fence(0), begun_before: false, key: call.idempotency_key() };
        };
        let CallEntry { fence, row } = entry;
        if row.request != call.request {
            return CallState::OtherRequest;
        }
        if let Some(result) = &row.result {
            return CallState::Finished(result.clone());
        }
        match row.lease_until {
            Some(until) if now < until => CallState::Running { ends_in: until.since(now) },
            _ if row.key_valid_until <= now => CallState::Expired,
            _ => {
                *fence += 1;
                row.lease_until = Some(now.plus(call.lease));
                CallState::Ours { fence: Fence(*fence), begun_before: true, key: row.key.clone() }
            }
        }
    }

    fn new_call(&self, call: &CallRequest<'_>) -> CallEntry {
        let now = self.now();
        let row = CallRow {
            label: call.label.to_owned(),
            key: call.idempotency_key(),
            request: Bytes::copy_from_slice(call.request),
            result: None,
            started_at: now,
            finished_at: None,
            lease_until: Some(now.plus(call.lease)),
            key_valid_until: now.plus(call.key_valid_for),
        };
        CallEntry { fence: 0, row }
    }

    /// The row of a call that is in progress under this fence.
    fn call_of(&mut self, call: &CallRequest<'_>, fence: Fence) -> Option<&mut CallRow> {
        let entry = self.calls.get_mut(&call_key(call))?;
        (entry.fence == fence.0 && entry.row.result.is_none()).then_some(&mut entry.row)
    }

    /// Forgets the calls of a message whose record is purged.
    pub(super) fn forget_calls(&mut self, consumer: &ConsumerName, id: &MessageId) {
        self.calls.retain(|(name, (message, _)), _| name != consumer || message != id);
    }
}

fn call_key(call: &CallRequest<'_>) -> CallKey {
    (call.consumer.clone(), (call.id.clone(), call.label.to_owned()))
}
