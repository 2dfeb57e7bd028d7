//! Opens the store that a command works on.

use std::path::Path;

use hapax::Error;
#[cfg(feature = "mongodb")]
use hapax::MongoStore;
#[cfg(feature = "mysql")]
use hapax::MySqlStore;
#[cfg(feature = "postgres")]
use hapax::PgStore;
#[cfg(feature = "sqlite")]
use hapax::SqliteStore;
use hapax::sql::SqlStore;
use hapax::{ClaimRequest, Code, ConsumerName, ErrorKind, Store as _, Versions as _};

use crate::args::StoreArgs;
use crate::config::Config;
use crate::config::interpolate::Surroundings;
use crate::config::problem::{Placed, Problem};
use crate::config::secret::SecretUrl;
use crate::config::store::{Migrate, NO_REDIS, StoreKind, is_redis};
use crate::sql::SqlTarget;
use crate::trouble::{Trouble, cure};

/// A store of one of the kinds this build knows.
#[derive(Clone, Debug)]
pub(crate) enum AnyStore {
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteStore),
    #[cfg(feature = "postgres")]
    Postgres(PgStore),
    #[cfg(feature = "mysql")]
    MySql(MySqlStore),
    #[cfg(feature = "mongodb")]
    MongoDb(MongoStore),
}

/// Runs an expression with the store that it is, whatever its kind.
macro_rules! with_store {
    ($any:expr, $store:ident => $body:expr) => {
        match $any {
            #[cfg(feature = "sqlite")]
            $crate::open::AnyStore::Sqlite($store) => $body,
            #[cfg(feature = "postgres")]
            $crate::open::AnyStore::Postgres($store) => $body,
            #[cfg(feature = "mysql")]
            $crate::open::AnyStore::MySql($store) => $body,
            #[cfg(feature = "mongodb")]
            $crate::open::AnyStore::MongoDb($store) => $body,
        }
    };
}
pub(crate) use with_store;

/// The same for what only SQL stores can do: an error on others.
macro_rules! with_sql_store {
    ($any:expr, $store:ident => $body:expr) => {
        match $any {
            #[cfg(feature = "sqlite")]
            $crate::open::AnyStore::Sqlite($store) => $body,
            #[cfg(feature = "postgres")]
            $crate::open::AnyStore::Postgres($store) => $body,
            #[cfg(feature = "mysql")]
            $crate::open::AnyStore::MySql($store) => $body,
            #[cfg(feature = "mongodb")]
            $crate::open::AnyStore::MongoDb(_) => Err($crate::open::no_sql().into()),
        }
    };
}
pub(crate) use with_sql_store;

/// Reads a configuration file and everything it names.
pub(crate) fn config(path: &Path) -> Result<Config, Trouble> {
    Ok(Config::load(path, &Surroundings::of_process())?)
}

/// What becomes of an SQLite database that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is created.
    Create,
    /// It is an error: who only looks must not take a slip in a path for an empty database.
    Refuse,
}

/// Opens the store that the arguments name, and answers with the configuration if it came from one. The
/// schema is checked.
pub(crate) async fn store(args: &StoreArgs) -> Result<(AnyStore, Option<Config>), Trouble> {
    let (store, config) = unchecked_store(args, Missing::Refuse).await?;
    with_store!(&store, store => store.check().await)?;
    Ok((store, config))
}

/// The same without a check of the schema.
pub(crate) async fn unchecked_store(
    args: &StoreArgs,
    missing: Missing,
) -> Result<(AnyStore, Option<Config>), Trouble> {
    // The environment speaks only where the command line does not: it must not contradict --config.
    let url = args.store.clone().or_else(|| std::env::var("HAPAX_STORE").ok());
    match (&args.config, &url) {
        (Some(path), _) => {
            let config = config(path)?;
            Ok((configured(&config, missing).await?, Some(config)))
        }
        (None, Some(url)) => Ok((at_url(url, &args.schema, missing).await?, None)),
        (None, None) => Err(no_store()),
    }
}

fn no_store() -> Trouble {
    Trouble::usage(
        Code::UsageWrong,
        "no store is named",
        "Give --config FILE or --store URL, or set HAPAX_STORE.",
    )
}

/// The store's kind is known, and this build cannot open it.
pub(crate) fn no_driver() -> Error {
    Error::new(ErrorKind::Setup, Code::NotAvailable, "this build has no driver for that store")
}

/// A command that needs SQL was given a store that has none.
#[cfg(feature = "mongodb")]
pub(crate) fn no_sql() -> Error {
    let context = "on MongoDB the program has `inbox`, `dead` and `outbox`; the library has the rest";
    Error::new(ErrorKind::Setup, Code::NotAvailable, context)
}

/// What kind of store the arguments name, and under which schema, without opening it.
pub(crate) fn kind(args: &StoreArgs) -> Result<(StoreKind, String), Trouble> {
    if let Some(path) = &args.config {
        let config = config(path)?;
        return Ok((config.store.kind, config.store.schema));
    }
    let url = args.store.clone().or_else(|| std::env::var("HAPAX_STORE").ok()).ok_or_else(no_store)?;
    let kind = StoreKind::of(&SecretUrl::new(url)).ok_or_else(unknown_store)?;
    Ok((kind, args.schema.clone()))
}

fn unknown_store() -> Error {
    let context = "the store's URL names no database that Hapax knows: begin it with sqlite:, postgres:, mysql: or mongodb:";
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context)
}

/// Opens a store by its URL.
pub(crate) async fn at_url(url: &str, schema: &str, missing: Missing) -> Result<AnyStore, Trouble> {
    let kind = StoreKind::of(&SecretUrl::new(url));
    Ok(connect(kind, url, schema, 8, missing).await?)
}

/// Opens the store of a configuration; errors name its place in the file.
pub(crate) async fn configured(config: &Config, missing: Missing) -> Result<AnyStore, Trouble> {
    let store = &config.store;
    let pool = usize::try_from(store.pool.value).unwrap_or(usize::MAX);
    let opened = connect(Some(store.kind), store.url.expose(), &store.schema, pool, missing).await;
    opened.map_err(|error| placed(config, &store.url, error))
}

async fn connect(
    kind: Option<StoreKind>,
    url: &str,
    schema: &str,
    pool: usize,
    missing: Missing,
) -> Result<AnyStore, Error> {
    match kind {
        #[cfg(feature = "sqlite")]
        Some(StoreKind::Sqlite) => {
            if missing == Missing::Refuse {
                must_be_there(url)?;
            }
            Ok(AnyStore::Sqlite(SqliteStore::builder(url).schema(schema).pool(pool).connect().await?))
        }
        #[cfg(feature = "postgres")]
        Some(StoreKind::Postgres) => {
            Ok(AnyStore::Postgres(PgStore::builder(url).schema(schema).pool(pool).connect().await?))
        }
        #[cfg(feature = "mysql")]
        Some(StoreKind::MySql) => {
            Ok(AnyStore::MySql(MySqlStore::builder(url).schema(schema).pool(pool).connect().await?))
        }
        #[cfg(feature = "mongodb")]
        Some(StoreKind::MongoDb) => {
            Ok(AnyStore::MongoDb(MongoStore::builder(url).prefix(schema).pool(pool).connect().await?))
        }
        #[cfg(not(feature = "mongodb"))]
        Some(StoreKind::MongoDb) => {
            let context = "this build was made without `mongodb`: build it with `--features mongodb`";
            Err(Error::new(ErrorKind::Setup, Code::NotAvailable, context))
        }
        #[allow(unreachable_patterns, reason = "in a build that has them all")]
        Some(_) => Err(no_driver()),
        None if is_redis(&SecretUrl::new(url)) => {
            let context = format!("the store's URL names Redis, {NO_REDIS}");
            Err(Error::new(ErrorKind::Setup, Code::NotAvailable, context))
        }
        None => Err(unknown_store()),
    }
}

/// An SQLite database is a file. What else a URL may say is left to the driver.
#[cfg(feature = "sqlite")]
fn must_be_there(url: &str) -> Result<(), Error> {
    let Ok(options) = url.parse::<hapax::sqlx::sqlite::SqliteConnectOptions>() else { return Ok(()) };
    let file = options.get_filename();
    let name = file.to_string_lossy();
    if name.is_empty() || name == ":memory:" || name.starts_with("file:") || file.exists() {
        return Ok(());
    }
    let context = format!("there is no database file {}", file.display());
    Err(Error::new(ErrorKind::Unavailable, Code::StoreUnavailable, context))
}

/// An error together with the place of the configuration that it is about.
pub(crate) fn placed<T>(config: &Config, place: &Placed<T>, error: Error) -> Trouble {
    let text = error.to_string();
    let text = text.strip_prefix(&format!("{}: ", error.code())).unwrap_or(&text).to_owned();
    let problem = if place.is_written() {
        Problem::new(error.code(), place.place, text)
    } else {
        Problem::of_file(error.code(), text)
    };
    match config.origin.report(vec![problem.help(cure(error.code()))]) {
        Some(report) => report.into(),
        None => error.into(),
    }
}

/// Does about the schema what the configuration says, and runs the user's own set-up once.
pub(crate) async fn ready<D: SqlTarget>(config: &Config, store: &SqlStore<D>) -> Result<(), Trouble> {
    match config.store.migrate {
        Migrate::Off => {}
        Migrate::Check => store.check().await.map_err(|error| placed(config, &config.store.url, error))?,
        Migrate::Apply => {
            store.migrate().await.map_err(|error| placed(config, &config.store.url, error))?;
            set_up(config, store).await?;
        }
    }
    Ok(())
}

/// The user's own tables, once: the note that they are made commits with them.
async fn set_up<D: SqlTarget>(config: &Config, store: &SqlStore<D>) -> Result<(), Trouble> {
    let Some(setup) = &config.store.setup else { return Ok(()) };
    let in_file = |error: Error| placed(config, setup, error);
    let scope = ConsumerName::new("hapax.setup").map_err(|error| {
        Trouble::usage(Code::ConfigWrongValue, error.to_string(), "This is a defect; please report it.")
    })?;
    let (mut tx, _) = store.begin_claim(&ClaimRequest::none(&scope)).await.map_err(in_file)?;
    let first = store.newer(&mut tx, &scope, "setup", 1).await.map_err(in_file)?;
    if !first {
        store.roll_back(tx).await;
        return Ok(());
    }
    if let Err(error) = D::set_up(tx.conn(), config.store.url.expose(), setup.sql.expose()).await {
        store.roll_back(tx).await;
        let context = format!("the database does not accept {}", setup.path.display());
        return Err(in_file(
            Error::new(ErrorKind::Statement, Code::StatementRefused, context).because(error),
        ));
    }
    store.finish(tx).await.map_err(in_file)
}
