//! Dead letters and their redrive.

use futures::TryStreamExt as _;
use hapax_core::{
    Burial, Code, ConsumerName, DeadFilter, DeadLetter, DeadLetters, DeadNumber, Digest, Envelope, Error,
    ErrorKind, InboxState, MessageId, Redrive, Timestamp, crash_point,
};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use crate::counter::Counter;
use crate::document::{
    binary, bytes, consumer_name, int, literal, maybe_int, maybe_text, message_id, now, small, text,
};
use crate::error::{Answer, Result, answered, failed, is_rival, spoilt};
use crate::inbox::Attempts;
use crate::session::Held;
use crate::store::MongoStore;
use crate::transaction::MongoTx;

impl DeadLetters for MongoStore {
    /// Four round trips; two for a message whose inbox row the transaction does not hold, as it is with those that
    /// have no id and with another payload under a known one, whose row stays as it is.
    async fn bury(
        &self,
        tx: &mut MongoTx,
        consumer: &ConsumerName,
        burial: &Burial<'_>,
    ) -> Result<DeadNumber> {
        let cannot = failed("cannot set a message aside");
        let mut left = None;
        if let Some(id) = burial.id.filter(|id| tx.holds(consumer, id)) {
            self.turn(tx, consumer, id, InboxState::Dead).await.map_err(&cannot)?;
            left = self.leave(&mut tx.held, consumer, id).await.map_err(&cannot)?;
            tx.meta.erased_starts.push(id.clone()); // a redrive begins anew
        }
        let mut place = left.as_ref().and_then(|row| row.get_i64("_id").ok());
        tx.left.extend(place);
        place = place.or(burial.place.map(|place| place.0));
        if place.is_none() && burial.order.is_some() {
            // Whatever comes of its key from now on stands behind it, also after a redrive.
            place = Some(self.next(Counter::Places).await?);
        }
        let number = self.next(Counter::DeadLetters).await?;
        let first_failed_at = left.as_ref().and_then(|row| maybe_int(row, "first_failed_at"));
        let letter = letter(consumer, burial, place, first_failed_at);
        let limit = tx.held.limit();
        let (session, fate) = tx.held.parts();
        let buried =
            self.tables().dead_letters.update_one(doc! { "_id": number }, vec![doc! { "$set": letter }]);
        fate.watch(answered(limit, buried.upsert(true).session(session))).await.map_err(cannot)?;
        Ok(DeadNumber(number))
    }

    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<DeadLetter>> {
        if filter.limit == 0 {
            return Ok(Vec::new());
        }
        let _turn = self.sessions().side_turn().await?;
        let rows = async {
            let found = self.tables().dead_letters.find(filtered(filter));
            let found = found.sort(doc! { "_id": 1 }).limit(filter.limit.into());
            found.await?.try_collect::<Vec<Document>>().await
        };
        let rows =
            answered(self.sessions().limit(), rows).await.map_err(failed("cannot list dead letters"))?;
        rows.iter().map(dead_letter).collect()
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        let _turn = self.sessions().side_turn().await?;
        let counted = self.tables().dead_letters.count_documents(filtered(filter));
        answered(self.sessions().limit(), counted).await.map_err(failed("cannot count dead letters"))
    }

    async fn redrive(&self, redrive: &Redrive<'_>) -> Result<()> {
        let mut attempts = Attempts::default();
        loop {
            let mut held = self.sessions().side().await?;
            let redriven = self.try_redrive(&mut held, redrive).await;
            let redriven = match redriven {
                Ok(Redriven::Done) => {
                    crash_point!("store-before-redrive-commit");
                    held.commit().await
                }
                Ok(Redriven::Lost) => {
                    held.roll_back().await;
                    return Err(self.lost(redrive.number).await?);
                }
                Ok(Redriven::Waiting) => {
                    held.roll_back().await;
                    return Err(waiting_already(redrive.number));
                }
                Err(error) => {
                    held.roll_back().await;
                    Err(error)
                }
            };
            match redriven {
                Ok(()) => break,
                Err(error) if is_rival(&error) && attempts.again().await => {}
                // Somebody has the message of that id in hand.
                Err(error) if is_rival(&error) => return Err(waiting_already(redrive.number)),
                Err(error) => return Err(failed("cannot redrive a dead letter")(error)),
            }
        }
        crash_point!("store-after-redrive-commit");
        Ok(())
    }

    async fn discard(&self, number: DeadNumber) -> Result<()> {
        let open = doc! { "_id": number.0, "redriven_at": Bson::Null };
        let gone = {
            let _turn = self.sessions().side_turn().await?;
            let gone = self.tables().dead_letters.delete_one(open);
            answered(self.sessions().limit(), gone).await.map_err(failed("cannot discard a dead letter"))?
        };
        if gone.deleted_count == 1 { Ok(()) } else { Err(self.lost(number).await?) }
    }
}

/// What became of a redrive.
enum Redriven {
    Done,
    /// There is no such open letter, or it has no id.
    Lost,
    /// Its message is waiting already.
    Waiting,
}

impl MongoStore {
    /// Takes the waiting row of a message out, if there is one.
    pub(crate) async fn leave(
        &self,
        held: &mut Held,
        consumer: &ConsumerName,
        id: &MessageId,
    ) -> Answer<Option<Document>> {
        let limit = held.limit();
        let here = doc! { "consumer": consumer.as_str(), "message": id.as_str() };
        let (session, fate) = held.parts();
        let left = self.tables().waiting.find_one_and_delete(here).projection(doc! { "first_failed_at": 1 });
        fate.watch(answered(limit, left.session(session))).await
    }

    /// Takes a letter, by compare-and-swap, and puts it into the waiting room at the place it had and with its slate
    /// wiped.
    async fn try_redrive(&self, held: &mut Held, redrive: &Redrive<'_>) -> Answer<Redriven> {
        let limit = held.limit();
        let mut open = doc! { "_id": redrive.number.0, "redriven_at": Bson::Null };
        if redrive.id.is_none() {
            open.insert("message", doc! { "$ne": Bson::Null });
        }
        let given = redrive.id.map(|id| id.as_str().to_owned());
        let take = vec![doc! { "$set": {
            "redriven_at": now(),
            "redriven_by": literal(redrive.by),
            "message": { "$ifNull": ["$message", literal(given.clone())] },
        } }];
        let (session, fate) = held.parts();
        let taken = self.tables().dead_letters.find_one_and_update(open, take).session(session);
        let Some(letter) = fate.watch(answered(limit, taken)).await? else { return Ok(Redriven::Lost) };
        let (Ok(consumer), Some(message)) =
            (letter.get_str("consumer"), maybe_text(&letter, "message").or(given))
        else {
            return Ok(Redriven::Lost);
        };
        let here = doc! { "consumer": consumer, "message": &message };
        let (session, fate) = held.parts();
        let there =
            self.tables().waiting.find_one(here.clone()).projection(doc! { "_id": 1 }).session(session);
        if fate.watch(answered(limit, there)).await?.is_some() {
            return Ok(Redriven::Waiting);
        }
        self.readmit(held, &here, &letter).await?;
        self.wait_again(held, here, &letter).await?;
        Ok(Redriven::Done)
    }

    /// The inbox row of a dead message waits again, one of a message without a row is made, one that is done stays.
    async fn readmit(&self, held: &mut Held, scoped: &Document, letter: &Document) -> Answer<()> {
        let limit = held.limit();
        let body = letter.get_binary_generic("body").map_or(&[][..], Vec::as_slice);
        let (waiting, dead) = (InboxState::Waiting.as_i64(), InboxState::Dead.as_i64());
        let is_dead = doc! { "$eq": [{ "$ifNull": ["$state", dead] }, dead] };
        let readmit = vec![doc! { "$set": {
            "state": { "$cond": [is_dead.clone(), waiting, "$state"] },
            "digest": { "$ifNull": ["$digest", Digest::of(body).as_i64()] },
            "sent_at": { "$ifNull": ["$sent_at", Bson::Null] },
            "processed_at": { "$cond": [is_dead, now(), "$processed_at"] },
        } }];
        let (session, fate) = held.parts();
        let row = self.tables().inbox.update_one(doc! { "_id": scoped.clone() }, readmit).upsert(true);
        fate.watch(answered(limit, row.session(session))).await?;
        let (session, fate) = held.parts();
        let starts = self.tables().starts.delete_many(doc! { "_id": scoped.clone() }).session(session);
        fate.watch(answered(limit, starts)).await.map(drop)
    }

    async fn wait_again(&self, held: &mut Held, mut row: Document, letter: &Document) -> Answer<()> {
        let limit = held.limit();
        let place = match maybe_int(letter, "place") {
            Some(place) => place,
            None => answered(limit, self.count(Counter::Places, 1)).await?.first,
        };
        for kept in ["kind", "order", "first_failed_at", "label"] {
            row.insert(kept, literal(letter.get(kept).cloned().unwrap_or(Bson::Null)));
        }
        for text in ["consumer", "message"] {
            let taken = row.get(text).cloned().unwrap_or(Bson::Null);
            row.insert(text, literal(taken));
        }
        row.extend(doc! {
            "failures": 0_i64,
            "code": Bson::Null,
            "error": "",
            "due_at": now(),
            "parked_at": now(),
            "turn": ObjectId::new(),
            "body": letter.get("body").cloned(),
        });
        let (session, fate) = held.parts();
        let insert = self.tables().waiting.update_one(doc! { "_id": place }, vec![doc! { "$set": row }]);
        fate.watch(answered(limit, insert.upsert(true).session(session))).await.map(drop)
    }

    /// Why a dead letter could not be taken.
    async fn lost(&self, number: DeadNumber) -> Result<Error> {
        let found = {
            let _turn = self.sessions().side_turn().await?;
            let found = self.tables().dead_letters.find_one(doc! { "_id": number.0 });
            let found = found.projection(doc! { "redriven_at": 1 });
            answered(self.sessions().limit(), found).await.map_err(failed("cannot find a dead letter"))?
        };
        if let Some(letter) = found {
            return Ok(match maybe_int(&letter, "redriven_at") {
                Some(_) => too_late(number),
                None => needs_id(number),
            });
        }
        if (1..=self.last(Counter::DeadLetters).await?).contains(&number.0) {
            return Ok(too_late(number));
        }
        let context = format!("there is no dead letter {number}");
        Ok(Error::new(ErrorKind::NotFound, Code::NotFound, context))
    }
}

fn too_late(number: DeadNumber) -> Error {
    let context = format!("dead letter {number} was already redriven or discarded");
    Error::new(ErrorKind::NotFound, Code::RedriveLost, context)
}

fn needs_id(number: DeadNumber) -> Error {
    let context = format!("dead letter {number} has no id of its own");
    Error::new(ErrorKind::Statement, Code::RedriveNeedsId, context)
}

fn waiting_already(number: DeadNumber) -> Error {
    let context = format!("the message of dead letter {number} is waiting already");
    Error::new(ErrorKind::Busy, Code::StoreBusy, context)
}

fn letter(
    consumer: &ConsumerName,
    burial: &Burial<'_>,
    place: Option<i64>,
    first_failed_at: Option<i64>,
) -> Document {
    doc! {
        "consumer": consumer.as_str(),
        "message": literal(burial.id.map(MessageId::as_str)),
        "kind": literal(burial.kind),
        "order": literal(burial.order),
        "place": place,
        "reason": burial.reason.as_str(),
        "error": literal(burial.error),
        "failures": i64::from(burial.failures),
        "crashes": i64::from(burial.crashes),
        "first_failed_at": first_failed_at.map_or_else(now, Bson::Int64),
        "died_at": now(),
        "redriven_at": Bson::Null,
        "redriven_by": Bson::Null,
        "label": literal(burial.envelope.label()),
        "body": binary(&burial.envelope.body),
    }
}

fn filtered(filter: &DeadFilter) -> Document {
    let mut wanted = doc! { "redriven_at": Bson::Null };
    let named = [
        ("consumer", filter.consumer.as_ref().map(ConsumerName::as_str)),
        ("reason", filter.reason.map(Code::as_str)),
        ("message", filter.id.as_ref().map(MessageId::as_str)),
    ];
    for (field, value) in named {
        if let Some(value) = value {
            wanted.insert(field, value);
        }
    }
    if let Some(after) = filter.after {
        wanted.insert("_id", doc! { "$gt": after.0 });
    }
    wanted
}

fn dead_letter(row: &Document) -> Result<DeadLetter> {
    let time = |field| int(row, field).map(Timestamp::from_micros);
    Ok(DeadLetter {
        number: DeadNumber(int(row, "_id")?),
        consumer: consumer_name(text(row, "consumer")?)?,
        id: maybe_text(row, "message").as_deref().map(message_id).transpose()?,
        kind: text(row, "kind")?.to_owned(),
        order: maybe_text(row, "order"),
        reason: text(row, "reason")?.to_owned(),
        error: text(row, "error")?.to_owned(),
        failures: small(int(row, "failures")?),
        crashes: small(int(row, "crashes")?),
        first_failed_at: time("first_failed_at")?,
        died_at: time("died_at")?,
        envelope: Envelope::from_label(text(row, "label")?, bytes(row, "body")?)
            .map_err(|error| spoilt("a dead letter's label").because(error))?,
    })
}
