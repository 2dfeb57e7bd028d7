//! The attempt to take messages: what a claim statement's findings mean.

use std::time::Duration;

use hapax_core::{Claim, ConsumerName, Error, InboxState, Key, Timestamp, micros};

use crate::dialect::{Dialect, Found, Taking, Wanted, int};
use crate::error::{Result, failed};
use crate::store::SqlStore;
use crate::value::{Value, values};

/// A message sent more recently cannot have been purged, since nothing younger than a minute is; what
/// is older may have been between the claim's snapshot and its insert.
pub(crate) const PURGEABLE: Duration = Duration::from_secs(30);
/// What [`SqlStore::claim_in`] adds to the horizon.
const SLACK: Duration = Duration::from_hours(1);

impl<D: Dialect> SqlStore<D> {
    /// Takes a message inside a transaction of the user's own, beside no source. One round trip for a new
    /// message; one more for one that is not, or that was sent more than 30 s ago, or whose order is kept.
    ///
    /// Anything but a claim that [is ours](Claim::is_ours) means that the message must not take effect
    /// now. The claim is undone if the transaction is rolled back. There is no sentinel: an error that
    /// is swallowed before the commit loses claim and effect alike.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(
    /// #     store: hapax_sqlx::PgStore, pool: sqlx::PgPool, consumer: hapax_core::ConsumerName, key: hapax_core::Key,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = pool.begin().await?;
    /// if store.claim_in(&mut tx, &consumer, &key).await?.is_ours() {
    ///     sqlx::query("UPDATE orders SET status = 'paid'").execute(&mut *tx).await?;
    ///     tx.commit().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn claim_in(
        &self,
        conn: &mut D::Connection,
        consumer: &ConsumerName,
        key: &Key,
    ) -> Result<Claim> {
        let keys = std::slice::from_ref(key);
        let taking = D::take(conn, self.sql(), Wanted { consumer, keys }).await;
        let taking = taking.map_err(failed::<D>("cannot claim a message"))?;
        let claims = self.judge(conn, consumer, keys, SLACK, taking).await?;
        Ok(claims.first().copied().unwrap_or(Claim::Busy)) // one key, one answer
    }

    /// Turns findings into answers, with a look at the horizon and at each key's order where needed.
    pub(crate) async fn judge(
        &self,
        conn: &mut D::Connection,
        consumer: &ConsumerName,
        keys: &[Key],
        slack: Duration,
        mut taking: Taking,
    ) -> Result<Vec<Claim>> {
        if may_have_been_purged(keys, &taking) {
            let horizon = D::horizon_now(conn, self.sql(), consumer).await;
            taking.horizon = horizon.map_err(failed::<D>("cannot read the horizon"))?;
        }
        let horizon = taking.horizon.map(|horizon| Timestamp::from_micros(horizon).plus(slack));
        let answer = |(key, found): (&Key, &Found)| answer(key, *found, horizon);
        let mut claims: Vec<Claim> = keys.iter().zip(&taking.found).map(answer).collect();
        self.hold_back(conn, consumer, keys, &mut claims).await?;
        Ok(claims)
    }

    /// Marks the messages that must queue up behind others of their key.
    async fn hold_back(
        &self,
        conn: &mut D::Connection,
        consumer: &ConsumerName,
        keys: &[Key],
        claims: &mut [Claim],
    ) -> Result<()> {
        // Ambiguity comes before order: a message that is parked would lose it.
        let new = claims.iter().enumerate().filter(|(_, claim)| **claim == Claim::New);
        let ordered = new.filter_map(|(index, _)| in_order(index, &keys[index])).collect::<Vec<_>>();
        for index in self.held(conn, consumer, &ordered).await? {
            if let Some(claim) = claims.get_mut(index) {
                *claim = Claim::Held;
            }
        }
        Ok(())
    }

    /// Which of these keys, given with their indexes, must queue up. One round trip if there are any.
    pub(crate) async fn held(
        &self,
        conn: &mut D::Connection,
        consumer: &ConsumerName,
        ordered: &[(usize, &str, Option<i64>)],
    ) -> Result<Vec<usize>> {
        if ordered.is_empty() {
            return Ok(Vec::new());
        }
        let mut bound: Vec<Value> = values![consumer.as_str()];
        bound.extend(D::held_values(ordered));
        let rows = D::fetch(conn, &self.sql().held, bound).await.map_err(unordered::<D>())?;
        let index = |row| Ok(usize::try_from(int::<D>(row, 0)?).unwrap_or(usize::MAX));
        rows.iter().map(index).collect::<Result<_, sqlx::Error>>().map_err(unordered::<D>())
    }
}

fn unordered<D: Dialect>() -> impl Fn(sqlx::Error) -> Error {
    failed::<D>("cannot see what stands before a message of its key")
}

/// A key whose order is kept, with its index and place.
pub(crate) fn in_order(index: usize, key: &Key) -> Option<(usize, &str, Option<i64>)> {
    Some((index, key.order.as_deref()?, key.place.map(|place| place.0)))
}

fn may_have_been_purged(keys: &[Key], taking: &Taking) -> bool {
    let recent = taking.now.saturating_sub(micros(PURGEABLE));
    let inserted = keys.iter().zip(&taking.found).filter(|(_, found)| **found == Found::Inserted);
    inserted.filter_map(|(key, _)| key.sent_at).any(|sent_at| sent_at.as_micros() < recent)
}

fn answer(key: &Key, found: Found, horizon: Option<Timestamp>) -> Claim {
    match found {
        Found::Inserted if key.sent_at.zip(horizon).is_some_and(|(sent, horizon)| sent <= horizon) => {
            Claim::Ambiguous
        }
        Found::Inserted | Found::Updated => Claim::New,
        Found::Rival => Claim::Busy,
        Found::Kept { state, digest } => kept(state, digest != key.digest.as_i64()),
    }
}

/// What it means that a message is on record in this state.
pub(crate) fn kept(state: i64, other_payload: bool) -> Claim {
    match InboxState::from_i64(state) {
        Some(InboxState::Done) => Claim::Duplicate { other_payload },
        Some(InboxState::Waiting) => Claim::Waiting { other_payload },
        Some(InboxState::Dead) => Claim::Dead { other_payload },
        _ => Claim::Busy,
    }
}
