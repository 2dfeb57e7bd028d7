//! The statements. `Tx` and `Connection` are those of the module around, SQLite's or PostgreSQL's.

use hapax::sqlx::{self, AssertSqlSafe, Connection as _};

use super::super::{Account, Payment, Payments};
use super::{Connection, Tx};
use crate::amount::Amount;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS payments (
        id      TEXT   PRIMARY KEY,
        account TEXT   NOT NULL,
        amount  BIGINT NOT NULL,
        receipt TEXT,
        charges BIGINT NOT NULL DEFAULT 0
    );
    CREATE TABLE IF NOT EXISTS accounts (
        name     TEXT   PRIMARY KEY,
        total    BIGINT NOT NULL,
        payments BIGINT NOT NULL
    );
";

const PAYMENTS: &str = "SELECT id, account, amount, receipt, charges FROM payments";
const ACCOUNTS: &str = "SELECT name, total, payments FROM accounts";

/// Creates what is not there.
pub(crate) async fn create_tables(url: &str) -> Result<(), sqlx::Error> {
    let mut database = Connection::connect(url).await?;
    sqlx::raw_sql(TABLES).execute(&mut database).await?;
    database.close().await
}

type PaymentRow = (String, String, i64, Option<String>, i64);

fn payment((id, account, amount, receipt, charges): PaymentRow) -> Payment {
    Payment { id, account, amount: Amount(amount), receipt, charges }
}

type AccountRow = (String, i64, i64);

fn account((name, total, payments): AccountRow) -> Account {
    Account { name, total: Amount(total), payments }
}

impl Payments for Tx {
    async fn add(&mut self, payment: &Payment) -> hapax::Result {
        let Payment { id, account, amount, .. } = payment;
        let insert = sqlx::query("INSERT INTO payments (id, account, amount) VALUES ($1, $2, $3)");
        insert.bind(id).bind(account).bind(amount.0).execute(self.conn()).await?;
        let add = "INSERT INTO accounts (name, total, payments) VALUES ($1, $2, 1)
                   ON CONFLICT (name) DO UPDATE
                   SET total = accounts.total + excluded.total, payments = accounts.payments + 1";
        sqlx::query(add).bind(account).bind(amount.0).execute(self.conn()).await?;
        Ok(())
    }

    async fn mark_charged(&mut self, id: &str, receipt: &str) -> hapax::Result<bool> {
        let mark = sqlx::query("UPDATE payments SET receipt = $2, charges = charges + 1 WHERE id = $1");
        let marked = mark.bind(id).bind(receipt).execute(self.conn()).await?;
        Ok(marked.rows_affected() == 1)
    }

    async fn payment(&mut self, id: &str) -> hapax::Result<Option<Payment>> {
        let find = AssertSqlSafe(format!("{PAYMENTS} WHERE id = $1"));
        Ok(sqlx::query_as(find).bind(id).fetch_optional(self.conn()).await?.map(payment))
    }

    async fn payments(&mut self) -> hapax::Result<Vec<Payment>> {
        let rows: Vec<PaymentRow> = sqlx::query_as(PAYMENTS).fetch_all(self.conn()).await?;
        Ok(rows.into_iter().map(payment).collect())
    }

    async fn account(&mut self, name: &str) -> hapax::Result<Option<Account>> {
        let find = AssertSqlSafe(format!("{ACCOUNTS} WHERE name = $1"));
        Ok(sqlx::query_as(find).bind(name).fetch_optional(self.conn()).await?.map(account))
    }

    async fn accounts(&mut self) -> hapax::Result<Vec<Account>> {
        let rows: Vec<AccountRow> = sqlx::query_as(ACCOUNTS).fetch_all(self.conn()).await?;
        Ok(rows.into_iter().map(account).collect())
    }

    async fn progress(&mut self) -> hapax::Result<(i64, i64)> {
        let count = "SELECT count(*), count(receipt) FROM payments";
        Ok(sqlx::query_as(count).fetch_one(self.conn()).await?)
    }
}
