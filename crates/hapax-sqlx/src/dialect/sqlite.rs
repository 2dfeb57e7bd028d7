//! SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax_core::{Code, ConsumerName, Error, ErrorKind, InboxState, Key, Timestamp};
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous,
};
use sqlx::{Arguments, Connection, Row, SqlStr, Sqlite};

use super::{Driver, Found, Opening, Options, Raw, Taking, Wanted, hex, int, primitives};
use crate::error::refused_url;
use crate::statements::{STANDARD, Shapes, Statements, begin_running, may_begin, unblocked};
use crate::value::{Value, values};

/// How many of the virtual machine's steps lie between two looks at the brake.
const STEPS: i32 = 4096;

/// The keys come as one JSON array of arrays, since an array cannot be bound.
macro_rules! insert {
    () => {
        "INSERT INTO {inbox} (consumer, id, digest, sent_at, processed_at, state)
         SELECT $1, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), {now}, 0
         FROM json_each($2) WHERE true
         ON CONFLICT (consumer, id) DO NOTHING
         RETURNING id, (SELECT sent_at FROM {horizon} WHERE consumer = $1)"
    };
}
/// A transaction's begin, its sentinel and its claim are one text, since each text is a hop to the
/// connection's thread.
const OPEN: &str = concat!("BEGIN IMMEDIATE; SAVEPOINT hapax; ", insert!());

/// Of the keys that were not inserted, those that may take their waiting or running row.
const UPDATE: &str = "\
UPDATE {inbox} SET state = 0, processed_at = {now}, lease_until = NULL
WHERE consumer = $1 AND id IN (
    SELECT i.id FROM json_each($2) k
    CROSS JOIN {inbox} i ON i.consumer = $1 AND i.id = json_extract(k.value, '$[0]')
    WHERE i.state = 1 AND EXISTS (SELECT 1 FROM {waiting} w
              WHERE w.number = json_extract(k.value, '$[3]') AND w.consumer = $1 AND w.id = i.id)
       OR i.state = 3 AND CASE WHEN json_extract(k.value, '$[4]') IS NULL THEN i.lease_until <= {now}
                               ELSE i.fence = json_extract(k.value, '$[4]') END)
RETURNING id";

const REST: &str = "SELECT id, state, digest FROM {inbox} WHERE consumer = $1 AND id {in_texts $2}";

const RUNNING: i64 = InboxState::Running.as_i64();

/// What a connection is told from outside.
#[derive(Debug, Default)]
pub struct Signals {
    /// Stop at the next look.
    stop: AtomicBool,
    /// A commit is ours.
    commit: AtomicBool,
}

impl Driver for Sqlite {
    type Sql = SqlStr;
    type Brake = Arc<Signals>;

    const TITLE: &'static str = "SQLite";
    const SHAPES: Shapes = STANDARD;
    const ONE_WRITER: bool = true;
    const NOW: &'static str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
    const AT: &'static str = "(SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER))";
    const KEY: &'static str = "key";
    const GREATEST: &'static str = "max";
    const SKIP_LOCKED: &'static str = "";
    const BEGIN_RUNNING: &'static str = concat!(
        begin_running!(),
        ", NULL; SELECT NULL, lease_until - {now}, state, digest, result FROM {inbox}
         WHERE consumer = $1 AND id = $2"
    );
    const UNHELD: &'static str = "true";
    const ENDING: &'static str = "RELEASE SAVEPOINT hapax; COMMIT";
    const LET_COMMIT: &'static str = "";
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const NEW_PLACE: &'static str =
        "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = '{waiting}' RETURNING seq";
    const LAST_DEAD: &'static str = "SELECT seq FROM sqlite_sequence WHERE name = '{dead_letters}'";
    const CLAIM: [&'static str; 6] = [OPEN, insert!(), UPDATE, REST, "", ""];
    const LOOK: &'static str =
        "SELECT id, state, digest, sent_at, processed_at, lease_until, result FROM {inbox}
                                WHERE consumer = $1 AND id {in_texts $2}";
    const HELD: &'static str = "\
SELECT json_extract(k.value, '$[0]') FROM json_each($2) k
WHERE EXISTS (SELECT 1 FROM {waiting} w WHERE w.consumer = $1 AND w.order_key = json_extract(k.value, '$[1]')
                AND (json_extract(k.value, '$[2]') IS NULL OR w.number < json_extract(k.value, '$[2]')))
   OR EXISTS (SELECT 1 FROM {dead_letters} d
              WHERE d.consumer = $1 AND d.order_key = json_extract(k.value, '$[1]') AND d.redriven_at IS NULL
                AND (json_extract(k.value, '$[2]') IS NULL OR d.place < json_extract(k.value, '$[2]')))";
    const UNSENT: &'static str = concat!(
        "SELECT o.number, o.bucket, o.key, o.attempts, o.broker, o.destination, o.routing_key, o.label, o.body
         FROM {outbox} o
         WHERE o.state = 0
           AND o.bucket IN (SELECT bucket FROM {buckets} WHERE owner = $1 AND lease_until > {at})
           AND o.due_at <= {at} AND NOT (o.broker {in_texts $4}) AND ",
        unblocked!(),
        " ORDER BY o.number LIMIT $2"
    );
    const CAN_NOTIFY: bool = false;
    const PROBE: &'static str = "SELECT 1";
    const PROBE_WRITE: &'static str = "BEGIN IMMEDIATE; \
        INSERT INTO {queue} (queue, sent_at, label, body) VALUES ('', 0, '', zeroblob(20000)); ROLLBACK";
    const FIND_SCHEMA: &'static str =
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{schema_version}'";
    const LOCK_MIGRATIONS: &'static str = "SELECT 1"; // BEGIN IMMEDIATE has locked already
    const UNLOCK_MIGRATIONS: &'static str = "";
    const MIGRATIONS: &'static [(u32, &'static str, &'static str)] =
        &[(1, "initial", include_str!("../../migrations/sqlite/0001_initial.sql"))];

    fn table(schema: &str, name: &str) -> String {
        format!("{schema}_{name}")
    }

    fn in_ints(parameter: &str) -> String {
        format!("IN (SELECT value FROM json_each({parameter}))")
    }

    fn in_texts(parameter: &str) -> String {
        Self::in_ints(parameter)
    }

    fn place(_schema: &str, parameter: &str) -> String {
        parameter.to_owned()
    }

    fn sql(text: SqlStr) -> SqlStr {
        text
    }

    fn literal(text: &str) -> String {
        format!("CAST(x'{}' AS TEXT)", hex(text.as_bytes()))
    }

    fn blob(bytes: &[u8]) -> String {
        format!("x'{}'", hex(bytes))
    }

    fn adapt(migration: &str, schema: &str) -> String {
        migration.replace("hapax_", &format!("{schema}_"))
    }

    fn options(url: &str) -> Result<Options<Self>, Error> {
        let options: SqliteConnectOptions = url.parse().map_err(|error| refused_url::<Self>(&error))?;
        Ok(options.create_if_missing(true))
    }

    fn prepare(options: Options<Self>, busy: Duration) -> Result<Options<Self>, Error> {
        let name = options.get_filename().to_string_lossy();
        if name.is_empty() || name == ":memory:" || name.starts_with("file:sqlx-in-memory") {
            let context = "SQLite in memory has a database per connection; use a file, or the test kit's \
                           `MemoryStore` where nothing is to be kept";
            return Err(Error::new(ErrorKind::Setup, Code::NotAvailable, context));
        }
        Ok(options
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(busy))
    }

    fn describe(options: &Options<Self>) -> String {
        format!("SQLite database {}", options.get_filename().display())
    }

    async fn open(options: &Options<Self>) -> Result<Raw<Self>, sqlx::Error> {
        let mut conn = SqliteConnection::connect_with(options).await?;
        let brake = Arc::<Signals>::default();
        let pulled = Arc::clone(&brake);
        conn.lock_handle().await?.set_progress_handler(STEPS, move || !pulled.stop.load(Ordering::Relaxed));
        let depth = conn.begin().await?;
        std::mem::forget(depth); // sqlx counts one transaction from here on, so that nested ones are savepoints
        Self::run(&mut conn, SqlStr::from_static("ROLLBACK")).await?;
        Ok(Raw { conn, brake })
    }

    /// The hook refuses every commit but ours, and so every statement that runs outside a transaction.
    async fn guard(raw: &mut Raw<Self>, _named: SqlStr) -> Result<bool, sqlx::Error> {
        let signals = Arc::clone(&raw.brake);
        raw.conn.lock_handle().await?.set_commit_hook(move || signals.commit.load(Ordering::SeqCst));
        Ok(true)
    }

    fn let_commit(signals: &Self::Brake, allowed: bool) {
        signals.commit.store(allowed, Ordering::SeqCst);
    }

    async fn run(conn: &mut Self::Connection, sql: SqlStr) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(sql).execute(conn).await?;
        Ok(())
    }

    primitives!();

    fn int(row: &SqliteRow, column: usize) -> Result<Option<i64>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    async fn open_claim(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        _timeout: Option<Duration>,
        wanted: Wanted<'_>,
    ) -> Result<Taking, Opening> {
        if wanted.keys.is_empty() {
            let begin = SqlStr::from_static("BEGIN IMMEDIATE; SAVEPOINT hapax");
            Self::run(conn, begin).await.map_err(Opening::Claim)?;
        }
        take(conn, &statements.claim_first, statements, wanted).await.map_err(Opening::Claim)
    }

    async fn take(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        wanted: Wanted<'_>,
    ) -> Result<Taking, sqlx::Error> {
        take(conn, &statements.claim_second, statements, wanted).await
    }

    async fn horizon_now(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        consumer: &ConsumerName,
    ) -> Result<Option<i64>, sqlx::Error> {
        let rows = Self::fetch(conn, &statements.horizon, values![consumer.as_str()]).await?;
        rows.first().map_or(Ok(None), |row| Self::int(row, 0))
    }

    fn held_values(keys: &[(usize, &str, Option<i64>)]) -> Vec<Value> {
        values![json(&keys)]
    }

    fn classify(code: &str) -> (ErrorKind, Code) {
        let code: i32 = code.parse().unwrap_or_default();
        // The low byte is the primary code; SQLITE_BUSY_SNAPSHOT alone means that waiting cannot help.
        match (code & 0xff, code) {
            (_, 517) => (ErrorKind::Conflict, Code::StoreConflict),
            (5 | 6, _) => (ErrorKind::Busy, Code::StoreBusy),
            (8 | 13, _) => (ErrorKind::Unavailable, Code::StoreReadOnly),
            (10 | 14, _) => (ErrorKind::Unavailable, Code::StoreUnavailable),
            (3 | 23, _) => (ErrorKind::Setup, Code::StoreRefused),
            (11 | 26, _) => (ErrorKind::Setup, Code::StoreFailed),
            _ => (ErrorKind::Statement, Code::StoreFailed),
        }
    }

    fn lacks_schema(code: &str) -> bool {
        code == "1" // SQLITE_ERROR, which statements that never vary give for a missing table or column
    }

    fn is_broken(code: &str) -> bool {
        code == "1" // SQLITE_ERROR: no such savepoint, no transaction; nothing else in `finish` answers so
    }

    fn is_guarded(code: &str) -> bool {
        code == "531" // SQLITE_CONSTRAINT_COMMITHOOK
    }

    fn begins_read_only(_code: &str) -> bool {
        false
    }

    fn is_session_end(_code: &str) -> bool {
        false
    }

    fn has_forgotten(_code: &str) -> bool {
        false
    }

    fn is_timeout(_code: &str) -> bool {
        false
    }

    async fn notify(_conn: &mut Self::Connection, _channel: &str, _from: &str) -> Result<(), sqlx::Error> {
        Ok(())
    }

    async fn listen(
        _options: Options<Self>,
        _channel: &str,
        _from: &str,
        _heard: impl Fn() + Send + Sync,
    ) -> Result<(), sqlx::Error> {
        std::future::pending().await
    }

    async fn cancel(brake: &Self::Brake, _other: &mut Self::Connection) -> Result<(), sqlx::Error> {
        Self::stop(brake);
        Ok(())
    }

    fn stop(brake: &Self::Brake) {
        brake.stop.store(true, Ordering::Relaxed);
    }
}

async fn take(
    conn: &mut SqliteConnection,
    insert: &SqlStr,
    statements: &Statements<Sqlite>,
    wanted: Wanted<'_>,
) -> Result<Taking, sqlx::Error> {
    let Wanted { consumer, keys } = wanted;
    let mut taking = Taking::of_rivals(keys.len());
    if keys.is_empty() {
        return Ok(taking);
    }
    let wanted = json(&keys.iter().map(wanted_key).collect::<Vec<_>>());
    let inserted = Sqlite::fetch(conn, insert, values![consumer.as_str(), wanted.clone()]).await?;
    taking.mark::<Sqlite>(keys, &inserted, |_| Ok(Found::Inserted))?;
    if let Some(row) = inserted.first() {
        taking.horizon = Sqlite::int(row, 1)?;
    }
    let rest = taking.rest(keys);
    if rest.is_empty() {
        return Ok(taking);
    }
    let ids = json(&rest.iter().map(|key| key.id.as_str()).collect::<Vec<_>>());
    let kept = Sqlite::fetch(conn, &statements.claim_fourth, values![consumer.as_str(), ids]).await?;
    taking.mark::<Sqlite>(keys, &kept, |row| {
        Ok(Found::Kept { state: int::<Sqlite>(row, 1)?, digest: int::<Sqlite>(row, 2)? })
    })?;
    let is_running = |found: &Found| matches!(found, Found::Kept { state, .. } if *state == RUNNING);
    if rest.iter().any(|key| key.place.is_some()) || taking.found.iter().any(is_running) {
        let bound = values![consumer.as_str(), wanted];
        let updated = Sqlite::fetch(conn, &statements.claim_third, bound).await?;
        taking.mark::<Sqlite>(keys, &updated, |_| Ok(Found::Updated))?;
    }
    Ok(taking)
}

/// A key as the claim's JSON holds it.
fn wanted_key(key: &Key) -> (&str, i64, Option<i64>, Option<i64>, Option<i64>) {
    let sent_at = key.sent_at.map(Timestamp::as_micros);
    let (place, fence) = (key.place.map(|place| place.0), key.fence.map(|fence| fence.0));
    (key.id.as_str(), key.digest.as_i64(), sent_at, place, fence)
}

/// As JSON: strings, integers and nulls only, which cannot fail.
fn json(values: &impl serde::Serialize) -> String {
    serde_json::to_string(values).unwrap_or_default()
}

fn bind(values: Vec<Value>) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    for value in values {
        match value {
            Value::Int(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Bytes(value) => arguments.add(value),
            Value::Ints(value) => arguments.add(json(&value)),
            Value::Texts(value) => arguments.add(json(&value)),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}
