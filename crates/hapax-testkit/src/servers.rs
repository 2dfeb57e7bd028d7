//! Servers for tests: the shared ones that run anyway, private ones that a test may stop, and a database for
//! each test.
//!
//! # Where server-backed tests live
//!
//! A test that needs a server lives in a module named `server`, at whatever depth, and starts with
//! [`require`]:
//!
//! ```no_run
//! mod server {
//!     use hapax_testkit::servers::{Server, TestDatabase, require};
//!
//!     #[tokio::test]
//!     async fn case_07_two_consumers_in_one_database() -> std::io::Result<()> {
//!         if !require(Server::Postgres) {
//!             return Ok(());
//!         }
//!         let database = TestDatabase::create().await?;
//!         // …
//!         database.remove().await
//!     }
//! }
//! ```
//!
//! So `--skip server::`, which `cargo test` and `cargo nextest run` both take after `--`, leaves the tests
//! that need nothing; `cargo xtask test --embedded` runs them. `cargo xtask test` runs all, sets
//! [`REQUIRE_SERVERS`], and with it a server that is missing fails the test instead of skipping it.

mod database;
mod kafka;
mod mariadb;
mod mongodb;
mod nats;
mod postgres;
mod rabbitmq;
mod redis;
mod sqs;

use std::{
    env, fs,
    future::Future,
    io::{self, Write},
    net::SocketAddr,
    panic::Location,
    path::PathBuf,
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use crate::local::{
    mariadb as mariadb_server, mongod, moto, nats_server, node, port, postmaster, probe, redis_server, tansu,
    url::ServerUrl,
};

pub use self::{
    database::TestDatabase,
    kafka::PrivateKafka,
    mariadb::{MariaDbDatabase, PrivateMariaDb},
    mongodb::{MongoDatabase, PrivateMongo},
    nats::PrivateNats,
    postgres::PrivatePostgres,
    rabbitmq::PrivateRabbit,
    redis::PrivateRedis,
    sqs::PrivateSqs,
};

/// If this variable is set, a server that cannot be reached fails the test that needs it.
pub const REQUIRE_SERVERS: &str = "HAPAX_REQUIRE_SERVERS";

/// The file to which each skipped test appends a line; without it the line goes to standard error.
pub const SKIPPED_TESTS: &str = "HAPAX_SKIPPED_TESTS";

/// How often [`eventually`] looks.
const POLL: Duration = Duration::from_millis(20);

/// What a test may need from the machine it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Server {
    /// The shared PostgreSQL at [`postgres_url`].
    Postgres,
    /// The shared RabbitMQ at [`rabbitmq_url`].
    RabbitMq,
    /// The shared MongoDB at [`mongodb_url`].
    MongoDb,
    /// The shared NATS with `JetStream` at [`nats_url`].
    Nats,
    /// The shared Redis at [`redis_url`].
    Redis,
    /// The shared SQS at [`sqs_url`].
    Sqs,
    /// The shared MariaDB at [`mariadb_url`].
    MariaDb,
    /// PostgreSQL's programs, from which [`PrivatePostgres`] starts a server.
    PrivatePostgres,
    /// RabbitMQ's programs, from which [`PrivateRabbit`] starts a node.
    PrivateRabbit,
    /// MongoDB's program, from which [`PrivateMongo`] starts a server.
    PrivateMongo,
    /// NATS' program, from which [`PrivateNats`] starts a server.
    PrivateNats,
    /// Redis' program, from which [`PrivateRedis`] starts a server.
    PrivateRedis,
    /// The program of moto, from which [`PrivateSqs`] starts a server.
    PrivateSqs,
    /// MariaDB's programs, from which [`PrivateMariaDb`] starts a server.
    PrivateMariaDb,
    /// The shared Kafka at [`kafka_url`].
    Kafka,
    /// A Kafka-protocol broker's program, from which [`PrivateKafka`] starts a broker.
    PrivateKafka,
}

impl Server {
    /// Why a test cannot have it, if it cannot.
    fn missing(self) -> Option<String> {
        let shared = |url: String, probe: fn(&str) -> Result<(), probe::Unready>| {
            probe(&url).err().map(|reason| format!("{}: {reason}", without_login(&url)))
        };
        let of = |program: io::Result<PathBuf>| program.err().map(|error| error.to_string());
        match self {
            Self::Postgres => shared(postgres_url(), probe::postgres),
            Self::MariaDb => shared(mariadb_url(), probe::mariadb),
            Self::MongoDb => shared(mongodb_url(), probe::mongodb),
            Self::RabbitMq => shared(rabbitmq_url(), probe::rabbitmq),
            Self::Kafka => shared(kafka_url(), probe::kafka),
            Self::Nats => shared(nats_url(), probe::nats),
            Self::Sqs => shared(sqs_url(), probe::sqs),
            Self::Redis => shared(redis_url(), probe::redis),
            Self::PrivatePostgres => of(postmaster::binaries()),
            Self::PrivateMariaDb => of(mariadb_server::program()),
            Self::PrivateMongo => of(mongod::program()),
            Self::PrivateRabbit => of(node::program()),
            Self::PrivateKafka => of(tansu::program()),
            Self::PrivateNats => of(nats_server::program()),
            Self::PrivateSqs => of(moto::program()),
            Self::PrivateRedis => of(redis_server::program()),
        }
    }
}

/// Whether a test may go on: `true` if the server is there; otherwise the test is noted as skipped (in the
/// file named by [`SKIPPED_TESTS`], else on standard error) and should return. Costs one connection, two
/// seconds at most.
///
/// # Panics
/// If the server is not there and [`REQUIRE_SERVERS`] is set: then nothing may be skipped.
#[must_use = "a test that goes on without its server fails for the wrong reason"]
#[track_caller]
pub fn require(server: Server) -> bool {
    let Some(reason) = server.missing() else { return true };
    assert!(
        env::var_os(REQUIRE_SERVERS).is_none(),
        "{server:?} is needed, but {reason}; `cargo xtask test` starts what is missing"
    );
    note_skipped(&format!("{} (no {server:?}: {reason})", test_name(Location::caller())));
    false
}

/// The test harness names a test's thread after the test; elsewhere the place in the source has to do.
fn test_name(place: &Location<'_>) -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => place.to_string(),
    }
}

fn note_skipped(line: &str) {
    let Some(file) = env::var_os(SKIPPED_TESTS) else {
        eprintln!("skipped: {line}");
        return;
    };
    // One short write in append mode, so that lines of parallel tests do not mix.
    let appended = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = appended {
        panic!("cannot note a skipped test in {}: {error}", file.display());
    }
}

/// The shared PostgreSQL: `HAPAX_TEST_POSTGRES`, or `postgres://postgres@127.0.0.1:5432/test`.
///
/// Tests leave its databases alone and make one of their own: [`TestDatabase`].
pub fn postgres_url() -> String {
    env::var("HAPAX_TEST_POSTGRES").unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".into())
}

/// The shared RabbitMQ: `HAPAX_TEST_RABBITMQ`, or `amqp://guest:guest@127.0.0.1:5672/%2f`.
///
/// Tests use queues and exchanges of their own: [`unique`].
pub fn rabbitmq_url() -> String {
    env::var("HAPAX_TEST_RABBITMQ").unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:5672/%2f".into())
}

/// The shared MongoDB: `HAPAX_TEST_MONGODB`, or `mongodb://127.0.0.1:27017/?replicaSet=rs0&directConnection=true`.
///
/// Tests use a database of their own: [`MongoDatabase`].
pub fn mongodb_url() -> String {
    let usual = "mongodb://127.0.0.1:27017/?replicaSet=rs0&directConnection=true";
    env::var("HAPAX_TEST_MONGODB").unwrap_or_else(|_| usual.into())
}

/// The shared NATS: `HAPAX_TEST_NATS`, or `nats://127.0.0.1:4222`.
///
/// Tests use streams of their own: [`unique`].
pub fn nats_url() -> String {
    env::var("HAPAX_TEST_NATS").unwrap_or_else(|_| "nats://127.0.0.1:4222".into())
}

/// The shared Redis: `HAPAX_TEST_REDIS`, or `redis://127.0.0.1:6379/0`.
///
/// Tests use keys of their own: [`unique`].
pub fn redis_url() -> String {
    env::var("HAPAX_TEST_REDIS").unwrap_or_else(|_| "redis://127.0.0.1:6379/0".into())
}

/// The shared SQS: `HAPAX_TEST_SQS`, or `sqs://127.0.0.1:4566`. It is a moto, which speaks SQS's protocol.
///
/// Tests use queues of their own: [`unique`].
pub fn sqs_url() -> String {
    env::var("HAPAX_TEST_SQS").unwrap_or_else(|_| "sqs://127.0.0.1:4566".into())
}

/// The shared MariaDB, or MySQL: `HAPAX_TEST_MARIADB`, or `mysql://root@127.0.0.1:3306/test`.
///
/// Tests leave its databases alone and make one of their own: [`MariaDbDatabase`].
pub fn mariadb_url() -> String {
    env::var("HAPAX_TEST_MARIADB").unwrap_or_else(|_| "mysql://root@127.0.0.1:3306/test".into())
}

/// The shared Kafka: `HAPAX_TEST_KAFKA`, or `kafka://127.0.0.1:9092`.
///
/// Tests use topics and groups of their own: [`unique`].
pub fn kafka_url() -> String {
    env::var("HAPAX_TEST_KAFKA").unwrap_or_else(|_| "kafka://127.0.0.1:9092".into())
}

/// The address in a server's URL, for a [`Proxy`](crate::proxy::Proxy). Fails if it is no URL,
/// or if its host is unknown.
pub fn address(url: &str) -> io::Result<SocketAddr> {
    ServerUrl::parse(url)?.address()
}

/// A name nobody else uses, in this process or another: `orders_<process>_<counter>_<random>`, lower-case if
/// `prefix` is. With a prefix of up to 30 bytes it fits PostgreSQL's 63.
pub fn unique(prefix: &str) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
    let random = port::random_bits() & 0xffff_ffff;
    format!("{prefix}_{}_{counter}_{random:08x}", process::id())
}

/// Waits until `condition` holds, looking every 20 ms.
///
/// # Panics
/// If it does not hold within `timeout`, naming `what` and the caller's line. A look that itself hangs counts
/// as not holding.
#[track_caller]
pub fn eventually<F>(what: &str, timeout: Duration, mut condition: F) -> impl Future<Output = ()>
where
    F: AsyncFnMut() -> bool,
{
    let place = Location::caller();
    async move {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if tokio::time::timeout(left, condition()).await.unwrap_or(false) {
                return;
            }
            assert!(Instant::now() < deadline, "not within {timeout:?}: {what} ({place})");
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Waits until `condition` holds, for our own servers: its error ends the wait, and so does `timeout`, as an
/// error.
async fn until(
    what: &str,
    timeout: Duration,
    mut condition: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    while !condition()? {
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not within {timeout:?}: {what}")));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Runs something that blocks, such as `initdb`, without holding up the test's other tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// A URL as it may be shown: without user and password.
fn without_login(url: &str) -> String {
    match ServerUrl::parse(url) {
        Ok(parts) => ServerUrl { login: "", ..parts }.with_path(parts.path),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Subject;

    #[test]
    fn unique_names_differ_and_fit_postgres() {
        let prefix = "a".repeat(30);
        let names: Vec<String> = (0..100).map(|_| unique(&prefix)).collect();
        assert!(names.iter().all(|name| name.len() <= 63 && name.starts_with(&prefix)));
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[tokio::test]
    async fn eventually_returns_once_the_condition_holds() {
        let mut looks = 0;
        eventually("three looks", Duration::from_secs(5), async || {
            looks += 1;
            looks == 3
        })
        .await;
        assert_eq!(looks, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "pigs fly (")]
    async fn eventually_gives_up_at_the_deadline_and_says_on_what() {
        eventually("pigs fly", Duration::from_millis(50), async || std::future::pending().await).await;
    }

    const PROBED: &str = "servers::tests::needs_a_server_that_is_not_there";

    /// Does nothing by itself; the tests below run it in a process whose shared server is away.
    #[test]
    fn needs_a_server_that_is_not_there() {
        if env::var_os("HAPAX_TESTKIT_PROBED").is_some() {
            assert!(!require(Server::Postgres));
        }
    }

    fn probed() -> io::Result<Subject> {
        let nowhere = format!("postgres://postgres@{}/test", port::free_address()?);
        let subject = Subject::new(env::current_exe()?).arg("--exact").arg(PROBED).arg("--nocapture");
        Ok(subject.env("HAPAX_TESTKIT_PROBED", "1").env("HAPAX_TEST_POSTGRES", nowhere))
    }

    #[tokio::test]
    async fn a_test_whose_server_is_away_is_noted_as_skipped() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let notes = folder.path().join("skipped");
        let mut run = probed()?.env_remove(REQUIRE_SERVERS).env(SKIPPED_TESTS, &notes).start()?;
        assert!(run.wait_exit(Duration::from_secs(10)).await.success(), "{run}");
        let notes = fs::read_to_string(notes)?;
        assert!(notes.contains("no Postgres: postgres://127.0.0.1") && notes.lines().count() == 1, "{notes}");
        Ok(())
    }

    #[tokio::test]
    async fn where_servers_are_required_a_missing_one_fails_the_test() -> io::Result<()> {
        let mut run = probed()?.env(REQUIRE_SERVERS, "1").start()?;
        assert!(!run.wait_exit(Duration::from_secs(10)).await.success(), "{run}");
        assert!(run.stderr().contains("Postgres is needed, but"), "{run}");
        Ok(())
    }

    #[test]
    fn a_shown_url_has_no_password() {
        assert_eq!(without_login("amqp://me:secret@broker/%2f"), "amqp://broker/%2f");
    }
}
