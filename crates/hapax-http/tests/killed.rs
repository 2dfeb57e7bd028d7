//! The process is really ended in the middle of a request, and started again: what the retry finds.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::io::Write as _;
use std::time::Duration;

use axum::Router;
use axum::extract::Extension;
use axum::response::Response;
use axum::routing::post;
use hapax_core::Store;
use hapax_http::{Idempotency, Run, Tx};
use hapax_sqlx::sqlx::{self, Connection as _};
use hapax_sqlx::{PgStore, PgTx, SqliteStore, SqliteTx};
use hapax_testkit::process::{Running, Subject};
use hapax_testkit::servers::eventually;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const LONG: Duration = Duration::from_secs(20);
const STORE: &str = "HAPAX_HTTP_STORE";
const MODE: &str = "HAPAX_HTTP_MODE";
/// Where the process ends itself: in the handler, behind its effect; or when the answer is on record.
const DIES: &str = "HAPAX_HTTP_DIES";
/// A file to which the handler of the mode *recorded* adds a line: an effect outside of the database.
const OUTSIDE: &str = "HAPAX_HTTP_OUTSIDE";

fn told(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn dies_in(place: &str) {
    if told(DIES) == place {
        std::process::abort();
    }
}

/// The service, in a process of its own; does nothing when it runs among the other tests.
#[tokio::test]
async fn serves() {
    let url = told(STORE);
    if url.starts_with("sqlite:") {
        serve(app_on_sqlite(SqliteStore::connect(&url).await.unwrap())).await;
    } else if !url.is_empty() {
        serve(app_on_postgres(PgStore::connect(&url).await.unwrap())).await;
    }
}

async fn serve(app: Router) {
    let app = app.layer(axum::middleware::map_response(async |answer: Response| {
        dies_in("answer");
        answer
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("\nserves at {};", listener.local_addr().unwrap());
    std::io::stdout().flush().unwrap();
    axum::serve(listener, app).await.unwrap();
}

fn app_on_sqlite(store: SqliteStore) -> Router {
    let transactional = Router::new()
        .route("/", post(pay_on_sqlite))
        .layer(Idempotency::transactional("http.killed", store.clone()).unwrap().one_tenant());
    if told(MODE) == "recorded" { recorded(store) } else { transactional }
}

fn app_on_postgres(store: PgStore) -> Router {
    let transactional = Router::new()
        .route("/", post(pay_on_postgres))
        .layer(Idempotency::transactional("http.killed", store.clone()).unwrap().one_tenant());
    if told(MODE) == "recorded" { recorded(store) } else { transactional }
}

fn recorded<S: hapax_core::Running + Store>(store: S) -> Router {
    let layer = Idempotency::recorded("http.killed", store).unwrap().one_tenant();
    Router::new().route("/", post(pay_outside)).layer(layer.lease(Duration::from_secs(1)))
}

const PAY: &str = "UPDATE paid SET times = times + 1";

async fn pay_on_sqlite(mut tx: Tx<SqliteStore>) -> String {
    let tx: &mut SqliteTx = &mut tx;
    sqlx::query(PAY).execute(tx.conn()).await.unwrap();
    dies_in("handler");
    "paid".into()
}

async fn pay_on_postgres(mut tx: Tx<PgStore>) -> String {
    let tx: &mut PgTx = &mut tx;
    sqlx::query(PAY).execute(tx.conn()).await.unwrap();
    dies_in("handler");
    "paid".into()
}

async fn pay_outside(Extension(run): Extension<Run>) -> String {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(told(OUTSIDE)).unwrap();
    writeln!(file, "paid").unwrap();
    dies_in("handler");
    format!("taken over: {}", run.taken_over)
}

/// The database, the file outside, and the program.
struct Place {
    folder: TempDir,
    url: String,
    mode: &'static str,
}

impl Place {
    fn new(url: Option<&str>, mode: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("sqlite:{}", folder.path().join("hapax.db").display());
        Self { url: url.map_or(file, str::to_owned), folder, mode }
    }

    async fn start(&self, dies: &str) -> (Running, String) {
        let program = std::env::current_exe().unwrap();
        let subject = Subject::new(program).arg("--exact").arg("serves").arg("--nocapture");
        let subject =
            subject.env(STORE, &self.url).env(MODE, self.mode).env(DIES, dies).env(OUTSIDE, self.outside());
        let mut running = subject.start().unwrap();
        running.wait_output(";", LONG).await;
        let said = running.stdout();
        let address = said.split("serves at ").nth(1).unwrap().split(';').next().unwrap().to_owned();
        (running, address)
    }

    fn outside(&self) -> std::path::PathBuf {
        self.folder.path().join("outside")
    }

    fn effects_outside(&self) -> usize {
        std::fs::read_to_string(self.outside()).unwrap_or_default().lines().count()
    }

    /// The first request's process dies in a place; answers with what a retry at a second process gets in
    /// the end.
    async fn killed(&self, dies: &str) -> String {
        let (mut doomed, address) = self.start(dies).await;
        assert_eq!(ask(&address).await, None, "there is no answer");
        assert!(!doomed.wait_exit(LONG).await.success());
        let (_second, address) = self.start("nowhere").await;
        let mut last = String::new();
        eventually("the retry is answered", LONG, async || {
            last = ask(&address).await.unwrap();
            !last.starts_with("HTTP/1.1 409")
        })
        .await;
        assert!(last.starts_with("HTTP/1.1 200"), "{last}");
        let again = ask(&address).await.unwrap();
        assert!(again.contains("idempotency-replayed: true"), "{again}");
        last
    }
}

/// None if the connection broke before an answer.
async fn ask(address: &str) -> Option<String> {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\nidempotency-key: \"k\"\r\n\r\n";
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = connection.read_to_string(&mut answer).await; // it may be reset
    (!answer.is_empty()).then_some(answer)
}

async fn effects_in_sqlite(place: &Place) -> i64 {
    let mut database = sqlx::SqliteConnection::connect(&place.url).await.unwrap();
    sqlx::query_scalar("SELECT times FROM paid").fetch_one(&mut database).await.unwrap()
}

async fn on_sqlite(mode: &'static str) -> Place {
    let place = Place::new(None, mode);
    SqliteStore::connect(&place.url).await.unwrap().migrate().await.unwrap();
    let mut database = sqlx::SqliteConnection::connect(&place.url).await.unwrap();
    sqlx::query("CREATE TABLE paid (times INTEGER)").execute(&mut database).await.unwrap();
    sqlx::query("INSERT INTO paid VALUES (0)").execute(&mut database).await.unwrap();
    place
}

#[tokio::test]
async fn killed_in_the_handler_a_transactional_request_runs_as_the_first() {
    let place = on_sqlite("transactional").await;
    let answer = place.killed("handler").await;
    assert!(!answer.contains("idempotency-replayed"), "{answer}");
    assert_eq!(effects_in_sqlite(&place).await, 1);
}

#[tokio::test]
async fn killed_after_the_commit_a_transactional_request_is_answered_from_the_record() {
    let place = on_sqlite("transactional").await;
    let answer = place.killed("answer").await;
    assert!(answer.contains("idempotency-replayed: true") && answer.ends_with("paid"), "{answer}");
    assert_eq!(effects_in_sqlite(&place).await, 1);
}

#[tokio::test]
async fn killed_in_the_handler_a_recorded_request_runs_again_when_its_lease_has_ended_and_is_told_so() {
    let place = on_sqlite("recorded").await;
    let answer = place.killed("handler").await;
    assert!(answer.ends_with("taken over: true"), "{answer}");
    assert_eq!(place.effects_outside(), 2, "what the first run did outside stays");
}

#[tokio::test]
async fn killed_after_the_record_a_recorded_request_is_answered_from_it() {
    let place = on_sqlite("recorded").await;
    let answer = place.killed("answer").await;
    assert!(
        answer.contains("idempotency-replayed: true") && answer.ends_with("taken over: false"),
        "{answer}"
    );
    assert_eq!(place.effects_outside(), 1);
}

mod server {
    use hapax_testkit::servers::{Server, TestDatabase, require};

    use super::*;

    async fn on_postgres(mode: &'static str) -> Option<(Place, TestDatabase)> {
        if !require(Server::Postgres) {
            return None;
        }
        let database = TestDatabase::create().await.unwrap();
        PgStore::connect(database.url()).await.unwrap().migrate().await.unwrap();
        let mut connection = sqlx::PgConnection::connect(database.url()).await.unwrap();
        sqlx::query("CREATE TABLE paid (times BIGINT)").execute(&mut connection).await.unwrap();
        sqlx::query("INSERT INTO paid VALUES (0)").execute(&mut connection).await.unwrap();
        Some((Place::new(Some(database.url()), mode), database))
    }

    async fn effects(database: &TestDatabase) -> i64 {
        let mut connection = sqlx::PgConnection::connect(database.url()).await.unwrap();
        sqlx::query_scalar("SELECT times FROM paid").fetch_one(&mut connection).await.unwrap()
    }

    #[tokio::test]
    async fn killed_in_the_handler_or_after_the_commit_a_transactional_request_takes_effect_once() {
        for dies in ["handler", "answer"] {
            let Some((place, database)) = on_postgres("transactional").await else { return };
            let answer = place.killed(dies).await;
            assert_eq!(answer.contains("idempotency-replayed"), dies == "answer", "{answer}");
            assert_eq!(effects(&database).await, 1);
        }
    }

    #[tokio::test]
    async fn killed_in_the_handler_or_after_the_record_a_recorded_request_is_told_so_or_answered() {
        for (dies, effects) in [("handler", 2), ("answer", 1)] {
            let Some((place, _database)) = on_postgres("recorded").await else { return };
            let answer = place.killed(dies).await;
            assert_eq!(answer.ends_with("taken over: true"), dies == "handler", "{answer}");
            assert_eq!(place.effects_outside(), effects);
        }
    }
}
