//! Case 46, and cases 02 and 03 in a batch, on PostgreSQL.

mod breakers;

mod server {
    use super::breakers::{Statements, WAYS, reason, run};
    use hapax::PgStore;
    use hapax::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection, Postgres, Row as _};
    use hapax_testkit::servers::{Server, TestDatabase, require};

    impl Statements for Postgres {
        async fn note(conn: &mut PgConnection, id: &str) -> sqlx::Result<()> {
            sqlx::query("INSERT INTO ledger (id) VALUES ($1)").bind(id).execute(conn).await.map(|_| ())
        }

        async fn run(conn: &mut PgConnection, sql: &str) -> sqlx::Result<()> {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
        }
    }

    #[tokio::test]
    async fn case_46_a_handler_that_ends_the_transaction_harms_only_itself() {
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
}
