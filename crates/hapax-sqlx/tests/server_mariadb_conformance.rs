//! The MariaDB store and its embedded queue do what every store and source must do, under both isolation levels.

#![cfg(feature = "mysql")]

mod server {
    use std::str::FromStr as _;
    use std::time::Duration;

    use hapax_core::{BoxError, Envelope};
    use hapax_sqlx::sqlx::{
        self, AssertSqlSafe, Connection as _, MySqlConnection, mysql::MySqlConnectOptions,
    };
    use hapax_sqlx::{Isolation, MySqlStore, MySqlTx, Queue};
    use hapax_testkit::conformance::source::SourceFixture;
    use hapax_testkit::conformance::store::StoreFixture;
    use hapax_testkit::servers::{MariaDbDatabase, Server, require};

    /// A database of its own, where a handler finds its table by a plain name.
    struct OnMariaDb {
        store: MySqlStore,
        isolation: Isolation,
        options: MySqlConnectOptions,
        _database: MariaDbDatabase,
    }

    impl OnMariaDb {
        async fn new(isolation: Isolation) -> Option<Self> {
            if !require(Server::MariaDb) {
                return None;
            }
            let database = MariaDbDatabase::create().await.expect("a database of its own");
            let options = MySqlConnectOptions::from_str(database.url()).expect("the URL of a database");
            let store = open(&options, isolation).await;
            store.migrate().await.expect("the schema is made");
            Some(Self { store, isolation, options, _database: database })
        }

        async fn with_accounts(isolation: Isolation) -> Option<Self> {
            let fixture = Self::new(isolation).await?;
            let accounts = "CREATE TABLE accounts (
                name VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, total BIGINT NOT NULL)";
            let made = sqlx::query(accounts).execute(&mut fixture.connect().await).await;
            made.expect("the table is made");
            Some(fixture)
        }

        async fn connect(&self) -> MySqlConnection {
            MySqlConnection::connect_with(&self.options).await.expect("the database answers")
        }

        async fn second_store(&self) -> MySqlStore {
            open(&self.options, self.isolation).await
        }

        async fn total(&self, account: &str) -> i64 {
            let total = sqlx::query_scalar("SELECT total FROM accounts WHERE name = ?").bind(account);
            let total: Option<i64> =
                total.fetch_optional(&mut self.connect().await).await.expect("an answer");
            total.unwrap_or(0)
        }
    }

    async fn open(options: &MySqlConnectOptions, isolation: Isolation) -> MySqlStore {
        let store = MySqlStore::with_options(options.clone()).isolation(isolation).connect().await;
        store.expect("the database answers")
    }

    async fn add(tx: &mut MySqlTx, account: &str, n: i64) -> Result<(), BoxError> {
        let add = "INSERT INTO accounts VALUES (?, ?) ON DUPLICATE KEY UPDATE total = total + VALUES(total)";
        sqlx::query(add).bind(account).bind(n).execute(tx.conn()).await?;
        Ok(())
    }

    macro_rules! fixture {
        ($name:ident, $isolation:expr) => {
            struct $name(OnMariaDb);

            impl StoreFixture for $name {
                type Store = MySqlStore;

                async fn fresh() -> Option<Self> {
                    OnMariaDb::with_accounts($isolation).await.map(Self)
                }

                fn store(&self) -> MySqlStore {
                    self.0.store.clone()
                }

                async fn reopened(&self) -> MySqlStore {
                    self.0.second_store().await
                }

                async fn add(tx: &mut MySqlTx, account: &str, n: i64) -> Result<(), BoxError> {
                    add(tx, account, n).await
                }

                async fn total(&self, account: &str) -> i64 {
                    self.0.total(account).await
                }
            }
        };
    }

    fixture!(ReadCommitted, Isolation::ReadCommitted);
    fixture!(RepeatableRead, Isolation::RepeatableRead);

    mod read_committed {
        use super::*;

        hapax_testkit::store_conformance!(ReadCommitted);
    }

    mod repeatable_read {
        use super::*;

        hapax_testkit::store_conformance!(RepeatableRead);
    }

    /// The embedded queue, with leases that run out within a case.
    struct Embedded(OnMariaDb);

    impl SourceFixture for Embedded {
        type Source = Queue<sqlx::MySql>;

        async fn fresh() -> Option<Self> {
            OnMariaDb::new(Isolation::ReadCommitted).await.map(Self)
        }

        async fn publish(&self, envelope: Envelope) {
            let sent = self.0.store.send_in(&mut self.0.connect().await, "payments", &envelope).await;
            sent.expect("the message is sent");
        }

        async fn source(&self) -> Queue<sqlx::MySql> {
            self.0.second_store().await.queue("payments").lease(Duration::from_secs(1))
        }

        async fn drop_connections(&self) -> bool {
            let ours = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
            let mut conn = self.0.connect().await;
            let ids: Vec<i64> = sqlx::query_scalar(ours).fetch_all(&mut conn).await.expect("the sessions");
            for id in ids {
                let kill = AssertSqlSafe(format!("KILL {id}"));
                let _ = sqlx::raw_sql(kill).execute(&mut conn).await; // it may have ended meanwhile
            }
            true
        }
    }

    mod source {
        use super::*;

        hapax_testkit::source_conformance!(Embedded);
    }
}
