//! The measurement on MySQL and MariaDB.

use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, MySql, Pool, SqlSafeStr as _, SqlStr, Transaction};

use super::ground::{Arena, statements};
use super::payments::Payment;

impl Arena for MySql {
    const FILL: &'static str = "\
INSERT INTO {orders}
WITH RECURSIVE digits (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digits WHERE n < 9)
SELECT 1 + a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n, 0
FROM digits a, digits b, digits c, digits d, digits e
WHERE a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n < {count}";
    /// The table of amounts is spelt out behind it.
    const ADD_ALL: &'static str = "UPDATE {orders} o JOIN";
    const LEVEL: &'static str = "ANALYZE TABLE {orders}";
    const WHOLE: &'static str = "SIGNED";
    const BARE_PLACEHOLDERS: bool = true;

    async fn pool(url: &str, workers: u32) -> Result<Pool<Self>, sqlx::Error> {
        MySqlPoolOptions::new().max_connections(workers).connect(&url.replacen("mariadb:", "mysql:", 1)).await
    }

    async fn begin(pool: &Pool<Self>) -> Result<Transaction<'static, Self>, sqlx::Error> {
        pool.begin().await
    }

    /// In the order in which the statement uses them.
    async fn add(conn: &mut Self::Connection, sql: &SqlStr, payment: Payment) -> Result<(), sqlx::Error> {
        let query = sqlx::query(sql.clone()).bind(payment.amount).bind(payment.order_id);
        query.execute(conn).await.map(drop)
    }

    statements!();

    async fn add_all(
        conn: &mut Self::Connection,
        sql: &SqlStr,
        payments: &[Payment],
    ) -> Result<(), sqlx::Error> {
        let rows = vec!["SELECT ? AS id, ? AS amount"; payments.len()].join(" UNION ALL ");
        let sums =
            format!("(SELECT id, CAST(sum(amount) AS SIGNED) AS amount FROM ({rows}) p GROUP BY id) p");
        let text = format!("{} {sums} ON o.id = p.id SET o.total = o.total + p.amount", sql.as_str());
        let mut query = sqlx::query(AssertSqlSafe(text).into_sql_str());
        for payment in payments {
            query = query.bind(payment.order_id).bind(payment.amount);
        }
        query.execute(conn).await.map(drop)
    }

    async fn drops(pool: &Pool<Self>, schema: &str) -> Result<String, sqlx::Error> {
        let names = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables \
                     WHERE table_schema = DATABASE() AND left(table_name, char_length(?)) = ?";
        let prefix = format!("{schema}_");
        let tables: Vec<String> =
            sqlx::query_scalar(names).bind(prefix.as_str()).bind(prefix.as_str()).fetch_all(pool).await?;
        Ok(tables.iter().map(|table| format!("DROP TABLE {table};")).collect::<Vec<_>>().concat())
    }
}
