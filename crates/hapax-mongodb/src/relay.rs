//! The outbox as a relay uses it.

use std::time::Duration;

use futures::TryStreamExt as _;
use hapax_core::{
    InstanceId, NotSent, OnFailure, Outbox, OutboxFilter, OutboxNumber, OutboxRow, OutboxState, Take, Then,
    Unsent,
};
use mongodb::bson::{Bson, Document, doc};

use crate::buckets::relays;
use crate::document::{after, before, int, literal, maybe_text, now, small};
use crate::error::{Answer, Result, answered, failed};
use crate::outbox::{destination, envelope};
use crate::store::MongoStore;

const CANNOT_CHANGE: &str = "cannot change the outbox";

impl Outbox for MongoStore {
    /// At most eight round trips.
    async fn share_buckets(&self, relay: &InstanceId, lease: Duration) -> Result<Vec<u16>> {
        let _turn = self.sessions().side_turn().await?;
        let shared = answered(self.sessions().limit(), self.share(&relays()?, relay, lease)).await;
        shared.map_err(failed("cannot share the outbox among relays"))
    }

    /// Two round trips.
    async fn keep_buckets(&self, relay: &InstanceId, lease: Duration) -> Result<()> {
        let _turn = self.sessions().side_turn().await?;
        let kept = answered(self.sessions().limit(), self.keep(&relays()?, relay, lease)).await;
        kept.map_err(failed("cannot keep a relay's part of the outbox"))
    }

    /// Two round trips.
    async fn leave_buckets(&self, relay: &InstanceId) -> Result<()> {
        let _turn = self.sessions().side_turn().await?;
        let left = answered(self.sessions().limit(), self.leave_all(&relays()?, relay)).await;
        left.map_err(failed("cannot give back a relay's part of the outbox"))
    }

    async fn unsent(&self, take: &Take<'_>) -> Result<Vec<Unsent>> {
        if take.max == 0 {
            return Ok(Vec::new());
        }
        let _turn = self.sessions().side_turn().await?;
        let rows = async {
            let found = self.tables().buckets.aggregate(self.due_rows(take)).await?;
            found.try_collect::<Vec<Document>>().await
        };
        let rows = answered(self.sessions().limit(), rows).await.map_err(failed("cannot read the outbox"))?;
        rows.iter().map(unsent).collect()
    }

    async fn sent(&self, numbers: &[OutboxNumber], keep: bool) -> Result<()> {
        let these: Vec<i64> = numbers.iter().map(|number| number.0).collect();
        let these = doc! { "_id": { "$in": these } };
        let _turn = self.sessions().side_turn().await?;
        let limit = self.sessions().limit();
        if !keep {
            let gone = answered(limit, self.tables().outbox.delete_many(these)).await;
            return gone.map(drop).map_err(failed(CANNOT_CHANGE));
        }
        let kept = vec![doc! { "$set": {
            "state": OutboxState::Sent.as_i64(),
            "sent_at": now(),
            "attempts": 0_i64,
            "code": Bson::Null,
            "error": Bson::Null,
        } }];
        let kept = answered(limit, self.tables().outbox.update_many(these, kept)).await;
        kept.map(drop).map_err(failed(CANNOT_CHANGE))
    }

    /// One command for all. Should it be cut short, the rows that it did not come to are published again.
    async fn not_sent(&self, rows: &[NotSent<'_>]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let update = doc! {
            "update": self.tables().outbox.name(),
            "updates": rows.iter().map(reason).collect::<Vec<_>>(),
            "ordered": false,
            "writeConcern": { "w": "majority" },
        };
        let _turn = self.sessions().side_turn().await?;
        let noted = answered(self.sessions().limit(), self.inner.database.run_command(update)).await;
        noted.map(drop).map_err(failed("cannot note why a message was not published"))
    }

    /// Two round trips.
    async fn purge_sent(&self, keep: Duration, max: u32) -> Result<u64> {
        let _turn = self.sessions().side_turn().await?;
        let purged = answered(self.sessions().limit(), self.purge_old(keep, max)).await;
        purged.map_err(failed("cannot purge the outbox"))
    }

    async fn outbox(&self, filter: &OutboxFilter) -> Result<Vec<OutboxRow>> {
        self.list(filter).await
    }

    async fn count_outbox(&self, filter: &OutboxFilter) -> Result<u64> {
        self.count_rows(filter).await
    }

    async fn unpark(&self, number: OutboxNumber) -> Result<()> {
        let changed = self.make_due(number).await;
        self.wake_relays();
        changed
    }

    async fn discard_unsent(&self, number: OutboxNumber) -> Result<()> {
        let changed = self.remove(number).await;
        self.wake_relays(); // what stood behind it goes on
        changed
    }

    /// Knows of this process only; relays elsewhere find rows at their next poll.
    async fn outbox_changed(&self, seen: &mut u64) {
        let mut news = self.inner.news.subscribe();
        match news.wait_for(|count| count != seen).await.map(|count| *count) {
            Ok(count) => *seen = count,
            Err(_) => std::future::pending().await, // the store outlives its relays
        }
    }

    fn wake_relays(&self) {
        self.inner.news.send_modify(|count| *count += 1);
    }
}

impl MongoStore {
    /// The rows a relay may publish, in the order in which they were written, beginning with the buckets it holds.
    fn due_rows(&self, take: &Take<'_>) -> Vec<Document> {
        let outbox = self.tables().outbox.name();
        let mut rows = vec![
            doc! { "$match": {
                "state": OutboxState::Unsent.as_i64(),
                "broker": { "$nin": take.away },
                "$expr": { "$and": [{ "$in": ["$bucket", "$$buckets"] }, { "$lte": ["$due_at", now()] }] },
            } },
            doc! { "$sort": { "written": 1, "_id": 1 } },
        ];
        if take.on_failure == OnFailure::Block {
            rows.extend(unblocked(outbox));
        }
        rows.push(doc! { "$limit": i64::from(take.max) });
        vec![
            doc! { "$match": {
                "owner": take.relay.0.as_str(),
                "$expr": { "$gt": ["$lease_until", now()] },
            } },
            doc! { "$group": { "_id": Bson::Null, "buckets": { "$push": "$_id" } } },
            doc! { "$lookup": { "from": outbox, "let": { "buckets": "$buckets" }, "pipeline": rows, "as": "row" } },
            // Together with the look-up, so that the rows never are one document.
            doc! { "$unwind": "$row" },
            doc! { "$replaceRoot": { "newRoot": "$row" } },
        ]
    }

    async fn purge_old(&self, keep: Duration, max: u32) -> Answer<u64> {
        let old = [
            doc! { "$match": {
                "state": OutboxState::Sent.as_i64(),
                "sent_at": { "$type": "long" },
                "$expr": { "$lt": ["$sent_at", before(keep)] },
            } },
            doc! { "$sort": { "sent_at": 1 } },
            doc! { "$limit": i64::from(max.max(1)) },
            doc! { "$project": { "_id": 1 } },
        ];
        let old: Vec<Document> = self.tables().outbox.aggregate(old).await?.try_collect().await?;
        let old: Vec<Bson> = old.iter().filter_map(|row| row.get("_id").cloned()).collect();
        if old.is_empty() {
            return Ok(0);
        }
        let gone = self.tables().outbox.delete_many(doc! { "_id": { "$in": old } }).await?;
        Ok(gone.deleted_count)
    }
}

/// Lets pass the rows that no failing one of their key stands before.
fn unblocked(outbox: &str) -> [Document; 2] {
    let failing = doc! {
        "attempts": { "$gt": 0_i64 },
        "state": { "$ne": OutboxState::Sent.as_i64() },
        "$expr": { "$and": [
            { "$eq": ["$key", "$$key"] },
            { "$ne": ["$$key", Bson::Null] },
            { "$lt": [["$written", "$_id"], ["$$written", "$$number"]] },
        ] },
    };
    [
        doc! { "$lookup": {
            "from": outbox,
            "let": { "key": "$key", "written": "$written", "number": "$_id" },
            "pipeline": [{ "$match": failing }, { "$limit": 1 }, { "$project": { "_id": 1 } }],
            "as": "failing",
        } },
        doc! { "$match": { "failing": { "$size": 0 } } },
    ]
}

/// The update that notes why a row was not published.
fn reason(row: &NotSent<'_>) -> Document {
    let mut change = doc! { "code": row.code.as_str(), "error": literal(row.error) };
    let (state, wait) = match row.then {
        Then::Wait => (None, Duration::ZERO),
        Then::Retry(wait) => (Some(OutboxState::Unsent), wait),
        Then::Park => (Some(OutboxState::Parked), Duration::ZERO),
    };
    if let Some(state) = state {
        let parked_at = if state == OutboxState::Parked { now() } else { Bson::Null };
        change.extend(doc! {
            "state": state.as_i64(),
            "attempts": { "$add": ["$attempts", 1_i64] },
            "due_at": after(wait),
            "parked_at": parked_at,
        });
    }
    doc! {
        "q": { "_id": row.number.0, "state": OutboxState::Unsent.as_i64() },
        "u": [{ "$set": change }],
    }
}

fn unsent(row: &Document) -> Result<Unsent> {
    Ok(Unsent {
        number: OutboxNumber(int(row, "_id")?),
        bucket: u16::try_from(int(row, "bucket")?).unwrap_or_default(),
        key: maybe_text(row, "key"),
        attempts: small(int(row, "attempts")?),
        destination: destination(row)?,
        envelope: envelope(row)?,
    })
}
