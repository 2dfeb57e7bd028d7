//! Statements on MySQL and MariaDB.
//!
//! A decimal goes in as text and is cast by the server, since in a calculation a text would become a float there:
//! `CAST(? AS DECIMAL(65,30))`, the widest that there is. Times are written without their zone, which is UTC.

use hapax::sqlx::{
    self, AssertSqlSafe, Connection as _, Executor as _, MySql, MySqlConnection, SqlSafeStr as _,
};

use super::target::{Proven, SqlTarget, Unfit};
use crate::config::parameter::{Bound, ParamType, Parameter};
use crate::statement::Statement;

impl SqlTarget for MySql {
    async fn prove(
        conn: &mut MySqlConnection,
        statement: &Statement,
        parameters: &[Parameter],
    ) -> Result<Proven, Unfit> {
        // Every use of a name is a placeholder of its own.
        let place = |name: &str| parameters.iter().position(|parameter| parameter.name == name);
        let takes = statement.uses().filter_map(|(name, _)| place(name)).collect();
        let is_decimal =
            |name: &str| place(name).is_some_and(|place| parameters[place].kind == ParamType::Decimal);
        let sql = statement.render(|_, name| {
            if is_decimal(name) { "CAST(? AS DECIMAL(65,30))".to_owned() } else { "?".to_owned() }
        });
        conn.prepare(AssertSqlSafe(sql.as_str()).into_sql_str()).await.map_err(Unfit::Refused)?;
        Ok(Proven { sql: sql.into(), takes })
    }

    async fn run_statement(
        conn: &mut MySqlConnection,
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
                Some(Bound::Timestamp(text)) => query.bind(text.trim_end_matches('Z').replacen('T', " ", 1)),
                Some(Bound::Decimal(text) | Bound::Text(text) | Bound::Uuid(text) | Bound::Json(text)) => {
                    query.bind(text)
                }
            };
        }
        Ok(query.execute(conn).await?.rows_affected())
    }

    async fn script(conn: &mut MySqlConnection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
    }

    /// A statement that makes a table would commit the transaction that notes the set-up.
    async fn set_up(_: &mut MySqlConnection, url: &str, sql: &str) -> Result<(), sqlx::Error> {
        let url = url.replacen("mariadb:", "mysql:", 1);
        let mut conn = MySqlConnection::connect(&url).await?;
        Self::script(&mut conn, sql).await?;
        conn.close().await
    }
}
