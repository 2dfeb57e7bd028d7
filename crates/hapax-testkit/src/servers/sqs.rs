//! An SQS that one test has to itself.

use std::{io, net::SocketAddr, time::Duration};

use tempfile::TempDir;

use super::until;
use crate::local::{child::Signal, moto::Moto, port};

/// Python reads many files first.
const STARTING: Duration = Duration::from_mins(1);
const ENDING: Duration = Duration::from_secs(30);

/// A moto on a port of its own, which keeps its queues in memory: a stop loses them.
///
/// Dropping it ends the server; if the test process is killed, a guard does that. Needs `moto_server` on this machine
/// ([`Server::PrivateSqs`](super::Server::PrivateSqs)).
#[derive(Debug)]
pub struct PrivateSqs {
    // Before the folder, so that the server has ended when the folder goes.
    server: Moto,
    _folder: TempDir,
}

impl PrivateSqs {
    /// Starts a server that lets everybody in, and waits until it answers: some 2 seconds. Fails with the end of its
    /// output.
    pub async fn start() -> io::Result<Self> {
        let folder = folder()?;
        let server = Moto::create(folder.path(), port::free_address()?)?;
        Self::started(server, folder).await
    }

    /// A server that lets nobody in, whatever the credentials.
    pub async fn start_closed() -> io::Result<Self> {
        let folder = folder()?;
        let server = Moto::create(folder.path(), port::free_address()?)?.checking_credentials();
        Self::started(server, folder).await
    }

    async fn started(server: Moto, folder: TempDir) -> io::Result<Self> {
        let mut private = Self { server, _folder: folder };
        private.start_again().await?;
        Ok(private)
    }

    /// Where to connect: `sqs://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Its address, the same after a restart.
    pub fn addr(&self) -> SocketAddr {
        self.server.address()
    }

    /// Kills it, and its queues with it. Returns when it has ended; at once if it was not running.
    pub async fn stop(&mut self) -> io::Result<()> {
        self.server.daemon().signal(Signal::Kill)?;
        until("moto ends", ENDING, || Ok(!self.server.daemon().is_running()?)).await
    }

    /// Starts it after a stop, at the same address and without queues, and waits until it answers. Fails if it is
    /// running.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.server.start()?;
        until("moto answers", STARTING, || self.server.is_ready()).await
    }
}

fn folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("hapax-moto-").tempdir()
}

#[cfg(test)]
mod tests {
    mod server {
        use super::super::*;
        use crate::{
            local::{port::is_free, probe},
            servers::{Server, require},
        };

        #[tokio::test]
        async fn a_private_sqs_stops_and_comes_back() -> io::Result<()> {
            if !require(Server::PrivateSqs) {
                return Ok(());
            }
            let mut private = PrivateSqs::start().await?;
            private.stop().await?;
            assert!(is_free(private.addr()), "nobody listens");
            assert!(probe::sqs(&private.url()).is_err());
            private.start_again().await?;
            probe::sqs(&private.url()).unwrap();
            assert!(private.start_again().await.is_err(), "it is running");
            Ok(())
        }
    }
}
