//! One handler of a configuration file.

use std::sync::Arc;

use hapax::sql::{SqlStore, SqlTx};
use hapax::{Body, Code, Failure, Fault, Handler, Message, Pointer};
use serde_json::value::RawValue;

use super::publish::Publishing;
use super::target::{Proven, SqlTarget};
use crate::config::handler::OnMismatch;
use crate::config::parameter::{Bound, Parameter};

/// A statement and what is expected of it.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) statement: Proven,
    pub(crate) expect_rows: Option<u32>,
    pub(crate) on_mismatch: OnMismatch,
}

/// Statements and publishes with their parameters.
#[derive(Debug)]
pub(crate) struct SqlHandler {
    parameters: Vec<(Parameter, Pointer)>,
    steps: Arc<[Step]>,
    publishes: Arc<[Publishing]>,
}

impl SqlHandler {
    /// A handler whose statements are proven.
    pub(crate) fn new(
        parameters: Vec<(Parameter, Pointer)>,
        steps: Vec<Step>,
        publishes: Vec<Publishing>,
    ) -> Self {
        Self { parameters, steps: steps.into(), publishes: publishes.into() }
    }

    /// The parameters' values; a payload that does not fit them is set aside.
    fn bind(&self, payload: &[u8]) -> hapax::Result<Vec<Option<Bound>>> {
        let root: &RawValue = serde_json::from_slice(payload).map_err(|error| {
            Failure::Reject(Fault::new(Code::PayloadUndecodable, format!("the payload is not JSON: {error}")))
        })?;
        let bind = |(parameter, pointer): &(Parameter, Pointer)| {
            parameter
                .bind(pointer.find_in(root))
                .map_err(|unbound| Failure::Reject(Fault::new(Code::ParameterInvalid, unbound)))
        };
        self.parameters.iter().map(bind).collect()
    }
}

impl<D: SqlTarget> Handler<SqlStore<D>, Body> for SqlHandler {
    async fn handle(&self, tx: &mut SqlTx<D>, message: Message<Body>) -> hapax::Result {
        let values = self.bind(message.payload())?;
        for (number, step) in self.steps.iter().enumerate() {
            let rows = D::run_statement(tx.conn(), &step.statement, &values).await.map_err(verdict)?;
            check_rows(number + 1, step, rows)?;
        }
        for publishing in self.publishes.iter() {
            tx.publish(publishing.publication(&values))?;
        }
        Ok(())
    }
}

fn check_rows(number: usize, step: &Step, rows: u64) -> hapax::Result {
    let Some(expected) = step.expect_rows.filter(|expected| u64::from(*expected) != rows) else {
        return Ok(());
    };
    let text = format!("statement {number} touched {rows} rows, and {expected} were expected");
    match step.on_mismatch {
        OnMismatch::Retry => Err(Failure::Retry(Fault::new(Code::RowsMismatch, text))),
        OnMismatch::Reject => Err(Failure::Reject(Fault::new(Code::RowsMismatch, text))),
        OnMismatch::Ignore => Ok(()),
    }
}

/// A value that the database cannot take (SQLSTATE class 22) will not get better by trying again.
fn verdict(error: sqlx::Error) -> Failure {
    let state = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .map(std::borrow::Cow::into_owned);
    match state {
        Some(state) if state.len() == 5 && state.starts_with("22") => {
            Failure::Reject(Fault::new(Code::ParameterInvalid, error))
        }
        _ => Failure::retry(error),
    }
}
