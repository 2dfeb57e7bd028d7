//! How long inbox rows are kept.

use std::time::Duration;

use futures::TryStreamExt as _;
use hapax_core::{ConsumerName, InboxState, Purged, Retention, Timestamp, crash_point};
use mongodb::bson::{Bson, Document, doc};

use crate::document::{before, documents, maybe_int};
use crate::error::{Answer, Result, answered, failed, is_rival};
use crate::inbox::Attempts;
use crate::lease::sweep;
use crate::session::Held;
use crate::store::MongoStore;

impl Retention for MongoStore {
    /// At most nine round trips. Where several instances purge at once, one that meets another begins again; one
    /// that meets others each time leaves the rows to them.
    async fn purge(&self, consumer: &ConsumerName, keep: Duration, max: u32) -> Result<Purged> {
        let cannot = failed("cannot purge the inbox");
        let mut attempts = Attempts::default();
        loop {
            let mut held = self.sessions().side().await?;
            let purged = match self.purge_rows(&mut held, consumer, keep, max).await {
                Ok(purged) => {
                    crash_point!("store-before-purge-commit");
                    held.commit().await.map(|()| purged)
                }
                Err(error) => {
                    held.roll_back().await;
                    Err(error)
                }
            };
            match purged {
                Ok(purged) => {
                    crash_point!("store-after-purge-commit");
                    return Ok(purged);
                }
                Err(error) if !is_rival(&error) => return Err(cannot(error)),
                Err(_) if attempts.again().await => {}
                Err(_) => return Ok(Purged { rows: 0, horizon: self.horizon(consumer).await? }),
            }
        }
    }

    async fn horizon(&self, consumer: &ConsumerName) -> Result<Option<Timestamp>> {
        let _turn = self.sessions().side_turn().await?;
        let found = self.tables().horizon.find_one(doc! { "_id": consumer.as_str() });
        let found =
            answered(self.sessions().limit(), found).await.map_err(failed("cannot read the horizon"))?;
        Ok(found.and_then(|row| maybe_int(&row, "sent_at")).map(Timestamp::from_micros))
    }
}

impl MongoStore {
    async fn purge_rows(
        &self,
        held: &mut Held,
        consumer: &ConsumerName,
        keep: Duration,
        max: u32,
    ) -> Answer<Purged> {
        let limit = held.limit();
        answered(limit, sweep(self, consumer, max)).await?;
        self.forget_finished(held, consumer, max).await?;
        let (session, fate) = held.parts();
        let rows = async {
            let mut cursor =
                self.tables().inbox.aggregate(due(consumer, keep, max)).session(&mut *session).await?;
            cursor.stream(&mut *session).try_collect::<Vec<Document>>().await
        };
        let rows = fate.watch(answered(limit, rows)).await?;
        if !rows.is_empty() {
            let ids: Vec<Bson> = rows.iter().filter_map(|row| row.get("_id").cloned()).collect();
            let messages: Vec<Bson> =
                ids.iter().filter_map(|id| id.as_document()?.get("message").cloned()).collect();
            let gone = self.tables().inbox.delete_many(doc! { "_id": { "$in": ids } }).session(&mut *session);
            fate.watch(answered(limit, gone)).await?;
            let calls = doc! { "_id.consumer": consumer.as_str(), "_id.message": { "$in": messages } };
            let gone = self.tables().calls.delete_many(calls).session(&mut *session);
            fate.watch(answered(limit, gone)).await?;
        }
        let of_consumer = doc! { "_id": consumer.as_str() };
        let read = self.tables().horizon.find_one(of_consumer.clone()).session(&mut *session);
        let read = fate.watch(answered(limit, read)).await?;
        let before = read.and_then(|row| maybe_int(&row, "sent_at"));
        let horizon = rows.iter().map(|row| maybe_int(row, "sent_at")).fold(before, Ord::max);
        if horizon > before {
            let moved = doc! { "$set": { "sent_at": horizon } };
            let moved = self.tables().horizon.update_one(of_consumer, moved).upsert(true).session(session);
            fate.watch(answered(limit, moved)).await?;
        }
        Ok(Purged { rows: rows.len() as u64, horizon: horizon.map(Timestamp::from_micros) })
    }

    /// Starts of messages that are done.
    async fn forget_finished(&self, held: &mut Held, consumer: &ConsumerName, max: u32) -> Answer<()> {
        let limit = held.limit();
        let (inbox, starts) = (self.tables().inbox.name(), &self.tables().starts);
        let finished = [
            doc! { "$match": { "_id.consumer": consumer.as_str() } },
            doc! { "$lookup": { "from": inbox, "localField": "_id", "foreignField": "_id", "as": "row" } },
            doc! { "$match": { "row.state": InboxState::Done.as_i64() } },
            doc! { "$limit": i64::from(max.max(1)) },
            doc! { "$group": { "_id": Bson::Null, "rows": { "$push": { "_id": "$_id" } } } },
        ];
        let (session, fate) = held.parts();
        let found = async {
            let mut cursor = starts.aggregate(finished).session(&mut *session).await?;
            cursor.stream(&mut *session).try_next().await
        };
        let Some(found) = fate.watch(answered(limit, found)).await? else { return Ok(()) };
        let ids: Vec<Bson> = documents(&found, "rows").filter_map(|row| row.get("_id").cloned()).collect();
        let gone = starts.delete_many(doc! { "_id": { "$in": ids } }).session(session);
        fate.watch(answered(limit, gone)).await.map(drop)
    }
}

/// The rows that are due, oldest first.
fn due(consumer: &ConsumerName, keep: Duration, max: u32) -> Vec<Document> {
    let old = |field: &str| doc! { "$lt": [{ "$ifNull": [field, "$processed_at"] }, before(keep)] };
    vec![
        doc! { "$match": {
            "_id.consumer": consumer.as_str(),
            "state": InboxState::Done.as_i64(),
            "$expr": { "$and": [{ "$lt": ["$processed_at", before(keep)] }, old("$sent_at")] },
        } },
        doc! { "$sort": { "processed_at": 1 } },
        doc! { "$limit": i64::from(max.max(1)) },
        doc! { "$project": { "sent_at": 1 } },
    ]
}
