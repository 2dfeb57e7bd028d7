//! The inbox.

use std::collections::HashMap;

use bytes::Bytes;
use hapax_core::{
    Code, ConsumerName, Digest, Error, ErrorKind, Inbox, InboxRow, InboxState, Key, MessageId, Timestamp,
};

use crate::connection::Held;
use crate::dialect::{Dialect, int, text};
use crate::error::{Result, failed};
use crate::store::SqlStore;
use crate::transaction::SqlTx;
use crate::value::{Value, values};

impl<D: Dialect> Inbox for SqlStore<D> {
    async fn look(&self, consumer: &ConsumerName, ids: &[MessageId]) -> Result<Vec<Option<InboxRow>>> {
        let bound = values![consumer.as_str(), ids.iter().map(MessageId::as_str).collect::<Value>()];
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().look, bound).await;
        let rows = held.answer(answer).map_err(failed::<D>("cannot look into the inbox"))?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            let row = inbox_row::<D>(row)?;
            found.insert(row.id.clone(), row);
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    async fn record(&self, consumer: &ConsumerName, key: &Key) -> Result<bool> {
        let mut held = self.connections().side_transaction().await?;
        let new = self.record_on(&mut held, consumer, key).await;
        let new = new.map_err(failed::<D>("cannot record a message"))?;
        held.commit().await?;
        Ok(new)
    }

    /// One round trip; two for a message of the waiting room.
    async fn record_in(&self, tx: &mut SqlTx<D>, consumer: &ConsumerName, key: &Key) -> Result<bool> {
        let new = self.record_on(&mut tx.held, consumer, key).await;
        new.map_err(failed::<D>("cannot record a message"))
    }

    async fn rename(&self, from: &ConsumerName, to: &ConsumerName) -> Result<u64> {
        let mut held = self.connections().side_transaction().await?;
        let cannot = failed::<D>("cannot rename a consumer");
        let taken = held.fetch(&self.sql().has_records, values![to.as_str()]).await.map_err(&cannot)?;
        if taken.first().map_or(Ok(0), |row| int::<D>(row, 0)).map_err(&cannot)? == 1 {
            held.roll_back().await;
            let context = format!("the consumer name `{to}` already has records");
            return Err(Error::new(ErrorKind::Setup, Code::NameTaken, context));
        }
        let moved = self.move_records(&mut held, from, to).await.map_err(cannot)?;
        held.commit().await?;
        Ok(moved)
    }
}

impl<D: Dialect> SqlStore<D> {
    /// A message of the waiting room is recorded if it is still at its place there, and leaves it.
    async fn record_on(
        &self,
        held: &mut Held<D>,
        consumer: &ConsumerName,
        key: &Key,
    ) -> Result<bool, sqlx::Error> {
        let place = key.place.map(|place| place.0);
        let sent_at = key.sent_at.map(Timestamp::as_micros);
        let bound = values![consumer.as_str(), key.id.as_str(), key.digest.as_i64(), sent_at, place];
        let new = held.execute(&self.sql().record, bound).await? == 1;
        if new && place.is_some() {
            held.execute(&self.sql().leave_waiting, values![consumer.as_str(), key.id.as_str()]).await?;
        }
        Ok(new)
    }

    /// However many rows there are, they move in one transaction, and nobody waits for an answer in time.
    async fn move_records(
        &self,
        held: &mut Held<D>,
        from: &ConsumerName,
        to: &ConsumerName,
    ) -> Result<u64, sqlx::Error> {
        let sql = self.sql();
        for leftover in [&sql.forget_instances_of, &sql.forget_starts_of] {
            D::execute(held.conn(), leftover, values![to.as_str()]).await?;
        }
        let moved = D::execute(held.conn(), &sql.rename_inbox, values![from.as_str(), to.as_str()]).await?;
        for table in [
            &sql.rename_waiting,
            &sql.rename_dead,
            &sql.rename_outbox,
            &sql.rename_calls,
            &sql.rename_instances,
            &sql.rename_starts,
            &sql.rename_horizon,
            &sql.rename_versions,
        ] {
            D::execute(held.conn(), table, values![from.as_str(), to.as_str()]).await?;
        }
        Ok(moved)
    }
}

fn inbox_row<D: Dialect>(row: &D::Row) -> Result<InboxRow> {
    let cannot = failed::<D>("cannot read an inbox row");
    let state = int::<D>(row, 1).map_err(&cannot)?;
    Ok(InboxRow {
        id: message_id(text::<D>(row, 0).map_err(&cannot)?)?,
        state: InboxState::from_i64(state)
            .ok_or_else(|| spoilt(format!("an inbox row has state {state}")))?,
        digest: Digest::from_i64(int::<D>(row, 2).map_err(&cannot)?),
        sent_at: D::int(row, 3).map_err(&cannot)?.map(Timestamp::from_micros),
        processed_at: Timestamp::from_micros(int::<D>(row, 4).map_err(&cannot)?),
        lease_until: D::int(row, 5).map_err(&cannot)?.map(Timestamp::from_micros),
        result: D::maybe_bytes(row, 6).map_err(&cannot)?.map(Bytes::from),
    })
}

/// An id that was stored, and therefore is one.
pub(crate) fn message_id(text: String) -> Result<MessageId> {
    MessageId::new(text).map_err(|error| spoilt(error.to_string()))
}

/// What was stored is not what Hapax stores.
pub(crate) fn spoilt(context: String) -> Error {
    Error::new(ErrorKind::Statement, Code::StoreFailed, context)
}
