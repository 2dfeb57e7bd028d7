//! The tables that the contenders work on: a schema or prefix of their own, which goes when all is done.

use std::error::Error as StdError;
use std::future::Future;

use hapax::sql::SqlStore;
use hapax::{Code, Error, ErrorKind, Store as _};
use sqlx::{AssertSqlSafe, Pool, SqlSafeStr as _, SqlStr, Transaction};

use super::contender::Contender;
use super::payments::{ORDERS, Payment};
use crate::sql::SqlTarget;

/// What a database must offer to be measured on. Texts hold `{orders}` and `{seen}` for the tables.
pub(super) trait Arena: SqlTarget {
    /// Fills the orders.
    const FILL: &'static str;
    /// Adds the amounts of a whole batch.
    const ADD_ALL: &'static str;
    /// Brings the tables into the same state before each pass.
    const LEVEL: &'static str;
    /// What a sum is cast to, to be read as a whole number.
    const WHOLE: &'static str = "bigint";
    /// A parameter is a bare `?`, each use one of its own.
    const BARE_PLACEHOLDERS: bool = false;

    /// The pool of those who are not protected: sqlx's defaults, and as many connections as workers.
    fn pool(url: &str, workers: u32) -> impl Future<Output = Result<Pool<Self>, sqlx::Error>> + Send;

    /// Begins a transaction that will write.
    fn begin(
        pool: &Pool<Self>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>, sqlx::Error>> + Send;

    /// Adds a payment to its order.
    fn add(
        conn: &mut Self::Connection,
        sql: &SqlStr,
        payment: Payment,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Adds payments to their orders.
    fn add_all(
        conn: &mut Self::Connection,
        sql: &SqlStr,
        payments: &[Payment],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Whether the seeds' form has seen a message.
    fn is_seen(
        conn: &mut Self::Connection,
        sql: &SqlStr,
        id: &str,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Notes that the seeds' form has seen a message.
    fn see(
        conn: &mut Self::Connection,
        sql: &SqlStr,
        id: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Reads one number.
    fn number(pool: &Pool<Self>, sql: &SqlStr) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// The statements that drop everything under a schema or prefix.
    fn drops(pool: &Pool<Self>, schema: &str) -> impl Future<Output = Result<String, sqlx::Error>> + Send;
}

/// What reads the same for each driver: sqlx's traits want concrete types.
macro_rules! statements {
    () => {
        async fn is_seen(conn: &mut Self::Connection, sql: &SqlStr, id: &str) -> Result<bool, sqlx::Error> {
            sqlx::query_scalar(sql.clone()).bind(id).fetch_one(conn).await
        }

        async fn see(conn: &mut Self::Connection, sql: &SqlStr, id: &str) -> Result<(), sqlx::Error> {
            sqlx::query(sql.clone()).bind(id).execute(conn).await.map(drop)
        }

        async fn number(pool: &Pool<Self>, sql: &SqlStr) -> Result<i64, sqlx::Error> {
            sqlx::query_scalar(sql.clone()).fetch_one(pool).await
        }
    };
}

pub(super) use statements;

/// The statements that handlers run.
#[derive(Clone, Debug)]
pub(super) struct Texts {
    pub(super) add: SqlStr,
    pub(super) add_all: SqlStr,
    pub(super) is_seen: SqlStr,
    pub(super) see: SqlStr,
    total: SqlStr,
}

/// The tables, and the two ways to them: a pool for those who are not protected, a store for those who are.
pub(super) struct Ground<D: Arena> {
    pub(super) pool: Pool<D>,
    pub(super) store: SqlStore<D>,
    pub(super) texts: Texts,
}

impl<D: Arena> Clone for Ground<D> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), store: self.store.clone(), texts: self.texts.clone() }
    }
}

impl<D: Arena> Ground<D> {
    /// Connects both; nothing is created yet.
    pub(super) async fn open(url: &str, schema: &str, workers: u32) -> Result<Self, Error> {
        let places = usize::try_from(workers).unwrap_or(usize::MAX);
        let store = SqlStore::<D>::builder(url).schema(schema).pool(places).connect().await?;
        let pool = D::pool(url, workers).await.map_err(|error| of_database(&store, error))?;
        let text = |template: &str| AssertSqlSafe(filled::<D>(template, schema)).into_sql_str();
        let texts = Texts {
            add: text(ADD),
            add_all: text(D::ADD_ALL),
            is_seen: text("SELECT EXISTS (SELECT 1 FROM {seen} WHERE message_id = $1)"),
            see: text("INSERT INTO {seen} (message_id, processed_at) VALUES ($1, CURRENT_TIMESTAMP)"),
            total: text(&format!("SELECT CAST(sum(total) AS {}) FROM {{orders}}", D::WHOLE)),
        };
        Ok(Self { pool, store, texts })
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> &str {
        self.store.place()
    }

    /// The statement that adds a payment to its order, as a configuration has it.
    pub(super) fn add_by_name(&self) -> String {
        let template = ADD.replace("$1", ":order_id").replace("$2", ":amount");
        filled::<D>(&template, self.store.schema())
    }

    /// Creates and fills the tables.
    pub(super) async fn lay_out(&self) -> Result<(), Error> {
        self.store.migrate().await?;
        self.script(
            "CREATE TABLE {orders} (id bigint PRIMARY KEY, total bigint NOT NULL);
             CREATE TABLE {seen} (message_id varchar(255) PRIMARY KEY, processed_at timestamp NOT NULL)",
        )
        .await?;
        self.script(&D::FILL.replace("{count}", &ORDERS.to_string())).await
    }

    /// Drops everything that was created.
    pub(super) async fn clear(&self) -> Result<(), Error> {
        let drops = D::drops(&self.pool, self.store.schema()).await.map_err(|error| self.failed(error))?;
        self.script(&drops).await
    }

    /// Brings the tables into the same state before each pass.
    pub(super) async fn level(&self) -> Result<(), Error> {
        self.script(D::LEVEL).await
    }

    /// What all orders come to.
    pub(super) async fn total(&self) -> Result<i64, Error> {
        D::number(&self.pool, &self.texts.total).await.map_err(|error| self.failed(error))
    }

    /// Whether every message had its effect, once.
    pub(super) async fn verify(&self, contender: Contender, expected: i64) -> Result<(), Error> {
        let total = self.total().await?;
        if total == expected {
            return Ok(());
        }
        let context = format!(
            "after `{}` the orders come to {total}, and the messages to {expected}",
            contender.name()
        );
        Err(Error::new(ErrorKind::Broken, Code::TotalsWrong, context))
    }

    /// An error of the database, as its own kind.
    pub(super) fn failed(&self, error: sqlx::Error) -> Error {
        of_database(&self.store, error)
    }

    async fn script(&self, template: &str) -> Result<(), Error> {
        let text = filled::<D>(template, self.store.schema());
        let run = async {
            let mut conn = self.pool.acquire().await?;
            D::script(&mut conn, &text).await
        };
        run.await.map_err(|error| self.failed(error))
    }
}

/// Adds a payment to its order.
const ADD: &str = "UPDATE {orders} SET total = total + $2 WHERE id = $1";

fn filled<D: Arena>(template: &str, schema: &str) -> String {
    let text = template
        .replace("{orders}", &D::table(schema, "orders"))
        .replace("{seen}", &D::table(schema, "seen"));
    if D::BARE_PLACEHOLDERS { text.replace("$1", "?").replace("$2", "?") } else { text }
}

fn of_database<D: Arena>(store: &SqlStore<D>, error: sqlx::Error) -> Error {
    let (kind, code) = store.kind_of(&error).unwrap_or((ErrorKind::Statement, Code::StoreFailed));
    Error::new(kind, code, "a statement of the measurement failed").because(error)
}

/// What only a mistake in this program can cause.
pub(super) fn defect(error: impl StdError + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Broken, Code::StoreFailed, "the measurement failed by a defect of its own")
        .because(error)
}
