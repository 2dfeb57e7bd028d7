//! The outbox.

use std::fmt;
use std::fmt::Write as _;
use std::time::Duration;

use hapax_core::{
    BUCKETS, Code, ConsumerName, Destination, Envelope, Error, ErrorKind, InstanceId, MessageId, NotSent,
    OnFailure, Outbox, OutboxBuffer, OutboxEntry, OutboxFilter, OutboxNumber, OutboxRow, OutboxState,
    Publishable, Take, Then, Timestamp, Unsent, micros,
};
use sqlx::{AssertSqlSafe, SqlSafeStr};

use crate::connection::Held;
use crate::dialect::{Dialect, int, text};
use crate::error::{Result, failed, unreadable};
use crate::inbox::message_id;
use crate::store::SqlStore;
use crate::value::{Value, legible, values};
use crate::waiting::small;

/// In whose name relays are among the instances.
const RELAYS: &str = "hapax.relay";
/// A relay that was silent for so many leases is forgotten.
const FORGET: u32 = 100;

/// Writes rows, as a part of the text that ends a transaction.
pub(crate) fn write_outbox<D: Dialect>(text: &mut String, table: &str, entries: &[OutboxEntry]) {
    if entries.is_empty() {
        return;
    }
    let _ = write!(
        text,
        "INSERT INTO {table} (created_at, due_at, bucket, id, consumer, cause, kind, {}, broker, destination, \
         routing_key, label, body) VALUES ",
        D::KEY
    );
    let optional = |text: Option<&str>| text.map_or("NULL".to_owned(), D::literal);
    for (index, entry) in entries.iter().enumerate() {
        let Destination { broker, name, routing_key } = &entry.destination;
        let separator = if index == 0 { "" } else { ", " };
        let _ = write!(
            text,
            "{separator}({now}, {now} + {delay}, {bucket}, {id}, {producer}, {cause}, {kind}, {key}, {broker}, {name}, \
             {routing_key}, {label}, {body})",
            now = D::NOW,
            delay = micros(entry.delay),
            bucket = entry.bucket(),
            id = D::literal(entry.id.as_str()),
            producer = D::literal(entry.producer.as_str()),
            cause = optional(entry.cause.as_ref().map(MessageId::as_str)),
            kind = D::literal(&legible(&entry.kind)),
            key = optional(entry.key.as_deref()),
            broker = D::literal(broker),
            name = D::literal(name),
            routing_key = D::literal(routing_key),
            label = D::literal(&entry.envelope.label()),
            body = D::blob(&entry.envelope.body),
        );
    }
    text.push_str("; ");
}

impl<D: Dialect> Outbox for SqlStore<D> {
    /// Seven statements in a transaction.
    async fn share_buckets(&self, relay: &InstanceId, lease: Duration) -> Result<Vec<u16>> {
        let cannot = failed::<D>("cannot share the outbox among relays");
        let mut held = self.connections().side_transaction().await?;
        let shared = self.share(&mut held, relay.0.as_str(), lease).await.map_err(cannot)?;
        held.commit().await?;
        Ok(shared)
    }

    /// Two statements in a transaction.
    async fn keep_buckets(&self, relay: &InstanceId, lease: Duration) -> Result<()> {
        let mut held = self.connections().side_transaction().await?;
        let kept = self.keep(&mut held, relay.0.as_str(), lease).await;
        kept.map_err(failed::<D>("cannot keep a relay's part of the outbox"))?;
        held.commit().await
    }

    /// Two statements in a transaction.
    async fn leave_buckets(&self, relay: &InstanceId) -> Result<()> {
        let cannot = failed::<D>("cannot give back a relay's part of the outbox");
        let (sql, relay) = (self.sql(), relay.0.as_str());
        let mut held = self.connections().side_transaction().await?;
        held.execute(&sql.leave_buckets, values![relay]).await.map_err(&cannot)?;
        held.execute(&sql.forget_instance, values![RELAYS, relay]).await.map_err(cannot)?;
        held.commit().await
    }

    async fn unsent(&self, take: &Take<'_>) -> Result<Vec<Unsent>> {
        let skips = i64::from(take.on_failure == OnFailure::Skip);
        let away: Value = take.away.iter().map(String::as_str).collect();
        let mut held = self.connections().side().await?;
        let bound = values![take.relay.0.as_str(), take.max, skips, away];
        let answer = held.fetch(&self.sql().unsent, bound).await;
        let rows = held.answer(answer).map_err(failed::<D>("cannot read the outbox"))?;
        rows.iter().map(unsent::<D>).collect()
    }

    async fn sent(&self, numbers: &[OutboxNumber], keep: bool) -> Result<()> {
        let sql = if keep { &self.sql().sent_keep } else { &self.sql().sent_forget };
        let numbers: Value = numbers.iter().map(|number| number.0).collect();
        self.change(sql, values![numbers]).await.map(drop)
    }

    async fn not_sent(&self, rows: &[NotSent<'_>]) -> Result<()> {
        let cannot = failed::<D>("cannot note why a message was not published");
        let mut held = self.connections().side_transaction().await?;
        for NotSent { number, code, error, then } in rows {
            let mut bound = values![number.0, code.as_str(), legible(error)];
            let sql = match then {
                Then::Wait => &self.sql().not_sent_wait,
                Then::Retry(wait) => {
                    bound.extend(values![1_i64, micros(*wait), OutboxState::Unsent.as_i64()]);
                    &self.sql().not_sent
                }
                Then::Park => {
                    bound.extend(values![1_i64, 0_i64, OutboxState::Parked.as_i64()]);
                    &self.sql().not_sent
                }
            };
            held.execute(sql, bound).await.map_err(&cannot)?;
        }
        held.commit().await
    }

    async fn purge_sent(&self, keep: Duration, max: u32) -> Result<u64> {
        self.change(&self.sql().purge_sent, values![micros(keep), max]).await
    }

    async fn outbox(&self, filter: &OutboxFilter) -> Result<Vec<OutboxRow>> {
        let mut bound = filter_values(filter, filter.after);
        bound.push(filter.limit.into());
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().outbox, bound).await;
        let rows = held.answer(answer).map_err(failed::<D>("cannot list the outbox"))?;
        rows.iter().map(row::<D>).collect()
    }

    async fn count_outbox(&self, filter: &OutboxFilter) -> Result<u64> {
        let cannot = failed::<D>("cannot count the outbox");
        let mut held = self.connections().side().await?;
        let answer = held.fetch(&self.sql().count_outbox, filter_values(filter, None)).await;
        let rows = held.answer(answer).map_err(&cannot)?;
        rows.first().map_or(Ok(0), |row| int::<D>(row, 0)).map(i64::unsigned_abs).map_err(cannot)
    }

    async fn unpark(&self, number: OutboxNumber) -> Result<()> {
        let changed = self.change(&self.sql().unpark, values![number.0]).await?;
        self.wake_relays();
        there_was_one(number, changed)
    }

    async fn discard_unsent(&self, number: OutboxNumber) -> Result<()> {
        let changed = self.change(&self.sql().discard_unsent, values![number.0]).await?;
        self.wake_relays(); // what stood behind it goes on
        there_was_one(number, changed)
    }

    async fn outbox_changed(&self, seen: &mut u64) {
        self.hear(seen).await;
    }

    fn wake_relays(&self) {
        self.tell();
    }
}

impl<D: Dialect> SqlStore<D> {
    /// The outbox for a producer that handles no messages: it publishes in transactions of its own.
    ///
    /// [`ErrorKind::Setup`]: the name is no consumer name.
    pub fn outbox_of(&self, producer: impl AsRef<str>) -> Result<SqlOutbox<D>> {
        let producer = ConsumerName::new(producer)
            .map_err(|error| Error::new(ErrorKind::Setup, Code::ConfigWrongValue, error.to_string()))?;
        Ok(SqlOutbox { store: self.clone(), producer })
    }

    async fn share(&self, held: &mut Held<D>, relay: &str, lease: Duration) -> Result<Vec<u16>, sqlx::Error> {
        let (sql, lease_micros) = (self.sql(), micros(lease));
        self.keep(held, relay, lease).await?;
        held.execute(&sql.forget, values![RELAYS, lease_micros.saturating_mul(FORGET.into())]).await?;
        let rows = held.fetch(&sql.relays, values![RELAYS, lease_micros]).await?;
        let relays = rows.first().map_or(Ok(1), |row| int::<D>(row, 0))?.max(1);
        let share = i64::from(BUCKETS).saturating_add(relays - 1) / relays;
        held.execute(&sql.yield_buckets, values![relay, share]).await?;
        held.execute(&sql.take_buckets, values![relay, lease_micros, share]).await?;
        let rows = held.fetch(&sql.own_buckets, values![relay]).await?;
        rows.iter().map(bucket::<D>).collect()
    }

    async fn keep(&self, held: &mut Held<D>, relay: &str, lease: Duration) -> Result<(), sqlx::Error> {
        held.execute(&self.sql().beat, values![RELAYS, relay]).await?;
        held.execute(&self.sql().keep_buckets, values![relay, micros(lease)]).await.map(drop)
    }

    /// One statement that is a transaction of its own.
    async fn change(&self, sql: &D::Sql, bound: Vec<Value>) -> Result<u64> {
        let mut held = self.connections().side_writer().await?;
        let answer = held.execute(sql, bound).await;
        held.answer(answer).map_err(failed::<D>("cannot change the outbox"))
    }
}

/// The outbox for a producer that handles no messages, made by [`SqlStore::outbox_of`].
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(store: hapax_sqlx::PgStore, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use hapax_core::Publication;
///
/// let outbox = store.outbox_of("checkout")?;
/// let mut tx = pool.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES (7)").execute(&mut *tx).await?;
/// outbox.publish(&mut tx, Publication::json("OrderPlaced", &7)?.key("7")).await?;
/// tx.commit().await?;
/// outbox.wake();
/// # Ok(()) }
/// ```
pub struct SqlOutbox<D: Dialect> {
    store: SqlStore<D>,
    producer: ConsumerName,
}

impl<D: Dialect> SqlOutbox<D> {
    /// Writes a message into the outbox in a transaction that is open on `conn`. One round trip.
    ///
    /// Without an [`id`](hapax_core::Publication::id) it is given a random one, so that a transaction that is
    /// run again under another one publishes another message.
    pub async fn publish(&self, conn: &mut D::Connection, message: impl Publishable) -> Result<()> {
        self.publish_all(conn, [message]).await
    }

    /// The same for several messages, in one round trip.
    pub async fn publish_all(
        &self,
        conn: &mut D::Connection,
        messages: impl IntoIterator<Item = impl Publishable>,
    ) -> Result<()> {
        let mut buffer = OutboxBuffer::new(self.producer.clone());
        for message in messages {
            buffer.publish_uncaused(message).map_err(|error| {
                Error::new(ErrorKind::Statement, Code::PublicationInvalid, error.to_string())
            })?;
        }
        let mut text = String::new();
        write_outbox::<D>(&mut text, &D::table(self.store.schema(), "outbox"), buffer.entries());
        if text.is_empty() {
            return Ok(());
        }
        let written = D::run(conn, AssertSqlSafe(text).into_sql_str()).await;
        written.map_err(failed::<D>("cannot write to the outbox"))
    }

    /// Tells relays that a transaction with messages in it was committed. Without it they find them at their
    /// next poll.
    pub fn wake(&self) {
        self.store.wake_relays();
    }
}

impl<D: Dialect> Clone for SqlOutbox<D> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), producer: self.producer.clone() }
    }
}

impl<D: Dialect> fmt::Debug for SqlOutbox<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlOutbox").field("producer", &self.producer).finish_non_exhaustive()
    }
}

fn bucket<D: Dialect>(row: &D::Row) -> Result<u16, sqlx::Error> {
    Ok(u16::try_from(int::<D>(row, 0)?).unwrap_or_default())
}

fn there_was_one(number: OutboxNumber, changed: u64) -> Result<()> {
    if changed == 1 {
        return Ok(());
    }
    let context = format!("there is no unsent or parked row {number} in the outbox");
    Err(Error::new(ErrorKind::NotFound, Code::NotFound, context))
}

fn filter_values(filter: &OutboxFilter, after: Option<OutboxNumber>) -> Vec<Value> {
    values![
        filter.state.map(OutboxState::as_i64),
        filter.producer.as_ref().map(ConsumerName::as_str),
        filter.key.as_deref(),
        filter.id.as_ref().map(MessageId::as_str),
        i64::from(filter.failing),
        after.map_or(0, |after| after.0),
    ]
}

fn destination<D: Dialect>(row: &D::Row, first: usize) -> Result<Destination, sqlx::Error> {
    Ok(Destination {
        broker: text::<D>(row, first)?,
        name: text::<D>(row, first + 1)?,
        routing_key: text::<D>(row, first + 2)?,
    })
}

fn unsent<D: Dialect>(row: &D::Row) -> Result<Unsent> {
    let cannot = failed::<D>("cannot read a row of the outbox");
    let label = text::<D>(row, 7).map_err(&cannot)?;
    let body = D::bytes(row, 8).map_err(&cannot)?;
    Ok(Unsent {
        number: OutboxNumber(int::<D>(row, 0).map_err(&cannot)?),
        bucket: u16::try_from(int::<D>(row, 1).map_err(&cannot)?).unwrap_or_default(),
        key: D::text(row, 2).map_err(&cannot)?,
        attempts: small(int::<D>(row, 3).map_err(&cannot)?),
        destination: destination::<D>(row, 4).map_err(&cannot)?,
        envelope: Envelope::from_label(&label, body)
            .map_err(unreadable("the label of a row of the outbox"))?,
    })
}

fn row<D: Dialect>(row: &D::Row) -> Result<OutboxRow> {
    let cannot = failed::<D>("cannot read a row of the outbox");
    let number = |column| int::<D>(row, column).map_err(&cannot);
    let words = |column| text::<D>(row, column).map_err(&cannot);
    let maybe = |column| D::text(row, column).map_err(&cannot);
    let time = |column| D::int(row, column).map(|time| time.map(Timestamp::from_micros)).map_err(&cannot);
    let unknown = |text: String| Error::new(ErrorKind::Statement, Code::StoreFailed, text);
    let state = number(9)?;
    let body = D::bytes(row, 18).map_err(&cannot)?;
    Ok(OutboxRow {
        number: OutboxNumber(number(0)?),
        id: message_id(words(1)?)?,
        producer: ConsumerName::new(words(2)?).map_err(|error| unknown(error.to_string()))?,
        cause: maybe(3)?.map(message_id).transpose()?,
        kind: words(4)?,
        key: maybe(5)?,
        destination: destination::<D>(row, 6).map_err(&cannot)?,
        state: OutboxState::from_i64(state).ok_or_else(|| unknown(format!("a row has the state {state}")))?,
        attempts: small(number(10)?),
        code: maybe(11)?,
        error: maybe(12)?,
        created_at: Timestamp::from_micros(number(13)?),
        due_at: Timestamp::from_micros(number(14)?),
        sent_at: time(15)?,
        parked_at: time(16)?,
        envelope: Envelope::from_label(&words(17)?, body)
            .map_err(unreadable("the label of a row of the outbox"))?,
    })
}
