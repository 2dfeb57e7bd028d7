//! Marks of seen messages outside the database: what not to do.

use std::io::{Error, ErrorKind};

use hapax::BoxError;
use hapax::sqlx::sqlite::SqliteConnectOptions;
use hapax::sqlx::{self, Connection as _, SqliteConnection};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A set of message ids that does not commit with the database.
pub(super) enum Marks {
    /// In Redis, by `SET … NX`.
    Redis { stream: BufReader<TcpStream>, prefix: String },
    /// In a SQLite file of its own, which commits with the database as little as Redis does.
    File(SqliteConnection),
}

impl Marks {
    /// At redis://… or sqlite:…; keys begin with the name of the database that they do not commit with.
    pub(super) async fn open(url: &str, store: &str) -> Result<Self, BoxError> {
        if let Some(address) = url.strip_prefix("redis://") {
            let stream = BufReader::new(TcpStream::connect(address.trim_end_matches('/')).await?);
            let prefix = store.rsplit('/').next().unwrap_or_default().to_owned();
            return Ok(Self::Redis { stream, prefix });
        }
        let options: SqliteConnectOptions = url.parse()?;
        let mut file = SqliteConnection::connect_with(&options.create_if_missing(true)).await?;
        sqlx::raw_sql("CREATE TABLE IF NOT EXISTS marks (id TEXT PRIMARY KEY)").execute(&mut file).await?;
        Ok(Self::File(file))
    }

    /// Marks a message, and says whether it was not marked yet.
    pub(super) async fn set(&mut self, id: &str) -> Result<bool, BoxError> {
        match self {
            Self::Redis { stream, prefix } => {
                let key = format!("{prefix}:{id}");
                let set = format!(
                    "*6\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$1\r\n1\r\n$2\r\nNX\r\n$2\r\nEX\r\n$4\r\n3600\r\n",
                    key.len()
                );
                stream.write_all(set.as_bytes()).await?;
                let mut answer = String::new();
                stream.read_line(&mut answer).await?;
                match answer.trim_end() {
                    "+OK" => Ok(true),
                    "$-1" => Ok(false),
                    other => Err(Error::new(ErrorKind::InvalidData, format!("Redis said {other}")).into()),
                }
            }
            Self::File(file) => {
                let mark = sqlx::query("INSERT INTO marks (id) VALUES ($1) ON CONFLICT DO NOTHING");
                Ok(mark.bind(id).execute(file).await?.rows_affected() == 1)
            }
        }
    }
}
