//! A PostgreSQL database that one test has to itself.

use std::{
    io,
    process::{Command, Output, Stdio},
};

use super::{blocking, postgres_url, unique};
use crate::local::url::ServerUrl;

/// An empty database of its own on a server, made and dropped with `psql`, so that this crate needs no
/// driver.
///
/// Dropping the value drops the database, closing whatever connections it has; [`TestDatabase::remove`] does
/// the same and tells of failure.
#[derive(Debug)]
pub struct TestDatabase {
    server: String,
    name: String,
    url: String,
    removed: bool,
}

impl TestDatabase {
    /// Creates a database on the shared server at [`postgres_url`]. Takes some 100 ms. Fails if `psql` is not
    /// installed or the server refuses.
    pub async fn create() -> io::Result<Self> {
        Self::create_on(&postgres_url()).await
    }

    /// Creates a database on the server at `url`, which names a database to connect to for that.
    pub async fn create_on(url: &str) -> io::Result<Self> {
        let server = url.to_owned();
        let name = unique("hapax_test");
        let url = ServerUrl::parse(url)?.with_path(&name);
        // `template0` is never connected to, so that creating several at once cannot fail on that.
        let statement = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'");
        blocking(move || {
            psql(&server, &statement)?;
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

    /// Drops the database, closing whatever connections it has.
    pub async fn remove(mut self) -> io::Result<()> {
        self.removed = true;
        let (server, statement) = (self.server.clone(), self.drop_statement());
        blocking(move || psql(&server, &statement)).await
    }

    fn drop_statement(&self) -> String {
        format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        // A server that the test has stopped for good takes the database with it.
        if let Err(error) = psql(&self.server, &self.drop_statement()) {
            eprintln!("database {} stays behind: {error}", self.name);
        }
    }
}

/// Runs one statement, without anybody's `.psqlrc`.
fn psql(url: &str, statement: &str) -> io::Result<()> {
    let Output { status, stderr, .. } = Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--no-password", "--dbname", url, "--command", statement])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot run psql: {error}")))?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("psql failed: {}", String::from_utf8_lossy(&stderr).trim())))
}

#[cfg(test)]
mod tests {
    mod server {
        use std::io;

        use super::super::*;
        use crate::{
            local::probe::{self, Unready},
            servers::{Server, require},
        };

        #[tokio::test]
        async fn a_database_exists_until_it_is_dropped() -> io::Result<()> {
            if !require(Server::Postgres) {
                return Ok(());
            }
            let database = TestDatabase::create().await?;
            let url = database.url().to_owned();
            assert!(url.contains(database.name()));
            probe::postgres(&url).unwrap();
            psql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY)")?;
            drop(database);
            assert!(matches!(probe::postgres(&url), Err(Unready::NoDatabase)));
            Ok(())
        }

        #[tokio::test]
        async fn a_database_in_use_is_removed_all_the_same() -> io::Result<()> {
            if !require(Server::Postgres) {
                return Ok(());
            }
            let database = TestDatabase::create().await?;
            let url = database.url().to_owned();
            let user = crate::process::Subject::new("psql")
                .arg(&url)
                .arg("-c")
                .arg("SELECT pg_sleep(60)")
                .start()?;
            let query = "DO $$ BEGIN ASSERT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                         AND query LIKE 'SELECT pg_sleep%') = 1; END $$";
            crate::servers::eventually("somebody uses it", std::time::Duration::from_secs(10), async || {
                psql(&url, query).is_ok()
            })
            .await;
            database.remove().await?;
            assert!(matches!(probe::postgres(&url), Err(Unready::NoDatabase)));
            drop(user);
            Ok(())
        }

        #[tokio::test]
        async fn what_the_server_says_is_in_the_error() -> io::Result<()> {
            if !require(Server::Postgres) {
                return Ok(());
            }
            let nowhere = ServerUrl::parse(&postgres_url())?.with_path("no_such_database");
            let error = TestDatabase::create_on(&nowhere).await.unwrap_err();
            assert!(error.to_string().contains("no_such_database"), "{error}");
            Ok(())
        }
    }
}
