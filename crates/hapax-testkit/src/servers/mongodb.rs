//! A MongoDB that one test has to itself, and may stop; and a database of the shared one.

use std::{io, net::SocketAddr, time::Duration};

use tempfile::TempDir;

use super::{mongodb_url, unique, until};
use crate::local::{
    child::Signal,
    mongod::Mongod,
    op_msg::{Bson, command},
    port,
    url::ServerUrl,
};

/// How long a start may take: after a crash on a slow disk, recovery comes first, and then an election.
const STARTING: Duration = Duration::from_mins(1);
const ENDING: Duration = Duration::from_secs(30);

/// A database of its own on a server: a name that nobody else has, since MongoDB makes a database with what is
/// first written to it.
///
/// Dropping the value drops the database.
#[derive(Debug)]
pub struct MongoDatabase {
    server: SocketAddr,
    name: String,
    url: String,
}

impl MongoDatabase {
    /// A database on the shared server at [`mongodb_url`]. Fails if that is no URL of one server.
    pub fn create() -> io::Result<Self> {
        Self::create_on(&mongodb_url())
    }

    /// A database on the server at `url`.
    pub fn create_on(url: &str) -> io::Result<Self> {
        let parts = ServerUrl::parse(url)?;
        let name = unique("hapax_test");
        Ok(Self { server: parts.address()?, url: parts.with_path(&name), name })
    }

    /// Where to connect.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for MongoDatabase {
    fn drop(&mut self) {
        // A server that the test has stopped for good takes the database with it.
        if let Err(error) = command(self.server, &self.name, Bson::default().int("dropDatabase", 1)) {
            eprintln!("database {} stays behind: {error}", self.name);
        }
    }
}

/// A MongoDB server on its own port and data folder, a replica set of one, with its journal on.
///
/// It lets everybody in, on loopback. Dropping it ends the server and removes the folder; if the test process is
/// killed, a guard does that. Needs `mongod` on this machine ([`Server::PrivateMongo`](super::Server::PrivateMongo)).
#[derive(Debug)]
pub struct PrivateMongo {
    // Before the folder, so that the server has ended when the folder goes.
    server: Mongod,
    _folder: TempDir,
}

impl PrivateMongo {
    /// Creates and starts a server, and waits until it is a primary: some 2 seconds. Fails with the end of the
    /// server's log.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same with server parameters of one's own, such as `("transactionLifetimeLimitSeconds", "1")`; they hold
    /// after a restart, too.
    pub async fn start_with(settings: &[(&str, &str)]) -> io::Result<Self> {
        let folder = folder()?;
        let server = Mongod::create(folder.path(), port::free_address()?, settings)?;
        Self::started(server, folder).await
    }

    /// A server without a replica set, and so without transactions.
    pub async fn start_alone() -> io::Result<Self> {
        let folder = folder()?;
        let server = Mongod::create(folder.path(), port::free_address()?, &[])?.alone();
        Self::started(server, folder).await
    }

    async fn started(server: Mongod, folder: TempDir) -> io::Result<Self> {
        let mut private = Self { server, _folder: folder };
        private.start_again().await?;
        Ok(private)
    }

    /// Where to connect for `database`, which is made with what is first written to it.
    pub fn url(&self, database: &str) -> String {
        self.server.url(database)
    }

    /// Its address, the same after a restart.
    pub fn addr(&self) -> SocketAddr {
        self.server.address()
    }

    /// Kills it: open transactions are lost, clients see their connections break, and the next start recovers from
    /// the journal. Returns when it has ended; at once if it was not running.
    pub async fn stop(&mut self) -> io::Result<()> {
        self.end(Signal::Kill).await
    }

    /// Stops it as an operator would: it gives up its role, and clients are told.
    pub async fn stop_orderly(&mut self) -> io::Result<()> {
        self.end(Signal::Term).await
    }

    /// Starts it after a stop, at the same address, and waits until it is a primary. Fails if it is running.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.server.start()?;
        until("MongoDB is a primary", STARTING, || self.server.is_ready()).await
    }

    async fn end(&mut self, signal: Signal) -> io::Result<()> {
        self.server.daemon().signal(signal)?;
        until("MongoDB ends", ENDING, || Ok(!self.server.daemon().is_running()?)).await
    }
}

fn folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("hapax-mongodb-").tempdir()
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
        async fn a_private_server_is_a_primary_again_after_stops_of_both_kinds() -> io::Result<()> {
            if !require(Server::PrivateMongo) {
                return Ok(());
            }
            let mut server = PrivateMongo::start().await?;
            probe::mongodb(&server.url("test")).unwrap();

            server.stop().await?;
            assert!(is_free(server.addr()), "nobody listens");
            assert!(probe::mongodb(&server.url("test")).is_err());
            server.start_again().await?;
            assert!(server.start_again().await.is_err(), "it is running");

            server.stop_orderly().await?;
            server.start_again().await?;
            probe::mongodb(&server.url("test")).unwrap();
            Ok(())
        }

        #[tokio::test]
        async fn a_private_server_without_a_replica_set_does_not_count_as_ready() -> io::Result<()> {
            if !require(Server::PrivateMongo) {
                return Ok(());
            }
            let server = PrivateMongo::start_alone().await?;
            assert!(probe::mongodb(&server.url("test")).is_err());
            Ok(())
        }

        #[tokio::test]
        async fn a_database_is_dropped_and_a_command_that_is_refused_says_why() -> io::Result<()> {
            if !require(Server::MongoDb) {
                return Ok(());
            }
            let database = MongoDatabase::create()?;
            assert!(database.url().contains(database.name()));
            let (server, name) = (database.server, database.name().to_owned());
            let insert =
                Bson::default().text("insert", "orders").only("documents", &Bson::default().int("_id", 1));
            command(server, &name, insert)?;
            let create = || command(server, &name, Bson::default().text("create", "orders"));
            assert!(create().is_err(), "the collection is there");
            drop(database);
            create()?;
            drop(MongoDatabase { server, name: name.clone(), url: String::new() });
            let error = command(server, &name, Bson::default().int("noSuchCommand", 1)).unwrap_err();
            assert!(error.to_string().contains("noSuchCommand"), "{error}");
            Ok(())
        }
    }
}
