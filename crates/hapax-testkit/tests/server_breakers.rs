//! Case 46, and cases 02 and 03 in a batch, on PostgreSQL; case 03 on MongoDB, where a handler has no means to commit.

mod breakers;

mod server {
    use super::breakers::{Breakable, Statements, WAYS, reason, run};
    use hapax::mongodb::bson::{Document, doc};
    use hapax::mongodb::{self, Client};
    use hapax::sqlx::{
        self, AssertSqlSafe, Connection as _, MySql, MySqlConnection, PgConnection, Postgres, Row as _,
    };
    use hapax::{BoxError, BoxSource, Envelope, MongoStore, MongoTx, MySqlStore, PgStore};
    use hapax_testkit::memory::MemoryBroker;
    use hapax_testkit::servers::{MariaDbDatabase, MongoDatabase, Server, TestDatabase, require};

    impl Statements for Postgres {
        async fn note(conn: &mut PgConnection, id: &str) -> sqlx::Result<()> {
            sqlx::query("INSERT INTO ledger (id) VALUES ($1)").bind(id).execute(conn).await.map(|_| ())
        }

        async fn run(conn: &mut PgConnection, sql: &str) -> sqlx::Result<()> {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
        }
    }

    #[tokio::test]
    async fn case_03_case_46_a_handler_that_ends_the_transaction_harms_only_itself_on_postgres() {
        if !require(Server::Postgres) {
            return;
        }
        for (way, fail) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
            let database = TestDatabase::create().await.expect("a database of its own");
            let store = PgStore::connect(database.url()).await.expect("the store opens");
            store.migrate().await.expect("the schema is made");
            let mut conn = PgConnection::connect(database.url()).await.expect("a second connection");
            sqlx::query("CREATE TABLE ledger (id TEXT NOT NULL)").execute(&mut conn).await.expect("a table");

            let summary = run(&store, way, fail).await;
            let rows =
                sqlx::query("SELECT id FROM ledger ORDER BY id").fetch_all(&mut conn).await.expect("rows");
            let ids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            assert_eq!(ids, ["m1", "m3", "m4"], "{way}, fails: {fail}");
            assert_eq!(
                (summary.handled, summary.duplicates, summary.dead),
                (3, 0, 1),
                "{way}, fails: {fail}"
            );
            let reason = reason(&store).await;
            assert!(fail || reason.contains("HX0050"), "{way}: {reason}");
        }
    }

    impl Statements for MySql {
        async fn note(conn: &mut MySqlConnection, id: &str) -> sqlx::Result<()> {
            sqlx::query("INSERT INTO ledger (id) VALUES (?)").bind(id).execute(conn).await.map(|_| ())
        }

        async fn run(conn: &mut MySqlConnection, sql: &str) -> sqlx::Result<()> {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
        }
    }

    /// What a statement that makes a table commits on MariaDB, the effect of the message included, cannot be taken back;
    /// only the ways that leave nothing behind are tried here. The others are the store's own tests.
    #[tokio::test]
    async fn case_46_a_handler_that_ends_the_transaction_harms_only_itself_on_mariadb() {
        if !require(Server::MariaDb) {
            return;
        }
        for (way, fail) in
            [("ROLLBACK", false), ("ROLLBACK", true), ("COMMIT", true), ("CREATE TABLE x (n INT)", false)]
        {
            let database = MariaDbDatabase::create().await.expect("a database of its own");
            let store = MySqlStore::connect(database.url()).await.expect("the store opens");
            store.migrate().await.expect("the schema is made");
            let mut conn = MySqlConnection::connect(database.url()).await.expect("a second connection");
            sqlx::query("CREATE TABLE ledger (id VARCHAR(255) NOT NULL)")
                .execute(&mut conn)
                .await
                .expect("a table");

            let summary = run(&store, way, fail).await;
            assert_eq!((summary.handled, summary.dead), (3, 1), "{way}, fails: {fail}: {summary:?}");
            let reason = reason(&store).await;
            assert!(fail || reason.contains("HX0050"), "{way}: {reason}");
            let innocent =
                sqlx::query_scalar::<_, i64>("SELECT count(DISTINCT id) FROM ledger WHERE id <> 'm2'");
            assert_eq!(innocent.fetch_one(&mut conn).await.expect("it counts"), 3, "{way}, fails: {fail}");
        }
    }

    /// The ways a handler can end a MongoDB transaction: by an error that it swallows, or an operation that it drops.
    const MONGODB_WAYS: [&str; 3] = ["insert it again", "nonsense", "drop an operation"];

    impl Breakable for MongoStore {
        async fn note(tx: &mut MongoTx, id: &str) -> Result<(), BoxError> {
            tx.collection::<Document>("ledger").insert_one(doc! { "_id": id }).await?;
            Ok(())
        }

        async fn harm(tx: &mut MongoTx, way: &str) -> Result<(), BoxError> {
            let mut ledger = tx.collection::<Document>("ledger");
            match way {
                "nonsense" => drop(ledger.find_one(doc! { "$nonsense": 1 }).await?),
                "drop an operation" => {
                    let insert = ledger.insert_one(doc! { "_id": "dropped" }).into_future();
                    let mut insert = std::pin::pin!(insert);
                    std::future::poll_fn(|context| {
                        std::task::Poll::Ready(insert.as_mut().poll(context).is_ready())
                    })
                    .await;
                }
                _ => {
                    for _ in 0..2 {
                        ledger.insert_one(doc! { "_id": "again" }).await?;
                    }
                }
            }
            Ok(())
        }

        async fn source(&self, messages: &[Envelope]) -> BoxSource {
            let broker = MemoryBroker::new();
            messages.iter().for_each(|message| broker.publish("jobs", message.clone()));
            BoxSource::new(broker.source("jobs"))
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn case_03_a_handler_that_swallows_what_ended_its_transaction_harms_only_itself_on_mongodb() {
        if !require(Server::MongoDb) {
            return;
        }
        for (way, fail) in MONGODB_WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
            let database = MongoDatabase::create().expect("a database of its own");
            let store = MongoStore::connect(database.url()).await.expect("the store opens");
            store.migrate().await.expect("the schema is made");
            let client = Client::with_uri_str(database.url()).await.expect("a second connection");
            let ours: mongodb::Database = client.default_database().expect("a database");
            ours.create_collection("ledger").await.expect("a collection");

            let summary = run(&store, way, fail).await;
            let ids = ours.collection::<Document>("ledger").distinct("_id", doc! {}).await.expect("rows");
            let ids: Vec<&str> = ids.iter().filter_map(|id| id.as_str()).collect();
            assert_eq!(ids, ["m1", "m3", "m4"], "{way}, fails: {fail}");
            let counted = (summary.handled, summary.duplicates, summary.dead);
            assert_eq!(counted, (3, 0, 1), "{way}, fails: {fail}");
            let reason = reason(&store).await;
            assert!(fail || reason.contains("HX0050"), "{way}: {reason}");
        }
    }
}
