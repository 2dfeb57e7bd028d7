//! Messages in progress under a lease.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::{Claim, ConsumerName, Fence, Grip, InboxState, Key, MessageId, Running, Timestamp, micros};

use crate::claim::{PURGEABLE, in_order, kept};
use crate::connection::Held;
use crate::dialect::{Dialect, int, text};
use crate::error::{Result, failed};
use crate::store::SqlStore;
use crate::value::{Value, values};

impl<D: Dialect> Running for SqlStore<D> {
    /// One round trip; for a message whose order is kept, four.
    async fn begin_running(
        &self,
        consumer: &ConsumerName,
        key: &Key,
        lease: Duration,
        slack: Duration,
    ) -> Result<Grip> {
        let cannot = failed::<D>("cannot begin a message");
        let Some(ordered) = in_order(0, key) else {
            let mut held = self.connections().side_writer().await?;
            let grip = self.grip(&mut held, consumer, key, lease, slack).await;
            return held.answer(grip).map_err(cannot);
        };
        let mut held = self.connections().side_transaction().await?;
        let grip = self.grip(&mut held, consumer, key, lease, slack).await.map_err(cannot)?;
        // Ambiguity comes before order, as in a claim.
        if matches!(grip, Grip::Ours { ambiguous: false, .. })
            && !self.held(held.conn(), consumer, &[ordered]).await?.is_empty()
        {
            held.roll_back().await;
            return Ok(Grip::Held);
        }
        held.commit().await?;
        Ok(grip)
    }

    async fn renew_running(
        &self,
        consumer: &ConsumerName,
        running: &[(MessageId, Fence)],
        lease: Duration,
    ) -> Result<Vec<bool>> {
        let ids: Value = running.iter().map(|(id, _)| id.as_str()).collect();
        let fenced: Value = running.iter().map(|(id, fence)| format!("{id}:{}", fence.0)).collect();
        let cannot = failed::<D>("cannot renew a lease");
        let mut held = self.connections().side_writer().await?;
        let bound = values![consumer.as_str(), ids, fenced, micros(lease)];
        let answer = held.fetch(&self.sql().renew_running, bound).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        let ours = rows.iter().map(|row| text::<D>(row, 0)).collect::<Result<Vec<_>, _>>().map_err(cannot)?;
        Ok(running.iter().map(|(id, _)| ours.iter().any(|ours| ours == id.as_str())).collect())
    }

    async fn end_running(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
        result: Option<&[u8]>,
    ) -> Result<bool> {
        let mut held = self.connections().side_writer().await?;
        let bound = values![consumer.as_str(), id.as_str(), fence.0, result];
        let answer = held.execute(&self.sql().end_running, bound).await;
        let ended = held.answer(answer).map_err(failed::<D>("cannot end a message"))?;
        Ok(ended == 1)
    }

    /// One round trip; two for a message that was not new.
    async fn drop_running(&self, consumer: &ConsumerName, id: &MessageId, fence: Fence) -> Result<bool> {
        let mut held = self.connections().side_writer().await?;
        let dropped = self.give_up(&mut held, consumer, id, fence).await;
        held.answer(dropped).map_err(failed::<D>("cannot give up a message"))
    }
}

impl<D: Dialect> SqlStore<D> {
    async fn grip(
        &self,
        held: &mut Held<D>,
        consumer: &ConsumerName,
        key: &Key,
        lease: Duration,
        slack: Duration,
    ) -> Result<Grip, sqlx::Error> {
        let (sent_at, place) = (key.sent_at.map(Timestamp::as_micros), key.place.map(|place| place.0));
        let (id, digest) = (key.id.as_str(), key.digest.as_i64());
        let bound = values![consumer.as_str(), id, digest, sent_at, micros(lease), place];
        let rows = held.fetch(&self.sql().begin_running, bound).await?;
        // A row that a rival committed after this statement began is neither changed nor seen: busy, too.
        let Some(row) = rows.first() else { return Ok(Grip::Busy) };
        let Some(fence) = D::int(row, 0)? else { return begun_elsewhere::<D>(key, row) };
        let taken_over = fence % 2 != 0;
        let purgeable = int::<D>(row, 1)?.saturating_sub(micros(PURGEABLE));
        let is_new = !taken_over && place.is_none();
        let horizon = if is_new && sent_at.is_some_and(|sent_at| sent_at < purgeable) {
            D::horizon_now(held.conn(), self.sql(), consumer).await?
        } else {
            None
        };
        let horizon = horizon.map(|horizon| Timestamp::from_micros(horizon).plus(slack));
        let ambiguous = key.sent_at.zip(horizon).is_some_and(|(sent_at, horizon)| sent_at <= horizon);
        Ok(Grip::Ours {
            fence: Fence(fence),
            taken_over,
            ambiguous,
            other_payload: int::<D>(row, 3)? != digest,
        })
    }

    async fn give_up(
        &self,
        held: &mut Held<D>,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
    ) -> Result<bool, sqlx::Error> {
        let bound = values![consumer.as_str(), id.as_str(), fence.0];
        if held.execute(&self.sql().drop_running, bound.clone()).await? == 1 {
            return Ok(true);
        }
        Ok(held.execute(&self.sql().wait_on, bound).await? == 1)
    }
}

/// What stands in the way of a message that could not be begun.
fn begun_elsewhere<D: Dialect>(key: &Key, row: &D::Row) -> Result<Grip, sqlx::Error> {
    let state = int::<D>(row, 2)?;
    let other_payload = int::<D>(row, 3)? != key.digest.as_i64();
    if InboxState::from_i64(state) == Some(InboxState::Running) {
        let left = u64::try_from(int::<D>(row, 1)?).unwrap_or(0);
        return Ok(Grip::Running { other_payload, ends_in: Duration::from_micros(left) });
    }
    Ok(match kept(state, other_payload) {
        Claim::Duplicate { other_payload } => {
            Grip::Done { other_payload, result: D::maybe_bytes(row, 4)?.map(Bytes::from) }
        }
        Claim::Waiting { other_payload } => Grip::Waiting { other_payload },
        Claim::Dead { other_payload } => Grip::Dead { other_payload },
        _ => Grip::Busy,
    })
}
