use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::both::{Fixture, Run, consumer, is, key, long_ago, request};
use crate::{every_scenario, run_with_sqlx};
use hapax_core::{Claim, ClaimRequest, Code, Envelope, ErrorKind, Fetched, Key, Retention, Source, Store};
use hapax_sqlx::{PgStore, PgTx};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Postgres};

impl Run for Postgres {
    const MANY_WRITERS: bool = true;

    fn of_hapax(schema: &str, name: &str) -> String {
        format!("{schema}.{name}")
    }

    fn breakers(_effects: &str) -> Vec<Vec<String>> {
        let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        vec![
            set(&["SELECT 1/0"]), // case 03: swallowed, the COMMIT would be a successful ROLLBACK
            set(&["COMMIT"]),
            set(&["ROLLBACK"]),
            set(&["COMMIT", "BEGIN"]),
            set(&["ROLLBACK", "BEGIN", "SELECT 1"]),
        ]
    }

    run_with_sqlx!(PgConnection);
}

fn url() -> String {
    let default = "postgres://postgres@127.0.0.1:5432/test";
    std::env::var("HAPAX_TEST_POSTGRES").unwrap_or_else(|_| default.to_owned())
}

/// Removes a test's schema, and its connections' traces, when the test is over.
struct Schema(String);

impl Drop for Schema {
    fn drop(&mut self) {
        let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.0);
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut conn = PgConnection::connect(&url()).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut conn).await.unwrap();
            });
        });
        dropped.join().unwrap();
    }
}

fn schema() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("hapax_t{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The options of a test, recognisable in `pg_stat_activity` by the schema.
fn options(schema: &str) -> PgConnectOptions {
    url().parse::<PgConnectOptions>().unwrap().application_name(schema)
}

async fn open() -> Fixture<Postgres> {
    let schema = schema();
    open_with(options(&schema), schema).await
}

async fn open_with(options: PgConnectOptions, schema: String) -> Fixture<Postgres> {
    let guard = Box::new(Schema(schema.clone()));
    let store = PgStore::with_options(options).schema(&schema).pool(4).connect().await.unwrap();
    let (one, two) = tokio::join!(store.migrate(), store.migrate());
    assert_eq!(one.unwrap().len() + two.unwrap().len(), 1, "of two that start at once, one applies");
    let effects = format!("{schema}.effects");
    let db = Fixture { store, effects, guard };
    db.execute(&format!("CREATE TABLE {schema}.effects (n bigint)")).await;
    db
}

every_scenario!(super::open);

/// Waits until a condition on the server holds, seen from a connection of its own.
async fn until(sql: String) {
    let mut conn = PgConnection::connect(&url()).await.unwrap();
    let met = tokio::time::timeout(Duration::from_secs(20), async {
        while Postgres::count_sql(&mut conn, sql.clone()).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    });
    met.await.expect(&sql);
}

/// The opposite of a condition that counts.
fn none(count: &str) -> String {
    format!("SELECT (({count}) = 0)::int::bigint")
}

fn activity(db: &Fixture<Postgres>, condition: &str) -> String {
    let schema = db.store.schema();
    format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND {condition}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_02_both_of_two_rivals_can_run_more_sql() {
    let db = open().await;
    for round in 0..20 {
        let rivals = [key(&format!("{round}"))];
        let both = tokio::join!(db.begin(&rivals), db.begin(&rivals));
        let (((mut one, first), (mut two, second)), mut new) = (both, 0);
        for (tx, claims) in [(&mut one, first), (&mut two, second)] {
            db.effect(tx).await; // never "current transaction is aborted"
            new += usize::from(claims == [Claim::New]);
            assert!(matches!(claims[..], [Claim::New | Claim::Busy]), "{claims:?}");
        }
        assert_eq!(new, 1);
        db.store.finish(one).await.unwrap();
        db.store.finish(two).await.unwrap();
        assert_eq!(db.ask(rivals[0].clone()).await, Claim::Duplicate { other_payload: false });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_43_no_connection_is_left_idle_in_a_transaction() {
    let db = open().await;
    let name = db.effects.clone();
    crate::both::transactions::case_43_a_call_cancelled_anywhere_leaves_nothing_open(db).await;
    drop(name);
    let db = open().await;
    let (tx, _) = db.begin(&[key("a")]).await;
    until(activity(&db, "state = 'idle in transaction'")).await;
    drop(tx);
    until(none(&activity(&db, "state LIKE 'idle in transaction%'"))).await;
}

/// A purge that commits between a claim's snapshot and its insert.
async fn claim_during_a_purge(db: &Fixture<Postgres>, text: &str) -> Result<Claim, hapax_core::Error> {
    let mut sent: Key = key(text);
    db.handle(sent.clone()).await.unwrap();
    sent.sent_at = Some(long_ago(10));
    let mut purge = PgConnection::connect(&url()).await.unwrap();
    let text = format!(
        "BEGIN; DELETE FROM {}; INSERT INTO {} (consumer, sent_at) VALUES ('orders', {})
         ON CONFLICT (consumer) DO UPDATE SET sent_at = excluded.sent_at",
        db.table("inbox"),
        db.table("horizon"),
        long_ago(10).as_micros()
    );
    sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut purge).await.unwrap();
    let store = db.store.clone();
    let claim = tokio::spawn(async move {
        let (tx, claims) = store.begin_claim(&request(&consumer(), &[sent])).await?;
        store.roll_back(tx).await;
        Ok(claims[0])
    });
    until(activity(db, "wait_event_type = 'Lock'")).await;
    sqlx::raw_sql("COMMIT").execute(&mut purge).await.unwrap();
    claim.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_12_a_purge_beside_the_claim_is_seen() {
    let db = open().await;
    assert_eq!(claim_during_a_purge(&db, "a").await.unwrap(), Claim::Ambiguous);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_12_under_repeatable_read_a_purge_beside_the_claim_is_a_conflict() {
    let schema = schema();
    let options = options(&schema).options([("default_transaction_isolation", "repeatable read")]);
    let db = open_with(options, schema).await;
    for text in ["the horizon appears", "the horizon moves"] {
        let error = claim_during_a_purge(&db, text).await.unwrap_err();
        assert!(is(&error, ErrorKind::Conflict, Code::StoreConflict), "{text}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_repeatable_read_a_rival_is_busy_or_a_conflict() {
    let schema = schema();
    let options = options(&schema).options([("default_transaction_isolation", "repeatable read")]);
    let db = open_with(options, schema).await;
    crate::both::claims::case_04_of_many_rivals_one_commits(db).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_11_purges_on_several_instances_take_each_row_once() {
    let db = open().await;
    let keys: Vec<Key> = (0..500).map(|n| key(&format!("{n:03}"))).collect();
    let (tx, _) = db.begin(&keys).await;
    db.store.finish(tx).await.unwrap();
    db.execute(&format!("UPDATE {} SET processed_at = 1", db.table("inbox"))).await;
    let purge = || async {
        let mut rows = 0;
        loop {
            match db.store.purge(&consumer(), Duration::from_mins(1), 50).await.unwrap().rows {
                0 => break rows,
                more => rows += more,
            }
        }
    };
    let (one, two) = tokio::join!(purge(), purge());
    assert_eq!(one + two, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_server_ended_are_replaced_at_once() {
    let db = open().await;
    let (tx, _) = db.begin(&[key("a")]).await;
    let (other, _) = db.begin(&[]).await;
    db.store.finish(tx).await.unwrap();
    db.store.finish(other).await.unwrap();
    end_sessions(&db).await;
    assert_eq!(db.handle(key("b")).await.unwrap(), Claim::New);

    let (tx, _) = db.begin(&[key("c")]).await;
    end_sessions(&db).await;
    let error = db.store.finish(tx).await.unwrap_err();
    assert!(is(&error, ErrorKind::Unknown, Code::OutcomeUnknown), "{error}");
    assert_eq!(db.handle(key("c")).await.unwrap(), Claim::New);
}

async fn end_sessions(db: &Fixture<Postgres>) {
    let mut conn = PgConnection::connect(&url()).await.unwrap();
    // Materialized, or the planner may end sessions before it has looked whose they are.
    let ours = activity(db, "true").replace("count(*)", "pid");
    let end = format!("WITH ours AS MATERIALIZED ({ours}) SELECT count(pg_terminate_backend(pid)) FROM ours");
    Postgres::count_sql(&mut conn, end).await.unwrap();
    until(none(&activity(db, "true"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_handler_stops_its_statement_on_the_server() {
    let db = open().await;
    let (mut tx, _) = db.begin(&[key("a")]).await;
    let sleeping = Postgres::execute_sql(tx.conn(), "SELECT pg_sleep(600)".into());
    tokio::select! {
        _ = sleeping => panic!("it sleeps"),
        () = until(activity(&db, "query LIKE '%pg_sleep%' AND state = 'active'")) => {}
    }
    db.store.abort(tx).await;
    until(none(&activity(&db, "query LIKE '%pg_sleep%'"))).await;
    assert_eq!(db.handle(key("a")).await.unwrap(), Claim::New);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_takes_too_long_is_ended_by_the_server() {
    let db = open().await;
    let keys = [key("a")];
    let timeout = Some(Duration::from_millis(50));
    let request = ClaimRequest { timeout, ..request(&CONSUMER, &keys) };
    let (mut tx, _) = db.store.begin_claim(&request).await.unwrap();
    let error = Postgres::execute_sql(tx.conn(), "SELECT pg_sleep(600)".into()).await.unwrap_err();
    assert_eq!(db.store.kind_of(&error), Some((ErrorKind::Statement, Code::HandlerTimedOut)));
    assert_eq!(db.store.finish(tx).await.unwrap_err().kind(), ErrorKind::Broken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_handler_makes_its_session_forget_harms_nobody_else() {
    let db = open().await;
    let prepared = async |tx: &mut PgTx| sqlx::query("SELECT 1").execute(tx.conn()).await.map(|_| ());
    for (forgetful, next) in
        [([key("a")].as_slice(), [key("b")].as_slice()), (&[key("c"), key("d")], &[key("e"), key("f")])]
    {
        let (mut tx, _) = db.begin(forgetful).await;
        prepared(&mut tx).await.unwrap();
        Postgres::execute_sql(tx.conn(), "DEALLOCATE ALL".into()).await.unwrap();
        db.store.finish(tx).await.unwrap();
        let (mut tx, claims) = db.begin(next).await;
        assert!(claims.iter().all(|claim| *claim == Claim::New));
        prepared(&mut tx).await.unwrap();
        db.store.finish(tx).await.unwrap();
    }
}

static CONSUMER: std::sync::LazyLock<hapax_core::ConsumerName> = std::sync::LazyLock::new(consumer);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deferred_constraints_and_deadlocks_are_told_apart() {
    let db = open().await;
    let schema = db.store.schema();
    db.execute(&format!("CREATE TABLE {schema}.one (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")).await;
    let (mut tx, _) = db.begin(&[key("a")]).await;
    let insert = format!("INSERT INTO {schema}.one VALUES (1), (1)");
    Postgres::execute_sql(tx.conn(), insert).await.unwrap();
    let error = db.store.finish(tx).await.unwrap_err();
    assert!(is(&error, ErrorKind::Statement, Code::StoreFailed), "{error}");
    assert_eq!(db.ask(key("a")).await, Claim::New);

    db.execute(&format!("INSERT INTO {schema}.effects VALUES (1), (2)")).await;
    let lock = |n: u32| format!("UPDATE {schema}.effects SET n = n WHERE n = {n}");
    let ((mut one, _), (mut two, _)) = tokio::join!(db.begin(&[]), db.begin(&[]));
    Postgres::execute_sql(one.conn(), lock(1)).await.unwrap();
    Postgres::execute_sql(two.conn(), lock(2)).await.unwrap();
    let (first, second) =
        tokio::join!(Postgres::execute_sql(one.conn(), lock(2)), Postgres::execute_sql(two.conn(), lock(1)));
    let error = first.err().or(second.err()).expect("a deadlock");
    assert_eq!(db.store.kind_of(&error), Some((ErrorKind::Conflict, Code::StoreConflict)));
    db.store.roll_back(one).await;
    db.store.roll_back(two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_is_unavailable() {
    let db = open().await;
    let schema = db.store.schema().to_owned();
    let options = options(&schema).options([("default_transaction_read_only", "on")]);
    let store = PgStore::with_options(options).schema(&schema).connect().await.unwrap();
    let unavailable = |error: hapax_core::Error| {
        assert!(is(&error, ErrorKind::Unavailable, Code::StoreReadOnly), "{error}");
    };
    unavailable(store.begin_claim(&request(&consumer(), &[key("a")])).await.unwrap_err());
    unavailable(store.ping().await.unwrap_err());
    unavailable(store.send("q", &[Envelope::new("x")]).await.unwrap_err());
    db.store.ping().await.unwrap();
    db.store.send("q", &[Envelope::new("x")]).await.unwrap();

    // A source goes on when it can.
    let mut queue = store.queue("q");
    let waited = tokio::time::timeout(Duration::from_millis(300), queue.next(1)).await;
    assert!(waited.is_err() && !queue.is_connected());
    let mut queue = db.store.queue("q");
    assert!(matches!(queue.next(1).await, Ok(Fetched::Batch(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_met_by_a_handler_is_unavailable() {
    let db = open().await;
    let (mut tx, _) = db.begin(&[key("a")]).await;
    let full = "DO $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$";
    let error = Postgres::execute_sql(tx.conn(), full.into()).await.unwrap_err();
    assert_eq!(db.store.kind_of(&error), Some((ErrorKind::Unavailable, Code::StoreReadOnly)));
    db.store.roll_back(tx).await;
}

#[tokio::test]
async fn what_cannot_be_reached_or_entered_is_told_without_secrets() {
    let away = "postgres://someone:hunter2@127.0.0.1:1/test";
    let error = PgStore::connect(away).await.unwrap_err();
    assert!(is(&error, ErrorKind::Unavailable, Code::StoreUnavailable), "{error}");
    let nowhere = options("x").database("no_such_database");
    let refused = PgStore::with_options(nowhere).connect().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Setup, "{refused}");
    let wrong = PgStore::connect("postgres://u:hunter2@[/test").await.unwrap_err();
    for error in [error, refused, wrong] {
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_claim_works_in_a_sqlx_transaction() {
    let db = open().await;
    let mut conn = PgConnection::connect(&url()).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    assert_eq!(db.store.claim_in(&mut tx, &consumer(), &key("a")).await.unwrap(), Claim::New);
    assert_eq!(db.ask(key("a")).await, Claim::Busy);
    tx.commit().await.unwrap();
    assert_eq!(db.ask(key("a")).await, Claim::Duplicate { other_payload: false });
    assert_eq!(db.store.horizon(&consumer()).await.unwrap(), None);
}
