//! Where a trial takes place.

use hapax::BoxError;
use hapax::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection};
use tempfile::TempDir;

/// A database, and a folder for what the processes log.
pub(crate) struct Scratch {
    pub(crate) store: String,
    pub(crate) folder: TempDir,
    /// The PostgreSQL on which the database was made, and its name there.
    made: Option<(String, String)>,
}

impl Scratch {
    /// Makes a database on a PostgreSQL, or takes an SQLite file that is named, or one in the folder.
    pub(crate) async fn create(store: Option<&str>) -> Result<Self, BoxError> {
        let folder = tempfile::Builder::new().prefix("checkout-").tempdir()?;
        let Some(url) = store else {
            let store = format!("sqlite:{}", folder.path().join("checkout.db").display());
            return Ok(Self { store, folder, made: None });
        };
        if url.starts_with("sqlite:") {
            return Ok(Self { store: url.to_owned(), folder, made: None });
        }
        let name = format!("checkout_{}_{:08x}", std::process::id(), fastrand::u32(..));
        execute(url, format!("CREATE DATABASE {name}")).await?;
        Ok(Self { store: with_database(url, &name), folder, made: Some((url.to_owned(), name)) })
    }

    /// Removes what was made.
    pub(crate) async fn remove(self) -> Result<(), BoxError> {
        if let Some((url, name)) = &self.made {
            execute(url, format!("DROP DATABASE {name} WITH (FORCE)")).await?;
        }
        Ok(())
    }
}

async fn execute(url: &str, statement: String) -> Result<(), BoxError> {
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

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn a_url_keeps_everything_but_its_database() {
        for (url, expected) in [
            ("postgres://me@host:1/test?sslmode=disable", "postgres://me@host:1/own?sslmode=disable"),
            ("postgres://host", "postgres://host/own"),
        ] {
            assert_eq!(with_database(url, "own"), expected);
        }
    }
}
