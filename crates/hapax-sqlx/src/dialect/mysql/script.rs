//! A statement as MySQL and MariaDB take it: numbered parameters by place, arrays spelt out, and several steps where
//! other databases do with one.

use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::{Arguments, AssertSqlSafe, Row, SqlSafeStr, SqlStr};

use super::is_lock;
use crate::value::Value;

/// One statement of the table, in one step or more.
///
/// Steps are divided by `;`. Beside the parameters `$1` and on there are `$t`, a number that no other run has, and
/// `$0`, the last column of the rows that were read last; without any, the script ends before the step that wants
/// them. With `BEGIN` as its first step it is a transaction of its own. Its rows are those of its last query. It answers
/// with none where a lock that it would not wait for (`NOWAIT`, or a wait of zero) is somebody else's.
#[derive(Debug)]
pub struct Script {
    steps: Vec<Step>,
    is_transaction: bool,
}

/// One statement, with a `?` for each of its parameters.
#[derive(Debug)]
struct Step {
    text: SqlStr,
    parameters: Vec<Parameter>,
    is_query: bool,
    waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    Given(usize),
    Read,
    Token,
}

/// What a script has come to.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) touched: u64,
    pub(super) rows: Vec<MySqlRow>,
}

impl Script {
    pub(super) fn new(text: &str) -> Self {
        let steps = || text.split(';').map(str::trim).filter(|step| !step.is_empty());
        let is_transaction = steps().next() == Some("BEGIN");
        Self { steps: steps().skip(usize::from(is_transaction)).map(Step::new).collect(), is_transaction }
    }

    pub(super) async fn run(
        &self,
        conn: &mut MySqlConnection,
        values: &[Value],
    ) -> Result<Outcome, sqlx::Error> {
        if !self.is_transaction {
            return self.run_steps(conn, values).await;
        }
        text(conn, "START TRANSACTION").await?;
        match self.run_steps(conn, values).await {
            Ok(outcome) => {
                text(conn, "COMMIT").await?;
                Ok(outcome)
            }
            Err(error) => {
                let _ = text(conn, "ROLLBACK").await; // where it cannot, the connection is no longer used
                Err(error)
            }
        }
    }

    async fn run_steps(&self, conn: &mut MySqlConnection, values: &[Value]) -> Result<Outcome, sqlx::Error> {
        let token = new_token();
        let mut outcome = Outcome::default();
        for step in &self.steps {
            let read = if step.parameters.contains(&Parameter::Read) {
                if outcome.rows.is_empty() {
                    break;
                }
                last_column(&outcome.rows)?
            } else {
                Value::Ints(Vec::new())
            };
            match step.run(conn, values, &read, token, &mut outcome).await {
                Err(error) if !step.waits && is_lock(&error) => return Ok(Outcome::default()),
                other => other?,
            }
        }
        Ok(outcome)
    }
}

impl Step {
    fn new(template: &str) -> Self {
        let mut sql = String::with_capacity(template.len());
        let mut parameters = Vec::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('$') {
            sql.push_str(before);
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            let (name, after) = after.split_at(if after.starts_with('t') { 1 } else { digits });
            match parameter(name) {
                Some(parameter) => {
                    parameters.push(parameter);
                    sql.push('?');
                }
                None => sql.push('$'), // a path into JSON
            }
            rest = after;
        }
        sql.push_str(rest);
        Self {
            is_query: sql.starts_with("SELECT"),
            waits: !sql.contains("NOWAIT") && !sql.contains("innodb_lock_wait_timeout = 0"),
            text: AssertSqlSafe(sql).into_sql_str(),
            parameters,
        }
    }

    async fn run(
        &self,
        conn: &mut MySqlConnection,
        values: &[Value],
        read: &Value,
        token: i64,
        outcome: &mut Outcome,
    ) -> Result<(), sqlx::Error> {
        let token = Value::Int(Some(token));
        let value = |parameter: &Parameter| match parameter {
            Parameter::Given(index) => values.get(*index).unwrap_or(&Value::Int(None)),
            Parameter::Read => read,
            Parameter::Token => &token,
        };
        let values: Vec<&Value> = self.parameters.iter().map(value).collect();
        let query = sqlx::query_with(self.spelt_out(&values), bind(&values)?);
        if self.is_query {
            outcome.rows = query.fetch_all(conn).await?;
        } else {
            outcome.touched = query.execute(conn).await?.rows_affected();
        }
        Ok(())
    }

    /// The text with as many `?` as there are values.
    fn spelt_out(&self, values: &[&Value]) -> SqlStr {
        if values.iter().all(|value| length(value).is_none()) {
            return self.text.clone();
        }
        let mut sql = String::with_capacity(self.text.as_str().len() + 64);
        let mut values = values.iter();
        for c in self.text.as_str().chars() {
            sql.push(c);
            if c == '?'
                && let Some(length) = values.next().and_then(|value| length(value))
            {
                sql.push_str(&", ?".repeat(padded(length) - 1));
            }
        }
        AssertSqlSafe(sql).into_sql_str()
    }
}

fn parameter(name: &str) -> Option<Parameter> {
    match name {
        "t" => Some(Parameter::Token),
        "0" => Some(Parameter::Read),
        number => number.parse::<usize>().ok().map(|number| Parameter::Given(number - 1)),
    }
}

/// A number that no other attempt has.
pub(super) fn new_token() -> i64 {
    fastrand::i64(1..)
}

/// The length of an array.
fn length(value: &Value) -> Option<usize> {
    match value {
        Value::Ints(values) => Some(values.len()),
        Value::Texts(values) => Some(values.len()),
        _ => None,
    }
}

/// How many values an array is bound as. Powers of two, so that there are few texts to prepare.
fn padded(length: usize) -> usize {
    length.max(1).next_power_of_two()
}

/// An array, its last value repeated; a null for one that is empty, which equals nothing.
fn spread<T: Clone>(values: &[Option<T>]) -> impl Iterator<Item = Option<T>> {
    let last = values.last().cloned().flatten();
    values.iter().cloned().chain(std::iter::repeat(last)).take(padded(values.len()))
}

/// Texts are bound as they are, bytes of UTF-8: the columns that are compared hold bytes.
fn bind(values: &[&Value]) -> Result<MySqlArguments, sqlx::Error> {
    let mut arguments = MySqlArguments::default();
    for value in values {
        match value {
            Value::Int(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Bytes(value) => arguments.add(value),
            Value::Ints(values) => spread(values).try_for_each(|value| arguments.add(value)),
            Value::Texts(values) => spread(values).try_for_each(|value| arguments.add(value)),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

/// The last column of some rows.
fn last_column(rows: &[MySqlRow]) -> Result<Value, sqlx::Error> {
    let is_bytes = |row: &MySqlRow| row.try_get::<Vec<u8>, _>(row.len() - 1).is_ok();
    if rows.first().is_some_and(is_bytes) {
        let texts = rows.iter().map(|row| row.try_get_unchecked::<Option<String>, _>(row.len() - 1));
        return texts.collect::<Result<_, _>>().map(Value::Texts);
    }
    let ints = rows.iter().map(|row| row.try_get_unchecked::<Option<i64>, _>(row.len() - 1));
    ints.collect::<Result<_, _>>().map(Value::Ints)
}

async fn text(conn: &mut MySqlConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(SqlStr::from_static(sql)).execute(conn).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_by_place_and_paths_left_alone() {
        let script = Script::new(
            "SELECT $2, $1, '$[0]' FROM t WHERE a = $t AND b IN ($0); DELETE FROM t WHERE c = $12",
        );
        let [first, second] = script.steps.as_slice() else { panic!("{script:?}") };
        assert_eq!(first.text.as_str(), "SELECT ?, ?, '$[0]' FROM t WHERE a = ? AND b IN (?)");
        assert_eq!(
            first.parameters,
            [Parameter::Given(1), Parameter::Given(0), Parameter::Token, Parameter::Read]
        );
        assert_eq!(
            (second.text.as_str(), &*second.parameters),
            ("DELETE FROM t WHERE c = ?", &[Parameter::Given(11)][..])
        );
    }

    #[test]
    fn arrays_are_spelt_out_in_powers_of_two() {
        let script = Script::new("SELECT 1 WHERE a IN ($1) AND b = $2");
        let values = [Value::Ints(vec![Some(1), Some(2), Some(3)]), Value::Int(Some(9))];
        let text = script.steps[0].spelt_out(&values.iter().collect::<Vec<_>>());
        assert_eq!(text.as_str(), "SELECT 1 WHERE a IN (?, ?, ?, ?) AND b = ?");
        assert_eq!(
            spread(&[Some(1), Some(2), Some(3)]).collect::<Vec<_>>(),
            [Some(1), Some(2), Some(3), Some(3)]
        );
        assert_eq!(spread::<i64>(&[]).collect::<Vec<_>>(), [None]);
    }
}
