//! The guard of naturally idempotent handlers.

use hapax_core::{ConsumerName, Versions};

use crate::dialect::Dialect;
use crate::error::{Result, failed};
use crate::store::SqlStore;
use crate::transaction::SqlTx;
use crate::value::values;

impl<D: Dialect> Versions for SqlStore<D> {
    async fn newer(
        &self,
        tx: &mut SqlTx<D>,
        consumer: &ConsumerName,
        entity: &str,
        version: i64,
    ) -> Result<bool> {
        let noted = tx.held.execute(&self.sql().newer, values![consumer.as_str(), entity, version]).await;
        Ok(noted.map_err(failed::<D>("cannot note a version"))? == 1)
    }
}
