//! MySQL and MariaDB.

use std::borrow::Cow;
use std::time::Duration;

use hapax_core::{Code, ConsumerName, Error, ErrorKind};
use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::{Connection, MySql, Row, SqlStr};

use self::claim::Claiming;
use self::script::Script;
use super::{Claims, Driver, Opening, Options, Raw, Taking, Wanted, hex};
use crate::error::refused_url;
use crate::statements::{Shapes, Statements, unblocked};
use crate::store::Builder;
use crate::value::{Value, values};

mod claim;
mod script;
mod shapes;

/// The wall clock in UTC, whatever the session's time zone is: the statement's beginning and what has passed since.
const NOW: &str = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) \
                    + TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)))";
/// The statement's beginning, which is one value for all rows. It makes a lease end later, never earlier.
const AT: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
/// Before a statement that would rather fail than wait. MySQL has it from the session, see `begin`.
const NO_WAIT: &str = "/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ ";

/// What is known of a connection.
#[derive(Debug)]
pub struct Session {
    /// Its number on the server.
    id: u64,
    /// The longest packet that the server takes.
    max_packet: usize,
}

/// How much of each other the transactions of a MySQL or MariaDB store see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// Each statement sees what was committed before it. The default: it takes no locks on gaps.
    #[default]
    ReadCommitted,
    /// A handler reads what was committed when its messages were claimed. The servers' own default.
    RepeatableRead,
}

impl Builder<MySql> {
    /// The isolation level of the transactions in which messages are handled. Default: [`Isolation::ReadCommitted`].
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.named = match isolation {
            Isolation::ReadCommitted => READ_COMMITTED,
            Isolation::RepeatableRead => REPEATABLE_READ,
        };
        self
    }
}

/// Transactions that are not begun by us are read-only, and none is a statement's own: what follows an early end of
/// ours takes no effect. Without the second, MariaDB commits the first statement after a deadlock.
const READ_COMMITTED: &str =
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY; SET autocommit = 0";
const REPEATABLE_READ: &str =
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET autocommit = 0";

impl Driver for MySql {
    type Sql = Script;
    type Brake = Session;

    const TITLE: &'static str = "MySQL/MariaDB";
    const SHAPES: Shapes = shapes::SHAPES;
    const ONE_WRITER: bool = false;
    const NOW: &'static str = NOW;
    const AT: &'static str = AT;
    const KEY: &'static str = "`key`";
    const GREATEST: &'static str = "greatest";
    const SKIP_LOCKED: &'static str = "FOR UPDATE SKIP LOCKED";
    const BEGIN_RUNNING: &'static str = shapes::BEGIN_RUNNING;
    const UNHELD: &'static str = "true"; // a part of the statements that ask
    const ENDING: &'static str = "RELEASE SAVEPOINT hapax; COMMIT";
    const LET_COMMIT: &'static str = "";
    const BEGIN: &'static str = "START TRANSACTION";
    /// A row that comes and goes takes its number along.
    const NEW_PLACE: &'static str = "\
INSERT INTO {waiting} (consumer, id, kind, failures, error, due_at, parked_at, label, body)
VALUES ('', CAST($t AS BINARY), '', 0, '', 0, 0, '', '');
DELETE FROM {waiting} WHERE consumer = '' AND id = CAST($t AS BINARY);
SELECT CAST(LAST_INSERT_ID() AS SIGNED)";
    /// The same: the statistics that know the next number are not of now.
    const LAST_DEAD: &'static str = "\
INSERT INTO {dead_letters} (consumer, id, kind, reason, error, failures, crashes, first_failed_at, died_at, label, body)
VALUES ('', CAST($t AS BINARY), '', '', '', 0, 0, 0, 0, '', '');
DELETE FROM {dead_letters} WHERE consumer = '' AND id = CAST($t AS BINARY);
SELECT CAST(LAST_INSERT_ID() AS SIGNED) - 1";
    const CLAIM: [&'static str; 6] = ["", "", "", "", "", READ_COMMITTED];
    const LOOK: &'static str = "\
SELECT id, state, digest, sent_at, processed_at, lease_until, result FROM {inbox}
WHERE consumer = $1 AND id {in_texts $2}";
    const HELD: &'static str = "\
SELECT k.n FROM JSON_TABLE($2, '$[*]' COLUMNS (
    n INT PATH '$[0]', order_key VARCHAR(2048) PATH '$[1]', place BIGINT PATH '$[2]')) k
WHERE EXISTS (SELECT 1 FROM {waiting} w WHERE w.consumer = $1 AND w.order_key = CAST(k.order_key AS BINARY)
                AND (k.place IS NULL OR w.number < k.place))
   OR EXISTS (SELECT 1 FROM {dead_letters} d
              WHERE d.consumer = $1 AND d.order_key = CAST(k.order_key AS BINARY) AND d.redriven_at IS NULL
                AND (k.place IS NULL OR d.place < k.place))";
    const UNSENT: &'static str = concat!(
        "SELECT o.number, o.bucket, o.{key}, o.attempts, o.broker, o.destination, o.routing_key, o.label, o.body
         FROM {outbox} o FORCE INDEX (outbox_unsent)
         WHERE o.state = 0
           AND o.bucket IN (SELECT bucket FROM {buckets} WHERE owner = $1 AND lease_until > {at})
           AND o.due_at <= {at} AND NOT COALESCE(o.broker {in_texts $4}, FALSE) AND ",
        unblocked!(),
        " ORDER BY o.number LIMIT $2"
    );
    const CAN_NOTIFY: bool = false;
    const PROBE: &'static str = "SELECT 1";
    const PROBE_WRITE: &'static str = "UPDATE {buckets} SET owner = owner WHERE bucket = -1";
    const FIND_SCHEMA: &'static str = "\
SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{schema_version}'";
    const LOCK_MIGRATIONS: &'static str =
        "SELECT GET_LOCK(CONCAT('hapax ', SHA1(CONCAT(DATABASE(), ' {schema}'))), 86400)";
    const UNLOCK_MIGRATIONS: &'static str =
        "DO RELEASE_LOCK(CONCAT('hapax ', SHA1(CONCAT(DATABASE(), ' {schema}'))))";
    const MIGRATIONS: &'static [(u32, &'static str, &'static str)] =
        &[(1, "initial", include_str!("../../migrations/mysql/0001_initial.sql"))];

    fn table(schema: &str, name: &str) -> String {
        format!("{schema}_{name}")
    }

    fn in_ints(parameter: &str) -> String {
        format!("IN ({parameter})")
    }

    fn in_texts(parameter: &str) -> String {
        Self::in_ints(parameter)
    }

    fn place(_schema: &str, parameter: &str) -> String {
        parameter.to_owned() // a new one, where it is null
    }

    fn delete_by(table: &str, index: &str) -> String {
        format!("DELETE {table} FROM {table} FORCE INDEX ({index})")
    }

    fn sql(text: SqlStr) -> Script {
        Script::new(text.as_str())
    }

    fn literal(text: &str) -> String {
        // Whatever `sql_mode` says, these mean themselves.
        let plain = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && byte != b'\'' && byte != b'\\';
        if text.bytes().all(plain) {
            return format!("'{text}'");
        }
        Self::blob(text.as_bytes())
    }

    fn blob(bytes: &[u8]) -> String {
        format!("x'{}'", hex(bytes))
    }

    fn adapt(migration: &str, schema: &str) -> String {
        migration.replace("hapax_", &format!("{schema}_"))
    }

    fn options(url: &str) -> Result<Options<Self>, Error> {
        url.parse::<MySqlConnectOptions>().map_err(|error| refused_url::<Self>(&error))
    }

    fn prepare(options: Options<Self>, _busy: Duration) -> Result<Options<Self>, Error> {
        if options.get_database().is_none_or(str::is_empty) {
            let context = "the MySQL/MariaDB store needs a database: mysql://user@host/database";
            return Err(Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context));
        }
        Ok(options.charset("utf8mb4").set_names(true))
    }

    fn describe(options: &Options<Self>) -> String {
        let database = options.get_database().unwrap_or_default();
        match options.get_socket() {
            Some(socket) => format!("MySQL/MariaDB database {database} at {}", socket.display()),
            None => {
                format!("MySQL/MariaDB database {database} at {}:{}", options.get_host(), options.get_port())
            }
        }
    }

    async fn open(options: &Options<Self>) -> Result<Raw<Self>, sqlx::Error> {
        const SET_UP: &str = "SET autocommit = 1, sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES'); \
                              SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
        const ASK: &str =
            "SELECT CONNECTION_ID(), CAST(@@max_allowed_packet AS SIGNED), @@innodb_rollback_on_timeout";
        let mut conn = MySqlConnection::connect_with(options).await?;
        Self::run(&mut conn, SqlStr::from_static(SET_UP)).await?;
        let row = sqlx::query(SqlStr::from_static(ASK)).fetch_one(&mut conn).await?;
        let id = row.try_get_unchecked(0)?;
        let max_packet = usize::try_from(row.try_get_unchecked::<i64, _>(1)?).unwrap_or(usize::MAX);
        if row.try_get_unchecked::<i64, _>(2)? != 0 {
            let context = "the server runs with innodb_rollback_on_timeout, under which a wait that is too long ends \
                           the transaction unseen; switch it off";
            return Err(sqlx::Error::Configuration(context.into()));
        }
        let depth = conn.begin().await?;
        std::mem::forget(depth); // sqlx counts one transaction from here on, so that nested ones are savepoints
        Self::run(&mut conn, SqlStr::from_static("ROLLBACK")).await?;
        Ok(Raw { conn, brake: Session { id, max_packet } })
    }

    /// What runs outside our transaction is read-only. A commit with claims in it cannot be refused; it leaves them as
    /// messages whose lease has ended.
    async fn guard(raw: &mut Raw<Self>, named: SqlStr) -> Result<bool, sqlx::Error> {
        Self::run(&mut raw.conn, named).await?;
        Ok(true)
    }

    fn let_commit(_session: &Session, _allowed: bool) {}

    async fn run(conn: &mut Self::Connection, sql: SqlStr) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(sql).execute(conn).await?;
        Ok(())
    }

    async fn execute(
        conn: &mut Self::Connection,
        sql: &Script,
        values: Vec<Value>,
    ) -> Result<u64, sqlx::Error> {
        Ok(sql.run(conn, &values).await?.touched)
    }

    async fn fetch(
        conn: &mut Self::Connection,
        sql: &Script,
        values: Vec<Value>,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        Ok(sql.run(conn, &values).await?.rows)
    }

    fn int(row: &MySqlRow, column: usize) -> Result<Option<i64>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    fn text(row: &MySqlRow, column: usize) -> Result<Option<String>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    fn bytes(row: &MySqlRow, column: usize) -> Result<Vec<u8>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    fn maybe_bytes(row: &MySqlRow, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
        row.try_get_unchecked(column)
    }

    async fn open_claim(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        timeout: Option<Duration>,
        wanted: Wanted<'_>,
    ) -> Result<Taking, Opening> {
        let begin = begin(timeout);
        if wanted.keys.is_empty() {
            let begin = sqlx::AssertSqlSafe(begin);
            sqlx::raw_sql(begin).execute(conn).await.map_err(Opening::Begin)?;
            return Ok(Taking::of_rivals(0));
        }
        // Nothing of a claim is committed: a lost connection may be replaced at any point of it.
        Claiming::new(&statements.schema, wanted, false).take(conn, &begin).await.map_err(Opening::Begin)
    }

    async fn take(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        wanted: Wanted<'_>,
    ) -> Result<Taking, sqlx::Error> {
        Claiming::new(&statements.schema, wanted, true).take(conn, "").await
    }

    async fn horizon_now(
        conn: &mut Self::Connection,
        statements: &Statements<Self>,
        consumer: &ConsumerName,
    ) -> Result<Option<i64>, sqlx::Error> {
        claim::horizon(conn, &statements.schema, consumer).await
    }

    fn held_values(keys: &[(usize, &str, Option<i64>)]) -> Vec<Value> {
        // Strings, integers and nulls only, which cannot fail.
        values![serde_json::to_string(keys).unwrap_or_default()]
    }

    fn code_of(error: &dyn DatabaseError) -> Option<Cow<'_, str>> {
        error.try_downcast_ref::<MySqlDatabaseError>().map(|error| error.number().to_string().into())
    }

    fn fits(session: &Session, bytes: usize) -> Result<(), sqlx::Error> {
        const REST: usize = 64 * 1024; // of a statement beside its long values
        if bytes.saturating_add(REST) <= session.max_packet || bytes <= REST {
            return Ok(());
        }
        let max = session.max_packet;
        let context = format!(
            "a statement of {bytes} bytes is more than the server takes (max_allowed_packet = {max}); raise \
             max_allowed_packet to more than twice the largest message"
        );
        Err(sqlx::Error::Encode(context.into()))
    }

    fn confirm(text: &mut String, table: &str, claims: &Claims<'_>) {
        claim::confirm(text, table, claims);
    }

    fn classify(code: &str) -> (ErrorKind, Code) {
        match code.parse().unwrap_or(0_u16) {
            // read-only: by option, by transaction, by mode; no space: on disk, in a table, for an engine
            1290 | 1792 | 1836 | 1021 | 1114 => (ErrorKind::Unavailable, Code::StoreReadOnly),
            // too many connections, out of memory, limits of a user
            1040 | 1041 | 1037 | 1038 | 1203 | 1226
            // shutting down, aborted, killed, timed out; Galera is not ready. A packet that is too large, 1153, is not
            // among them: it would be tried for ever.
            | 1047 | 1053 | 1077..=1080 | 1152 | 1154 | 1156..=1161 | 1184 | 1927 | 4031 => {
                (ErrorKind::Unavailable, Code::StoreUnavailable)
            }
            // a deadlock, a wait for a lock that was too long, a row that changed since the snapshot
            1213 | 1205 | 1020 | 3572 => (ErrorKind::Conflict, Code::StoreConflict),
            // refused: database, user, table, column, privilege, routine, plugin
            1044 | 1045 | 1142 | 1143 | 1227 | 1370 | 1698 => (ErrorKind::Setup, Code::StoreRefused),
            1049 | 1046 => (ErrorKind::Setup, Code::StoreUnavailable),
            _ => (ErrorKind::Statement, Code::StoreFailed),
        }
    }

    fn lacks_schema(code: &str) -> bool {
        matches!(code, "1146" | "1054") // no such table, no such column
    }

    fn is_broken(code: &str) -> bool {
        matches!(code, "1305" | "1792") // no such savepoint; a write outside our transaction
    }

    fn is_guarded(code: &str) -> bool {
        code == "1792" // a write outside our transaction, since ours began with READ WRITE
    }

    fn begins_read_only(code: &str) -> bool {
        code == "1290" // READ WRITE on a replica
    }

    fn is_session_end(code: &str) -> bool {
        // shutting down, killed, aborted, timed out
        matches!(
            code,
            "1053" | "1077" | "1078" | "1079" | "1080" | "1152" | "1159" | "1161" | "1184" | "1927" | "4031"
        )
    }

    fn has_forgotten(code: &str) -> bool {
        code == "1243" // DEALLOCATE PREPARE
    }

    fn is_timeout(code: &str) -> bool {
        matches!(code, "1969" | "3024") // max_statement_time, max_execution_time
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

    /// Ends the session: its connection is about to be closed, which the server would notice only at its next
    /// statement.
    async fn cancel(session: &Session, other: &mut Self::Connection) -> Result<(), sqlx::Error> {
        let kill = sqlx::AssertSqlSafe(format!("KILL {}", session.id));
        match sqlx::raw_sql(kill).execute(other).await {
            Err(error) if number_of(&error) == Some(1094) => Ok(()), // it is gone
            other => other.map(drop),
        }
    }

    fn stop(_session: &Session) {}
}

/// Begins a transaction with its sentinel. The limit is the session's, so that each claim sets it.
fn begin(timeout: Option<Duration>) -> String {
    let (seconds, millis) = match timeout {
        Some(timeout) => {
            let millis = timeout.as_millis().clamp(1, 31_536_000_000); // zero would mean no limit
            (format!("{}.{:03}", millis / 1000, millis % 1000), millis.to_string())
        }
        None => ("DEFAULT".to_owned(), "DEFAULT".to_owned()),
    };
    format!(
        "SET /*M! max_statement_time = {seconds} */ /*!80000 max_execution_time = {millis} */; \
         START TRANSACTION READ WRITE; SAVEPOINT hapax; "
    )
}

/// The server's own number for an error.
fn number_of(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

/// Whether somebody else has the lock that a statement would not wait for.
fn is_lock(error: &sqlx::Error) -> bool {
    matches!(number_of(error), Some(1205 | 3572))
}
