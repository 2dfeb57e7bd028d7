//! Transfers on SQLite.

use hapax::SqliteTx;
use hapax::sqlx::{self, Connection as _, SqliteConnection};

use super::{State, Transfer, Transfers};
use crate::money::Money;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS transfers (
        id          TEXT    PRIMARY KEY,
        request_key TEXT    NOT NULL UNIQUE,
        payer       TEXT    NOT NULL,
        payee       TEXT    NOT NULL,
        amount      INTEGER NOT NULL,
        state       TEXT    NOT NULL,
        reason      TEXT
    );
    CREATE INDEX IF NOT EXISTS transfers_moving ON transfers (state) WHERE state NOT IN ('completed', 'failed');
    CREATE TABLE IF NOT EXISTS known_accounts (id TEXT PRIMARY KEY);
";

const COLUMNS: &str = "SELECT id, payer, payee, amount, state, reason FROM transfers";

type Row = (String, String, String, i64, String, Option<String>);

/// Creates what is not there.
pub(super) async fn create_tables(url: &str) -> Result<(), sqlx::Error> {
    let mut database = SqliteConnection::connect(url).await?;
    sqlx::raw_sql(TABLES).execute(&mut database).await?;
    database.close().await
}

fn transfer((id, from, to, amount, state, reason): Row) -> hapax::Result<Transfer> {
    let state = State::from_str(&state).ok_or("a transfer is in no state that is known")?;
    Ok(Transfer { id, from, to, amount: Money(amount), state, reason })
}

impl Transfers for SqliteTx {
    async fn add(&mut self, transfer: &Transfer, key: &str) -> hapax::Result {
        let Transfer { id, from, to, amount, state, .. } = transfer;
        let add = "INSERT INTO transfers (id, request_key, payer, payee, amount, state) VALUES ($1, $2, $3, $4, $5, $6)";
        let add = sqlx::query(add).bind(id).bind(key).bind(from).bind(to).bind(amount.0).bind(state.as_str());
        add.execute(self.conn()).await?;
        Ok(())
    }

    async fn find(&mut self, id: &str) -> hapax::Result<Option<Transfer>> {
        let find = sqlx::AssertSqlSafe(format!("{COLUMNS} WHERE id = $1"));
        let row = sqlx::query_as(find).bind(id).fetch_optional(self.conn()).await?;
        row.map(transfer).transpose()
    }

    async fn asked_for(&mut self, key: &str) -> hapax::Result<Option<Transfer>> {
        let find = sqlx::AssertSqlSafe(format!("{COLUMNS} WHERE request_key = $1"));
        let row = sqlx::query_as(find).bind(key).fetch_optional(self.conn()).await?;
        row.map(transfer).transpose()
    }

    async fn update(&mut self, transfer: &Transfer) -> hapax::Result {
        let update = sqlx::query("UPDATE transfers SET state = $2, reason = $3 WHERE id = $1");
        let Transfer { id, state, reason, .. } = transfer;
        update.bind(id).bind(state.as_str()).bind(reason).execute(self.conn()).await?;
        Ok(())
    }

    async fn all(&mut self) -> hapax::Result<Vec<Transfer>> {
        let rows: Vec<Row> = sqlx::query_as(COLUMNS).fetch_all(self.conn()).await?;
        rows.into_iter().map(transfer).collect()
    }

    async fn moving(&mut self) -> hapax::Result<i64> {
        let count = "SELECT count(*) FROM transfers WHERE state NOT IN ('completed', 'failed')";
        Ok(sqlx::query_scalar(count).fetch_one(self.conn()).await?)
    }

    async fn learn(&mut self, account: &str) -> hapax::Result {
        let learn = sqlx::query("INSERT INTO known_accounts (id) VALUES ($1) ON CONFLICT DO NOTHING");
        learn.bind(account).execute(self.conn()).await?;
        Ok(())
    }

    async fn knows(&mut self, account: &str) -> hapax::Result<bool> {
        let known = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM known_accounts WHERE id = $1)");
        Ok(known.bind(account).fetch_one(self.conn()).await?)
    }

    async fn known(&mut self) -> hapax::Result<i64> {
        Ok(sqlx::query_scalar("SELECT count(*) FROM known_accounts").fetch_one(self.conn()).await?)
    }
}
