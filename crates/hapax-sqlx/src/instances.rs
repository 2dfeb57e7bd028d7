//! Who runs, how they ended, and what they had begun.

use std::time::Duration;

use hapax_core::{
    ConsumerName, InstanceBeat, InstanceId, Instances, Key, MessageId, Start, Timestamp, micros,
};

use crate::claim::in_order;
use crate::connection::Held;
use crate::dialect::{Dialect, int, text};
use crate::error::{Result, failed};
use crate::store::SqlStore;
use crate::value::{Value, values};
use crate::waiting::small;

impl<D: Dialect> Instances for SqlStore<D> {
    async fn enlist(&self, consumer: &ConsumerName, instance: &InstanceId) -> Result<()> {
        self.note(&self.sql().beat, values![consumer.as_str(), instance.0.as_str()]).await
    }

    /// Three statements in a transaction.
    async fn beat(
        &self,
        consumer: &ConsumerName,
        instance: &InstanceId,
        forget: Duration,
    ) -> Result<Vec<InstanceBeat>> {
        let cannot = failed::<D>("cannot record a sign of life");
        let (sql, ours) = (self.sql(), || values![consumer.as_str(), instance.0.as_str()]);
        let mut held = self.connections().side_transaction().await?;
        held.execute(&sql.beat, ours()).await.map_err(&cannot)?;
        held.execute(&sql.forget, values![consumer.as_str(), micros(forget)]).await.map_err(&cannot)?;
        let rows = held.fetch(&sql.others, ours()).await.map_err(&cannot)?;
        held.commit().await?;
        rows.iter().map(beat::<D>).collect::<Result<_, _>>().map_err(cannot)
    }

    async fn leave(&self, consumer: &ConsumerName, instance: &InstanceId) -> Result<()> {
        self.note(&self.sql().leave, values![consumer.as_str(), instance.0.as_str()]).await
    }

    /// One round trip; a second one where nothing was charged, and one more for a key whose order is kept.
    async fn charge_start(&self, consumer: &ConsumerName, key: &Key, limit: u32) -> Result<Start> {
        let mut held = self.connections().side_writer().await?;
        // What must queue up behind others of its key will not run either.
        if let Some(ordered) = in_order(0, key)
            && !self.held(held.conn(), consumer, &[ordered]).await?.is_empty()
        {
            held.put_back();
            return Ok(Start::NotNeeded);
        }
        let charged = self.charge(&mut held, consumer, key, limit).await;
        held.answer(charged).map_err(failed::<D>("cannot record a start"))
    }

    async fn starts(&self, consumer: &ConsumerName, id: &MessageId) -> Result<u32> {
        let cannot = failed::<D>("cannot read the starts of a message");
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().starts, values![consumer.as_str(), id.as_str()]).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        rows.first().map_or(Ok(0), |row| int::<D>(row, 0)).map(small).map_err(cannot)
    }
}

impl<D: Dialect> SqlStore<D> {
    async fn note(&self, sql: &D::Sql, bound: Vec<Value>) -> Result<()> {
        let mut held = self.connections().side_writer().await?;
        let answer = held.execute(sql, bound).await;
        held.answer(answer).map(drop).map_err(failed::<D>("cannot record an instance"))
    }

    async fn charge(
        &self,
        held: &mut Held<D>,
        consumer: &ConsumerName,
        key: &Key,
        limit: u32,
    ) -> Result<Start, sqlx::Error> {
        let mut bound = values![
            consumer.as_str(),
            key.id.as_str(),
            key.place.map(|place| place.0),
            key.fence.map(|fence| fence.0),
        ];
        let free = bound.clone();
        bound.push(limit.into());
        if !held.fetch(&self.sql().charge_start, bound).await?.is_empty() {
            return Ok(Start::Charged);
        }
        let rows = held.fetch(&self.sql().starts_if_free, free).await?;
        let starts = rows.first().map(|row| int::<D>(row, 0)).transpose()?.map(small);
        // Free and below the limit, yet not charged: a rival held it a moment ago.
        Ok(starts.filter(|starts| *starts >= limit).map_or(Start::NotNeeded, Start::Spent))
    }
}

fn beat<D: Dialect>(row: &D::Row) -> Result<InstanceBeat, sqlx::Error> {
    Ok(InstanceBeat {
        instance: InstanceId(text::<D>(row, 0)?),
        beat_at: Timestamp::from_micros(int::<D>(row, 1)?),
    })
}
