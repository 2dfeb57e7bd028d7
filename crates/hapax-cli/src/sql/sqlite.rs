//! Statements on SQLite.
//!
//! SQLite has no decimal type: a decimal goes in as its text, and a column of numeric affinity would turn
//! it into a float. Amounts belong into TEXT columns or, as minor units, into INTEGER ones.

use hapax::sqlx::{self, AssertSqlSafe, Executor as _, SqlSafeStr as _, Sqlite, SqliteConnection};

use super::target::{Proven, SqlTarget, Unfit, takes};
use crate::config::parameter::{Bound, Parameter};
use crate::statement::Statement;

impl SqlTarget for Sqlite {
    async fn prove(
        conn: &mut SqliteConnection,
        statement: &Statement,
        parameters: &[Parameter],
    ) -> Result<Proven, Unfit> {
        let sql = statement.sqlite();
        conn.prepare(AssertSqlSafe(sql.as_str()).into_sql_str()).await.map_err(Unfit::Refused)?;
        Ok(Proven { sql: sql.into(), takes: takes(statement, parameters) })
    }

    async fn run_statement(
        conn: &mut SqliteConnection,
        statement: &Proven,
        values: &[Option<Bound>],
    ) -> Result<u64, sqlx::Error> {
        let mut query = sqlx::query(AssertSqlSafe(statement.sql.clone()));
        for value in statement.takes.iter().map(|taken| values[*taken].clone()) {
            query = match value {
                None => query.bind(None::<String>),
                Some(Bound::Int(number)) => query.bind(number),
                Some(Bound::Bool(truth)) => query.bind(truth),
                Some(Bound::Bytes(bytes)) => query.bind(bytes),
                Some(
                    Bound::Decimal(text)
                    | Bound::Text(text)
                    | Bound::Timestamp(text)
                    | Bound::Uuid(text)
                    | Bound::Json(text),
                ) => query.bind(text),
            };
        }
        Ok(query.execute(conn).await?.rows_affected())
    }

    async fn script(conn: &mut SqliteConnection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
    }
}
