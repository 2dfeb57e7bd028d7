//! What a database must offer for a configuration's statements.

use std::future::Future;
use std::sync::Arc;

use hapax::sql::Dialect;

use crate::config::parameter::{Bound, Parameter};
use crate::statement::Statement;

/// A statement that the database has accepted, in the form in which it is run.
#[derive(Clone, Debug)]
pub(crate) struct Proven {
    /// The text, with the database's own placeholders.
    pub(crate) sql: Arc<str>,
    /// For each placeholder, which of the handler's parameters it takes.
    pub(crate) takes: Vec<usize>,
}

/// Why a statement cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    /// The database does not accept it.
    #[error("the database does not accept this statement: {}", words(.0))]
    Refused(sqlx::Error),
    /// A parameter's declared type does not go where the statement puts it.
    #[error("the parameter `{name}` is declared {declared}, and the statement uses it as {used}")]
    Type {
        /// The parameter.
        name: String,
        /// Its declared type.
        declared: &'static str,
        /// The database's type at its place.
        used: String,
    },
}

/// What the database itself says. The driver would add a line number, of the server's own source.
fn words(error: &sqlx::Error) -> String {
    error.as_database_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

/// A database that runs a configuration's statements.
pub(crate) trait SqlTarget: Dialect {
    /// Asks the database whether it accepts a statement, and turns it into the form in which it is run.
    fn prove(
        conn: &mut Self::Connection,
        statement: &Statement,
        parameters: &[Parameter],
    ) -> impl Future<Output = Result<Proven, Unfit>> + Send;

    /// Runs a statement with the values of the handler's parameters; answers with the rows it touched.
    fn run_statement(
        conn: &mut Self::Connection,
        statement: &Proven,
        values: &[Option<Bound>],
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Runs a script of several statements.
    fn script(conn: &mut Self::Connection, sql: &str)
    -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Runs a script of the user's that makes tables, in the transaction that notes it; or, where tables are not made in
    /// transactions, while that one is open.
    fn set_up(
        conn: &mut Self::Connection,
        url: &str,
        sql: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = url;
        Self::script(conn, sql)
    }
}

/// For each of a statement's parameters, its place among the handler's. The configuration was checked:
/// every one of them is declared.
pub(crate) fn takes(statement: &Statement, parameters: &[Parameter]) -> Vec<usize> {
    let place = |name: &String| parameters.iter().position(|parameter| parameter.name == *name);
    statement.parameters().iter().filter_map(place).collect()
}
