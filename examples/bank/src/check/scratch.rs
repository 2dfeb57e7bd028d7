//! Where a trial takes place: databases and an exchange of its own, gone afterwards.

use std::fmt;
use std::time::Duration;

use hapax::BoxError;
use hapax::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection};
use tempfile::TempDir;

use crate::exchange;

/// The servers of a trial. Without any it is embedded: two SQLite files, with a queue in each.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Servers {
    /// Keeps the accounts in a scratch database of this PostgreSQL.
    #[arg(long, value_name = "URL", env = "HAPAX_BANK_POSTGRES", requires = "rabbitmq")]
    postgres: Option<String>,
    /// Keeps the transfers in a scratch database of this MongoDB.
    #[arg(long, value_name = "URL", env = "HAPAX_BANK_MONGODB", requires = "rabbitmq")]
    mongodb: Option<String>,
    /// Sends messages through a scratch exchange of this RabbitMQ.
    #[arg(long, value_name = "URL", env = "HAPAX_BANK_RABBITMQ")]
    rabbitmq: Option<String>,
    /// Needs no server, whatever the environment names.
    #[arg(long)]
    embedded: bool,
}

/// Databases, and an exchange if there is a broker.
pub(crate) struct Scratch {
    /// The transfer service's database.
    pub(crate) transfers: String,
    /// The account service's database.
    pub(crate) accounts: String,
    /// The broker and the exchange's name.
    pub(crate) broker: Option<(String, String)>,
    /// The PostgreSQL in which the accounts' database was made.
    server: Option<String>,
    pub(crate) folder: TempDir,
}

impl Scratch {
    /// Makes what it needs.
    pub(crate) async fn create(servers: &Servers) -> Result<Self, BoxError> {
        let folder = tempfile::Builder::new().prefix("bank-").tempdir()?;
        let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
        let (transfers, accounts) = (file("transfers.db"), file("accounts.db"));
        let mut scratch = Self { transfers, accounts, broker: None, server: None, folder };
        if servers.embedded {
            return Ok(scratch);
        }
        let name = format!("bank_{}_{:08x}", std::process::id(), fastrand::u32(..));
        if let Some(url) = &servers.mongodb {
            scratch.transfers = with_database(url, &name);
        }
        if let Some(url) = &servers.postgres {
            run(url, format!("CREATE DATABASE {name}")).await?;
            scratch.accounts = with_database(url, &name);
            scratch.server = Some(url.clone());
        }
        scratch.broker = servers.rabbitmq.clone().map(|url| (url, name));
        Ok(scratch)
    }

    /// How long nothing may happen until nothing will. MongoDB keeps the transactions of a client that was killed for
    /// a minute, and what was claimed in them is busy for as long.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(if self.transfers.starts_with("mongodb") { 90 } else { 15 })
    }

    /// Removes all of it.
    pub(crate) async fn remove(self) -> Result<(), BoxError> {
        if let Some((url, exchange)) = &self.broker {
            exchange::delete(url, exchange).await?;
        }
        if let Some(server) = &self.server {
            let name = self.accounts.rsplit('/').next().and_then(|name| name.split('?').next());
            run(server, format!("DROP DATABASE {} WITH (FORCE)", name.unwrap_or_default())).await?;
        }
        if self.transfers.starts_with("mongodb") {
            let client = hapax::mongodb::Client::with_uri_str(&self.transfers).await?;
            if let Some(database) = client.default_database() {
                database.drop().await?;
            }
        }
        Ok(())
    }
}

async fn run(url: &str, statement: String) -> Result<(), BoxError> {
    let mut server = PgConnection::connect(url).await?;
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut server).await?;
    server.close().await?;
    Ok(())
}

/// The same server's URL with another database.
fn with_database(url: &str, name: &str) -> String {
    let (address, options) = url.split_once('?').unwrap_or((url, ""));
    let host = address.find("://").map_or(0, |at| at + 3);
    let end = address[host..].find('/').map_or(address.len(), |at| host + at);
    let options = if options.is_empty() { String::new() } else { format!("?{options}") };
    format!("{}/{name}{options}", &address[..end])
}

impl fmt::Display for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = |url: &str| match url.split(':').next() {
            Some("postgres" | "postgresql") => "PostgreSQL",
            Some("mongodb" | "mongodb+srv") => "MongoDB",
            _ => "SQLite",
        };
        let broker = if self.broker.is_some() { "RabbitMQ" } else { "embedded queues" };
        write!(f, "transfers on {}, accounts on {}, {broker}", title(&self.transfers), title(&self.accounts))
    }
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn a_url_keeps_everything_but_its_database() {
        for (url, expected) in [
            ("postgres://me@host:1/test?sslmode=disable", "postgres://me@host:1/bank?sslmode=disable"),
            ("mongodb://a,b/?replicaSet=rs0", "mongodb://a,b/bank?replicaSet=rs0"),
            ("postgres://host", "postgres://host/bank"),
        ] {
            assert_eq!(with_database(url, "bank"), expected);
        }
    }
}
