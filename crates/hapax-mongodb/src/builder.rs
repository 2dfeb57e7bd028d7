//! How a store is built.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::{Code, Error, ErrorKind};
use mongodb::bson::{Document, doc};
use mongodb::error::ErrorKind as DriverKind;
use mongodb::options::{
    ClientOptions, DatabaseOptions, ReadConcern, ReadPreference, SelectionCriteria, ServerAddress,
    WriteConcern,
};
use mongodb::{Client, Database};
use tokio::sync::{Mutex, watch};

use crate::counter::Block;
use crate::error::{Answer, DriverError, Result, answered, meaning};
use crate::orphans::Looked;
use crate::session::{SIDE, Sessions};
use crate::store::{Inner, MongoStore};
use crate::tables::Tables;

/// What a server that does not tell its limit lets a transaction live.
const LIFETIME: Duration = Duration::from_mins(1);
/// How long a look at a single server may take, to see why none could be selected.
const GLANCE: Duration = Duration::from_secs(2);

/// How a store is built.
#[must_use = "a builder does nothing until `connect`"]
#[derive(Clone, Debug)]
pub struct Builder {
    url: String,
    database: Option<String>,
    prefix: String,
    pool: usize,
    connect: Duration,
    answer: Duration,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            database: None,
            prefix: "hapax".to_owned(),
            pool: 8,
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
        }
    }

    /// The database of the inbox and of the handlers' collections. Default: the one that the URL names.
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = Some(database.into());
        self
    }

    /// The prefix of the names of Hapax's own collections. Default: `hapax`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How many transactions can be open at once, at least one. Default: 8.
    pub fn pool(mut self, pool: usize) -> Self {
        self.pool = pool.max(1);
        self
    }

    /// How long connecting, and finding a primary, may take. Default: 5 s.
    pub fn connect_within(mut self, limit: Duration) -> Self {
        self.connect = limit;
        self
    }

    /// How long the answer to an operation of Hapax, and to a commit with its repetitions, may take. Handlers'
    /// operations have their own limit. Default: 30 s.
    pub fn answer_within(mut self, limit: Duration) -> Self {
        self.answer = limit;
        self
    }

    /// Connects once, to see that it can and that there are transactions.
    ///
    /// Errors as [`MongoStore::connect`].
    pub async fn connect(self) -> Result<MongoStore> {
        static INSTANCES: AtomicU64 = AtomicU64::new(1);

        check_prefix(&self.prefix)?;
        let options = self.options().await?;
        let name = database_name(self.database.as_deref(), &options)?;
        let place = describe(&options, &name);
        let client = Client::with_options(options.clone()).map_err(|error| refused_url(&error))?;
        see_replica_set(&client, &options, self.connect, &place).await?;
        let lifetime = lifetime(&client, self.connect).await.unwrap_or(LIFETIME);
        let database = majority(&client, &name);
        let tables = Tables::of(&database, &self.prefix);
        let sessions = Sessions::new(client, tables.schema_version.clone(), self.pool, self.answer, lifetime);
        let inner = Inner {
            sessions,
            database,
            tables,
            place,
            prefix: self.prefix,
            pool: self.pool,
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
            app_name: options.app_name.unwrap_or_default(),
            looked: Looked::default(),
            block: Mutex::new(Block::empty()),
            news: watch::Sender::new(0),
        };
        Ok(MongoStore { inner: Arc::new(inner) })
    }

    async fn options(&self) -> Result<ClientOptions> {
        let mut options = ClientOptions::parse(&self.url).await.map_err(|error| refused_url(&error))?;
        options.app_name.get_or_insert_with(|| "hapax".to_owned());
        options.server_selection_timeout = Some(self.connect);
        options.connect_timeout = Some(self.connect);
        options.max_pool_size = u32::try_from(self.pool + SIDE).ok();
        Ok(options)
    }
}

/// Everything outside transactions is read from and written to a majority, through the primary.
fn majority(client: &Client, name: &str) -> Database {
    let options = DatabaseOptions::builder()
        .read_concern(ReadConcern::majority())
        .write_concern(WriteConcern::majority())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .build();
    client.database_with_options(name, options)
}

async fn hello(client: &Client, limit: Duration) -> Answer<Document> {
    answered(limit, client.database("admin").run_command(doc! { "hello": 1 })).await
}

/// Refuses a server that has no transactions.
pub(crate) async fn see_replica_set(
    client: &Client,
    options: &ClientOptions,
    limit: Duration,
    place: &str,
) -> Result<()> {
    match hello(client, limit + GLANCE).await {
        Ok(answer) if has_transactions(&answer) => Ok(()),
        Ok(_) => Err(standalone(place)),
        Err(error) => {
            if matches!(*error.kind, DriverKind::ServerSelection { .. }) && is_standalone(options).await {
                return Err(standalone(place));
            }
            let (kind, code) = meaning(&error);
            Err(Error::new(kind, code, format!("cannot connect to the {place}")).because(DriverError(error)))
        }
    }
}

/// A member of a replica set names it; a router of a sharded cluster says that it is one.
fn has_transactions(hello: &Document) -> bool {
    hello.contains_key("setName") || hello.get_str("msg") == Ok("isdbgrid")
}

/// A URL that names a replica set makes the driver pass over a standalone server without a word.
async fn is_standalone(options: &ClientOptions) -> bool {
    let [host, ..] = options.hosts.as_slice() else { return false };
    let mut direct = options.clone();
    (direct.hosts, direct.repl_set_name) = (vec![host.clone()], None);
    (direct.direct_connection, direct.server_selection_timeout) = (Some(true), Some(GLANCE));
    let Ok(client) = Client::with_options(direct) else { return false };
    hello(&client, GLANCE).await.is_ok_and(|answer| !has_transactions(&answer))
}

fn standalone(place: &str) -> Error {
    let context = format!(
        "the {place} is not in a replica set and so has no transactions; start mongod with --replSet and run \
         rs.initiate(), one member is enough"
    );
    Error::new(ErrorKind::Setup, Code::NotAvailable, context)
}

/// How long the server lets a transaction live, if we may ask.
async fn lifetime(client: &Client, limit: Duration) -> Option<Duration> {
    let ask = doc! { "getParameter": 1, "transactionLifetimeLimitSeconds": 1 };
    let answer = answered(limit, client.database("admin").run_command(ask)).await.ok()?;
    let seconds = crate::document::maybe_int(&answer, "transactionLifetimeLimitSeconds")?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

fn database_name(given: Option<&str>, options: &ClientOptions) -> Result<String> {
    given.or(options.default_database.as_deref()).map(str::to_owned).ok_or_else(|| {
        let context = "the MongoDB store's URL names no database: mongodb://host/database?replicaSet=rs0";
        Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context)
    })
}

/// Where the options lead, without secrets.
fn describe(options: &ClientOptions, database: &str) -> String {
    let mut place = format!("MongoDB database {database} at ");
    for (index, host) in options.hosts.iter().map(ServerAddress::to_string).enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(place, "{comma}{host}");
    }
    place
}

/// A URL that cannot be read. It may hold a password, so that only the driver's complaint is repeated.
fn refused_url(error: &mongodb::error::Error) -> Error {
    let context = "the MongoDB store's URL cannot be used";
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context).because(error.kind.to_string())
}

/// The same names as for an SQL store's schema, so that one configuration fits both.
fn check_prefix(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if starts_plain && name.len() <= 40 && name.chars().all(plain) {
        return Ok(());
    }
    let context = format!("`{name}` is no prefix: 1 to 40 of a-z, 0-9 and _, not starting with a digit");
    Err(Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context))
}
