//! The waiting room.

use std::time::Duration;

use hapax_core::{
    Code, ConsumerName, Envelope, Error, ErrorKind, MessageId, Parking, Place, Timestamp, Waiting,
    WaitingDepth, WaitingRoom, WaitingRow, micros,
};

use crate::dialect::{Dialect, int, text};
use crate::error::{Result, failed, unreadable};
use crate::inbox::message_id;
use crate::store::SqlStore;
use crate::transaction::SqlTx;
use crate::value::{Value, legible, values};

impl<D: Dialect> WaitingRoom for SqlStore<D> {
    /// Two round trips.
    async fn park(&self, tx: &mut SqlTx<D>, consumer: &ConsumerName, parking: &Parking<'_>) -> Result<()> {
        let Parking { message, failures, error, code, wait, order } = parking;
        if !tx.holds(consumer, &message.id) {
            let context = format!("the transaction does not hold message `{}`", message.id);
            return Err(Error::new(ErrorKind::Statement, Code::StoreFailed, context));
        }
        let bound = values![
            consumer.as_str(),
            message.id.as_str(),
            legible(&message.kind),
            order.map(legible),
            *failures,
            code.map(Code::as_str),
            legible(error),
            micros(*wait),
            message.envelope.label(),
            &message.envelope.body,
        ];
        let cannot = failed::<D>("cannot put a message into the waiting room");
        tx.held.execute(&self.sql().park, bound).await.map_err(&cannot)?;
        let bound = values![consumer.as_str(), message.id.as_str()];
        tx.held.execute(&self.sql().turn_waiting, bound).await.map_err(cannot)?;
        Ok(())
    }

    async fn lease(&self, consumer: &ConsumerName, max: usize, lease: Duration) -> Result<Vec<Waiting>> {
        let cannot = failed::<D>("cannot lease from the waiting room");
        if D::ONE_WRITER && !self.any(&self.sql().lease_peek, consumer.as_str()).await? {
            return Ok(Vec::new()); // without queueing up behind those who write
        }
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let mut held = self.connections().side_writer().await?;
        let bound = values![consumer.as_str(), max, micros(lease)];
        let answer = held.fetch(&self.sql().lease, bound).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        let mut leased = rows.iter().map(leased::<D>).collect::<Result<Vec<_>>>()?;
        leased.sort_by_key(|(due_at, waiting)| (*due_at, waiting.place));
        Ok(leased.into_iter().map(|(_, waiting)| waiting).collect())
    }

    async fn renew(&self, consumer: &ConsumerName, places: &[Place], lease: Duration) -> Result<()> {
        let bound = values![consumer.as_str(), numbers(places), micros(lease)];
        let mut held = self.connections().side_writer().await?;
        let answer = held.execute(&self.sql().renew, bound).await;
        held.answer(answer).map(drop).map_err(failed::<D>("cannot renew a lease of the waiting room"))
    }

    async fn give_back(&self, consumer: &ConsumerName, places: &[Place]) -> Result<()> {
        let bound = values![consumer.as_str(), numbers(places)];
        let mut held = self.connections().side_writer().await?;
        let answer = held.execute(&self.sql().give_back, bound).await;
        held.answer(answer).map(drop).map_err(failed::<D>("cannot give a message back to the waiting room"))
    }

    async fn depth(&self, consumer: &ConsumerName) -> Result<WaitingDepth> {
        let cannot = failed::<D>("cannot count the waiting room");
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().depth, values![consumer.as_str()]).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound).map_err(&cannot)?;
        Ok(WaitingDepth {
            total: int::<D>(row, 0).map_err(&cannot)?.unsigned_abs(),
            due: int::<D>(row, 1).map_err(&cannot)?.unsigned_abs(),
            next: D::int(row, 2).map_err(&cannot)?.map(|next| Duration::from_micros(next.unsigned_abs())),
        })
    }

    async fn waiting(&self, consumer: &ConsumerName, id: &MessageId) -> Result<Option<WaitingRow>> {
        let cannot = failed::<D>("cannot look into the waiting room");
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().waiting, values![consumer.as_str(), id.as_str()]).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        rows.first().map(waiting_row::<D>).transpose().map_err(cannot)
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Whether a statement finds anything, without taking a writer's turn.
    pub(crate) async fn any(&self, sql: &D::Sql, of: &str) -> Result<bool> {
        let mut held = self.connections().side().await?;
        let answer = held.fetch(sql, values![of]).await;
        let rows = held.answer(answer).map_err(failed::<D>("cannot see whether anything is due"))?;
        Ok(!rows.is_empty())
    }
}

fn numbers(places: &[Place]) -> Value {
    places.iter().map(|place| place.0).collect()
}

fn leased<D: Dialect>(row: &D::Row) -> Result<(i64, Waiting)> {
    let cannot = failed::<D>("cannot read a waiting message");
    let label = text::<D>(row, 4).map_err(&cannot)?;
    let body = D::bytes(row, 5).map_err(&cannot)?;
    let waiting = Waiting {
        place: Place(int::<D>(row, 0).map_err(&cannot)?),
        id: message_id(text::<D>(row, 1).map_err(&cannot)?)?,
        envelope: Envelope::from_label(&label, body).map_err(unreadable("a waiting message's label"))?,
        order: D::text(row, 7).map_err(&cannot)?,
        failures: small(int::<D>(row, 2).map_err(&cannot)?),
        leased_before: int::<D>(row, 3).map_err(&cannot)? > 1,
    };
    Ok((int::<D>(row, 6).map_err(&cannot)?, waiting))
}

fn waiting_row<D: Dialect>(row: &D::Row) -> Result<WaitingRow, sqlx::Error> {
    Ok(WaitingRow {
        place: Place(int::<D>(row, 0)?),
        failures: small(int::<D>(row, 1)?),
        code: D::text(row, 2)?,
        error: text::<D>(row, 3)?,
        due_at: Timestamp::from_micros(int::<D>(row, 4)?),
        parked_at: Timestamp::from_micros(int::<D>(row, 5)?),
    })
}

/// A count that was stored from a `u32`.
pub(crate) fn small(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
