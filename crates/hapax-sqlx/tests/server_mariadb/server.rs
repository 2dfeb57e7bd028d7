use std::time::Duration;

use hapax_core::{
    Claim, ClaimRequest, Code, ErrorKind, Inbox, InboxState, InstanceId, Key, OnFailure, Outbox as _,
    OutboxNumber, Parking, Publication, Retention, Store, Take, WaitingRoom,
};
use hapax_sqlx::{Isolation, MySqlStore};
use hapax_testkit::servers::{MariaDbDatabase, PrivateMariaDb, Server, eventually, require};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, Connection, MySql};

use crate::both::{Fixture, Run, consumer, id, is, key, long_ago, message, parking, request};

const SOON: Duration = Duration::from_secs(20);

impl Run for MySql {
    const MANY_WRITERS: bool = true;

    fn of_hapax(schema: &str, name: &str) -> String {
        format!("{schema}_{name}")
    }

    fn breakers(effects: &str) -> Vec<Vec<String>> {
        let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        vec![
            set(&["COMMIT"]),
            set(&["ROLLBACK"]),
            set(&["COMMIT", "START TRANSACTION"]),
            set(&["ROLLBACK", "START TRANSACTION READ WRITE", "SELECT 1"]),
            set(&["ROLLBACK", "SAVEPOINT hapax_of_mine"]),
            // DDL, which commits
            vec![format!("ALTER TABLE {effects} COMMENT = 'by a handler'")],
            vec![format!("TRUNCATE TABLE {effects}"), format!("INSERT INTO {effects} (n) VALUES (1)")],
            set(&["LOCK TABLES effects WRITE", "UNLOCK TABLES"]),
        ]
    }

    /// As text, since servers prepare not every statement.
    async fn execute_sql(conn: &mut MySqlConnection, sql: String) -> Result<u64, sqlx::Error> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?.rows_affected())
    }

    async fn count_sql(conn: &mut MySqlConnection, sql: String) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await
    }
}

/// What a fixture needs besides its store.
struct Ground {
    database: MariaDbDatabase,
    _server: Option<PrivateMariaDb>,
}

impl Ground {
    async fn shared() -> Self {
        Self { database: MariaDbDatabase::create().await.unwrap(), _server: None }
    }

    async fn private(settings: &[(&str, &str)]) -> Self {
        let server = PrivateMariaDb::start_with(settings).await.unwrap();
        let database = MariaDbDatabase::create_on(&server.url("test")).await.unwrap();
        Self { database, _server: Some(server) }
    }

    fn options(&self) -> MySqlConnectOptions {
        self.database.url().parse().unwrap()
    }
}

async fn open() -> Fixture<MySql> {
    assert!(require(Server::MariaDb), "the scenarios' macro has asked already");
    open_on(Ground::shared().await, Isolation::ReadCommitted).await
}

async fn open_on(ground: Ground, isolation: Isolation) -> Fixture<MySql> {
    let store =
        MySqlStore::with_options(ground.options()).pool(4).isolation(isolation).connect().await.unwrap();
    let (one, two) = tokio::join!(store.migrate(), store.migrate());
    assert_eq!(one.unwrap().len() + two.unwrap().len(), 1, "of two that start at once, one applies");
    let mut conn = MySqlConnection::connect_with(&ground.options()).await.unwrap();
    MySql::execute_sql(&mut conn, "CREATE TABLE effects (n BIGINT)".into()).await.unwrap();
    Fixture { store, effects: "effects".into(), guard: Box::new(ground) }
}

fn ground(db: &Fixture<MySql>) -> &Ground {
    db.guard.downcast_ref::<Ground>().unwrap()
}

async fn connect(db: &Fixture<MySql>) -> MySqlConnection {
    MySqlConnection::connect_with(&ground(db).options()).await.unwrap()
}

async fn run(conn: &mut MySqlConnection, sql: &str) {
    MySql::execute_sql(conn, sql.to_owned()).await.unwrap();
}

mod scenarios {
    use crate::every_scenario;

    every_scenario!(super::super::open);
}

/// Both isolation levels, or none where there is no server.
async fn both_levels(case: impl AsyncFn(Fixture<MySql>)) {
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        if require(Server::MariaDb) {
            case(open_on(Ground::shared().await, isolation).await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_46_what_a_handler_commits_early_comes_again_and_takes_nobody_along() {
    both_levels(async |db| {
        let (mut tx, claims) = db.begin(&["a", "b"].map(key)).await;
        assert_eq!(claims, [Claim::New, Claim::New]);
        run(tx.conn(), "COMMIT").await;
        let error = db.store.finish(tx).await.unwrap_err();
        assert!(is(&error, ErrorKind::Broken, Code::TransactionBroken), "{error}");
        // Neither is lost: `b`, whose handler never ran, least of all.
        for text in ["a", "b"] {
            assert_eq!(db.handle(key(text)).await.unwrap(), Claim::New);
            assert_eq!(db.ask(key(text)).await, Claim::Duplicate { other_payload: false });
        }
        assert_eq!(db.effects().await, 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_46_a_waiting_message_that_was_committed_early_still_waits() {
    both_levels(async |db| {
        let (mut tx, _) = db.begin(&[key("a")]).await;
        db.store.park(&mut tx, &consumer(), &parking(&message("a"), None)).await.unwrap();
        db.store.finish(tx).await.unwrap();
        let place = db.store.waiting(&consumer(), &id("a")).await.unwrap().unwrap().place;
        let (mut tx, claims) = db.begin(&[Key { place: Some(place), ..key("a") }]).await;
        assert_eq!(claims, [Claim::New]);
        run(tx.conn(), "COMMIT").await;
        db.store.finish(tx).await.unwrap_err();
        let row = db.store.look(&consumer(), &[id("a")]).await.unwrap().remove(0).unwrap();
        assert_eq!(row.state, InboxState::Waiting);
        assert_eq!(db.ask(Key { place: Some(place), ..key("a") }).await, Claim::New);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_46_a_swallowed_deadlock_is_found_out_and_nothing_after_it_lasts() {
    both_levels(async |db| {
        let mut other = connect(&db).await;
        run(&mut other, "CREATE TABLE stock (id INT PRIMARY KEY, n INT)").await;
        run(&mut other, "INSERT INTO stock SELECT seq, 0 FROM seq_1_to_1000").await;
        // The one with fewer changes is the victim: the handler's.
        run(&mut other, "START TRANSACTION").await;
        run(&mut other, "UPDATE stock SET n = 1 WHERE id >= 2").await;
        let (mut tx, _) = db.begin(&[key("a")]).await;
        run(tx.conn(), "UPDATE stock SET n = 1 WHERE id = 1").await;
        let handlers = MySql::execute_sql(tx.conn(), "UPDATE stock SET n = 1 WHERE id = 2".into());
        let others = MySql::execute_sql(&mut other, "UPDATE stock SET n = 2 WHERE id = 1".into());
        let (swallowed, others) = tokio::join!(handlers, others);
        let error = swallowed.unwrap_err();
        assert_eq!(db.store.kind_of(&error), Some((ErrorKind::Conflict, Code::StoreConflict)));
        others.unwrap();
        // The server has begun another transaction, unasked.
        run(tx.conn(), "INSERT INTO effects (n) VALUES (1)").await;
        let error = db.store.finish(tx).await.unwrap_err();
        assert!(is(&error, ErrorKind::Broken, Code::TransactionBroken), "{error}");
        run(&mut other, "ROLLBACK").await;
        assert_eq!(db.effects().await, 0);
        assert_eq!(db.handle(key("a")).await.unwrap(), Claim::New);
    })
    .await;
}

/// A number of a row that is as good as random.
fn some_row(worker: u64, round: u64, n: u64) -> u64 {
    (worker * 7919 + round * 104_729 + n * 1_299_709) % 1000
}

/// Claims a batch, updates a random row for each of its messages, and commits; again where it was ended in favour of
/// somebody else.
async fn batch(db: &Fixture<MySql>, worker: u64, round: u64) -> usize {
    let keys: Vec<Key> = (0..20).map(|n| key(&format!("{worker} {round} {n}"))).collect();
    for conflicts in 0.. {
        let done: Result<(), hapax_core::Error> = async {
            let (mut tx, claims) = db.store.begin_claim(&request(&consumer(), &keys)).await?;
            assert!(claims.iter().all(|claim| *claim == Claim::New), "{claims:?}");
            for n in 0..20 {
                let update = format!("UPDATE stock SET n = n + 1 WHERE id = {}", some_row(worker, round, n));
                if let Err(error) = MySql::execute_sql(tx.conn(), update).await {
                    let (kind, code) = db.store.kind_of(&error).unwrap();
                    db.store.roll_back(tx).await;
                    return Err(hapax_core::Error::new(kind, code, "a handler's statement").because(error));
                }
            }
            db.store.finish(tx).await
        }
        .await;
        match done {
            Ok(()) => return conflicts,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
    }
    0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_50_eight_workers_with_random_rows_do_not_stall() {
    both_levels(async |db| {
        let mut conn = connect(&db).await;
        run(&mut conn, "CREATE TABLE stock (id INT PRIMARY KEY, n INT)").await;
        run(&mut conn, "INSERT INTO stock SELECT seq, 0 FROM seq_0_to_999").await;
        let db = &db;
        let workers = (0..8).map(async |worker| {
            let mut conflicts = 0;
            for round in 0..20 {
                conflicts += batch(db, worker, round).await;
            }
            conflicts
        });
        let begun = std::time::Instant::now();
        let conflicts: usize = futures::future::join_all(workers).await.iter().sum();
        eprintln!("{conflicts} conflicts in {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(30), "no wait for a lock ran out");
        assert_eq!(db.count("SELECT CAST(sum(n) AS SIGNED) FROM stock").await, 8 * 20 * 20);
        let done = format!("SELECT count(*) FROM {} WHERE state = 0", db.table("inbox"));
        assert_eq!(db.count(&done).await, 8 * 20 * 20);
    })
    .await;
}

/// Transactions that are open in a test's database.
async fn open_transactions(db: &Fixture<MySql>) -> i64 {
    let open = "SELECT count(*) FROM information_schema.innodb_trx t
                JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE()";
    MySql::count_sql(&mut connect(db).await, open.to_owned()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_43_no_transaction_is_left_open() {
    if !require(Server::MariaDb) {
        return;
    }
    let db = open().await;
    let (tx, _) = db.begin(&[key("a")]).await;
    assert_eq!(open_transactions(&db).await, 1);
    drop(tx);
    eventually("it is rolled back", SOON, async || open_transactions(&db).await == 0).await;
}

async fn end_sessions(db: &Fixture<MySql>) {
    let mut conn = connect(db).await;
    let ours =
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    let ids: Vec<i64> = sqlx::query_scalar(ours).fetch_all(&mut conn).await.unwrap();
    for id in ids {
        run(&mut conn, &format!("KILL {id}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_server_ended_are_replaced_at_once() {
    if !require(Server::MariaDb) {
        return;
    }
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
    eventually("it is new", SOON, async || db.ask(key("c")).await == Claim::New).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_handler_stops_its_statement_on_the_server() {
    if !require(Server::MariaDb) {
        return;
    }
    let db = open().await;
    let sleeping = async || {
        let sql = "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'SELECT SLEEP%'";
        MySql::count_sql(&mut connect(&db).await, sql.to_owned()).await.unwrap()
    };
    let (mut tx, _) = db.begin(&[key("a")]).await;
    tokio::select! {
        _ = MySql::execute_sql(tx.conn(), "SELECT SLEEP(600)".into()) => panic!("it sleeps"),
        () = eventually("it sleeps", SOON, async || sleeping().await == 1) => {}
    }
    db.store.abort(tx).await;
    eventually("it was stopped", SOON, async || sleeping().await == 0).await;
    eventually("it is new", SOON, async || db.ask(key("a")).await == Claim::New).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_takes_too_long_is_ended_by_the_server() {
    if !require(Server::MariaDb) {
        return;
    }
    let db = open().await;
    let (keys, orders) = ([key("a")], consumer());
    let request = ClaimRequest { timeout: Some(Duration::from_millis(50)), ..request(&orders, &keys) };
    let (mut tx, _) = db.store.begin_claim(&request).await.unwrap();
    let error = MySql::execute_sql(tx.conn(), "SELECT SLEEP(600)".into()).await.unwrap_err();
    assert_eq!(db.store.kind_of(&error), Some((ErrorKind::Statement, Code::HandlerTimedOut)));
    db.store.roll_back(tx).await;
    // The limit is this one's alone.
    let (mut tx, _) = db.begin(&[key("b")]).await;
    MySql::execute_sql(tx.conn(), "SELECT SLEEP(0.2)".into()).await.unwrap();
    db.store.finish(tx).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_reached_or_entered_is_told_without_secrets() {
    let away = MySqlStore::connect("mysql://someone:hunter2@127.0.0.1:1/test").await.unwrap_err();
    assert!(is(&away, ErrorKind::Unavailable, Code::StoreUnavailable), "{away}");
    let wrong = MySqlStore::connect("mysql://u:hunter2@[/test").await.unwrap_err();
    let nothing = MySqlStore::connect("mysql://u:hunter2@127.0.0.1:3306").await.unwrap_err();
    assert!(is(&nothing, ErrorKind::Setup, Code::ConfigWrongValue), "{nothing}");
    let mut errors = vec![away, wrong, nothing];
    if require(Server::MariaDb) {
        let ground = Ground::shared().await;
        let nowhere = ground.options().database("no_such_database");
        let nowhere = MySqlStore::with_options(nowhere).connect().await.unwrap_err();
        assert_eq!(nowhere.kind(), ErrorKind::Setup, "{nowhere}");
        let refused = ground.options().username("hapax_nobody").password("hunter2");
        let refused = MySqlStore::with_options(refused).connect().await.unwrap_err();
        assert!(is(&refused, ErrorKind::Setup, Code::StoreRefused), "{refused}");
        errors.extend([nowhere, refused]);
    }
    for error in errors {
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_works_in_a_sqlx_transaction() {
    both_levels(async |db| {
        let mut conn = connect(&db).await; // under the server's own default, REPEATABLE READ
        let mut tx = conn.begin().await.unwrap();
        MySql::count_sql(&mut tx, "SELECT count(*) FROM effects".into()).await.unwrap(); // a snapshot
        db.handle(key("before")).await.unwrap();
        let claim = async |tx: &mut MySqlConnection, text| {
            db.store.claim_in(tx, &consumer(), &key(text)).await.unwrap()
        };
        assert_eq!(claim(&mut tx, "a").await, Claim::New);
        let duplicate = Claim::Duplicate { other_payload: false };
        assert_eq!(claim(&mut tx, "before").await, duplicate, "committed after the snapshot");
        let (other, claims) = db.begin(&[key("held")]).await;
        assert_eq!((claims[0], claim(&mut tx, "held").await), (Claim::New, Claim::Busy));
        assert_eq!(db.ask(key("a")).await, Claim::Busy);
        tx.commit().await.unwrap();
        db.store.roll_back(other).await;
        assert_eq!(db.ask(key("a")).await, duplicate);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_12_a_purge_after_the_snapshot_of_a_users_transaction_is_seen() {
    if !require(Server::MariaDb) {
        return;
    }
    let db = open().await;
    let sent = Key { sent_at: Some(long_ago(10)), ..key("a") };
    db.handle(sent.clone()).await.unwrap();
    db.execute(&format!("UPDATE {} SET processed_at = 1", db.table("inbox"))).await;
    let mut conn = connect(&db).await;
    let mut tx = conn.begin().await.unwrap();
    MySql::count_sql(&mut tx, "SELECT count(*) FROM effects".into()).await.unwrap();
    assert_eq!(db.store.purge(&consumer(), Duration::from_mins(1), 10).await.unwrap().rows, 1);
    assert_eq!(db.store.claim_in(&mut tx, &consumer(), &sent).await.unwrap(), Claim::Ambiguous);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_11_purges_on_several_instances_take_each_row_once() {
    both_levels(async |db| {
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
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_are_of_utc_whatever_the_sessions_time_zone() {
    if !require(Server::MariaDb) {
        return;
    }
    let ground = Ground::shared().await;
    let east = ground.options().timezone(Some("+09:00".to_owned()));
    let store = MySqlStore::with_options(east).connect().await.unwrap();
    store.migrate().await.unwrap();
    let before = hapax_core::Timestamp::now();
    assert!(store.record(&consumer(), &key("a")).await.unwrap());
    let row = store.look(&consumer(), &[id("a")]).await.unwrap().remove(0).unwrap();
    let apart = row.processed_at.as_micros().abs_diff(before.as_micros());
    assert!(apart < 60_000_000, "{apart} µs from this machine's clock");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_40_decimals_are_kept_digit_for_digit() {
    if !require(Server::MariaDb) {
        return;
    }
    let db = open().await;
    run(&mut connect(&db).await, "CREATE TABLE amounts (amount DECIMAL(30,10))").await;
    let (mut tx, _) = db.begin(&[key("a")]).await;
    for amount in ["2500.1000000000", "9007199254740993.0000000000"] {
        let insert = sqlx::query("INSERT INTO amounts VALUES (CAST(? AS DECIMAL(65,30)))").bind(amount);
        insert.execute(tx.conn()).await.unwrap();
        let kept =
            sqlx::query_scalar::<_, String>("SELECT CAST(amount AS CHAR) FROM amounts WHERE amount = ?");
        assert_eq!(kept.bind(amount).fetch_one(tx.conn()).await.unwrap(), amount);
    }
    db.store.finish(tx).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_was_interrupted_goes_on() {
    if !require(Server::MariaDb) {
        return;
    }
    let ground = Ground::shared().await;
    let store = MySqlStore::with_options(ground.options()).connect().await.unwrap();
    assert!(is(&store.check().await.unwrap_err(), ErrorKind::Setup, Code::SchemaMissing));
    let first = &hapax_sqlx::migrations::<MySql>("hapax")[0].sql;
    let cut = first.find("CREATE TABLE IF NOT EXISTS hapax_calls").unwrap();
    let mut conn = MySqlConnection::connect_with(&ground.options()).await.unwrap();
    run(&mut conn, &first[..cut]).await;
    assert!(is(&store.check().await.unwrap_err(), ErrorKind::Setup, Code::SchemaMissing));
    let error = store.record(&consumer(), &key("a")).await;
    assert!(error.is_ok(), "the inbox is there");
    assert_eq!(store.migrate().await.unwrap(), [1]);
    store.check().await.unwrap();
    assert!(!store.record(&consumer(), &key("a")).await.unwrap(), "what was there is kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_is_unavailable() {
    if !require(Server::PrivateMariaDb) {
        return;
    }
    let db = open_on(Ground::private(&[]).await, Isolation::ReadCommitted).await;
    let name = ground(&db).database.name();
    let mut root = connect(&db).await;
    for sql in [
        "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret'",
        &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO app@'127.0.0.1'"),
    ] {
        run(&mut root, sql).await;
    }
    let options = ground(&db).options().username("app").password("secret");
    let store = MySqlStore::with_options(options).connect().await.unwrap();
    store.ping().await.unwrap();
    let (tx, _) = store.begin_claim(&request(&consumer(), &[key("a")])).await.unwrap();
    store.finish(tx).await.unwrap();
    run(&mut root, "SET GLOBAL read_only = ON").await;
    let unavailable = |error: hapax_core::Error| {
        assert!(is(&error, ErrorKind::Unavailable, Code::StoreReadOnly), "{error}");
    };
    unavailable(store.ping().await.unwrap_err());
    unavailable(store.begin_claim(&request(&consumer(), &[key("b")])).await.map(drop).unwrap_err());
    unavailable(store.record(&consumer(), &key("b")).await.unwrap_err());
    run(&mut root, "SET GLOBAL read_only = OFF").await;
    store.ping().await.unwrap();
    let (tx, claims) = store.begin_claim(&request(&consumer(), &[key("b")])).await.unwrap();
    assert_eq!(claims, [Claim::New]);
    store.finish(tx).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_larger_than_a_packet_is_told_and_harms_nobody() {
    if !require(Server::PrivateMariaDb) {
        return;
    }
    let settings = [("max-allowed-packet", "1M"), ("innodb-rollback-on-timeout", "OFF")];
    let db = open_on(Ground::private(&settings).await, Isolation::ReadCommitted).await;
    let mut large = message("a");
    large.envelope.body = vec![b'x'; 2 * 1024 * 1024].into();
    let (mut tx, _) = db.begin(&[key("a")]).await;
    let parking = Parking { message: &large, ..parking(&large, None) };
    let error = db.store.park(&mut tx, &consumer(), &parking).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Statement, "{error}");
    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
    db.store.roll_back(tx).await;
    // What is written as text takes twice its size.
    let (mut tx, _) = db.begin(&[key("b")]).await;
    tx.publish(hapax_core::Publication::bytes("Large", vec![b'x'; 700 * 1024]).id(id("large"))).unwrap();
    let error = db.store.finish(tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Statement, "{error}");
    assert_eq!(db.handle(key("b")).await.unwrap(), Claim::New);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_transactions_unseen_is_refused() {
    if !require(Server::PrivateMariaDb) {
        return;
    }
    let ground = Ground::private(&[("innodb-rollback-on-timeout", "ON")]).await;
    let error = MySqlStore::with_options(ground.options()).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Setup, "{error}");
    assert!(error.to_string().contains("innodb_rollback_on_timeout"), "{error}");
}

fn placed(body: &'static str) -> Publication {
    Publication::bytes("OrderPlaced", body).key(body)
}

async fn unsent(store: &MySqlStore, relay: &InstanceId) -> Vec<(OutboxNumber, String)> {
    let take = Take { relay, max: 100, on_failure: OnFailure::Block, away: &[] };
    let rows = store.unsent(&take).await.unwrap();
    rows.into_iter().map(|row| (row.number, String::from_utf8_lossy(&row.envelope.body).into())).collect()
}

#[tokio::test]
async fn case_24_a_lower_number_committed_later_is_published_too() {
    if !require(Server::MariaDb) {
        return;
    }
    let database = MariaDbDatabase::create().await.unwrap();
    let store = MySqlStore::connect(database.url()).await.unwrap();
    store.migrate().await.unwrap();
    let (outbox, relay) = (store.outbox_of("checkout").unwrap(), InstanceId("relay".to_owned()));
    store.share_buckets(&relay, Duration::from_mins(10)).await.unwrap();
    let mut connections = Vec::new();
    for _ in 0..2 {
        connections.push(MySqlConnection::connect(database.url()).await.unwrap());
    }
    let [slow, quick] = connections.as_mut_slice() else { unreachable!("two were opened") };
    let mut slow = slow.begin().await.unwrap();
    outbox.publish(&mut slow, placed("slow")).await.unwrap();
    let mut quick = quick.begin().await.unwrap();
    outbox.publish(&mut quick, placed("quick")).await.unwrap();
    quick.commit().await.unwrap();

    let (later, body) = unsent(&store, &relay).await.pop().unwrap();
    assert_eq!(body, "quick");
    store.sent(&[later], false).await.unwrap();
    slow.commit().await.unwrap();
    let (earlier, body) = unsent(&store, &relay).await.pop().unwrap();
    assert_eq!(body, "slow");
    assert!(earlier < later);
}
