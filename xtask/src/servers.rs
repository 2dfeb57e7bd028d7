//! The shared servers of the test run: those that answer already, or else our own for as long as the run
//! lasts.
//!
//! The machine's own servers are used, never changed: no configuration is touched and nothing is left
//! running, except containers, which `docker compose down` removes.

use std::{
    env, fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{self, Command},
    thread,
    time::{Duration, Instant},
};

use crate::{
    failure::{Context, Failure, Result},
    local::{
        mongod::{Mongod, REPLICA_SET},
        node::Node,
        port,
        postmaster::{Postmaster, ROLE},
        probe::{self, Unready},
        tansu::Tansu,
        url::ServerUrl,
    },
    steps,
};

/// The variables that name the servers, to us and to the tests.
const POSTGRES: &str = "HAPAX_TEST_POSTGRES";
const RABBITMQ: &str = "HAPAX_TEST_RABBITMQ";
const MONGODB: &str = "HAPAX_TEST_MONGODB";
const KAFKA: &str = "HAPAX_TEST_KAFKA";

/// What the tests use if nothing is said.
const POSTGRES_PORT: u16 = 5432;
const RABBITMQ_PORT: u16 = 5672;
const MONGODB_PORT: u16 = 27017;
const KAFKA_PORT: u16 = 9092;
const DATABASE: &str = "test";

/// How long a server may take to answer. RabbitMQ needs 10 seconds of an idle machine.
const STARTING: Duration = Duration::from_mins(2);

/// The servers of a run, and where they are. Dropping it ends those that it started.
pub(crate) struct Servers {
    postgres: String,
    rabbitmq: String,
    mongodb: String,
    kafka: String,
    _own: Ours,
}

/// Those that this run started.
type Ours = (Option<Own<Postmaster>>, Option<Own<Node>>, Option<Own<Mongod>>, Option<Own<Tansu>>);

/// A server of ours, and where it keeps its files.
struct Own<T> {
    // Before the folder, so that the server has ended when the folder goes.
    server: T,
    _folder: Folder,
}

impl Servers {
    /// Finds or starts each server and waits until it answers.
    pub(crate) fn ensure() -> Result<Self> {
        let (postgres, own_postgres) = ensure_postgres()?;
        let (rabbitmq, own_rabbitmq) = ensure_rabbitmq()?;
        let (mongodb, own_mongodb) = ensure_mongodb()?;
        let (kafka, own_kafka) = ensure_kafka()?;
        let own = (own_postgres, own_rabbitmq, own_mongodb, own_kafka);
        Ok(Self { postgres, rabbitmq, mongodb, kafka, _own: own })
    }

    /// Tells the example `bank` where they are.
    pub(crate) fn name_to_bank<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("HAPAX_BANK_POSTGRES", &self.postgres)
            .env("HAPAX_BANK_RABBITMQ", &self.rabbitmq)
            .env("HAPAX_BANK_MONGODB", &self.mongodb)
    }

    /// Tells a test run where they are.
    pub(crate) fn name_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env(POSTGRES, &self.postgres)
            .env(RABBITMQ, &self.rabbitmq)
            .env(MONGODB, &self.mongodb)
            .env(KAFKA, &self.kafka)
    }
}

fn ensure_postgres() -> Result<(String, Option<Own<Postmaster>>)> {
    let usual = format!("postgres://{ROLE}@{}/{DATABASE}", local(POSTGRES_PORT));
    let (url, named) = named_or(POSTGRES, usual);
    let reason = match probe::postgres(&url) {
        Ok(()) => return Ok((found("PostgreSQL", url), None)),
        Err(Unready::NoDatabase) if !named => {
            create_database(&url)?;
            return Ok((found("PostgreSQL", url), None));
        }
        Err(reason) => reason,
    };
    if named {
        return Err(Failure::new(format!("the PostgreSQL that {POSTGRES} names cannot be used: {reason}")));
    }
    if compose("postgres", POSTGRES_PORT)? {
        return Ok((url, None));
    }
    let own = start_postgres().context("starting PostgreSQL")?;
    let url = own.server.url(DATABASE);
    create_database(&url)?;
    Ok((url, Some(own)))
}

fn ensure_rabbitmq() -> Result<(String, Option<Own<Node>>)> {
    let usual = format!("amqp://guest:guest@{}/%2f", local(RABBITMQ_PORT));
    let (url, named) = named_or(RABBITMQ, usual);
    let reason = match probe::rabbitmq(&url) {
        Ok(()) => return Ok((found("RabbitMQ", url), None)),
        Err(reason) => reason,
    };
    if named {
        return Err(Failure::new(format!("the RabbitMQ that {RABBITMQ} names cannot be used: {reason}")));
    }
    if compose("rabbitmq", RABBITMQ_PORT)? {
        return Ok((url, None));
    }
    let own = start_rabbitmq().context("starting RabbitMQ")?;
    Ok((own.server.url(), Some(own)))
}

fn ensure_mongodb() -> Result<(String, Option<Own<Mongod>>)> {
    let usual = format!("mongodb://{}/?replicaSet={REPLICA_SET}&directConnection=true", local(MONGODB_PORT));
    let (url, named) = named_or(MONGODB, usual);
    let reason = match probe::mongodb(&url) {
        Ok(()) => return Ok((found("MongoDB", url), None)),
        Err(reason) => reason,
    };
    if named {
        return Err(Failure::new(format!("the MongoDB that {MONGODB} names cannot be used: {reason}")));
    }
    if compose("mongodb", MONGODB_PORT)? {
        return Ok((url, None));
    }
    let own = start_mongodb().context("starting MongoDB")?;
    Ok((own.server.url(""), Some(own)))
}

fn ensure_kafka() -> Result<(String, Option<Own<Tansu>>)> {
    let (url, named) = named_or(KAFKA, format!("kafka://{}", local(KAFKA_PORT)));
    let reason = match probe::kafka(&url) {
        Ok(()) => return Ok((found("Kafka", url), None)),
        Err(reason) => reason,
    };
    if named {
        return Err(Failure::new(format!("the Kafka that {KAFKA} names cannot be used: {reason}")));
    }
    if compose("kafka", KAFKA_PORT)? {
        return Ok((url, None));
    }
    let own = start_kafka().context("starting Kafka")?;
    Ok((own.server.url(), Some(own)))
}

fn start_postgres() -> io::Result<Own<Postmaster>> {
    let folder = Folder::create("postgres")?;
    let mut server = Postmaster::create(&folder.0, address(POSTGRES_PORT)?, &[("max_connections", "200")])?;
    eprintln!("PostgreSQL: starting one at {} for this run", server.address());
    server.start()?;
    until_ready("PostgreSQL", || server.is_ready())?;
    Ok(Own { server, _folder: folder })
}

fn start_rabbitmq() -> io::Result<Own<Node>> {
    let folder = Folder::create("rabbitmq")?;
    let name = format!("hapax_tests_{}", process::id());
    let mut node = Node::create(&folder.0, &name, address(RABBITMQ_PORT)?, &[])?;
    eprintln!("RabbitMQ: starting one at {} for this run, which takes a while", node.address());
    node.start()?;
    until_ready("RabbitMQ", || node.is_ready())?;
    Ok(Own { server: node, _folder: folder })
}

fn start_mongodb() -> io::Result<Own<Mongod>> {
    let folder = Folder::create("mongodb")?;
    let mut server = Mongod::create(&folder.0, address(MONGODB_PORT)?, &[])?;
    eprintln!("MongoDB: starting one at {} for this run", server.address());
    server.start()?;
    until_ready("MongoDB", || server.is_ready())?;
    Ok(Own { server, _folder: folder })
}

fn start_kafka() -> io::Result<Own<Tansu>> {
    let folder = Folder::create("kafka")?;
    let address = address(KAFKA_PORT)?;
    let mut server = Tansu::create(&folder.0, address, address)?;
    eprintln!("Kafka: starting one at {} for this run", server.address());
    server.start()?;
    until_ready("Kafka", || server.is_ready())?;
    Ok(Own { server, _folder: folder })
}

/// Starts a service of `compose.yaml` if a container engine answers and the port is not taken.
fn compose(service: &str, port: u16) -> Result<bool> {
    let engine = steps::succeeds(Command::new("docker").arg("info"))
        && steps::succeeds(Command::new("docker").args(["compose", "version"]));
    if !engine || !port::is_free(local(port)) {
        return Ok(false);
    }
    let mut up = Command::new("docker");
    up.current_dir(steps::root()).args(["compose", "up", "--detach", "--wait", service]);
    steps::run(service, &mut up)?;
    Ok(true)
}

/// Creates the database that `url` names, through the one that every server has.
fn create_database(url: &str) -> Result {
    let parts = ServerUrl::parse(url)?;
    let statement = format!("CREATE DATABASE {}", parts.path);
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--no-password", "--command", &statement, "--dbname"]);
    steps::read(psql.arg(parts.with_path("postgres"))).map(drop)
}

/// The usual port, or another one if that is taken by something we cannot use.
fn address(port: u16) -> io::Result<SocketAddr> {
    if port::is_free(local(port)) { Ok(local(port)) } else { port::free_address() }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The URL in a variable, and whether it was there.
fn named_or(variable: &str, usual: String) -> (String, bool) {
    env::var(variable).map_or((usual, false), |url| (url, true))
}

fn found(server: &str, url: String) -> String {
    eprintln!("{server}: using the one that is running");
    url
}

fn until_ready(server: &str, mut ready: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let deadline = Instant::now() + STARTING;
    while !ready()? {
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{server} does not answer")));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Where a server of ours keeps its files: outside the repository, whose folders its user may not be let
/// into.
struct Folder(PathBuf);

impl Folder {
    fn create(server: &str) -> io::Result<Self> {
        let name = format!("hapax-{server}-{}-{:x}", process::id(), port::random_bits());
        let folder = env::temp_dir().join(name);
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays behind: {error}", self.0.display());
        }
    }
}
