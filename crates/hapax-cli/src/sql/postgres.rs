//! Statements on PostgreSQL.
//!
//! A value goes in as text and is cast, by the server, to the type that PREPARE found at its place:
//! `($1::text)::numeric`. So no digit passes through a float, and every type of the server's works,
//! the user's own included.

use std::fmt::Write as _;

use hapax::sqlx::postgres::types::Oid;
use hapax::sqlx::{
    self, AssertSqlSafe, Either, Executor as _, PgConnection, Postgres, Row as _, SqlSafeStr as _,
    Statement as _,
};

use super::target::{Proven, SqlTarget, Unfit, takes};
use crate::config::parameter::{Bound, ParamType, Parameter};
use crate::statement::Statement;

impl SqlTarget for Postgres {
    async fn prove(
        conn: &mut PgConnection,
        statement: &Statement,
        parameters: &[Parameter],
    ) -> Result<Proven, Unfit> {
        let takes = takes(statement, parameters);
        let types = parameter_types(conn, &statement.postgres()).await.map_err(Unfit::Refused)?;
        for (taken, used) in takes.iter().zip(&types) {
            let parameter = &parameters[*taken];
            if !fits(parameter.kind, used) {
                let (name, declared) = (parameter.name.clone(), parameter.kind.word());
                return Err(Unfit::Type { name, declared, used: used.clone() });
            }
        }
        let sql = statement.render(|number, _| match types.get(number - 1) {
            Some(kind) => format!("(${number}::text)::{kind}"),
            None => format!("${number}"),
        });
        conn.prepare(AssertSqlSafe(sql.as_str()).into_sql_str()).await.map_err(Unfit::Refused)?;
        Ok(Proven { sql: sql.into(), takes })
    }

    async fn run_statement(
        conn: &mut PgConnection,
        statement: &Proven,
        values: &[Option<Bound>],
    ) -> Result<u64, sqlx::Error> {
        let mut query = sqlx::query(AssertSqlSafe(statement.sql.clone()));
        for taken in &statement.takes {
            query = query.bind(values[*taken].as_ref().map(text));
        }
        Ok(query.execute(conn).await?.rows_affected())
    }

    async fn script(conn: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
    }
}

/// The types at a statement's placeholders, as they are written in a cast.
async fn parameter_types(conn: &mut PgConnection, sql: &str) -> Result<Vec<String>, sqlx::Error> {
    let prepared = conn.prepare(AssertSqlSafe(sql).into_sql_str()).await?;
    let oids: Vec<Oid> = match prepared.parameters() {
        Some(Either::Left(types)) => types.iter().filter_map(sqlx::postgres::PgTypeInfo::oid).collect(),
        _ => Vec::new(),
    };
    let rows = sqlx::query(
        "SELECT format_type(oid, NULL) FROM unnest($1::oid[]) WITH ORDINALITY AS t(oid, n) ORDER BY n",
    )
    .bind(oids)
    .fetch_all(conn)
    .await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Whether values of a declared type can stand where the statement wants another. What is not known
/// here, such as the user's own types, is left to the server.
fn fits(declared: ParamType, used: &str) -> bool {
    match used {
        "smallint" | "integer" | "bigint" | "oid" => declared == ParamType::Int,
        "numeric" | "real" | "double precision" | "money" => {
            matches!(declared, ParamType::Int | ParamType::Decimal)
        }
        "boolean" => declared == ParamType::Bool,
        "bytea" => declared == ParamType::Bytes,
        "uuid" => matches!(declared, ParamType::Uuid | ParamType::Text),
        "json" | "jsonb" => declared == ParamType::Json,
        "date" | "timestamp with time zone" | "timestamp without time zone" => {
            matches!(declared, ParamType::Timestamp | ParamType::Text)
        }
        // A JSON array is no literal of theirs; a text may hold one.
        _ if used.ends_with("[]") => declared == ParamType::Text,
        _ => declared != ParamType::Bytes,
    }
}

/// A value in the server's own notation.
fn text(value: &Bound) -> String {
    match value {
        Bound::Int(number) => number.to_string(),
        Bound::Bool(truth) => truth.to_string(),
        Bound::Bytes(bytes) => bytes.iter().fold("\\x".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
            text
        }),
        Bound::Decimal(text)
        | Bound::Text(text)
        | Bound::Timestamp(text)
        | Bound::Uuid(text)
        | Bound::Json(text) => text.clone(),
    }
}
