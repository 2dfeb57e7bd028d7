//! The guard of naturally idempotent handlers.

use hapax_core::{ConsumerName, Versions};
use mongodb::bson::doc;

use crate::document::{maybe_int, now};
use crate::error::{Result, answered, failed};
use crate::store::MongoStore;
use crate::transaction::MongoTx;

impl Versions for MongoStore {
    async fn newer(
        &self,
        tx: &mut MongoTx,
        consumer: &ConsumerName,
        entity: &str,
        version: i64,
    ) -> Result<bool> {
        let limit = tx.held.limit();
        let of_entity = doc! { "_id": { "consumer": consumer.as_str(), "entity": entity } };
        // Where it is not newer the document stays as it is, and so nobody else conflicts with it.
        let newer = doc! { "$gt": [version, { "$ifNull": ["$version", doc! {}] }] };
        let first_or_newer = doc! { "$or": [{ "$eq": [{ "$type": "$version" }, "missing"] }, newer] };
        let note = vec![doc! { "$set": {
            "version": { "$max": ["$version", version] },
            "noted_at": { "$cond": [first_or_newer, now(), "$noted_at"] },
        } }];
        let (session, fate) = tx.held.parts();
        let noted = self.tables().versions.find_one_and_update(of_entity, note).upsert(true).session(session);
        let before = fate.watch(answered(limit, noted)).await.map_err(failed("cannot note a version"))?;
        Ok(before.and_then(|row| maybe_int(&row, "version")).is_none_or(|before| before < version))
    }
}
