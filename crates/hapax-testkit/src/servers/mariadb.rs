//! A MariaDB that one test has to itself, and may stop; and a database of the shared one.

use std::{
    io,
    net::SocketAddr,
    process::{Command, Output, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::{blocking, mariadb_url, unique, until};
use crate::local::{child::Signal, mariadb::MariaDb, port, url::ServerUrl};

/// How long a start may take: after a crash on a slow disk, recovery comes first.
const STARTING: Duration = Duration::from_mins(1);
const ENDING: Duration = Duration::from_secs(30);

/// An empty database of its own on a server, made and dropped with MariaDB's client, so that this crate needs no
/// driver.
///
/// Dropping the value drops the database, ending the sessions that use it; [`MariaDbDatabase::remove`] does the same
/// and tells of failure.
#[derive(Debug)]
pub struct MariaDbDatabase {
    server: String,
    name: String,
    url: String,
    removed: bool,
}

impl MariaDbDatabase {
    /// Creates a database on the shared server at [`mariadb_url`]. Fails if the client is not installed or the server
    /// refuses.
    pub async fn create() -> io::Result<Self> {
        Self::create_on(&mariadb_url()).await
    }

    /// Creates a database on the server at `url`.
    pub async fn create_on(url: &str) -> io::Result<Self> {
        let server = url.to_owned();
        let name = unique("hapax_test");
        let url = ServerUrl::parse(url)?.with_path(&name);
        blocking(move || {
            client(&server, &format!("CREATE DATABASE {name} CHARACTER SET utf8mb4"))?;
            Ok(Self { server, name, url, removed: false })
        })
        .await
    }

    /// Where to connect.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Drops the database, ending the sessions that use it.
    pub async fn remove(mut self) -> io::Result<()> {
        self.removed = true;
        let (server, name) = (self.server.clone(), self.name.clone());
        blocking(move || drop_database(&server, &name)).await
    }
}

impl Drop for MariaDbDatabase {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        // A server that the test has stopped for good takes the database with it.
        if let Err(error) = drop_database(&self.server, &self.name) {
            eprintln!("database {} stays behind: {error}", self.name);
        }
    }
}

/// A session that holds a table's lock would hold up the end of the database.
fn drop_database(url: &str, name: &str) -> io::Result<()> {
    let sessions = format!("SELECT id FROM information_schema.processlist WHERE db = '{name}'");
    for id in client(url, &sessions)?.lines() {
        let _ = client(url, &format!("KILL {id}")); // it may have ended meanwhile
    }
    client(url, &format!("DROP DATABASE IF EXISTS {name}")).map(drop)
}

/// Runs a statement, without anybody's configuration, and answers with its rows.
fn client(url: &str, statement: &str) -> io::Result<String> {
    let parts = ServerUrl::parse(url)?;
    let address = parts.address()?;
    let password = parts.login.split_once(':').map_or("", |(_, password)| password);
    let Output { status, stdout, stderr } = Command::new("mariadb")
        .args(["--no-defaults", "--protocol=tcp", "--batch", "--skip-column-names"])
        .args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()])
        .args(["--user", parts.user(), "--execute", statement])
        .env("MYSQL_PWD", password)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot run mariadb: {error}")))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    Err(io::Error::other(format!("mariadb failed: {}", String::from_utf8_lossy(&stderr).trim())))
}

/// A MariaDB server on its own port and data folder, with `innodb_flush_log_at_trx_commit = 1`.
///
/// It lets everybody in, on loopback. Dropping it ends the server and removes the folder; if the test process is
/// killed, a guard does that. Needs MariaDB's server programs on this machine
/// ([`Server::PrivateMariaDb`](super::Server::PrivateMariaDb)).
#[derive(Debug)]
pub struct PrivateMariaDb {
    // Before the folder, so that the server has ended when the folder goes.
    server: MariaDb,
    _folder: TempDir,
}

impl PrivateMariaDb {
    /// Creates and starts a server, and waits until it lets clients in: some 4 seconds. Fails with the end of the
    /// server's log.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same with settings of one's own, such as `("max-allowed-packet", "1M")`; they hold after a restart, too.
    pub async fn start_with(settings: &[(&str, &str)]) -> io::Result<Self> {
        let settings: Vec<_> =
            settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut private = blocking(move || Self::create(&settings)).await?;
        private.start_again().await?;
        Ok(private)
    }

    fn create(settings: &[(String, String)]) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("hapax-mariadb-").tempdir()?;
        let settings: Vec<_> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let server = MariaDb::create(folder.path(), port::free_address()?, &settings)?;
        Ok(Self { server, _folder: folder })
    }

    /// Where to connect for `database`; `test` is always there.
    pub fn url(&self, database: &str) -> String {
        self.server.url(database)
    }

    /// Its address, the same after a restart.
    pub fn addr(&self) -> SocketAddr {
        self.server.address()
    }

    /// Kills it: open transactions are lost, clients see their connections break, and the next start recovers from
    /// the log. Returns when it has ended; at once if it was not running.
    pub async fn stop(&mut self) -> io::Result<()> {
        self.end(Signal::Kill).await
    }

    /// Stops it as an operator would: open transactions are rolled back, clients are told.
    pub async fn stop_orderly(&mut self) -> io::Result<()> {
        self.end(Signal::Term).await
    }

    /// Starts it after a stop, at the same address, and waits until it lets clients in. Fails if it is running.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.server.start()?;
        until("MariaDB answers", STARTING, || self.server.is_ready()).await
    }

    async fn end(&mut self, signal: Signal) -> io::Result<()> {
        self.server.daemon().signal(signal)?;
        until("MariaDB ends", ENDING, || Ok(!self.server.daemon().is_running()?)).await
    }
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
        async fn a_private_server_keeps_what_was_committed_over_stops_of_both_kinds() -> io::Result<()> {
            if !require(Server::PrivateMariaDb) {
                return Ok(());
            }
            let mut server = PrivateMariaDb::start_with(&[("max-connections", "20")]).await?;
            let database = MariaDbDatabase::create_on(&server.url("test")).await?;
            client(database.url(), &format!("CREATE TABLE {}.t (n int)", database.name()))?;

            server.stop().await?;
            assert!(is_free(server.addr()), "nobody listens");
            assert!(probe::mariadb(database.url()).is_err());
            server.start_again().await?;
            assert!(server.start_again().await.is_err(), "it is running");

            server.stop_orderly().await?;
            server.start_again().await?;
            client(database.url(), &format!("SELECT n FROM {}.t", database.name()))?;
            database.remove().await
        }

        #[tokio::test]
        async fn a_setting_that_mariadb_refuses_is_reported_with_its_words() -> io::Result<()> {
            if !require(Server::PrivateMariaDb) {
                return Ok(());
            }
            let error = PrivateMariaDb::start_with(&[("no-such-setting", "1")]).await.unwrap_err();
            assert!(error.to_string().contains("no-such-setting"), "{error}");
            Ok(())
        }

        #[tokio::test]
        async fn a_database_exists_until_it_is_dropped() -> io::Result<()> {
            if !require(Server::MariaDb) {
                return Ok(());
            }
            let database = MariaDbDatabase::create().await?;
            let (url, name) = (database.url().to_owned(), database.name().to_owned());
            assert!(url.contains(&name));
            client(&url, &format!("CREATE TABLE {name}.t (n int)"))?;
            drop(database);
            assert!(client(&url, &format!("SELECT n FROM {name}.t")).is_err());
            Ok(())
        }
    }
}
