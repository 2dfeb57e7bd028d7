//! The SQLite store, on files of their own.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics
#![cfg(feature = "sqlite")]

mod both;

use std::time::Duration;

use both::{Fixture, Run, consumer, is, key};
use hapax_core::{Claim, Code, Envelope, ErrorKind, Store};
use hapax_sqlx::SqliteStore;
use sqlx::Sqlite;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

impl Run for Sqlite {
    const MANY_WRITERS: bool = false;

    fn of_hapax(schema: &str, name: &str) -> String {
        format!("{schema}_{name}")
    }

    fn breakers(effects: &str) -> Vec<Vec<String>> {
        let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        vec![
            set(&["COMMIT"]),
            set(&["ROLLBACK"]),
            set(&["COMMIT", "BEGIN"]),
            set(&["ROLLBACK", "BEGIN IMMEDIATE"]),
            vec![
                format!("INSERT INTO {effects} (n, one) VALUES (1, 1)"),
                format!("INSERT OR ROLLBACK INTO {effects} (n, one) VALUES (1, 1)"),
            ],
            vec![
                format!("INSERT INTO {effects} (n, one) VALUES (1, 1)"),
                format!("INSERT OR ROLLBACK INTO {effects} (n, one) VALUES (1, 1)"),
                format!("INSERT INTO {effects} (n) VALUES (1)"),
            ],
        ]
    }

    run_with_sqlx!(SqliteConnection);
}

async fn open() -> Fixture<Sqlite> {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("t.db")).create_if_missing(true);
    fixture(options, Box::new(folder)).await
}

async fn fixture(options: SqliteConnectOptions, guard: Box<dyn std::any::Any + Send>) -> Fixture<Sqlite> {
    let store = SqliteStore::with_options(options).pool(4).connect().await.unwrap();
    let (one, two) = tokio::join!(store.migrate(), store.migrate());
    assert_eq!(one.unwrap().len() + two.unwrap().len(), 1, "of two that start at once, one applies");
    let db = Fixture { store, effects: "effects".into(), guard };
    db.execute("CREATE TABLE effects (n INTEGER, one INTEGER UNIQUE)").await;
    db
}

every_scenario!(super::open);

#[tokio::test]
async fn a_database_in_memory_is_refused() {
    for url in ["sqlite::memory:", "sqlite://?mode=memory", "sqlite:"] {
        let error = SqliteStore::connect(url).await.unwrap_err();
        assert!(is(&error, ErrorKind::Setup, Code::NotAvailable), "{url}: {error}");
    }
    assert_eq!(
        SqliteStore::connect("sqlite:/nowhere/at/all.db").await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

#[tokio::test]
async fn a_missing_schema_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("t.db").display());
    let store = SqliteStore::builder(&url).schema("shop").connect().await.unwrap();
    assert!(is(&store.check().await.unwrap_err(), ErrorKind::Setup, Code::SchemaMissing));
    assert_eq!(store.pending().await.unwrap().len(), 1);
    assert_eq!(store.migrate().await.unwrap(), [1]);
    store.check().await.unwrap();
}

#[tokio::test]
async fn a_full_database_is_unavailable_and_nothing_is_lost() {
    let db = open().await;
    for n in 0..50 {
        db.handle(key(&format!("before {n}"))).await.unwrap();
    }
    let pages = db.count("SELECT page_count FROM pragma_page_count").await;
    let folder = db.guard.downcast_ref::<tempfile::TempDir>().unwrap();
    let path = folder.path().join("t.db");
    let small = SqliteConnectOptions::new().filename(&path).pragma("max_page_count", pages.to_string());
    let store = SqliteStore::with_options(small).connect().await.unwrap();
    let big = Envelope::new(vec![0; 100_000]);
    let error = store.send("q", &[big]).await.unwrap_err();
    assert!(is(&error, ErrorKind::Unavailable, Code::StoreReadOnly), "{error}");
    let keys: Vec<_> = (0..1000).map(|n| key(&format!("while it is full {n}"))).collect();
    let error = store.begin_claim(&both::request(&consumer(), &keys)).await.unwrap_err();
    assert!(is(&error, ErrorKind::Unavailable, Code::StoreReadOnly), "{error}");
    let error = store.ping().await.unwrap_err();
    assert!(is(&error, ErrorKind::Unavailable, Code::StoreReadOnly), "{error}");
    db.store.ping().await.unwrap();
    assert_eq!(db.ask(key("before 1")).await, Claim::Duplicate { other_payload: false });
}

#[tokio::test]
async fn a_read_only_database_is_unavailable() {
    let db = open().await;
    let folder = db.guard.downcast_ref::<tempfile::TempDir>().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("t.db")).pragma("query_only", "on");
    let store = SqliteStore::with_options(options).connect().await.unwrap();
    let error = store.begin_claim(&both::request(&consumer(), &[key("a")])).await.unwrap_err();
    assert!(is(&error, ErrorKind::Unavailable, Code::StoreReadOnly), "{error}");
    let error = store.ping().await.unwrap_err();
    assert!(is(&error, ErrorKind::Unavailable, Code::StoreReadOnly), "{error}");
}

#[tokio::test]
async fn a_database_locked_by_another_process_is_busy() {
    let db = open().await;
    let folder = db.guard.downcast_ref::<tempfile::TempDir>().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("t.db"));
    let other =
        SqliteStore::with_options(options).busy_within(Duration::from_millis(50)).connect().await.unwrap();
    let (tx, _) = db.begin(&[key("a")]).await;
    let error = other.begin_claim(&both::request(&consumer(), &[key("a")])).await.unwrap_err();
    assert!(is(&error, ErrorKind::Busy, Code::StoreBusy), "{error}");
    db.store.finish(tx).await.unwrap();
    let (tx, claims) = other.begin_claim(&both::request(&consumer(), &[key("a")])).await.unwrap();
    assert_eq!(claims, [Claim::Duplicate { other_payload: false }]);
    other.roll_back(tx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_handler_stops_its_statement() {
    let db = open().await;
    let (mut tx, _) = db.begin(&[key("a")]).await;
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
    let running =
        tokio::time::timeout(Duration::from_millis(50), Sqlite::count_sql(tx.conn(), endless.into()));
    running.await.unwrap_err();
    db.store.abort(tx).await;
    let next = tokio::time::timeout(Duration::from_secs(5), db.handle(key("a")));
    assert_eq!(next.await.expect("the writer's turn is free").unwrap(), Claim::New);
}
