//! The books: events, ledger and marks. `Tx` and `Connection` are those of the module around, SQLite's or
//! PostgreSQL's; the statements are the same.

use hapax::sqlx::{self, Connection as _};
use hapax::{Code, Error, ErrorKind};

use super::super::account::Fact;
use super::super::{Accounts, INDEXES};
use super::{Connection, Tx};
use crate::events::{Entry, Movement};
use crate::money::Money;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS account_events (
        stream      TEXT   NOT NULL,
        version     BIGINT NOT NULL,
        kind        TEXT   NOT NULL,
        amount      BIGINT NOT NULL,
        transfer_id TEXT   NOT NULL,
        PRIMARY KEY (stream, version)
    );
    CREATE TABLE IF NOT EXISTS ledger (
        transfer_id TEXT   NOT NULL,
        kind        TEXT   NOT NULL,
        account     TEXT   NOT NULL,
        amount      BIGINT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS processed_messages (message_id TEXT NOT NULL);
";

/// Creates what is not there. Indexes only along with their tables, so that one that was taken away stays away.
pub(crate) async fn create_tables(url: &str) -> Result<(), sqlx::Error> {
    let mut database = Connection::connect(url).await?;
    if sqlx::query("SELECT 1 FROM ledger").fetch_optional(&mut database).await.is_err() {
        let mut tx = database.begin().await?;
        sqlx::raw_sql(TABLES).execute(&mut *tx).await?;
        for create in INDEXES {
            sqlx::raw_sql(create).execute(&mut *tx).await?;
        }
        tx.commit().await?;
    }
    database.close().await
}

const OPENED: &str = "opened";
const CLOSED: &str = "closed";

type Row = (String, i64, String);

fn fact((kind, amount, transfer_id): Row) -> hapax::Result<Fact> {
    let amount = Money(amount);
    match kind.as_str() {
        OPENED => Ok(Fact::Opened(amount)),
        CLOSED => Ok(Fact::Closed),
        kind => {
            let entry = Entry::from_str(kind).ok_or("an event is of no kind that is known")?;
            Ok(Fact::Moved { entry, amount, transfer_id })
        }
    }
}

fn row(fact: &Fact) -> (&str, i64, &str) {
    match fact {
        Fact::Opened(balance) => (OPENED, balance.0, ""),
        Fact::Closed => (CLOSED, 0, ""),
        Fact::Moved { entry, amount, transfer_id } => (entry.as_str(), amount.0, transfer_id),
    }
}

impl Accounts for Tx {
    async fn history(&mut self, account: &str) -> hapax::Result<Vec<Fact>> {
        let history =
            "SELECT kind, amount, transfer_id FROM account_events WHERE stream = $1 ORDER BY version";
        let rows: Vec<Row> = sqlx::query_as(history).bind(account).fetch_all(self.conn()).await?;
        rows.into_iter().map(fact).collect()
    }

    async fn append(&mut self, account: &str, version: i64, fact: &Fact) -> hapax::Result {
        let append = "INSERT INTO account_events (stream, version, kind, amount, transfer_id)
                      VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
        let (kind, amount, transfer_id) = row(fact);
        let append =
            sqlx::query(append).bind(account).bind(version).bind(kind).bind(amount).bind(transfer_id);
        if append.execute(self.conn()).await?.rows_affected() == 0 {
            let context = format!("somebody else has appended version {version} to account {account}");
            Err(Error::new(ErrorKind::Conflict, Code::StoreConflict, context))?;
        }
        Ok(())
    }

    async fn enter(&mut self, movement: &Movement) -> hapax::Result<bool> {
        let enter = "INSERT INTO ledger (transfer_id, kind, account, amount) VALUES ($1, $2, $3, $4)
                     ON CONFLICT DO NOTHING";
        let Movement { transfer_id, entry, account, amount } = movement;
        let enter = sqlx::query(enter).bind(transfer_id).bind(entry.as_str()).bind(account).bind(amount.0);
        Ok(enter.execute(self.conn()).await?.rows_affected() == 1)
    }

    async fn ledger(&mut self) -> hapax::Result<Vec<Movement>> {
        let ledger = "SELECT transfer_id, kind, account, amount FROM ledger";
        let rows: Vec<(String, String, String, i64)> = sqlx::query_as(ledger).fetch_all(self.conn()).await?;
        let movement = |(transfer_id, kind, account, amount): (String, String, String, i64)| {
            let entry = Entry::from_str(&kind).ok_or("the ledger has an entry of no kind that is known")?;
            Ok(Movement { transfer_id, entry, account, amount: Money(amount) })
        };
        rows.into_iter().map(movement).collect()
    }

    async fn names(&mut self) -> hapax::Result<Vec<String>> {
        let names = "SELECT stream FROM account_events WHERE version = 1 ORDER BY stream";
        Ok(sqlx::query_scalar(names).fetch_all(self.conn()).await?)
    }

    async fn note(&mut self, id: &str) -> hapax::Result<bool> {
        let note =
            sqlx::query("INSERT INTO processed_messages (message_id) VALUES ($1) ON CONFLICT DO NOTHING");
        Ok(note.bind(id).execute(self.conn()).await?.rows_affected() == 1)
    }

    async fn noted(&mut self, id: &str) -> hapax::Result<bool> {
        let noted =
            sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM processed_messages WHERE message_id = $1)");
        Ok(noted.bind(id).fetch_one(self.conn()).await?)
    }
}
