//! The outbox: what a transaction writes into it, and what an operator sees of it.

use futures::TryStreamExt as _;
use hapax_core::{
    Code, ConsumerName, Destination, Envelope, Error, ErrorKind, MessageId, OutboxFilter, OutboxNumber,
    OutboxRow, OutboxState, Timestamp,
};
use mongodb::bson::{Bson, Document, Timestamp as ClusterTime, doc};

use crate::counter::Counted;
use crate::document::{
    binary, bytes, consumer_name, int, maybe_int, maybe_text, message_id, now, small, span, text,
};
use crate::error::{Answer, Result, answered, failed, spoilt};
use crate::store::MongoStore;
use crate::transaction::MongoTx;

/// For the server to fill in, when the row is inserted, with the cluster's time, which it moves on for each row. So
/// whoever has seen what another transaction wrote gets later times than that one.
const UNWRITTEN: ClusterTime = ClusterTime { time: 0, increment: 0 };

impl MongoStore {
    /// Writes what the transaction publishes, under the numbers that were given out for it. One round trip, unless
    /// it is more than the server takes at once.
    pub(crate) async fn write_outbox(&self, tx: &mut MongoTx, counted: Counted) -> Answer<()> {
        let entries = tx.meta.outbox.entries();
        let rows: Vec<Document> = (counted.first..)
            .zip(entries)
            .map(|(number, entry)| {
                let Destination { broker, name, routing_key } = &entry.destination;
                doc! {
                    "_id": number,
                    "bucket": i64::from(entry.bucket()),
                    "state": OutboxState::Unsent.as_i64(),
                    "consumer": entry.producer.as_str(),
                    "message": entry.id.as_str(),
                    "cause": entry.cause.as_ref().map(MessageId::as_str),
                    "kind": &entry.kind,
                    "key": &entry.key,
                    "broker": broker,
                    "destination": name,
                    "routing_key": routing_key,
                    "attempts": 0_i64,
                    "written": UNWRITTEN,
                    "created_at": counted.now,
                    "due_at": counted.now + span(entry.delay),
                    "label": entry.envelope.label(),
                    "body": binary(&entry.envelope.body),
                }
            })
            .collect();
        let limit = tx.held.limit();
        let (session, fate) = tx.held.parts();
        let written = self.tables().outbox.insert_many(rows).session(session);
        fate.watch(answered(limit, written)).await.map(drop)
    }

    pub(crate) async fn list(&self, filter: &OutboxFilter) -> Result<Vec<OutboxRow>> {
        if filter.limit == 0 {
            return Ok(Vec::new());
        }
        let _turn = self.sessions().side_turn().await?;
        let mut these = filtered(filter);
        if let Some(after) = filter.after {
            these.insert("_id", doc! { "$gt": after.0 });
        }
        let rows = async {
            let found = self.tables().outbox.find(these).sort(doc! { "_id": 1 }).limit(filter.limit.into());
            found.await?.try_collect::<Vec<Document>>().await
        };
        let rows = answered(self.sessions().limit(), rows).await.map_err(failed("cannot list the outbox"))?;
        rows.iter().map(row).collect()
    }

    pub(crate) async fn count_rows(&self, filter: &OutboxFilter) -> Result<u64> {
        let _turn = self.sessions().side_turn().await?;
        let counted = self.tables().outbox.count_documents(filtered(filter));
        answered(self.sessions().limit(), counted).await.map_err(failed("cannot count the outbox"))
    }

    pub(crate) async fn make_due(&self, number: OutboxNumber) -> Result<()> {
        let wiped = vec![doc! { "$set": {
            "state": OutboxState::Unsent.as_i64(),
            "attempts": 0_i64,
            "code": Bson::Null,
            "error": Bson::Null,
            "parked_at": Bson::Null,
            "due_at": now(),
        } }];
        let _turn = self.sessions().side_turn().await?;
        let changed = self.tables().outbox.update_one(not_sent_yet(number), wiped);
        let changed =
            answered(self.sessions().limit(), changed).await.map_err(failed("cannot change the outbox"))?;
        there_was_one(number, changed.matched_count)
    }

    pub(crate) async fn remove(&self, number: OutboxNumber) -> Result<()> {
        let _turn = self.sessions().side_turn().await?;
        let gone = self.tables().outbox.delete_one(not_sent_yet(number));
        let gone =
            answered(self.sessions().limit(), gone).await.map_err(failed("cannot change the outbox"))?;
        there_was_one(number, gone.deleted_count)
    }
}

fn not_sent_yet(number: OutboxNumber) -> Document {
    doc! { "_id": number.0, "state": { "$ne": OutboxState::Sent.as_i64() } }
}

fn there_was_one(number: OutboxNumber, changed: u64) -> Result<()> {
    if changed == 1 {
        return Ok(());
    }
    let context = format!("there is no unsent or parked row {number} in the outbox");
    Err(Error::new(ErrorKind::NotFound, Code::NotFound, context))
}

fn filtered(filter: &OutboxFilter) -> Document {
    let mut these = doc! {};
    let named = [
        ("consumer", filter.producer.as_ref().map(ConsumerName::as_str)),
        ("key", filter.key.as_deref()),
        ("message", filter.id.as_ref().map(MessageId::as_str)),
    ];
    for (field, value) in named {
        if let Some(value) = value {
            these.insert(field, value);
        }
    }
    let mut all = Vec::new();
    if let Some(state) = filter.state {
        all.push(doc! { "state": state.as_i64() });
    }
    if filter.failing {
        all.push(doc! { "attempts": { "$gt": 0_i64 }, "state": { "$ne": OutboxState::Sent.as_i64() } });
    }
    if !all.is_empty() {
        these.insert("$and", all);
    }
    these
}

/// Where a row goes.
pub(crate) fn destination(row: &Document) -> Result<Destination> {
    Ok(Destination {
        broker: text(row, "broker")?.to_owned(),
        name: text(row, "destination")?.to_owned(),
        routing_key: text(row, "routing_key")?.to_owned(),
    })
}

/// The message of a row.
pub(crate) fn envelope(row: &Document) -> Result<Envelope> {
    Envelope::from_label(text(row, "label")?, bytes(row, "body")?)
        .map_err(|error| spoilt("the label of a row of the outbox").because(error))
}

fn row(row: &Document) -> Result<OutboxRow> {
    let time = |field| int(row, field).map(Timestamp::from_micros);
    let maybe_time = |field| maybe_int(row, field).map(Timestamp::from_micros);
    let state = int(row, "state")?;
    Ok(OutboxRow {
        number: OutboxNumber(int(row, "_id")?),
        id: message_id(text(row, "message")?)?,
        producer: consumer_name(text(row, "consumer")?)?,
        cause: maybe_text(row, "cause").as_deref().map(message_id).transpose()?,
        kind: text(row, "kind")?.to_owned(),
        key: maybe_text(row, "key"),
        destination: destination(row)?,
        state: OutboxState::from_i64(state)
            .ok_or_else(|| spoilt(format!("a row of the outbox has state {state}")))?,
        attempts: small(int(row, "attempts")?),
        code: maybe_text(row, "code"),
        error: maybe_text(row, "error"),
        created_at: time("created_at")?,
        due_at: time("due_at")?,
        sent_at: maybe_time("sent_at"),
        parked_at: maybe_time("parked_at"),
        envelope: envelope(row)?,
    })
}
