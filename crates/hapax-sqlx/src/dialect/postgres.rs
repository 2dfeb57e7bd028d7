//! PostgreSQL.

use std::time::Duration;

use hapax_core::{Code, ConsumerName, Error, ErrorKind, Key, Timestamp};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgListener, PgPoolOptions, PgRow};
use sqlx::{Arguments, AssertSqlSafe, Column, Connection, Postgres, Row, SqlSafeStr, SqlStr, TypeInfo};

use super::{Driver, Found, Opening, Options, Raw, Taking, Wanted, hex, int, primitives};
use crate::error::refused_url;
use crate::statements::{STANDARD, Shapes, Statements, begin_running, may_begin, unblocked};
use crate::value::{Value, values};

/// Whose connections these are, in `pg_stat_activity`.
const APPLICATION: &str = "hapax";

/// One statement for all keys. The advisory locks make a rival's uncommitted claim an answer instead
/// of a wait, and end with the transaction. The keys come sorted.
const INSERT: &str = "\
INSERT INTO {inbox} (consumer, id, digest, sent_at, processed_at, state)
SELECT $1, k.id, k.digest, k.sent_at, {at}, 0
FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS k(id, digest, sent_at)
WHERE pg_try_advisory_xact_lock(hashtextextended($1 || chr(1) || k.id, {seed}))
ON CONFLICT (consumer, id) DO NOTHING
RETURNING id, (SELECT sent_at FROM {horizon} WHERE consumer = $1), processed_at";

/// The same for one key, known to the session by a name, so that it can stand in one text, and so in
/// one round trip, with the beginning of the transaction.
const PREPARE_ONE: &str = "\
PREPARE hapax_claim (text, text, bigint, bigint) AS
INSERT INTO {inbox} (consumer, id, digest, sent_at, processed_at, state)
SELECT $1, $2, $3, $4, {now}, 0
WHERE pg_try_advisory_xact_lock(hashtextextended($1 || chr(1) || $2, {seed}))
ON CONFLICT (consumer, id) DO NOTHING
RETURNING id, (SELECT sent_at FROM {horizon} WHERE consumer = $1), processed_at";

/// The keys that were not inserted, once more and with what stands in their way. A statement of its
/// own, since its joins would cost the usual claim, of new messages only, a third more. A row that a
/// rival committed after this statement's snapshot is neither inserted nor seen: a rival, too.
///
/// Every row is looked up by its whole key: by a subquery of one row or by an array, which no plan can
/// turn into a scan of all rows of the consumer. A join would be, where the statistics do not know the
/// consumer yet: as long as a new one's inbox grows, each claim would read all of it.
const REST: &str = "\
WITH keys AS MATERIALIZED (
    SELECT k.*, pg_try_advisory_xact_lock(hashtextextended($1 || chr(1) || k.id, {seed})) AS locked
    FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
        AS k(id, digest, sent_at, place, fence)
), inserted AS (
    INSERT INTO {inbox} (consumer, id, digest, sent_at, processed_at, state)
    SELECT $1, id, digest, sent_at, {now}, 0 FROM keys WHERE locked
    ON CONFLICT (consumer, id) DO NOTHING RETURNING id
), updated AS (
    UPDATE {inbox} SET state = 0, processed_at = {now}
    WHERE consumer = $1 AND state = 1 AND id = ANY (ARRAY(
        SELECT k.id FROM keys k WHERE k.locked
          AND (SELECT w.id FROM {waiting} w WHERE w.number = k.place AND w.consumer = $1) = k.id))
    RETURNING id
), ended AS (
    UPDATE {inbox} SET state = 0, processed_at = {now}, lease_until = NULL
    WHERE consumer = $1 AND state = 3 AND id = ANY (ARRAY(
        SELECT k.id FROM keys k WHERE k.locked
          AND (SELECT CASE WHEN k.fence IS NULL THEN i.lease_until <= {at} ELSE i.fence = k.fence END
               FROM {inbox} i WHERE i.consumer = $1 AND i.id = k.id)))
    RETURNING id
)
SELECT k.id, (SELECT sent_at FROM {horizon} WHERE consumer = $1), {now},
       CASE WHEN NOT k.locked THEN 3 WHEN n.id IS NOT NULL THEN 0 WHEN COALESCE(u.id, f.id) IS NOT NULL THEN 1
            WHEN e.state IS NOT NULL THEN 2 ELSE 3 END,
       e.state, e.digest
FROM keys k
LEFT JOIN inserted n ON n.id = k.id
LEFT JOIN updated u ON u.id = k.id
LEFT JOIN ended f ON f.id = k.id
LEFT JOIN LATERAL (SELECT i.state, i.digest FROM {inbox} i WHERE i.consumer = $1 AND i.id = k.id LIMIT 1) e
       ON true";

/// The horizon beside what the isolation level makes of reading it.
const HORIZON: &str = "\
SELECT (SELECT sent_at FROM {horizon} WHERE consumer = $1),
       CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 0 ELSE 1 END";

/// Under a snapshot of the whole transaction a moved horizon cannot be read, only run into: these two
/// raise 40001 if it was inserted or moved since.
const PIN_HORIZON: &str = "INSERT INTO {horizon} (consumer) VALUES ($1) ON CONFLICT (consumer) DO NOTHING";
const LOCK_HORIZON: &str = "SELECT sent_at FROM {horizon} WHERE consumer = $1 FOR KEY SHARE";

impl Driver for Postgres {
    type Sql = SqlStr;
    type Brake = i32;

    const TITLE: &'static str = "PostgreSQL";
    const SHAPES: Shapes = STANDARD;
    const ONE_WRITER: bool = false;
    const NOW: &'static str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    const AT: &'static str = "(SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";
    const KEY: &'static str = "key";
    const GREATEST: &'static str = "greatest";
    const SKIP_LOCKED: &'static str = "FOR UPDATE SKIP LOCKED";
    const BEGIN_RUNNING: &'static str = concat!(
        "WITH begun AS (",
        begin_running!(),
        ") SELECT fence, processed_at, state, digest, NULL::bytea FROM begun
           UNION ALL
           SELECT NULL, lease_until - {now}, state, digest, result FROM {inbox}
           WHERE consumer = $1 AND id = $2 AND NOT EXISTS (SELECT 1 FROM begun)"
    );
    const UNHELD: &'static str = "pg_try_advisory_xact_lock(hashtextextended($1 || chr(1) || $2, {seed}))";
    const ENDING: &'static str = "RELEASE SAVEPOINT hapax; SET LOCAL hapax_claim.open = 'off'; COMMIT";
    const LET_COMMIT: &'static str = "SET LOCAL hapax_claim.open = 'off'; ";
    const BEGIN: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED"; // whatever the user's default is
    const NEW_PLACE: &'static str = "SELECT nextval(pg_get_serial_sequence('{waiting}', 'number'))";
    const LAST_DEAD: &'static str =
        "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.dead_letters_number_seq";
    const CLAIM: [&'static str; 6] = [INSERT, REST, HORIZON, PIN_HORIZON, LOCK_HORIZON, PREPARE_ONE];
    /// Each by its whole key, as above.
    const LOOK: &'static str = "\
SELECT e.* FROM unnest($2::text[]) AS k(id)
CROSS JOIN LATERAL (SELECT i.id, i.state, i.digest, i.sent_at, i.processed_at, i.lease_until, i.result
                    FROM {inbox} i WHERE i.consumer = $1 AND i.id = k.id LIMIT 1) e";
    const HELD: &'static str = "\
SELECT k.n FROM unnest($2::bigint[], $3::text[], $4::bigint[]) AS k(n, order_key, place)
WHERE EXISTS (SELECT 1 FROM {waiting} w WHERE w.consumer = $1 AND w.order_key = k.order_key
                AND (k.place IS NULL OR w.number < k.place))
   OR EXISTS (SELECT 1 FROM {dead_letters} d WHERE d.consumer = $1 AND d.order_key = k.order_key
                AND d.redriven_at IS NULL AND (k.place IS NULL OR d.place < k.place))";
    const UNSENT: &'static str = concat!(
        "SELECT o.number, o.bucket, o.key, o.attempts, o.broker, o.destination, o.routing_key, o.label, o.body
         FROM {buckets} b CROSS JOIN LATERAL (
             SELECT * FROM {outbox} o
             WHERE o.bucket = b.bucket AND o.state = 0 AND o.due_at <= {at}
               AND NOT (o.broker {in_texts $4}) AND ",
        unblocked!(),
        " ORDER BY o.number
          LIMIT greatest($2 / (SELECT greatest(count(*), 1) FROM {buckets} WHERE owner = $1), 8)) o
         WHERE b.owner = $1 AND b.lease_until > {at} ORDER BY o.number LIMIT $2"
    );
    const CAN_NOTIFY: bool = true;
    const PROBE: &'static str = "SELECT CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN 0 ELSE 1 END";
    const PROBE_WRITE: &'static str = ""; // it would leave a dead row each time
    const FIND_SCHEMA: &'static str = "SELECT 1 WHERE to_regclass('{schema_version}') IS NOT NULL";
    const LOCK_MIGRATIONS: &'static str =
        "SELECT 1 FROM (SELECT pg_advisory_xact_lock(hashtextextended('hapax migrations', {seed}))) locked";
    const UNLOCK_MIGRATIONS: &'static str = "";
    const MIGRATIONS: &'static [(u32, &'static str, &'static str)] =
        &[(1, "initial", include_str!("../../migrations/postgres/0001_initial.sql"))];

    fn table(schema: &str, name: &str) -> String {
        format!("{schema}.{name}")
    }

    fn in_ints(parameter: &str) -> String {
        format!("= ANY({parameter}::bigint[])")
    }

    fn in_texts(parameter: &str) -> String {
        format!("= ANY({parameter}::text[])")
    }

    fn place(schema: &str, parameter: &str) -> String {
        let waiting = Self::table(schema, "waiting");
        format!("COALESCE({parameter}, nextval(pg_get_serial_sequence('{waiting}', 'number')))")
    }

    fn sql(text: SqlStr) -> SqlStr {
        text
    }

    fn literal(text: &str) -> String {
        // Whatever `standard_conforming_strings` says, these mean themselves.
        let plain = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && byte != b'\'' && byte != b'\\';
        if text.bytes().all(plain) {
            return format!("'{text}'");
        }
        format!("convert_from(decode('{}', 'hex'), 'UTF8')", hex(text.as_bytes()))
    }

    fn blob(bytes: &[u8]) -> String {
        format!("decode('{}', 'hex')", hex(bytes))
    }

    fn adapt(migration: &str, schema: &str) -> String {
        migration
            .replace("hapax.", &format!("{schema}."))
            .replace("SCHEMA IF NOT EXISTS hapax", &format!("SCHEMA IF NOT EXISTS {schema}"))
    }

    fn options(url: &str) -> Result<Options<Self>, Error> {
        let options: PgConnectOptions = url.parse().map_err(|error| refused_url::<Self>(&error))?;
        Ok(options.application_name(APPLICATION))
    }

    fn prepare(options: Options<Self>, _busy: Duration) -> Result<Options<Self>, Error> {
        Ok(options)
    }

    fn describe(options: &Options<Self>) -> String {
        let database = options.get_database().unwrap_or_else(|| options.get_username());
        match options.get_socket() {
            Some(socket) => format!("PostgreSQL database {database} at {}", socket.display()),
            None => {
                format!("PostgreSQL database {database} at {}:{}", options.get_host(), options.get_port())
            }
        }
    }

    async fn open(options: &Options<Self>) -> Result<Raw<Self>, sqlx::Error> {
        let mut conn = PgConnection::connect_with(options).await?;
        let pid = sqlx::query("SELECT pg_backend_pid()").fetch_one(&mut conn).await?.try_get(0)?;
        let depth = conn.begin().await?;
        std::mem::forget(depth); // sqlx counts one transaction from here on, so that nested ones are savepoints
        Self::run(&mut conn, SqlStr::from_static("ROLLBACK")).await?;
        Ok(Raw { conn, brake: pid })
    }

    /// What runs outside our transaction is read-only; what commits it with claims in it meets the
    /// trigger of the migration.
    async fn guard(raw: &mut Raw<Self>, named: SqlStr) -> Result<bool, sqlx::Error> {
        const READ_ONLY: &str = "SELECT current_setting('default_transaction_read_only') = 'on'";
        let read_only = sqlx::query(READ_ONLY).fetch_one(&mut raw.conn).await?.try_get(0)?;
        if read_only {
            return Ok(false);
        }
        Self::run(&mut raw.conn, SqlStr::from_static("SET default_transaction_read_only = on")).await?;
        Self::run(&mut raw.conn, named).await?;
        Ok(true)
    }

    fn let_commit(_pid: &i32, _allowed: bool) {}

    async fn run(conn: &mut Self::Connection, sql: SqlStr) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(sql).execute(conn).await?;
        Ok(())
    }

    primitives!();

    fn int(row: &PgRow, column: usize) -> Result<Option<i64>, sqlx::Error> {
        match row.try_column(column)?.type_info().name() {
            "INT2" => Ok(row.try_get::<Option<i16>, _>(column)?.map(i64::from)),
            "INT4" => Ok(row.try_get::<Option<i32>, _>(column)?.map(i64::from)),
            _ => row.try_get(column),
        }
    }

    async fn open_claim(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        timeout: Option<Duration>,
        wanted: Wanted<'_>,
    ) -> Result<Taking, Opening> {
        if let [key] = wanted.keys {
            return take_one(conn, statements, timeout, wanted.consumer, key).await;
        }
        Self::run(conn, AssertSqlSafe(begin(timeout)).into_sql_str()).await.map_err(Opening::Begin)?;
        Self::take(conn, statements, wanted).await.map_err(Opening::Claim)
    }

    async fn take(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        wanted: Wanted<'_>,
    ) -> Result<Taking, sqlx::Error> {
        if wanted.keys.is_empty() {
            return Ok(Taking::of_rivals(0));
        }
        let bound = claim_values(wanted.consumer, &sorted(wanted.keys));
        let inserted = Self::fetch(conn, &statements.claim_first, bound).await?;
        taken(conn, statements, wanted, &inserted).await
    }

    async fn horizon_now(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        consumer: &ConsumerName,
    ) -> Result<Option<i64>, sqlx::Error> {
        let rows = Self::fetch(conn, &statements.claim_third, values![consumer.as_str()]).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        if int::<Self>(row, 1)? == 0 {
            return Self::int(row, 0);
        }
        Self::execute(conn, &statements.claim_fourth, values![consumer.as_str()]).await?;
        let rows = Self::fetch(conn, &statements.claim_fifth, values![consumer.as_str()]).await?;
        rows.first().map_or(Ok(None), |row| Self::int(row, 0))
    }

    fn held_values(keys: &[(usize, &str, Option<i64>)]) -> Vec<Value> {
        values![
            keys.iter().map(|(index, ..)| i64::try_from(*index).ok()).collect::<Value>(),
            keys.iter().map(|(_, order, _)| *order).collect::<Value>(),
            keys.iter().map(|(.., place)| *place).collect::<Value>(),
        ]
    }

    fn classify(code: &str) -> (ErrorKind, Code) {
        match code {
            "25006" | "53100" => (ErrorKind::Unavailable, Code::StoreReadOnly),
            "57P01" | "57P02" | "57P03" => (ErrorKind::Unavailable, Code::StoreUnavailable),
            "40001" | "40P01" => (ErrorKind::Conflict, Code::StoreConflict),
            "55P03" => (ErrorKind::Busy, Code::StoreBusy),
            "42501" => (ErrorKind::Setup, Code::StoreRefused),
            "3D000" => (ErrorKind::Setup, Code::StoreUnavailable),
            _ if code.starts_with("08") || code.starts_with("53") || code.starts_with("58") => {
                (ErrorKind::Unavailable, Code::StoreUnavailable)
            }
            _ if code.starts_with("28") => (ErrorKind::Setup, Code::StoreRefused),
            _ => (ErrorKind::Statement, Code::StoreFailed),
        }
    }

    fn lacks_schema(code: &str) -> bool {
        // no such table, schema or column
        matches!(code, "42P01" | "3F000" | "42703")
    }

    fn is_broken(code: &str) -> bool {
        // no active transaction, an aborted one, no such savepoint
        matches!(code, "25P01" | "25P02" | "3B001")
    }

    fn is_guarded(code: &str) -> bool {
        // refused by the trigger; a write outside our transaction, since ours began with READ WRITE
        matches!(code, "HX050" | "25006")
    }

    fn begins_read_only(code: &str) -> bool {
        code == "0A000" // READ WRITE during recovery
    }

    fn is_session_end(code: &str) -> bool {
        code.starts_with("57P") || code.starts_with("08")
    }

    fn has_forgotten(code: &str) -> bool {
        code == "26000" // DEALLOCATE
    }

    fn is_timeout(code: &str) -> bool {
        code == "57014" // statement_timeout, which is set for each claim
    }

    async fn notify(conn: &mut Self::Connection, channel: &str, from: &str) -> Result<(), sqlx::Error> {
        sqlx::query("SELECT pg_notify($1, $2)").bind(channel).bind(from).execute(conn).await?;
        Ok(())
    }

    async fn listen(
        options: Options<Self>,
        channel: &str,
        from: &str,
        heard: impl Fn() + Send + Sync,
    ) -> Result<(), sqlx::Error> {
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(channel).await?;
        heard(); // whatever was told before
        while let Some(told) = listener.try_recv().await? {
            if told.payload() != from {
                heard();
            }
        }
        Ok(())
    }

    async fn cancel(pid: &i32, other: &mut Self::Connection) -> Result<(), sqlx::Error> {
        sqlx::query("SELECT pg_cancel_backend($1)").bind(*pid).execute(other).await?;
        Ok(())
    }

    fn stop(_pid: &i32) {}
}

/// Begins a transaction with its sentinel and takes a key in it, in one round trip.
async fn take_one(
    conn: &mut PgConnection,
    statements: &Statements<Postgres>,
    timeout: Option<Duration>,
    consumer: &ConsumerName,
    key: &Key,
) -> Result<Taking, Opening> {
    let sent_at = key.sent_at.map_or("NULL".to_owned(), |sent_at| sent_at.as_micros().to_string());
    let literal = Postgres::literal;
    let (name, id, digest) = (literal(consumer.as_str()), literal(key.id.as_str()), key.digest.as_i64());
    let text = format!("{}; EXECUTE hapax_claim ({name}, {id}, {digest}, {sent_at})", begin(timeout));
    let text = AssertSqlSafe(text).into_sql_str();
    let inserted = sqlx::raw_sql(text).fetch_all(&mut *conn).await.map_err(Opening::Begin)?;
    let wanted = Wanted { consumer, keys: std::slice::from_ref(key) };
    taken(conn, statements, wanted, &inserted).await.map_err(Opening::Claim)
}

/// What became of the keys, given those that were inserted.
async fn taken(
    conn: &mut PgConnection,
    statements: &Statements<Postgres>,
    Wanted { consumer, keys }: Wanted<'_>,
    inserted: &[PgRow],
) -> Result<Taking, sqlx::Error> {
    let mut taking = Taking::of_rivals(keys.len());
    taking.mark::<Postgres>(keys, inserted, |_| Ok(Found::Inserted))?;
    if let Some(row) = inserted.first() {
        (taking.horizon, taking.now) = (Postgres::int(row, 1)?, int::<Postgres>(row, 2)?);
    }
    let rest = sorted(taking.rest(keys));
    if rest.is_empty() {
        return Ok(taking);
    }
    let mut bound = claim_values(consumer, &rest);
    bound.push(rest.iter().map(|key| key.place.map(|place| place.0)).collect());
    bound.push(rest.iter().map(|key| key.fence.map(|fence| fence.0)).collect());
    let rows = Postgres::fetch(conn, &statements.claim_second, bound).await?;
    taking.mark::<Postgres>(keys, &rows, found)?;
    if let Some(row) = rows.first() {
        (taking.horizon, taking.now) = (Postgres::int(row, 1)?, int::<Postgres>(row, 2)?);
    }
    Ok(taking)
}

fn begin(timeout: Option<Duration>) -> String {
    let Some(timeout) = timeout else {
        return "BEGIN READ WRITE; SET LOCAL hapax_claim.open = 'on'; SAVEPOINT hapax".to_owned();
    };
    let millis = timeout.as_millis().clamp(1, 2_147_483_647); // zero would mean no limit
    format!(
        "BEGIN READ WRITE; SET LOCAL hapax_claim.open = 'on'; SET LOCAL statement_timeout = {millis}; SAVEPOINT hapax"
    )
}

/// Byte by byte, as the inbox's index is.
fn sorted<'k>(keys: impl IntoIterator<Item = &'k Key>) -> Vec<&'k Key> {
    let mut keys: Vec<&Key> = keys.into_iter().collect();
    keys.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    keys
}

fn claim_values(consumer: &ConsumerName, keys: &[&Key]) -> Vec<Value> {
    values![
        consumer.as_str(),
        keys.iter().map(|key| key.id.as_str()).collect::<Value>(),
        keys.iter().map(|key| key.digest.as_i64()).collect::<Value>(),
        keys.iter().map(|key| key.sent_at.map(Timestamp::as_micros)).collect::<Value>(),
    ]
}

fn found(row: &PgRow) -> Result<Found, sqlx::Error> {
    Ok(match int::<Postgres>(row, 3)? {
        0 => Found::Inserted,
        1 => Found::Updated,
        2 => Found::Kept { state: int::<Postgres>(row, 4)?, digest: int::<Postgres>(row, 5)? },
        _ => Found::Rival,
    })
}

fn bind(values: Vec<Value>) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    for value in values {
        match value {
            Value::Int(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Bytes(value) => arguments.add(value),
            Value::Ints(value) => arguments.add(value),
            Value::Texts(value) => arguments.add(value),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}
