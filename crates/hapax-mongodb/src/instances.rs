//! Who runs, how they ended, and what they had begun.

use std::time::Duration;

use futures::TryStreamExt as _;
use hapax_core::{ConsumerName, InstanceBeat, InstanceId, Instances, Key, MessageId, Start, Timestamp};
use mongodb::bson::{Bson, Document, doc};

use crate::document::{before, int, now, small, text};
use crate::error::{Answer, Result, answered, failed, is_rival, spoilt};
use crate::inbox::of_message;
use crate::store::MongoStore;

impl Instances for MongoStore {
    async fn enlist(&self, consumer: &ConsumerName, instance: &InstanceId) -> Result<()> {
        let _turn = self.sessions().side_turn().await?;
        let noted = answered(self.sessions().limit(), self.note_beat(consumer, instance)).await;
        noted.map_err(failed("cannot record an instance"))
    }

    /// Three round trips.
    async fn beat(
        &self,
        consumer: &ConsumerName,
        instance: &InstanceId,
        forget: Duration,
    ) -> Result<Vec<InstanceBeat>> {
        let _turn = self.sessions().side_turn().await?;
        let others = answered(self.sessions().limit(), async {
            self.note_beat(consumer, instance).await?;
            let silent =
                doc! { "$expr": { "$lt": ["$beat_at", before(forget)] }, "_id.consumer": consumer.as_str() };
            self.tables().instances.delete_many(silent).await?;
            let open = doc! {
                "_id.consumer": consumer.as_str(),
                "_id.instance": { "$ne": instance.0.as_str() },
                "ended_at": Bson::Null,
            };
            self.tables().instances.find(open).await?.try_collect::<Vec<Document>>().await
        });
        let others = others.await.map_err(failed("cannot record a sign of life"))?;
        others.iter().map(instance_beat).collect()
    }

    async fn leave(&self, consumer: &ConsumerName, instance: &InstanceId) -> Result<()> {
        let _turn = self.sessions().side_turn().await?;
        let ended = vec![doc! { "$set": { "ended_at": now() } }];
        let ended = self.tables().instances.update_one(of_instance(consumer, instance), ended);
        let ended = answered(self.sessions().limit(), ended).await;
        ended.map(drop).map_err(failed("cannot record an instance"))
    }

    /// A trial of the claim, rolled back, and one write: four round trips. A rival that comes in between is charged a
    /// start it did not need, which its own end erases.
    async fn charge_start(&self, consumer: &ConsumerName, key: &Key, limit: u32) -> Result<Start> {
        let cannot = failed("cannot record a start");
        let mut held = self.sessions().side().await?;
        let would = self.would_take(&mut held, consumer, key).await;
        held.roll_back().await;
        if !would.map_err(&cannot)?? {
            return Ok(Start::NotNeeded);
        }
        let _turn = self.sessions().side_turn().await?;
        answered(self.sessions().limit(), self.charge(consumer, &key.id, limit)).await.map_err(cannot)
    }

    async fn starts(&self, consumer: &ConsumerName, id: &MessageId) -> Result<u32> {
        let _turn = self.sessions().side_turn().await?;
        let found = self.tables().starts.find_one(of_message(consumer, id));
        let found = answered(self.sessions().limit(), found).await;
        let found = found.map_err(failed("cannot read the starts of a message"))?;
        found.map_or(Ok(0), |row| int(&row, "count")).map(small)
    }
}

impl MongoStore {
    pub(crate) async fn note_beat(&self, consumer: &ConsumerName, instance: &InstanceId) -> Answer<()> {
        let beat = vec![doc! { "$set": {
            "started_at": { "$ifNull": ["$started_at", now()] },
            "beat_at": now(),
            "ended_at": Bson::Null,
        } }];
        let noted = self.tables().instances.update_one(of_instance(consumer, instance), beat);
        noted.upsert(true).await.map(drop)
    }

    /// Adds a start unless there are as many as may be.
    async fn charge(&self, consumer: &ConsumerName, id: &MessageId, limit: u32) -> Answer<Start> {
        if limit > 0 {
            let mut below = of_message(consumer, id);
            below.insert("count", doc! { "$lt": i64::from(limit) });
            let charge = doc! { "$inc": { "count": 1_i64 }, "$currentDate": { "started_at": true } };
            match self.tables().starts.update_one(below, charge).upsert(true).await {
                Ok(_) => return Ok(Start::Charged),
                // There is a row, and it has reached the limit.
                Err(error) if is_rival(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let found = self.tables().starts.find_one(of_message(consumer, id)).await?;
        let starts = found.and_then(|row| row.get_i64("count").ok()).map_or(0, small);
        Ok(if starts >= limit { Start::Spent(starts) } else { Start::NotNeeded })
    }
}

pub(crate) fn of_instance(consumer: &ConsumerName, instance: &InstanceId) -> Document {
    doc! { "_id": { "consumer": consumer.as_str(), "instance": instance.0.as_str() } }
}

fn instance_beat(row: &Document) -> Result<InstanceBeat> {
    let id = row.get_document("_id").map_err(|_| spoilt("an instance has no key"))?;
    Ok(InstanceBeat {
        instance: InstanceId(text(id, "instance")?.to_owned()),
        beat_at: Timestamp::from_micros(int(row, "beat_at")?),
    })
}
