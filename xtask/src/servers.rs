//! The shared servers of the test run: those that answer already, or else our own for as long as the run
//! lasts.
//!
//! The machine's own servers are used, never changed: no configuration is touched and nothing is left
//! running, except containers, which `docker compose down` removes.

mod shared;

use std::{
    any::Any,
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
        mariadb::MariaDb, mongod::Mongod, moto::Moto, nats_server::NatsServer, node::Node, port,
        postmaster::Postmaster, probe::Unready, redis_server::RedisServer, tansu::Tansu, url::ServerUrl,
    },
    steps,
};
use shared::Shared;

/// How long a server may take to answer. RabbitMQ needs 10 seconds of an idle machine.
const STARTING: Duration = Duration::from_mins(2);

/// The servers of a run, and where they are. Dropping it ends those that it started.
pub(crate) struct Servers(Vec<Found>);

/// Where a server is.
struct Found {
    /// The variable that names it, to us and to the tests.
    variable: &'static str,
    url: String,
    _own: Option<Box<dyn Any>>,
}

/// A server of ours, and where it keeps its files.
struct Own<T> {
    // Before the folder, so that the server has ended when the folder goes.
    server: T,
    _folder: Folder,
}

impl Servers {
    /// Finds or starts each server and waits until it answers.
    pub(crate) fn ensure() -> Result<Self> {
        Ok(Self(vec![
            ensure::<Postmaster>()?,
            ensure::<Node>()?,
            ensure::<MariaDb>()?,
            ensure::<Mongod>()?,
            ensure::<Tansu>()?,
            ensure::<NatsServer>()?,
            ensure::<Moto>()?,
            ensure::<RedisServer>()?,
        ]))
    }

    /// Tells the example `bank` where they are.
    pub(crate) fn name_to_bank<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.0.iter().map(|found| (found.variable.replace("_TEST_", "_BANK_"), &found.url)))
    }

    /// Tells a test run where they are.
    pub(crate) fn name_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.0.iter().map(|found| (found.variable, &found.url)))
    }
}

fn ensure<S: Shared>() -> Result<Found> {
    let usual = S::usual_url(local(S::PORT));
    let (url, named) = env::var(S::VARIABLE).map_or((usual, false), |url| (url, true));
    let at = |url, own| Ok(Found { variable: S::VARIABLE, url, _own: own });
    let reason = match S::probe(&url) {
        Ok(()) => {
            eprintln!("{}: using the one that is running", S::NAME);
            return at(url, None);
        }
        Err(Unready::NoDatabase) if !named => {
            create_database(&url)?;
            return at(url, None);
        }
        Err(reason) => reason,
    };
    if named {
        return Err(Failure::new(format!(
            "the {} that {} names cannot be used: {reason}",
            S::NAME,
            S::VARIABLE
        )));
    }
    if compose(S::SERVICE, S::PORT)? {
        return at(url, None);
    }
    let own = start::<S>().context(&format!("starting {}", S::NAME))?;
    let url = own.server.test_url();
    if let Err(Unready::NoDatabase) = S::probe(&url) {
        create_database(&url)?;
    }
    at(url, Some(Box::new(own)))
}

fn start<S: Shared>() -> io::Result<Own<S>> {
    let folder = Folder::create(S::SERVICE)?;
    let address = address(S::PORT)?;
    eprintln!("{}: starting one at {address} for this run", S::NAME);
    let mut server = S::create_at(&folder.0, address)?;
    server.start_it()?;
    until_ready(S::NAME, || server.is_up())?;
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
