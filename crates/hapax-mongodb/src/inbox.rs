//! The inbox.

use std::collections::HashMap;
use std::time::Duration;

use futures::TryStreamExt as _;
use hapax_core::{
    Code, ConsumerName, Digest, Error, ErrorKind, Inbox, InboxRow, InboxState, Key, MessageId, Timestamp,
};
use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection};

use crate::document::{int, maybe_bytes, maybe_int, message_id, text};
use crate::error::{Answer, Result, answered, failed, is_rival, spoilt};
use crate::look::{Found, Look};
use crate::session::Held;
use crate::store::MongoStore;
use crate::tables::{scoped, scoped_all};
use crate::transaction::MongoTx;

/// How many records a rename moves in one command.
const MOVED_AT_ONCE: usize = 1_000;
/// How often, and how long at most, to wait for somebody who holds what a side transaction needs.
const ATTEMPTS: u32 = 40;
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// The attempts of a side transaction that meets rivals.
#[derive(Debug, Default)]
pub(crate) struct Attempts(u32);

impl Attempts {
    /// Waits a moment, longer each time, unless there were enough attempts.
    pub(crate) async fn again(&mut self) -> bool {
        self.0 += 1;
        if self.0 >= ATTEMPTS {
            return false;
        }
        tokio::time::sleep((Duration::from_millis(2) * self.0).min(LONGEST_WAIT)).await;
        true
    }
}

impl Inbox for MongoStore {
    async fn look(&self, consumer: &ConsumerName, ids: &[MessageId]) -> Result<Vec<Option<InboxRow>>> {
        let _turn = self.sessions().side_turn().await?;
        let these = doc! { "_id": { "$in": scoped_all(consumer, ids) } };
        let rows = async { self.tables().inbox.find(these).await?.try_collect::<Vec<Document>>().await };
        let rows =
            answered(self.sessions().limit(), rows).await.map_err(failed("cannot look into the inbox"))?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            let row = inbox_row(row)?;
            found.insert(row.id.clone(), row);
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }

    async fn record(&self, consumer: &ConsumerName, key: &Key) -> Result<bool> {
        let cannot = failed("cannot record a message");
        let mut attempts = Attempts::default();
        loop {
            let mut held = self.sessions().side().await?;
            let recorded = self.record_on(&mut held, consumer, key).await;
            match held.end(recorded).await {
                Ok(new) => return new,
                Err(error) if is_rival(&error) && attempts.again().await => {}
                Err(error) => return Err(cannot(error)),
            }
        }
    }

    /// Two round trips; three for a message of the waiting room.
    async fn record_in(&self, tx: &mut MongoTx, consumer: &ConsumerName, key: &Key) -> Result<bool> {
        self.record_on(&mut tx.held, consumer, key).await.map_err(failed("cannot record a message"))?
    }

    /// Moves what there is in one transaction, which the server ends after a minute: a consumer with millions of
    /// records is purged first.
    async fn rename(&self, from: &ConsumerName, to: &ConsumerName) -> Result<u64> {
        let cannot = failed("cannot rename a consumer");
        let mut held = self.sessions().side().await?;
        match self.try_rename(&mut held, from, to).await {
            Ok(Some(moved)) => {
                held.commit().await.map_err(cannot)?;
                Ok(moved)
            }
            Ok(None) => {
                held.roll_back().await;
                let context = format!("the consumer name `{to}` already has records");
                Err(Error::new(ErrorKind::Setup, Code::NameTaken, context))
            }
            Err(error) => {
                held.roll_back().await;
                Err(cannot(error))
            }
        }
    }
}

impl MongoStore {
    /// A message of the waiting room is recorded if it is still at its place there, and leaves it.
    async fn record_on(&self, held: &mut Held, consumer: &ConsumerName, key: &Key) -> Answer<Result<bool>> {
        let look = match Look::at(self.tables(), held, consumer, std::slice::from_ref(key)).await? {
            Ok(look) => look,
            Err(error) => return Ok(Err(error)),
        };
        let found = look.found(key);
        if matches!(found, Found::Kept(_)) {
            return Ok(Ok(false));
        }
        self.write(held, consumer, std::slice::from_ref(key), &[found], &[0], look.now).await?;
        if key.place.is_some() {
            self.leave(held, consumer, &key.id).await?;
        }
        Ok(Ok(true))
    }

    /// Moves every record, unless the new name has some.
    async fn try_rename(
        &self,
        held: &mut Held,
        from: &ConsumerName,
        to: &ConsumerName,
    ) -> Answer<Option<u64>> {
        let tables = self.tables();
        let keyed = [&tables.inbox, &tables.versions, &tables.calls];
        let plain = [&tables.waiting, &tables.dead_letters];
        let taken = keyed.map(|table| (table, "_id.consumer")).into_iter();
        let taken = taken.chain(plain.map(|table| (table, "consumer"))).chain([(&tables.horizon, "_id")]);
        let (session, fate) = held.parts();
        for (table, field) in taken {
            let ours = table.find_one(doc! { field: to.as_str() }).projection(doc! { "_id": 1 });
            if fate.watch(ours.session(&mut *session)).await?.is_some() {
                return Ok(None);
            }
        }
        for leftover in [&tables.instances, &tables.starts] {
            let gone = leftover.delete_many(doc! { "_id.consumer": to.as_str() });
            fate.watch(gone.session(&mut *session)).await?;
        }
        let moved = fate.watch(move_keyed(&tables.inbox, session, from, to)).await?;
        for table in [&tables.versions, &tables.instances, &tables.starts, &tables.calls] {
            fate.watch(move_keyed(table, session, from, to)).await?;
        }
        fate.watch(move_horizon(&tables.horizon, session, from, to)).await?;
        for table in [&tables.waiting, &tables.dead_letters, &tables.leases, &tables.outbox] {
            let renamed = doc! { "$set": { "consumer": to.as_str() } };
            let renamed = table.update_many(doc! { "consumer": from.as_str() }, renamed);
            fate.watch(renamed.session(&mut *session)).await?;
        }
        Ok(Some(moved))
    }
}

/// Moves documents whose key holds the consumer's name: a key cannot be changed.
async fn move_keyed(
    table: &Collection<Document>,
    session: &mut ClientSession,
    from: &ConsumerName,
    to: &ConsumerName,
) -> Answer<u64> {
    let of_old = doc! { "_id.consumer": from.as_str() };
    let mut cursor = table.find(of_old.clone()).session(&mut *session).await?;
    let mut batch = Vec::new();
    let mut moved = 0;
    loop {
        let next = cursor.next(&mut *session).await.transpose()?;
        let is_last = next.is_none();
        batch.extend(next.map(|row| renamed(row, to)));
        if batch.len() >= MOVED_AT_ONCE || (is_last && !batch.is_empty()) {
            moved += batch.len() as u64;
            table.insert_many(std::mem::take(&mut batch)).session(&mut *session).await?;
        }
        if is_last {
            break;
        }
    }
    table.delete_many(of_old).session(session).await?;
    Ok(moved)
}

/// A document under the new name; the order of its key's fields stays.
fn renamed(mut row: Document, to: &ConsumerName) -> Document {
    if let Some(Bson::Document(key)) = row.get_mut("_id") {
        key.insert("consumer", to.as_str());
    }
    row
}

async fn move_horizon(
    table: &Collection<Document>,
    session: &mut ClientSession,
    from: &ConsumerName,
    to: &ConsumerName,
) -> Answer<()> {
    let old = table.find_one_and_delete(doc! { "_id": from.as_str() }).session(&mut *session).await?;
    if let Some(mut horizon) = old {
        horizon.insert("_id", to.as_str());
        table.insert_one(horizon).session(session).await?;
    }
    Ok(())
}

fn inbox_row(row: &Document) -> Result<InboxRow> {
    let state = int(row, "state")?;
    let id = row.get_document("_id").map_err(|_| spoilt("an inbox row has no key"))?;
    Ok(InboxRow {
        id: message_id(text(id, "message")?)?,
        state: InboxState::from_i64(state)
            .ok_or_else(|| spoilt(format!("an inbox row has state {state}")))?,
        digest: Digest::from_i64(int(row, "digest")?),
        sent_at: maybe_int(row, "sent_at").map(Timestamp::from_micros),
        processed_at: Timestamp::from_micros(int(row, "processed_at")?),
        lease_until: maybe_int(row, "lease_until").map(Timestamp::from_micros),
        result: maybe_bytes(row, "result").map(Into::into),
    })
}

/// The key of a document of one message.
pub(crate) fn of_message(consumer: &ConsumerName, id: &MessageId) -> Document {
    doc! { "_id": scoped(consumer, id) }
}
