//! How long inbox rows are kept.

use std::time::Duration;

use hapax_core::{ConsumerName, ErrorKind, Purged, Retention, Timestamp, crash_point, micros};

use crate::connection::Held;
use crate::dialect::{Dialect, text};
use crate::error::{Result, failed};
use crate::store::SqlStore;
use crate::value::{Value, values};

/// How often a purge that meets conflicts is run before it is left to the next sweep.
const TRIES: u32 = 5;

impl<D: Dialect> Retention for SqlStore<D> {
    /// At most seven round trips. Of several instances each takes other rows. Where the database ends the transaction
    /// to resolve a conflict with a claim, it is run again: nothing is lost by it but time.
    async fn purge(&self, consumer: &ConsumerName, keep: Duration, max: u32) -> Result<Purged> {
        for _ in 1..TRIES {
            match self.purge_once(consumer, keep, max).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                done => return done,
            }
        }
        self.purge_once(consumer, keep, max).await
    }

    async fn horizon(&self, consumer: &ConsumerName) -> Result<Option<Timestamp>> {
        let mut held = self.connections().side().await?;
        let horizon = self.read_horizon(&mut held, consumer).await;
        held.answer(horizon).map_err(failed::<D>("cannot read the horizon"))
    }
}

impl<D: Dialect> SqlStore<D> {
    async fn purge_once(&self, consumer: &ConsumerName, keep: Duration, max: u32) -> Result<Purged> {
        let mut held = self.connections().side_transaction().await?;
        let purged = self.purge_rows(&mut held, consumer, keep, max).await;
        let purged = purged.map_err(failed::<D>("cannot purge the inbox"))?;
        crash_point!("store-before-purge-commit");
        held.commit().await?;
        crash_point!("store-after-purge-commit");
        Ok(purged)
    }

    async fn purge_rows(
        &self,
        held: &mut Held<D>,
        consumer: &ConsumerName,
        keep: Duration,
        max: u32,
    ) -> Result<Purged, sqlx::Error> {
        held.execute(&self.sql().forget_finished, values![consumer.as_str()]).await?;
        let bound = values![consumer.as_str(), micros(keep), max];
        let rows = held.fetch(&self.sql().purge, bound).await?;
        let (mut newest, mut ids) = (None, Vec::with_capacity(rows.len()));
        for row in &rows {
            newest = newest.max(D::int(row, 0)?);
            ids.push(text::<D>(row, 1)?);
        }
        if !ids.is_empty() {
            let ids: Value = ids.into_iter().collect();
            held.execute(&self.sql().forget_calls, values![consumer.as_str(), ids]).await?;
        }
        if let Some(newest) = newest {
            held.execute(&self.sql().move_horizon, values![consumer.as_str(), newest]).await?;
        }
        Ok(Purged { rows: rows.len() as u64, horizon: self.read_horizon(held, consumer).await? })
    }

    async fn read_horizon(
        &self,
        held: &mut Held<D>,
        consumer: &ConsumerName,
    ) -> Result<Option<Timestamp>, sqlx::Error> {
        let rows = held.fetch(&self.sql().horizon, values![consumer.as_str()]).await?;
        let horizon = rows.first().map_or(Ok(None), |row| D::int(row, 0))?;
        Ok(horizon.map(Timestamp::from_micros))
    }
}
