//! The SQLite store and its embedded queue do what every store and source must do.

#![cfg(feature = "sqlite")]

use std::time::Duration;

use hapax_core::{BoxError, Envelope};
use hapax_sqlx::sqlx::{self, Connection as _, SqliteConnection};
use hapax_sqlx::{Queue, SqliteStore, SqliteTx};
use hapax_testkit::conformance::source::SourceFixture;
use hapax_testkit::conformance::store::StoreFixture;
use tempfile::TempDir;

/// A database file of its own.
struct OnSqlite {
    folder: TempDir,
    store: SqliteStore,
}

impl OnSqlite {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::connect(&url(&folder)).await.expect("a database");
        store.migrate().await.expect("the schema is made");
        Self { folder, store }
    }

    async fn connect(&self) -> SqliteConnection {
        SqliteConnection::connect(&url(&self.folder)).await.expect("the database is there")
    }
}

fn url(folder: &TempDir) -> String {
    format!("sqlite:{}", folder.path().join("hapax.db").display())
}

impl StoreFixture for OnSqlite {
    type Store = SqliteStore;

    const ONE_WRITER: bool = true;

    async fn fresh() -> Option<Self> {
        let fixture = Self::new().await;
        let accounts = "CREATE TABLE accounts (name TEXT PRIMARY KEY, total INTEGER NOT NULL)";
        sqlx::query(accounts).execute(&mut fixture.connect().await).await.expect("the table is made");
        Some(fixture)
    }

    fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    async fn reopened(&self) -> SqliteStore {
        SqliteStore::connect(&url(&self.folder)).await.expect("the database is there")
    }

    async fn add(tx: &mut SqliteTx, account: &str, n: i64) -> Result<(), BoxError> {
        let add =
            "INSERT INTO accounts VALUES (?, ?) ON CONFLICT DO UPDATE SET total = total + excluded.total";
        sqlx::query(add).bind(account).bind(n).execute(tx.conn()).await?;
        Ok(())
    }

    async fn total(&self, account: &str) -> i64 {
        let total = sqlx::query_scalar("SELECT total FROM accounts WHERE name = ?").bind(account);
        let total: Option<i64> =
            total.fetch_optional(&mut self.connect().await).await.expect("the table is there");
        total.unwrap_or(0)
    }
}

mod store {
    use super::*;

    hapax_testkit::store_conformance!(OnSqlite);
}

/// The embedded queue, with leases that run out within a case.
struct Embedded(OnSqlite);

impl SourceFixture for Embedded {
    type Source = Queue<sqlx::Sqlite>;

    async fn fresh() -> Option<Self> {
        Some(Self(OnSqlite::new().await))
    }

    async fn publish(&self, envelope: Envelope) {
        self.0.store.send("payments", &[envelope]).await.expect("the message is sent");
    }

    async fn source(&self) -> Queue<sqlx::Sqlite> {
        let store = SqliteStore::connect(&url(&self.0.folder)).await.expect("the database is there");
        store.queue("payments").lease(Duration::from_secs(1))
    }
}

mod embedded_queue {
    use super::*;

    hapax_testkit::source_conformance!(Embedded);
}
