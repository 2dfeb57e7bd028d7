//! The record of calls to the outside.

use std::time::Duration;

use futures::TryStreamExt as _;
use hapax_core::{CallRecords, CallRequest, CallRow, CallState, ConsumerName, Fence, MessageId, Timestamp};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};
use mongodb::options::ReturnDocument;

use crate::document::{after, binary, bytes, int, maybe_bytes, maybe_int, now, text};
use crate::error::{Answer, Result, answered, failed, is_rival, spoilt};
use crate::inbox::Attempts;
use crate::store::MongoStore;

impl CallRecords for MongoStore {
    /// One round trip.
    async fn begin_call(&self, call: &CallRequest<'_>) -> Result<CallState> {
        let cannot = failed("cannot record a call");
        let _turn = self.sessions().side_turn().await?;
        let mut attempts = Attempts::default();
        loop {
            match answered(self.sessions().limit(), self.try_call(call)).await {
                Ok(state) => return state,
                // Somebody has just made the same record.
                Err(error) if is_rival(&error) && attempts.again().await => {}
                Err(error) => return Err(cannot(error)),
            }
        }
    }

    async fn renew_call(&self, call: &CallRequest<'_>, fence: Fence) -> Result<bool> {
        self.change_call(call, fence, doc! { "lease_until": after(call.lease) }).await
    }

    async fn end_call(&self, call: &CallRequest<'_>, fence: Fence, result: &[u8]) -> Result<bool> {
        let ended = doc! { "lease_until": Bson::Null, "finished_at": now(), "result": binary(result) };
        self.change_call(call, fence, ended).await
    }

    async fn release_call(&self, call: &CallRequest<'_>, fence: Fence) -> Result<()> {
        self.change_call(call, fence, doc! { "lease_until": now() }).await.map(drop)
    }

    async fn calls(&self, consumer: &ConsumerName, id: &MessageId) -> Result<Vec<CallRow>> {
        let _turn = self.sessions().side_turn().await?;
        let these = doc! { "_id.consumer": consumer.as_str(), "_id.message": id.as_str() };
        let rows = async {
            let found = self.tables().calls.find(these).sort(doc! { "made": 1, "_id": 1 });
            found.await?.try_collect::<Vec<Document>>().await
        };
        let rows = answered(self.sessions().limit(), rows).await;
        rows.map_err(failed("cannot read the calls of a message"))?.iter().map(call_row).collect()
    }
}

impl MongoStore {
    async fn try_call(&self, call: &CallRequest<'_>) -> Answer<Result<CallState>> {
        let holder = ObjectId::new();
        let row = self.tables().calls.find_one_and_update(of_call(call), begin(call, holder)).upsert(true);
        let asked = doc! {
            "request": 1, "key": 1, "result": 1, "fence": 1, "holder": 1, "lease_until": 1, "key_valid_until": 1, "now": now(),
        };
        let row = row.return_document(ReturnDocument::After).projection(asked).await?.unwrap_or_default();
        Ok(state(call, &row, holder))
    }

    async fn change_call(&self, call: &CallRequest<'_>, fence: Fence, change: Document) -> Result<bool> {
        let mut ours = of_call(call);
        ours.extend(doc! { "fence": fence.0, "finished_at": Bson::Null });
        let _turn = self.sessions().side_turn().await?;
        let changed = self.tables().calls.update_one(ours, vec![doc! { "$set": change }]);
        let changed = answered(self.sessions().limit(), changed).await;
        Ok(changed.map_err(failed("cannot record a call"))?.matched_count == 1)
    }
}

/// Makes a record under this holder, or takes one over whose lease has ended while its key is valid. Any other stays as
/// it is.
fn begin(call: &CallRequest<'_>, holder: ObjectId) -> Vec<Document> {
    let request = binary(call.request);
    let is_new = doc! { "$eq": [{ "$type": "$fence" }, "missing"] };
    let has_ended = doc! { "$and": [
        { "$eq": [{ "$type": "$finished_at" }, "missing"] },
        { "$eq": ["$request", request.clone()] },
        { "$lte": ["$lease_until", now()] },
        { "$gt": ["$key_valid_until", now()] },
    ] };
    let once = |field: &str, value: Bson| doc! { "$ifNull": [format!("${field}"), value] };
    let begun = |field: &str, value: Bson| doc! { "$cond": ["$is_free", value, format!("${field}")] };
    vec![
        doc! { "$set": { "is_free": { "$or": [is_new, has_ended] } } },
        doc! { "$set": {
            "request": once("request", request),
            "key": once("key", call.idempotency_key().into()),
            "made": once("made", "$$CLUSTER_TIME".into()),
            "started_at": once("started_at", now()),
            "key_valid_until": once("key_valid_until", after(call.key_valid_for)),
            "fence": begun("fence", doc! { "$add": [{ "$ifNull": ["$fence", -1_i64] }, 1_i64] }.into()),
            "lease_until": begun("lease_until", after(call.lease)),
            "holder": begun("holder", holder.into()),
        } },
        doc! { "$unset": "is_free" },
    ]
}

/// What a row says of a call after the attempt to begin it under this holder.
fn state(call: &CallRequest<'_>, row: &Document, holder: ObjectId) -> Result<CallState> {
    if row.get_object_id("holder") == Ok(holder) {
        let fence = int(row, "fence")?;
        let key = text(row, "key")?.to_owned();
        return Ok(CallState::Ours { fence: Fence(fence), begun_before: fence > 0, key });
    }
    if bytes(row, "request")? != call.request {
        return Ok(CallState::OtherRequest);
    }
    if let Some(result) = maybe_bytes(row, "result") {
        return Ok(CallState::Finished(result.into()));
    }
    let now = int(row, "now")?;
    let left = int(row, "lease_until")?.saturating_sub(now);
    // A lease may have ended since the attempt.
    let ends_in = Duration::from_micros(u64::try_from(left).unwrap_or(0));
    Ok(if ends_in.is_zero() && int(row, "key_valid_until")? <= now {
        CallState::Expired
    } else {
        CallState::Running { ends_in }
    })
}

fn of_call(call: &CallRequest<'_>) -> Document {
    let (consumer, message) = (call.consumer.as_str(), call.id.as_str());
    doc! { "_id": { "consumer": consumer, "message": message, "label": call.label } }
}

fn call_row(row: &Document) -> Result<CallRow> {
    let time = |field| int(row, field).map(Timestamp::from_micros);
    let maybe_time = |field| maybe_int(row, field).map(Timestamp::from_micros);
    let id = row.get_document("_id").map_err(|_| spoilt("a call has no key"))?;
    Ok(CallRow {
        label: text(id, "label")?.to_owned(),
        key: text(row, "key")?.to_owned(),
        request: bytes(row, "request")?.into(),
        result: maybe_bytes(row, "result").map(Into::into),
        started_at: time("started_at")?,
        finished_at: maybe_time("finished_at"),
        lease_until: maybe_time("lease_until"),
        key_valid_until: time("key_valid_until")?,
    })
}
