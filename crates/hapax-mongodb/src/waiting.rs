//! The waiting room.

use std::time::Duration;

use futures::TryStreamExt as _;
use hapax_core::{
    Code, ConsumerName, Envelope, Error, ErrorKind, InboxState, MessageId, Parking, Place, Timestamp,
    Waiting, WaitingDepth, WaitingRoom, WaitingRow,
};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use crate::counter::Counter;
use crate::document::{
    after, binary, bytes, int, literal, maybe_int, maybe_text, message_id, now, small, text,
};
use crate::error::{Answer, Result, answered, failed, spoilt};
use crate::lease::{count, with_lease};
use crate::store::MongoStore;
use crate::tables::scoped;
use crate::transaction::MongoTx;

impl WaitingRoom for MongoStore {
    /// Two round trips for a message that was there before; two more for one that comes in.
    async fn park(&self, tx: &mut MongoTx, consumer: &ConsumerName, parking: &Parking<'_>) -> Result<()> {
        let message = parking.message;
        if !tx.holds(consumer, &message.id) {
            let context = format!("the transaction does not hold message `{}`", message.id);
            return Err(Error::new(ErrorKind::Statement, Code::StoreFailed, context));
        }
        let cannot = failed("cannot put a message into the waiting room");
        let here = doc! { "consumer": consumer.as_str(), "message": message.id.as_str() };
        if !self.park_at(tx, here, parking).await.map_err(&cannot)? {
            let place = self.next(Counter::Places).await?;
            self.come_in(tx, consumer, place, parking).await.map_err(&cannot)?;
        }
        self.turn(tx, consumer, &message.id, InboxState::Waiting).await.map_err(cannot)
    }

    /// One round trip if nothing is due, else three.
    async fn lease(&self, consumer: &ConsumerName, max: usize, lease: Duration) -> Result<Vec<Waiting>> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let _turn = self.sessions().side_turn().await?;
        let leased = answered(self.sessions().limit(), self.lease_due(consumer, max, lease)).await;
        let mut leased = leased.map_err(failed("cannot lease from the waiting room"))?;
        leased.sort_by_key(|row| (row.get_i64("due_at").ok(), row.get_i64("_id").ok()));
        leased.iter().map(waiting).collect()
    }

    async fn renew(&self, consumer: &ConsumerName, places: &[Place], lease: Duration) -> Result<()> {
        self.renew_leases(consumer, places, lease).await
    }

    async fn give_back(&self, consumer: &ConsumerName, places: &[Place]) -> Result<()> {
        self.drop_leases(consumer, places).await
    }

    async fn depth(&self, consumer: &ConsumerName) -> Result<WaitingDepth> {
        let cannot = failed("cannot count the waiting room");
        let _turn = self.sessions().side_turn().await?;
        let counted = async {
            let mut cursor = self.tables().waiting.aggregate(self.depths(consumer)).await?;
            cursor.try_next().await
        };
        let Some(counted) = answered(self.sessions().limit(), counted).await.map_err(cannot)? else {
            return Ok(WaitingDepth::default());
        };
        Ok(WaitingDepth {
            total: int(&counted, "total")?.unsigned_abs(),
            due: int(&counted, "due")?.unsigned_abs(),
            next: maybe_int(&counted, "next").map(|next| Duration::from_micros(next.unsigned_abs())),
        })
    }

    async fn waiting(&self, consumer: &ConsumerName, id: &MessageId) -> Result<Option<WaitingRow>> {
        let cannot = failed("cannot look into the waiting room");
        let _turn = self.sessions().side_turn().await?;
        let here = doc! { "consumer": consumer.as_str(), "message": id.as_str() };
        let found = self.tables().waiting.find_one(here).projection(doc! { "body": 0, "label": 0 });
        let found = answered(self.sessions().limit(), found).await.map_err(cannot)?;
        found.as_ref().map(waiting_row).transpose()
    }
}

impl MongoStore {
    /// Updates the row of a message that is there already; says whether it is.
    async fn park_at(&self, tx: &mut MongoTx, here: Document, parking: &Parking<'_>) -> Answer<bool> {
        let limit = tx.held.limit();
        let mut changes = parked(parking);
        if parking.code.is_some() {
            changes.insert("first_failed_at", doc! { "$ifNull": ["$first_failed_at", now()] });
        }
        let (session, fate) = tx.held.parts();
        let parked = self.tables().waiting.update_one(here, vec![doc! { "$set": changes }]).session(session);
        Ok(fate.watch(answered(limit, parked)).await?.matched_count == 1)
    }

    async fn come_in(
        &self,
        tx: &mut MongoTx,
        consumer: &ConsumerName,
        place: i64,
        parking: &Parking<'_>,
    ) -> Answer<()> {
        let limit = tx.held.limit();
        let message = parking.message;
        let mut row = parked(parking);
        row.extend(doc! {
            "consumer": consumer.as_str(),
            "message": literal(message.id.as_str()),
            "kind": literal(message.kind.as_str()),
            "order": literal(parking.order),
            "parked_at": now(),
            "first_failed_at": parking.code.map_or(Bson::Null, |_| now()),
            "label": literal(message.envelope.label()),
            "body": binary(&message.envelope.body),
        });
        let (session, fate) = tx.held.parts();
        let insert = self.tables().waiting.update_one(doc! { "_id": place }, vec![doc! { "$set": row }]);
        fate.watch(answered(limit, insert.upsert(true).session(session))).await.map(drop)
    }

    /// Turns the inbox row of a message that the transaction holds.
    pub(crate) async fn turn(
        &self,
        tx: &mut MongoTx,
        consumer: &ConsumerName,
        id: &MessageId,
        state: InboxState,
    ) -> Answer<()> {
        let limit = tx.held.limit();
        let turn = vec![doc! { "$set": { "state": state.as_i64(), "processed_at": now() } }];
        let (session, fate) = tx.held.parts();
        let row = doc! { "_id": scoped(consumer, id) };
        let turned = self.tables().inbox.update_one(row, turn).session(session);
        fate.watch(answered(limit, turned)).await.map(drop)
    }

    async fn lease_due(&self, consumer: &ConsumerName, max: usize, lease: Duration) -> Answer<Vec<Document>> {
        let candidates: Vec<Document> =
            self.tables().waiting.aggregate(self.due(consumer, max)).await?.try_collect().await?;
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let token = ObjectId::new();
        self.lease_each(consumer, &candidates, lease, token).await?;
        let places: Vec<Bson> = candidates.iter().filter_map(|row| row.get("_id").cloned()).collect();
        let mut ours = vec![doc! { "$match": { "_id": { "$in": places } } }];
        ours.extend(with_lease(self.tables().leases.name()));
        ours.push(doc! { "$match": { "lease.token": token } });
        self.tables().waiting.aggregate(ours).await?.try_collect().await
    }

    /// The messages to lease: due, in nobody's hands, and the first of their keys.
    fn due(&self, consumer: &ConsumerName, max: usize) -> Vec<Document> {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let mut stages = vec![
            doc! { "$match": { "consumer": consumer.as_str(), "$expr": { "$lte": ["$due_at", now()] } } },
            doc! { "$sort": { "due_at": 1, "_id": 1 } },
            doc! { "$project": { "consumer": 1, "order": 1, "turn": 1 } },
        ];
        stages.extend(with_lease(self.tables().leases.name()));
        stages.push(
            doc! { "$match": { "$expr": { "$lte": [{ "$ifNull": ["$lease.until", 0_i64] }, now()] } } },
        );
        stages.extend(self.heads());
        stages.extend([doc! { "$limit": max }, doc! { "$project": { "turn": 1 } }]);
        stages
    }

    /// Lets pass the first of each key, unless a dead letter stands before it.
    fn heads(&self) -> Vec<Document> {
        let (waiting, dead) = (self.tables().waiting.name(), self.tables().dead_letters.name());
        let before = |from: &str, place: &str, name: &str, open: Document| {
            let mut ours = doc! { "$expr": { "$and": [
                { "$eq": ["$consumer", "$$consumer"] },
                { "$eq": ["$order", "$$order"] },
                { "$ne": ["$$order", Bson::Null] },
                { "$lt": [place, "$$place"] },
            ] } };
            ours.extend(open);
            doc! { "$lookup": {
                "from": from,
                "let": { "consumer": "$consumer", "order": { "$ifNull": ["$order", Bson::Null] }, "place": "$_id" },
                "pipeline": [{ "$match": ours }, { "$limit": 1 }, { "$project": { "_id": 1 } }],
                "as": name,
            } }
        };
        vec![
            before(waiting, "$_id", "earlier", doc! {}),
            before(
                dead,
                "$place",
                "dead",
                doc! { "redriven_at": Bson::Null, "place": { "$ne": Bson::Null } },
            ),
            doc! { "$match": { "earlier": { "$size": 0 }, "dead": { "$size": 0 } } },
        ]
    }

    fn depths(&self, consumer: &ConsumerName) -> Vec<Document> {
        let mut heads = self.heads();
        let is_due = doc! { "$lte": ["$due_at", now()] };
        heads.push(doc! { "$group": {
            "_id": Bson::Null,
            "due": { "$sum": { "$cond": [is_due.clone(), 1_i64, 0_i64] } },
            "next": { "$min": { "$cond": [is_due, Bson::Null, { "$subtract": ["$due_at", now()] }] } },
        } });
        let all = vec![doc! { "$count": "rows" }];
        vec![
            doc! { "$match": { "consumer": consumer.as_str() } },
            doc! { "$project": { "consumer": 1, "order": 1, "due_at": 1 } },
            doc! { "$facet": { "all": all, "heads": heads } },
            doc! { "$project": {
                "total": { "$toLong": { "$ifNull": [{ "$first": "$all.rows" }, 0_i64] } },
                "due": { "$toLong": { "$ifNull": [{ "$first": "$heads.due" }, 0_i64] } },
                "next": { "$first": "$heads.next" },
            } },
        ]
    }
}

/// What each parking sets. A new turn: whoever had the message in hand has it no longer.
fn parked(parking: &Parking<'_>) -> Document {
    doc! {
        "failures": i64::from(parking.failures),
        "code": parking.code.map(Code::as_str),
        "error": literal(parking.error),
        "due_at": after(parking.wait),
        "turn": ObjectId::new(),
    }
}

fn waiting(row: &Document) -> Result<Waiting> {
    let envelope = Envelope::from_label(text(row, "label")?, bytes(row, "body")?)
        .map_err(|error| spoilt("a waiting message's label").because(error))?;
    Ok(Waiting {
        place: Place(int(row, "_id")?),
        id: message_id(text(row, "message")?)?,
        envelope,
        order: maybe_text(row, "order"),
        failures: small(int(row, "failures")?),
        leased_before: count(row) > 1,
    })
}

fn waiting_row(row: &Document) -> Result<WaitingRow> {
    Ok(WaitingRow {
        place: Place(int(row, "_id")?),
        failures: small(int(row, "failures")?),
        code: maybe_text(row, "code"),
        error: text(row, "error")?.to_owned(),
        due_at: Timestamp::from_micros(int(row, "due_at")?),
        parked_at: Timestamp::from_micros(int(row, "parked_at")?),
    })
}
