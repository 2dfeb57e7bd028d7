//! The measurement on PostgreSQL.

use sqlx::postgres::PgPoolOptions;
use sqlx::{Pool, Postgres, SqlStr, Transaction};

use super::ground::{Arena, statements};
use super::payments::Payment;

impl Arena for Postgres {
    const FILL: &'static str = "INSERT INTO {orders} SELECT n, 0 FROM generate_series(1, {count}) AS n";
    const ADD_ALL: &'static str = "\
UPDATE {orders} o SET total = o.total + p.amount
FROM (SELECT id, CAST(sum(amount) AS bigint) AS amount FROM unnest($1::bigint[], $2::bigint[]) AS p (id, amount)
      GROUP BY id) p
WHERE o.id = p.id";
    const LEVEL: &'static str = "VACUUM (ANALYZE) {orders}";

    async fn pool(url: &str, workers: u32) -> Result<Pool<Self>, sqlx::Error> {
        PgPoolOptions::new().max_connections(workers).connect(url).await
    }

    async fn begin(pool: &Pool<Self>) -> Result<Transaction<'static, Self>, sqlx::Error> {
        pool.begin().await
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
        let orders: Vec<i64> = payments.iter().map(|payment| payment.order_id).collect();
        let amounts: Vec<i64> = payments.iter().map(|payment| payment.amount).collect();
        sqlx::query(sql.clone()).bind(orders).bind(amounts).execute(conn).await.map(drop)
    }

    async fn drops(_: &Pool<Self>, schema: &str) -> Result<String, sqlx::Error> {
        Ok(format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))
    }
}
