//! A NATS that one test has to itself, and may stop.

use std::{io, net::SocketAddr, time::Duration};

use tempfile::TempDir;

use super::until;
use crate::local::{child::Signal, nats_server::NatsServer, port};

/// A start takes a fraction of a second; a busy machine takes its time.
const STARTING: Duration = Duration::from_mins(1);
const ENDING: Duration = Duration::from_secs(30);

/// A NATS server with `JetStream` on its own port and data folder.
///
/// It lets everybody in, on loopback. Dropping it kills the server and removes the folder; if the test process is
/// killed, a guard does that. Needs `nats-server` on this machine ([`Server::PrivateNats`](super::Server::PrivateNats)).
#[derive(Debug)]
pub struct PrivateNats {
    // Before the folder, so that the server has ended when the folder goes.
    server: NatsServer,
    _folder: TempDir,
}

impl PrivateNats {
    /// Creates and starts a server, and waits until it serves clients. Fails with the end of its output.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same with lines of its configuration, such as `max_payload: 8MB`; they hold after a restart, too.
    pub async fn start_with(settings: &[&str]) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("hapax-nats-").tempdir()?;
        let server = NatsServer::create(folder.path(), port::free_address()?, settings)?;
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
        until("NATS ends", ENDING, || Ok(!self.server.daemon().is_running()?)).await
    }

    /// Starts it after a stop, with the same address and data, and waits until it serves clients. Fails if it
    /// is running.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.server.start()?;
        until("NATS answers", STARTING, || self.server.is_ready()).await
    }
}
