//! The guard of naturally idempotent handlers.

use hapax_core::{ConsumerName, Error, ErrorKind, Versions};

use super::database::Database;
use super::faults::{MemoryError, Op};
use super::store::MemoryStore;
use super::transaction::MemoryTx;

impl Versions for MemoryStore {
    async fn newer(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerName,
        entity: &str,
        version: i64,
    ) -> Result<bool, Error> {
        self.call(Op::Newer, |database| {
            tx.check_intact(database)?;
            tx.newer(database, consumer, entity, version)
        })
        .await
    }
}

impl MemoryTx {
    fn newer(
        &mut self,
        database: &mut Database,
        consumer: &ConsumerName,
        entity: &str,
        version: i64,
    ) -> Result<bool, Error> {
        let scoped = (consumer.clone(), entity.to_owned());
        let holder = *database.noted.entry(scoped.clone()).or_insert(self.id());
        if holder != self.id() {
            // A real database waits for its turn here; nothing waits in memory, so the transaction is to run
            // again.
            let context = format!("another transaction has taken note of `{entity}`");
            return Err(MemoryError::new(ErrorKind::Conflict, context).into());
        }
        let noted = self.noted.get(&scoped).or_else(|| database.versions.get(&scoped));
        if noted.is_some_and(|noted| version <= *noted) {
            return Ok(false);
        }
        self.noted.insert(scoped, version);
        Ok(true)
    }
}
