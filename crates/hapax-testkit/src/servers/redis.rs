//! A Redis that one test has to itself, and may stop.

use std::{io, net::SocketAddr, time::Duration};

use tempfile::TempDir;

use super::until;
use crate::local::{child::Signal, port, redis_server::RedisServer};

/// A start takes a fraction of a second; a busy machine takes its time.
const STARTING: Duration = Duration::from_mins(1);
const ENDING: Duration = Duration::from_secs(30);

/// A Redis server on its own port and data folder, which writes each command to its log before it answers.
///
/// It lets everybody in, on loopback. Dropping it kills the server and removes the folder; if the test process is
/// killed, a guard does that. Needs `redis-server` on this machine ([`Server::PrivateRedis`](super::Server::PrivateRedis)).
#[derive(Debug)]
pub struct PrivateRedis {
    // Before the folder, so that the server has ended when the folder goes.
    server: RedisServer,
    _folder: TempDir,
}

impl PrivateRedis {
    /// Creates and starts a server, and waits until it serves clients. Fails with the end of its output.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same with settings of its own, such as `("maxmemory", "2mb")`; they hold after a restart, too.
    pub async fn start_with(settings: &[(&str, &str)]) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("hapax-redis-").tempdir()?;
        let server = RedisServer::create(folder.path(), port::free_address()?, settings)?;
        let mut private = Self { server, _folder: folder };
        private.start_again().await?;
        Ok(private)
    }

    /// Where to connect.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Its address, the same after a restart.
    pub fn addr(&self) -> SocketAddr {
        self.server.address()
    }

    /// Kills it: clients see their connections break. Returns when it has ended; at once if it was not running.
    pub async fn stop(&mut self) -> io::Result<()> {
        self.server.daemon().signal(Signal::Kill)?;
        until("Redis ends", ENDING, || Ok(!self.server.daemon().is_running()?)).await
    }

    /// Starts it after a stop, with the same address and data, and waits until it serves clients. Fails if it
    /// is running.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.server.start()?;
        until("Redis answers", STARTING, || self.server.is_ready()).await
    }
}
