//! What differs between databases.

use std::borrow::Cow;
use std::future::Future;
use std::time::Duration;

use hapax_core::{Code, ConsumerName, ErrorKind, Key, MessageId};
use sqlx::SqlStr;
use sqlx::error::DatabaseError;

use crate::statements::{Shapes, Statements};
use crate::value::Value;

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

/// A database that [`SqlStore`](crate::SqlStore) runs on. Implemented by this crate only.
pub trait Dialect: Driver {}

impl<D: Driver> Dialect for D {}

/// A raw connection and the means to stop what it is doing from outside.
pub struct Raw<D: Driver> {
    pub(crate) conn: D::Connection,
    pub(crate) brake: D::Brake,
}

/// What a claim statement found out about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The row is ours, freshly inserted.
    Inserted,
    /// The row was waiting and is ours.
    Updated,
    /// There is a row that is not ours.
    Kept {
        /// Its state.
        state: i64,
        /// Its digest.
        digest: i64,
    },
    /// Somebody has it uncommitted, or had until just now.
    Rival,
}

/// What a claim statement found out.
#[derive(Clone, Debug)]
pub struct Taking {
    /// Per key, in the order of the keys.
    pub found: Vec<Found>,
    /// The consumer's horizon.
    pub horizon: Option<i64>,
    /// The database's clock. Zero where no rival can purge beside the claim.
    pub now: i64,
    /// What the claims are known by until the transaction ends. Zero where they need no such thing.
    pub token: i64,
}

impl Taking {
    /// Before anything is known of the keys.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    fn of_rivals(keys: usize) -> Self {
        Self { found: vec![Found::Rival; keys], horizon: None, now: 0, token: 0 }
    }

    /// Takes down what rows say about the ids in their first column.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    fn mark<D: Driver>(
        &mut self,
        keys: &[Key],
        rows: &[D::Row],
        what: impl Fn(&D::Row) -> Result<Found, sqlx::Error>,
    ) -> Result<(), sqlx::Error> {
        for row in rows {
            let id = text::<D>(row, 0)?;
            if let Some(index) = keys.iter().position(|key| key.id.as_str() == id) {
                self.found[index] = what(row)?;
            }
        }
        Ok(())
    }

    /// The keys that were not inserted.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    fn rest<'k>(&self, keys: &'k [Key]) -> Vec<&'k Key> {
        let found = keys.iter().zip(&self.found);
        found.filter(|(_, found)| **found != Found::Inserted).map(|(key, _)| key).collect()
    }
}

/// Claims that a transaction holds.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every database is told everything")]
pub struct Claims<'c> {
    pub(crate) consumer: &'c ConsumerName,
    pub(crate) ids: &'c [MessageId],
    pub(crate) token: i64,
}

/// Where opening a claim failed.
#[derive(Debug)]
pub enum Opening {
    /// Before anything was begun: a stale connection may be replaced.
    Begin(sqlx::Error),
    /// In the claim.
    Claim(sqlx::Error),
}

/// Claims under one consumer.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'r> {
    pub(crate) consumer: &'r ConsumerName,
    pub(crate) keys: &'r [Key],
}

/// How to connect to a database.
pub(crate) type Options<D> = <<D as sqlx::Database>::Connection as sqlx::Connection>::Options;

/// The part of a dialect that is this crate's business: texts, claim, arrays, errors, cancelling.
pub trait Driver: sqlx::Database + Sized + Send + Sync + 'static {
    /// A statement, ready to run.
    type Sql: Send + Sync + 'static;
    /// Stops what a connection is doing.
    type Brake: Send + Sync + 'static;

    /// The database's name, for messages.
    const TITLE: &'static str;
    /// The statements whose shape differs.
    const SHAPES: Shapes;
    /// Whether the database takes one writing transaction at a time.
    const ONE_WRITER: bool;
    /// The wall clock in microseconds.
    const NOW: &'static str;
    /// The wall clock where an index is to be compared with it: a value for the whole statement.
    const AT: &'static str;
    /// The name of the column `key`.
    const KEY: &'static str;
    /// The larger of two values.
    const GREATEST: &'static str;
    /// Passes over rows that others have locked.
    const SKIP_LOCKED: &'static str;
    /// Puts a message under a lease, or says what stands in its way: its fence and the clock, or null and what
    /// is left of a lease; its state, its digest, and the result that is kept.
    const BEGIN_RUNNING: &'static str;
    /// True unless a rival's transaction holds the message of the texts `$1`, `$2`.
    const UNHELD: &'static str;
    /// The sentinel and the commit.
    const ENDING: &'static str;
    /// Lets the ending commit, as a part of its text.
    const LET_COMMIT: &'static str;
    /// Begins a transaction that writes, without the sentinel.
    const BEGIN: &'static str;
    /// Gives out a place without inserting a row.
    const NEW_PLACE: &'static str;
    /// The highest number a dead letter was ever given.
    const LAST_DEAD: &'static str;
    /// The claim's statements; what they mean is the dialect's own affair.
    const CLAIM: [&'static str; 6];
    /// The rows of the consumer `$1` with the ids `$2`.
    const LOOK: &'static str;
    /// The keys that must queue up.
    const HELD: &'static str;
    /// Rows of the outbox that the relay `$1` may publish, at most `$2`; `$3` is 1 where failing ones hold up
    /// nobody, `$4` are brokers to leave alone.
    const UNSENT: &'static str;
    /// Whether one process can tell another that something is to be had.
    const CAN_NOTIFY: bool;
    /// Whether writes are taken: answers 1 as far as reading can tell.
    const PROBE: &'static str;
    /// A write that leaves nothing behind, where only writing can tell.
    const PROBE_WRITE: &'static str;
    /// The schema's version table, if there is one.
    const FIND_SCHEMA: &'static str;
    /// Makes concurrent migrations wait for each other.
    const LOCK_MIGRATIONS: &'static str;
    /// Lets them go on, where the end of a transaction does not.
    const UNLOCK_MIGRATIONS: &'static str;
    /// The migrations, as written for the default schema.
    const MIGRATIONS: &'static [(u32, &'static str, &'static str)];

    /// A table under a schema or prefix.
    fn table(schema: &str, name: &str) -> String;
    /// Whether the parameter contains the value on its left.
    fn in_ints(parameter: &str) -> String;
    /// Whether the parameter contains the value on its left.
    fn in_texts(parameter: &str) -> String;
    /// The place in the parameter, or a new one if that is null, for a row to be inserted.
    fn place(schema: &str, parameter: &str) -> String;
    /// Makes a statement of its text.
    fn sql(text: SqlStr) -> Self::Sql;
    /// The beginning of a statement that deletes rows by the keys of an index.
    fn delete_by(table: &str, _index: &str) -> String {
        format!("DELETE FROM {table}")
    }
    /// A text as a literal.
    fn literal(text: &str) -> String;
    /// Bytes as a literal.
    fn blob(bytes: &[u8]) -> String;
    /// A migration for another schema or prefix.
    fn adapt(migration: &str, schema: &str) -> String;

    /// Reads a URL and applies what the store rests on.
    fn options(url: &str) -> Result<Options<Self>, hapax_core::Error>;
    /// Applies what the store rests on; `busy` is how long to wait for other processes.
    fn prepare(options: Options<Self>, busy: Duration) -> Result<Options<Self>, hapax_core::Error>;
    /// Where the options lead, without secrets.
    fn describe(options: &Options<Self>) -> String;

    /// Opens a connection on which `BEGIN` and `COMMIT` are ours and nested `begin`s are savepoints.
    fn open(options: &Options<Self>) -> impl Future<Output = Result<Raw<Self>, sqlx::Error>> + Send;
    /// Takes from everybody but `finish` the means to commit on a connection, so that a handler that ends
    /// the transaction harms nobody: neither its COMMIT nor a statement after its ROLLBACK takes effect.
    /// Answers whether the database takes writes at all. `named` is what its claims call by name.
    fn guard(raw: &mut Raw<Self>, named: SqlStr) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
    /// Gives `finish` the means to commit, or takes them back, where that is not a matter of its text.
    fn let_commit(brake: &Self::Brake, allowed: bool);
    /// Runs a text of several statements. `sql` is always the same, or seldom.
    fn run(conn: &mut Self::Connection, sql: SqlStr) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Runs a statement and says how many rows it touched.
    fn execute(
        conn: &mut Self::Connection,
        sql: &Self::Sql,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    /// Runs a statement and collects its rows.
    fn fetch(
        conn: &mut Self::Connection,
        sql: &Self::Sql,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;

    /// An integer column.
    fn int(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error>;
    /// A text column.
    fn text(row: &Self::Row, column: usize) -> Result<Option<String>, sqlx::Error>;
    /// A column of bytes.
    fn bytes(row: &Self::Row, column: usize) -> Result<Vec<u8>, sqlx::Error>;
    /// A column of bytes that may be null.
    fn maybe_bytes(row: &Self::Row, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;

    /// Begins a transaction under the sentinel and takes the keys in it.
    fn open_claim(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        timeout: Option<Duration>,
        wanted: Wanted<'_>,
    ) -> impl Future<Output = Result<Taking, Opening>> + Send;
    /// Takes keys in the transaction that is open.
    fn take(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        wanted: Wanted<'_>,
    ) -> impl Future<Output = Result<Taking, sqlx::Error>> + Send;
    /// The horizon as it is now, for a claim whose snapshot may predate a purge.
    fn horizon_now(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        consumer: &ConsumerName,
    ) -> impl Future<Output = Result<Option<i64>, sqlx::Error>> + Send;
    /// The parameters of [`HELD`](Self::HELD), after the consumer: indexes, order keys and places.
    fn held_values(keys: &[(usize, &str, Option<i64>)]) -> Vec<Value>;

    /// The database's own code in an error.
    fn code_of(error: &dyn DatabaseError) -> Option<Cow<'_, str>> {
        error.code()
    }
    /// Whether the server takes a text or values of so many bytes.
    fn fits(_brake: &Self::Brake, _bytes: usize) -> Result<(), sqlx::Error> {
        Ok(())
    }
    /// Writes what makes claims count, as a part of the text that ends a transaction, where a claim does not
    /// count by itself.
    fn confirm(_text: &mut String, _table: &str, _claims: &Claims<'_>) {}
    /// What a code of the database means.
    fn classify(code: &str) -> (ErrorKind, Code);
    /// Whether a code, as an answer to one of our own statements, says that the schema is not there.
    fn lacks_schema(code: &str) -> bool;
    /// Whether a code, as an answer to `finish`, says that the transaction is not ours.
    fn is_broken(code: &str) -> bool;
    /// Whether a code, out of a handler, says that it ended the transaction or tried to.
    fn is_guarded(code: &str) -> bool;
    /// Whether a code, as an answer to the beginning, says that the server takes no writes.
    fn begins_read_only(code: &str) -> bool;
    /// Whether a code says that the session ended, so that a commit in flight may have taken effect.
    fn is_session_end(code: &str) -> bool;
    /// Whether a code says that a statement's name is unknown to the session.
    fn has_forgotten(code: &str) -> bool;
    /// Whether a code says that a statement ran longer than a handler may.
    fn is_timeout(code: &str) -> bool;

    /// Tells other processes, on a channel. `from` tells them who.
    fn notify(
        conn: &mut Self::Connection,
        channel: &str,
        from: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Listens to a channel until the connection is lost, and calls `heard` at first and for everything that
    /// others tell.
    fn listen(
        options: Options<Self>,
        channel: &str,
        from: &str,
        heard: impl Fn() + Send + Sync,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Asks the server to stop what a connection is doing, through another connection.
    fn cancel(
        brake: &Self::Brake,
        other: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Stops what a connection is doing as far as that is possible without waiting.
    fn stop(brake: &Self::Brake);
}

/// An integer column that is never null.
pub(crate) fn int<D: Driver>(row: &D::Row, column: usize) -> Result<i64, sqlx::Error> {
    Ok(D::int(row, column)?.unwrap_or_default())
}

/// A text column that is never null.
pub(crate) fn text<D: Driver>(row: &D::Row, column: usize) -> Result<String, sqlx::Error> {
    Ok(D::text(row, column)?.unwrap_or_default())
}

/// Bytes that can stand in a statement without escaping.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        hex.push(char::from(DIGITS[usize::from(byte >> 4)]));
        hex.push(char::from(DIGITS[usize::from(byte & 0xf)]));
    }
    hex
}

/// The part of a driver that reads the same for each: sqlx's traits want concrete types.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
macro_rules! primitives {
    () => {
        async fn execute(
            conn: &mut Self::Connection,
            sql: &SqlStr,
            values: Vec<Value>,
        ) -> Result<u64, sqlx::Error> {
            let arguments = bind(values)?;
            Ok(sqlx::query_with(sql.clone(), arguments).execute(conn).await?.rows_affected())
        }

        async fn fetch(
            conn: &mut Self::Connection,
            sql: &SqlStr,
            values: Vec<Value>,
        ) -> Result<Vec<Self::Row>, sqlx::Error> {
            let arguments = bind(values)?;
            sqlx::query_with(sql.clone(), arguments).fetch_all(conn).await
        }

        fn text(row: &Self::Row, column: usize) -> Result<Option<String>, sqlx::Error> {
            row.try_get(column)
        }

        fn bytes(row: &Self::Row, column: usize) -> Result<Vec<u8>, sqlx::Error> {
            row.try_get(column)
        }

        fn maybe_bytes(row: &Self::Row, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
            row.try_get(column)
        }
    };
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use primitives;
