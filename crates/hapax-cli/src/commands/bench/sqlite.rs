//! The measurement on SQLite, whose writers take turns.

use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Pool, SqlStr, Sqlite, Transaction};

use super::ground::{Arena, statements};
use super::payments::Payment;

/// How long a worker polls for its turn. Long, since SQLite's own queue is not fair.
const BUSY: Duration = Duration::from_mins(1);

impl Arena for Sqlite {
    const FILL: &'static str = "\
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
INSERT INTO {orders} SELECT n, 0 FROM numbers";
    const ADD_ALL: &'static str = "\
UPDATE {orders} SET total = total + p.amount
FROM (SELECT value ->> 0 AS id, sum(value ->> 1) AS amount FROM json_each($1) GROUP BY 1) p
WHERE {orders}.id = p.id";
    const LEVEL: &'static str = "PRAGMA wal_checkpoint(TRUNCATE)";

    /// With the journal and the synchronisation of the store, so that only the way of writing differs.
    async fn pool(url: &str, workers: u32) -> Result<Pool<Self>, sqlx::Error> {
        let options: SqliteConnectOptions = url.parse()?;
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY);
        SqlitePoolOptions::new().max_connections(workers).connect_with(options).await
    }

    async fn begin(pool: &Pool<Self>) -> Result<Transaction<'static, Self>, sqlx::Error> {
        pool.begin_with("BEGIN IMMEDIATE").await
    }

    async fn add(conn: &mut Self::Connection, sql: &SqlStr, payment: Payment) -> Result<(), sqlx::Error> {
        let query = sqlx::query(sql.clone()).bind(payment.order_id).bind(payment.amount);
        query.execute(conn).await.map(drop)
    }

    statements!();

    async fn add_all(
        conn: &mut Self::Connection,
        sql: &SqlStr,
        payments: &[Payment],
    ) -> Result<(), sqlx::Error> {
        let pairs: Vec<_> = payments.iter().map(|payment| (payment.order_id, payment.amount)).collect();
        let json = serde_json::to_string(&pairs).map_err(|error| sqlx::Error::Encode(error.into()))?;
        sqlx::query(sql.clone()).bind(json).execute(conn).await.map(drop)
    }

    async fn drops(pool: &Pool<Self>, schema: &str) -> Result<String, sqlx::Error> {
        let prefix = format!("{schema}_");
        let names =
            "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, length($1)) = $1";
        let tables: Vec<String> = sqlx::query_scalar(names).bind(prefix).fetch_all(pool).await?;
        Ok(tables.iter().map(|table| format!("DROP TABLE {table};")).collect::<Vec<_>>().concat())
    }
}
