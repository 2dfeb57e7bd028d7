//! The PostgreSQL store and its embedded queue do what every store and source must do.

#![cfg(feature = "postgres")]

mod server {
    use std::str::FromStr as _;
    use std::sync::{Arc, Weak};
    use std::time::Duration;

    use hapax_core::{BoxError, Envelope};
    use hapax_sqlx::sqlx::{self, Connection as _, PgConnection, postgres::PgConnectOptions};
    use hapax_sqlx::{PgStore, PgTx, Queue};
    use hapax_testkit::conformance::source::SourceFixture;
    use hapax_testkit::conformance::store::StoreFixture;
    use hapax_testkit::servers::{Server, TestDatabase, require, unique};
    use tokio::sync::Mutex;

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
    struct OnPostgres {
        store: PgStore,
        schema: String,
        options: PgConnectOptions,
        _database: Arc<TestDatabase>,
    }

    impl OnPostgres {
        async fn new() -> Option<Self> {
            if !require(Server::Postgres) {
                return None;
            }
            let database = database().await;
            let schema = unique("case");
            let options = PgConnectOptions::from_str(database.url()).expect("the URL of a database");
            // Handlers' tables are found there, and its connections are told from those of other cases.
            let options = options.application_name(&schema).options([("search_path", &schema)]);
            let store = open(&options, &schema).await;
            store.migrate().await.expect("the schema is made");
            Some(Self { store, schema, options, _database: database })
        }

        async fn connect(&self) -> PgConnection {
            PgConnection::connect_with(&self.options).await.expect("the database answers")
        }

        async fn second_store(&self) -> PgStore {
            open(&self.options, &self.schema).await
        }
    }

    async fn open(options: &PgConnectOptions, schema: &str) -> PgStore {
        let store = PgStore::with_options(options.clone()).schema(schema).connect().await;
        store.expect("the database answers")
    }

    impl StoreFixture for OnPostgres {
        type Store = PgStore;

        async fn fresh() -> Option<Self> {
            let fixture = Self::new().await?;
            let accounts = "CREATE TABLE accounts (name text PRIMARY KEY, total bigint NOT NULL)";
            sqlx::query(accounts).execute(&mut fixture.connect().await).await.expect("the table is made");
            Some(fixture)
        }

        fn store(&self) -> PgStore {
            self.store.clone()
        }

        async fn reopened(&self) -> PgStore {
            self.second_store().await
        }

        async fn add(tx: &mut PgTx, account: &str, n: i64) -> Result<(), BoxError> {
            let add = "INSERT INTO accounts VALUES ($1, $2)
                       ON CONFLICT (name) DO UPDATE SET total = accounts.total + excluded.total";
            sqlx::query(add).bind(account).bind(n).execute(tx.conn()).await?;
            Ok(())
        }

        async fn total(&self, account: &str) -> i64 {
            let total = sqlx::query_scalar("SELECT total FROM accounts WHERE name = $1").bind(account);
            let total: Option<i64> =
                total.fetch_optional(&mut self.connect().await).await.expect("an answer");
            total.unwrap_or(0)
        }
    }

    mod store {
        use super::*;

        hapax_testkit::store_conformance!(OnPostgres);
    }

    /// The embedded queue, with leases that run out within a case.
    struct Embedded(OnPostgres);

    impl SourceFixture for Embedded {
        type Source = Queue<sqlx::Postgres>;

        async fn fresh() -> Option<Self> {
            Some(Self(OnPostgres::new().await?))
        }

        async fn publish(&self, envelope: Envelope) {
            let sent = self.0.store.send_in(&mut self.0.connect().await, "payments", &envelope).await;
            sent.expect("the message is sent");
        }

        async fn source(&self) -> Queue<sqlx::Postgres> {
            self.0.second_store().await.queue("payments").lease(Duration::from_secs(1))
        }

        async fn drop_connections(&self) -> bool {
            let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                       WHERE application_name = current_setting('application_name')
                         AND pid <> pg_backend_pid()";
            sqlx::query(cut).execute(&mut self.0.connect().await).await.expect("the connections are cut");
            true
        }
    }

    mod embedded_queue {
        use super::*;

        hapax_testkit::source_conformance!(Embedded);
    }
}
