//! Case 46 on SQLite.

mod breakers;

use breakers::{Statements, WAYS, reason, run};
use hapax::SqliteStore;
use hapax::sqlx::{self, AssertSqlSafe, Connection as _, Row as _, Sqlite, SqliteConnection};

impl Statements for Sqlite {
    async fn note(conn: &mut SqliteConnection, id: &str) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO ledger (id) VALUES ($1)").bind(id).execute(conn).await.map(|_| ())
    }

    async fn run(conn: &mut SqliteConnection, sql: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
    }
}

#[tokio::test]
async fn case_46_a_handler_that_ends_the_transaction_harms_only_itself() {
    for (way, fail) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let folder = tempfile::TempDir::new().expect("a folder");
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("b.db").display());
        let store = SqliteStore::connect(&url).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        let mut conn = SqliteConnection::connect(&url).await.expect("a second connection");
        sqlx::query("CREATE TABLE ledger (id TEXT NOT NULL)").execute(&mut conn).await.expect("a table");

        let summary = run(&store, way, fail).await;
        let rows = sqlx::query("SELECT id FROM ledger ORDER BY id").fetch_all(&mut conn).await.expect("rows");
        let ids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        if way == "SELECT nonsense" && !fail {
            // SQLite goes on after an error, so that swallowing one harms nothing.
            assert_eq!((ids.len(), summary.handled), (4, 4), "{way}");
            continue;
        }
        assert_eq!(ids, ["m1", "m3", "m4"], "{way}, fails: {fail}");
        assert_eq!((summary.handled, summary.duplicates, summary.dead), (3, 0, 1), "{way}, fails: {fail}");
        let reason = reason(&store).await;
        assert!(fail || reason.contains("HX0050"), "{way}: {reason}");
    }
}
