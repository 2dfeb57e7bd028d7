//! Leases of waiting messages.
//!
//! They are documents of their own, written outside transactions: a handler that outlives its lease has it renewed,
//! and if that touched the waiting row, the handler's own transaction could not delete it any more.

use std::time::Duration;

use hapax_core::{ConsumerName, Place};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use crate::document::{after, documents, int, now};
use crate::error::{Answer, Result, answered, failed};
use crate::store::MongoStore;

impl MongoStore {
    /// Tries to lease the candidates, documents with `_id` and `turn`, under a token: each that nobody else has.
    pub(crate) async fn lease_each(
        &self,
        consumer: &ConsumerName,
        candidates: &[Document],
        lease: Duration,
        token: ObjectId,
    ) -> Answer<()> {
        let take = |row: &Document| {
            let turn = row.get("turn").cloned().unwrap_or(Bson::Null);
            let same = doc! { "$eq": ["$turn", turn.clone()] };
            let held = doc! { "$and": [same.clone(), { "$gt": ["$until", now()] }] };
            let unless_held =
                |field: &str, value: Bson| doc! { "$cond": [held.clone(), format!("${field}"), value] };
            let again = doc! { "$cond": [same, { "$add": ["$count", 1_i64] }, 1_i64] };
            let lease = doc! { "$set": {
                "consumer": consumer.as_str(),
                "count": unless_held("count", again.into()),
                "turn": unless_held("turn", turn),
                "until": unless_held("until", after(lease)),
                "token": unless_held("token", token.into()),
            } };
            doc! { "q": { "_id": row.get("_id").cloned() }, "u": [lease], "upsert": true }
        };
        // One command for all: the driver has none that updates several documents each in its own way.
        let update = doc! {
            "update": self.tables().leases.name(),
            "updates": candidates.iter().map(take).collect::<Vec<_>>(),
            "ordered": false,
            "writeConcern": { "w": "majority" },
        };
        // Of two that make the same lease at the same time one is refused: the token tells whose it is.
        self.inner.database.run_command(update).await.map(drop)
    }

    /// Renews leases.
    pub(crate) async fn renew_leases(
        &self,
        consumer: &ConsumerName,
        places: &[Place],
        lease: Duration,
    ) -> Result<()> {
        let _turn = self.sessions().side_turn().await?;
        let renew = vec![doc! { "$set": { "until": after(lease) } }];
        let renewed = self.tables().leases.update_many(these(consumer, places), renew);
        let renewed = answered(self.sessions().limit(), renewed).await;
        renewed.map(drop).map_err(failed("cannot renew a lease of the waiting room"))
    }

    /// Gives leases back, as if nobody had had them.
    pub(crate) async fn drop_leases(&self, consumer: &ConsumerName, places: &[Place]) -> Result<()> {
        let _turn = self.sessions().side_turn().await?;
        let dropped = self.tables().leases.delete_many(these(consumer, places));
        let dropped = answered(self.sessions().limit(), dropped).await;
        dropped.map(drop).map_err(failed("cannot give a message back to the waiting room"))
    }

    /// Forgets the leases of messages that have left the waiting room. No harm if it cannot: a lease counts for the
    /// turn it was taken in, and [`purge`](hapax_core::Retention::purge) finds those left behind.
    pub(crate) async fn forget_leases(&self, places: &[i64]) {
        if places.is_empty() {
            return;
        }
        let Ok(_turn) = self.sessions().side_turn().await else { return };
        let forgotten = self.tables().leases.delete_many(doc! { "_id": { "$in": places } });
        if let Err(error) = answered(self.sessions().limit(), forgotten).await {
            tracing::debug!(store = self.place(), %error, "leases of settled messages stay behind");
        }
    }
}

fn these(consumer: &ConsumerName, places: &[Place]) -> Document {
    let places: Vec<i64> = places.iter().map(|place| place.0).collect();
    doc! { "_id": { "$in": places }, "consumer": consumer.as_str() }
}

/// Joins each waiting row with its lease, as `lease`, if that is of its turn.
pub(crate) fn with_lease(leases: &str) -> [Document; 2] {
    [
        doc! { "$lookup": { "from": leases, "localField": "_id", "foreignField": "_id", "as": "lease" } },
        doc! { "$set": { "lease": { "$first": { "$filter": {
            "input": "$lease", "cond": { "$eq": ["$$this.turn", "$turn"] },
        } } } } },
    ]
}

/// How often the message of a row was leased in its turn.
pub(crate) fn count(row: &Document) -> i64 {
    row.get_document("lease").ok().and_then(|lease| int(lease, "count").ok()).unwrap_or(0)
}

/// Deletes leases whose message has left the waiting room, at most `max`.
pub(crate) async fn sweep(store: &MongoStore, consumer: &ConsumerName, max: u32) -> Answer<()> {
    let (waiting, leases) = (store.tables().waiting.name(), &store.tables().leases);
    let left_behind = [
        doc! { "$match": { "consumer": consumer.as_str(), "$expr": { "$lte": ["$until", now()] } } },
        doc! { "$limit": i64::from(max) },
        doc! { "$lookup": { "from": waiting, "localField": "_id", "foreignField": "_id", "as": "row" } },
        doc! { "$match": { "row": { "$size": 0 } } },
        doc! { "$group": { "_id": Bson::Null, "rows": { "$push": { "_id": "$_id" } } } },
    ];
    let mut cursor = leases.aggregate(left_behind).await?;
    if !cursor.advance().await? {
        return Ok(());
    }
    let found = cursor.deserialize_current()?;
    let places: Vec<i64> = documents(&found, "rows").filter_map(|row| row.get_i64("_id").ok()).collect();
    leases.delete_many(doc! { "_id": { "$in": places } }).await?;
    Ok(())
}
