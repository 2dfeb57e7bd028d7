//! The stores that every case runs on.

use std::str::FromStr as _;
use std::sync::{Arc, Weak};

use hapax_core::BoxError;
use hapax_mongodb::mongodb::bson::{Document, doc};
use hapax_mongodb::mongodb::{Client, Collection};
use hapax_mongodb::{MongoStore, MongoTx};
use hapax_sqlx::sqlx::{self, Connection as _, PgConnection, SqliteConnection, postgres::PgConnectOptions};
use hapax_sqlx::{PgStore, PgTx, SqliteStore, SqliteTx};
use hapax_testkit::conformance::store::StoreFixture;
use hapax_testkit::memory::{MemoryStore, MemoryTx};
use hapax_testkit::servers::{MongoDatabase, Server, TestDatabase, require, unique};
use tempfile::TempDir;
use tokio::sync::Mutex;

pub(crate) struct InMemory(MemoryStore);

impl StoreFixture for InMemory {
    type Store = MemoryStore;

    async fn fresh() -> Option<Self> {
        Some(Self(MemoryStore::new()))
    }

    fn store(&self) -> MemoryStore {
        self.0.clone()
    }

    async fn reopened(&self) -> MemoryStore {
        self.0.reopen()
    }

    async fn add(tx: &mut MemoryTx, account: &str, n: i64) -> Result<(), BoxError> {
        Ok(tx.add(account, n)?)
    }

    async fn total(&self, account: &str) -> i64 {
        self.0.number(account)
    }
}

/// A database file of its own.
pub(crate) struct OnSqlite {
    folder: TempDir,
    store: SqliteStore,
}

impl OnSqlite {
    fn url(folder: &TempDir) -> String {
        format!("sqlite:{}", folder.path().join("hapax.db").display())
    }

    async fn connect(&self) -> SqliteConnection {
        SqliteConnection::connect(&Self::url(&self.folder)).await.expect("the database is there")
    }
}

impl StoreFixture for OnSqlite {
    type Store = SqliteStore;

    const ONE_WRITER: bool = true;

    async fn fresh() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::connect(&Self::url(&folder)).await.expect("a database");
        store.migrate().await.expect("the schema is made");
        let fixture = Self { folder, store };
        let accounts = "CREATE TABLE accounts (name TEXT PRIMARY KEY, total INTEGER NOT NULL)";
        sqlx::query(accounts).execute(&mut fixture.connect().await).await.expect("the table is made");
        Some(fixture)
    }

    fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    async fn reopened(&self) -> SqliteStore {
        SqliteStore::connect(&Self::url(&self.folder)).await.expect("the database is there")
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

/// The database of all cases that run at the same time: making one takes longer than most cases do.
static DATABASE: Mutex<Weak<TestDatabase>> = Mutex::const_new(Weak::new());

async fn database() -> Arc<TestDatabase> {
    let mut shared = DATABASE.lock().await;
    if let Some(database) = shared.upgrade() {
        return database;
    }
    let database = Arc::new(TestDatabase::create().await.expect("a database of its own"));
    *shared = Arc::downgrade(&database);
    database
}

/// A schema of its own, which goes with the database.
pub(crate) struct OnPostgres {
    store: PgStore,
    schema: String,
    options: PgConnectOptions,
    _database: Arc<TestDatabase>,
}

async fn open(options: &PgConnectOptions, schema: &str) -> PgStore {
    let store = PgStore::with_options(options.clone()).schema(schema).connect().await;
    store.expect("the database answers")
}

impl OnPostgres {
    async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.options).await.expect("the database answers")
    }
}

impl StoreFixture for OnPostgres {
    type Store = PgStore;

    async fn fresh() -> Option<Self> {
        if !require(Server::Postgres) {
            return None;
        }
        let database = database().await;
        let schema = unique("case");
        let options = PgConnectOptions::from_str(database.url()).expect("the URL of a database");
        let options = options.options([("search_path", &schema)]);
        let store = open(&options, &schema).await;
        store.migrate().await.expect("the schema is made");
        let fixture = Self { store, schema, options, _database: database };
        let accounts = "CREATE TABLE accounts (name text PRIMARY KEY, total bigint NOT NULL)";
        sqlx::query(accounts).execute(&mut fixture.connect().await).await.expect("the table is made");
        Some(fixture)
    }

    fn store(&self) -> PgStore {
        self.store.clone()
    }

    async fn reopened(&self) -> PgStore {
        open(&self.options, &self.schema).await
    }

    async fn add(tx: &mut PgTx, account: &str, n: i64) -> Result<(), BoxError> {
        let add = "INSERT INTO accounts VALUES ($1, $2)
                   ON CONFLICT (name) DO UPDATE SET total = accounts.total + excluded.total";
        sqlx::query(add).bind(account).bind(n).execute(tx.conn()).await?;
        Ok(())
    }

    async fn total(&self, account: &str) -> i64 {
        let total = sqlx::query_scalar("SELECT total FROM accounts WHERE name = $1").bind(account);
        let total: Option<i64> = total.fetch_optional(&mut self.connect().await).await.expect("an answer");
        total.unwrap_or(0)
    }
}

/// A database of its own.
pub(crate) struct OnMongo {
    store: MongoStore,
    accounts: Collection<Document>,
    database: MongoDatabase,
}

impl StoreFixture for OnMongo {
    type Store = MongoStore;

    async fn fresh() -> Option<Self> {
        if !require(Server::MongoDb) {
            return None;
        }
        let database = MongoDatabase::create().expect("a database of its own");
        let store = MongoStore::connect(database.url()).await.expect("the database answers");
        store.migrate().await.expect("the schema is made");
        let client = Client::with_uri_str(database.url()).await.expect("the database answers");
        let ours = client.database(database.name());
        ours.create_collection("accounts").await.expect("the collection is made");
        Some(Self { store, accounts: ours.collection("accounts"), database })
    }

    fn store(&self) -> MongoStore {
        self.store.clone()
    }

    async fn reopened(&self) -> MongoStore {
        MongoStore::connect(self.database.url()).await.expect("the database answers")
    }

    async fn add(tx: &mut MongoTx, account: &str, n: i64) -> Result<(), BoxError> {
        let add = doc! { "$inc": { "total": n } };
        let account = doc! { "_id": account };
        tx.collection::<Document>("accounts").update_one(account, add).upsert(true).await?;
        Ok(())
    }

    async fn total(&self, account: &str) -> i64 {
        let account = self.accounts.find_one(doc! { "_id": account }).await.expect("an answer");
        account.map_or(0, |account| account.get_i64("total").expect("a total"))
    }
}
