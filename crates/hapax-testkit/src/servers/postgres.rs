//! A PostgreSQL that one test has to itself, and may stop.

use std::{io, net::SocketAddr, time::Duration};

use tempfile::TempDir;

use super::{blocking, until};
use crate::local::{child::Signal, port, postmaster::Postmaster};

/// How long a start may take: after a crash on a slow disk, recovery comes first.
const STARTING: Duration = Duration::from_mins(1);

/// An immediate shutdown takes milliseconds; an orderly one writes a checkpoint.
const ENDING: Duration = Duration::from_secs(30);

/// A PostgreSQL server on its own port and data folder, with `fsync` on.
///
/// It lets everybody in, on loopback. Dropping it ends the server and removes the folder; if the test process
/// is killed, a guard does that. Needs PostgreSQL's server programs on this machine
/// ([`Server::PrivatePostgres`]); as root, the server runs as the user `postgres`.
///
/// [`Server::PrivatePostgres`]: super::Server::PrivatePostgres
#[derive(Debug)]
pub struct PrivatePostgres {
    // Before the folder, so that the server has ended when the folder goes.
    server: Postmaster,
    _folder: TempDir,
}

impl PrivatePostgres {
    /// Creates and starts a server, and waits until it lets clients in: some 2 seconds. Fails with the end of
    /// the server's log.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same with settings of one's own, such as `("max_connections", "10")`; they hold after a restart,
    /// too.
    pub async fn start_with(settings: &[(&str, &str)]) -> io::Result<Self> {
        let settings: Vec<_> =
            settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut private = blocking(move || Self::create(&settings)).await?;
        private.start_again().await?;
        Ok(private)
    }

    fn create(settings: &[(String, String)]) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("hapax-postgres-").tempdir()?;
        let settings: Vec<_> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let server = Postmaster::create(folder.path(), port::free_address()?, &settings)?;
        Ok(Self { server, _folder: folder })
    }

    /// Where to connect for `database`; `postgres` is always there.
    pub fn url(&self, database: &str) -> String {
        self.server.url(database)
    }

    /// Its address, the same after a restart.
    pub fn addr(&self) -> SocketAddr {
        self.server.address()
    }

    /// Stops it at once, as a crash would: open transactions are lost, clients see their connections break,
    /// and the next start recovers from the log. Returns when it has ended; at once if it was not running.
    pub async fn stop(&mut self) -> io::Result<()> {
        self.end(Signal::Quit).await
    }

    /// Stops it as an operator would who waits for nobody ("fast"): open transactions are rolled back,
    /// clients are told.
    pub async fn stop_orderly(&mut self) -> io::Result<()> {
        self.end(Signal::Interrupt).await
    }

    /// Starts it after a stop, at the same address, and waits until it lets clients in. Fails if it is
    /// running.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.server.start()?;
        until("PostgreSQL answers", STARTING, || self.server.is_ready()).await
    }

    async fn end(&mut self, signal: Signal) -> io::Result<()> {
        self.server.daemon().signal(signal)?;
        until("PostgreSQL ends", ENDING, || Ok(!self.server.daemon().is_running()?)).await
    }
}

#[cfg(test)]
mod tests {
    mod server {
        use super::super::*;
        use crate::{
            local::{port::is_free, probe},
            servers::{Server, TestDatabase, require},
        };

        #[tokio::test]
        async fn a_private_server_keeps_what_was_committed_over_stops_of_both_kinds() -> io::Result<()> {
            if !require(Server::PrivatePostgres) {
                return Ok(());
            }
            let mut server = PrivatePostgres::start_with(&[("max_connections", "10")]).await?;
            let database = TestDatabase::create_on(&server.url("postgres")).await?;

            server.stop().await?;
            assert!(is_free(server.addr()), "nobody listens");
            assert!(probe::postgres(database.url()).is_err());
            server.stop().await?;
            server.start_again().await?;
            probe::postgres(database.url()).unwrap();
            assert!(server.start_again().await.is_err(), "it is running");

            server.stop_orderly().await?;
            server.start_again().await?;
            probe::postgres(database.url()).unwrap();

            database.remove().await
        }

        #[tokio::test]
        async fn a_setting_that_postgres_refuses_is_reported_with_its_words() -> io::Result<()> {
            if !require(Server::PrivatePostgres) {
                return Ok(());
            }
            let error = PrivatePostgres::start_with(&[("no_such_setting", "1")]).await.unwrap_err();
            assert!(error.to_string().contains("no_such_setting"), "{error}");
            Ok(())
        }

        #[tokio::test]
        async fn dropping_it_leaves_neither_server_nor_folder() -> io::Result<()> {
            if !require(Server::PrivatePostgres) {
                return Ok(());
            }
            let mut private = PrivatePostgres::start().await?;
            let (address, folder) = (private.addr(), private.server.daemon().folder().to_owned());
            drop(private);
            assert!(is_free(address) && !folder.exists());
            Ok(())
        }
    }
}
