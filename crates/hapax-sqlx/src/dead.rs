//! Dead letters and their redrive.

use hapax_core::{
    Burial, Code, ConsumerName, DeadFilter, DeadLetter, DeadLetters, DeadNumber, Digest, Envelope, Error,
    ErrorKind, MessageId, Redrive, Timestamp, crash_point,
};

use crate::connection::Held;
use crate::dialect::{Dialect, int, text};
use crate::error::{Result, failed, unreadable};
use crate::inbox::{message_id, spoilt};
use crate::store::SqlStore;
use crate::transaction::SqlTx;
use crate::value::{Value, legible, values};
use crate::waiting::small;

/// The place a letter had in the waiting room, and since when it fails.
#[derive(Default)]
struct Left {
    place: Option<i64>,
    first_failed_at: Option<i64>,
}

impl<D: Dialect> DeadLetters for SqlStore<D> {
    /// Three round trips; one for a message whose inbox row the transaction does not hold, as it is with
    /// those that have no id and with another payload under a known one, whose row stays as it is.
    async fn bury(
        &self,
        tx: &mut SqlTx<D>,
        consumer: &ConsumerName,
        burial: &Burial<'_>,
    ) -> Result<DeadNumber> {
        let cannot = failed::<D>("cannot set a message aside");
        let mut left = Left::default();
        if let Some(id) = burial.id.filter(|id| tx.holds(consumer, id)) {
            left = self.turn_dead(&mut tx.held, consumer, id).await.map_err(&cannot)?;
            tx.meta.erased_starts.push(id.clone()); // a redrive begins anew
        }
        let mut place = left.place.or(burial.place.map(|place| place.0));
        if place.is_none() && burial.order.is_some() {
            // Whatever comes of its key from now on stands behind it, also after a redrive.
            let rows = tx.held.fetch(&self.sql().new_place, Vec::new()).await.map_err(&cannot)?;
            place = rows.first().map_or(Ok(None), |row| D::int(row, 0)).map_err(&cannot)?;
        }
        let bound = letter_values(consumer, burial, place, left.first_failed_at);
        let rows = tx.held.fetch(&self.sql().bury, bound).await.map_err(&cannot)?;
        rows.first().map_or(Ok(0), |row| int::<D>(row, 0)).map(DeadNumber).map_err(cannot)
    }

    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<DeadLetter>> {
        let mut bound = filter_values(filter);
        bound.push(filter.limit.into());
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().dead, bound).await;
        let rows = held.answer(answer).map_err(failed::<D>("cannot list dead letters"))?;
        rows.iter().map(dead_letter::<D>).collect()
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        let cannot = failed::<D>("cannot count dead letters");
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().count_dead, filter_values(filter)).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        rows.first().map_or(Ok(0), |row| int::<D>(row, 0)).map(i64::unsigned_abs).map_err(cannot)
    }

    async fn redrive(&self, redrive: &Redrive<'_>) -> Result<()> {
        let cannot = failed::<D>("cannot redrive a dead letter");
        let mut held = self.connections().side_transaction().await?;
        let id = redrive.id.map(MessageId::as_str);
        let bound = values![redrive.number.0, legible(redrive.by), id];
        let rows = held.fetch(&self.sql().redrive, bound).await.map_err(&cannot)?;
        let Some(row) = rows.first() else {
            let error = self.lost(&mut held, redrive.number).await;
            held.roll_back().await;
            return Err(error.map_err(cannot)?);
        };
        if !self.wait_again(&mut held, row).await.map_err(cannot)? {
            held.roll_back().await;
            let context = format!("the message of dead letter {} is waiting already", redrive.number);
            return Err(Error::new(ErrorKind::Busy, Code::StoreBusy, context));
        }
        crash_point!("store-before-redrive-commit");
        held.commit().await?;
        crash_point!("store-after-redrive-commit");
        Ok(())
    }

    async fn discard(&self, number: DeadNumber) -> Result<()> {
        let cannot = failed::<D>("cannot discard a dead letter");
        let mut held = self.connections().side_transaction().await?;
        let gone = held.execute(&self.sql().discard, values![number.0]).await.map_err(&cannot)? == 1;
        if !gone {
            let error = self.lost(&mut held, number).await;
            held.roll_back().await;
            return Err(error.map_err(cannot)?);
        }
        held.commit().await
    }
}

impl<D: Dialect> SqlStore<D> {
    /// The inbox row becomes `dead` and the waiting row goes.
    async fn turn_dead(
        &self,
        held: &mut Held<D>,
        consumer: &ConsumerName,
        id: &MessageId,
    ) -> Result<Left, sqlx::Error> {
        let bound = || values![consumer.as_str(), id.as_str()];
        held.execute(&self.sql().turn_dead, bound()).await?;
        let rows = held.fetch(&self.sql().leave_waiting, bound()).await?;
        let Some(row) = rows.first() else { return Ok(Left::default()) };
        Ok(Left { place: D::int(row, 0)?, first_failed_at: D::int(row, 1)? })
    }

    /// Puts a letter that was taken into the waiting room, at the place it had and with its slate wiped.
    /// No if its message is there already.
    async fn wait_again(&self, held: &mut Held<D>, letter: &D::Row) -> Result<bool, sqlx::Error> {
        let (consumer, id) = (text::<D>(letter, 0)?, text::<D>(letter, 1)?);
        let (label, body) = (text::<D>(letter, 6)?, D::bytes(letter, 7)?);
        let digest = Digest::of(&body).as_i64();
        let bound = values![consumer.as_str(), id.as_str(), digest];
        held.execute(&self.sql().readmit, bound).await?;
        held.execute(&self.sql().forget_starts, values![consumer.as_str(), id.as_str()]).await?;
        let bound = vec![
            D::int(letter, 4)?.into(),
            consumer.into(),
            id.into(),
            text::<D>(letter, 2)?.into(),
            D::text(letter, 3)?.into(),
            D::int(letter, 5)?.into(),
            label.into(),
            Value::Bytes(Some(body)),
        ];
        Ok(held.execute(&self.sql().wait_again, bound).await? == 1)
    }

    /// Why a dead letter could not be taken.
    async fn lost(&self, held: &mut Held<D>, number: DeadNumber) -> Result<Error, sqlx::Error> {
        let rows = held.fetch(&self.sql().dead_one, values![number.0]).await?;
        if let Some(row) = rows.first() {
            return Ok(match D::int(row, 0)? {
                Some(_) => too_late(number),
                None => needs_id(number),
            });
        }
        let rows = held.fetch(&self.sql().last_dead, Vec::new()).await?;
        let last = rows.first().map_or(Ok(0), |row| int::<D>(row, 0))?;
        if (1..=last).contains(&number.0) {
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

fn letter_values(
    consumer: &ConsumerName,
    burial: &Burial<'_>,
    place: Option<i64>,
    first_failed_at: Option<i64>,
) -> Vec<Value> {
    values![
        consumer.as_str(),
        burial.id.map(MessageId::as_str),
        legible(burial.kind),
        burial.order.map(legible),
        place,
        burial.reason.as_str(),
        legible(burial.error),
        burial.failures,
        burial.crashes,
        first_failed_at,
        burial.envelope.label(),
        &burial.envelope.body,
    ]
}

fn filter_values(filter: &DeadFilter) -> Vec<Value> {
    values![
        filter.consumer.as_ref().map(ConsumerName::as_str),
        filter.reason.map(Code::as_str),
        filter.id.as_ref().map(MessageId::as_str),
        filter.after.map_or(0, |after| after.0),
    ]
}

fn dead_letter<D: Dialect>(row: &D::Row) -> Result<DeadLetter> {
    let cannot = failed::<D>("cannot read a dead letter");
    let number = |column| int::<D>(row, column).map_err(&cannot);
    let words = |column| text::<D>(row, column).map_err(&cannot);
    let consumer = ConsumerName::new(words(1)?).map_err(|error| spoilt(error.to_string()))?;
    let body = D::bytes(row, 12).map_err(&cannot)?;
    Ok(DeadLetter {
        number: DeadNumber(number(0)?),
        consumer,
        id: D::text(row, 2).map_err(&cannot)?.map(message_id).transpose()?,
        kind: words(3)?,
        order: D::text(row, 4).map_err(&cannot)?,
        reason: words(5)?,
        error: words(6)?,
        failures: small(number(7)?),
        crashes: small(number(8)?),
        first_failed_at: Timestamp::from_micros(number(9)?),
        died_at: Timestamp::from_micros(number(10)?),
        envelope: Envelope::from_label(&words(11)?, body).map_err(unreadable("a dead letter's label"))?,
    })
}
