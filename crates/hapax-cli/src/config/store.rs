//! `[store]`: the database that holds the inbox and the user's tables.

use std::path::{Path, PathBuf};

use hapax::Code;

use super::problem::Placed;
use super::read::{Choice, Table, Value};
use super::secret::{Secret, SecretUrl};

/// The longest schema name. PostgreSQL cuts identifiers at 63 bytes, and elsewhere the name is a prefix of
/// table and index names.
const LONGEST_SCHEMA: usize = 41;

/// The databases that a URL can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// `sqlite:`
    Sqlite,
    /// `postgres:` or `postgresql:`
    Postgres,
    /// `mysql:` or `mariadb:`
    MySql,
    /// `mongodb:` or `mongodb+srv:`
    MongoDb,
}

/// Why Redis is no store: the mark and the change would lie in two places.
pub(crate) const NO_REDIS: &str = "which does not commit together with the database that a handler changes: a crash in between would \
                                   lose the message or double its effect";
/// What to do about it.
pub(crate) const USE_A_DATABASE: &str = "Let the store be the database that your handlers change.";

/// Whether a URL names a Redis.
pub(crate) fn is_redis(url: &SecretUrl) -> bool {
    matches!(url.scheme(), "redis" | "rediss")
}

impl StoreKind {
    const SCHEMES: [(&str, Self); 7] = [
        ("sqlite", Self::Sqlite),
        ("postgres", Self::Postgres),
        ("postgresql", Self::Postgres),
        ("mysql", Self::MySql),
        ("mariadb", Self::MySql),
        ("mongodb", Self::MongoDb),
        ("mongodb+srv", Self::MongoDb),
    ];

    /// The database that a URL's scheme names.
    pub(crate) fn of(url: &SecretUrl) -> Option<Self> {
        Self::SCHEMES.iter().find(|(scheme, _)| *scheme == url.scheme()).map(|(_, kind)| *kind)
    }
}

/// What the program does about the tables of Hapax when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Migrate {
    /// Refuses to start unless the schema fits this release.
    #[default]
    Check,
    /// Brings the schema up to date, and runs `setup` once.
    Apply,
    /// Trusts that somebody else has seen to it.
    Off,
}

impl Choice for Migrate {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("check", Self::Check), ("apply", Self::Apply), ("off", Self::Off)];
}

/// An SQL script of the user's, read when the configuration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    /// The script's path.
    pub path: PathBuf,
    /// Its text.
    pub sql: Secret,
}

/// The store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Store {
    /// Where to connect to, from `url` or the file `url_file`. The path of an SQLite database is absolute or
    /// relative to the process, already resolved against the configuration file.
    pub url: Placed<SecretUrl>,
    /// The kind of database that the URL names.
    pub kind: StoreKind,
    /// PostgreSQL: the schema that holds the tables; elsewhere their names' prefix. A plain identifier.
    pub schema: String,
    /// The most connections that are opened.
    pub pool: Placed<u32>,
    /// What is done about the schema at the start.
    pub migrate: Migrate,
    /// The user's own tables, created once under [`Migrate::Apply`].
    pub setup: Option<Placed<Setup>>,
}

impl Store {
    /// The schema if the file names none.
    pub(crate) const SCHEMA: &'static str = "hapax";
    /// The number of connections if the file names none.
    pub(crate) const POOL: u32 = 8;

    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        value.table(|table| {
            let url = read_url(table);
            let schema = table.or("schema", Self::SCHEMA.to_owned(), read_schema);
            let pool =
                table.or("pool", Self::POOL.into(), |value| value.placed(|value| value.integer(1, 1_000)));
            let migrate = table.or("migrate", Migrate::default(), Value::choice);
            let setup = table.optional("setup", |value| value.placed(read_setup));
            let (url, kind) = url?;
            Some(Self { url, kind, schema, pool, migrate, setup })
        })
    }
}

fn read_url(table: &mut Table<'_>) -> Option<(Placed<SecretUrl>, StoreKind)> {
    let direct = table.take("url");
    let file = table.take("url_file");
    let (value, url) = match (direct, file) {
        (Some(value), None) => (value.clone(), value.name()?),
        (None, Some(value)) => (value.clone(), value.file()?.1),
        (Some(value), Some(_)) => {
            value.wrong("is given twice: as `url` and as `url_file`", "Keep one of the two.");
            return None;
        }
        (None, None) => {
            table.wrong(
                "lacks `url`",
                "Write `url = \"sqlite:hapax.db\"`, `url = \"${DATABASE_URL}\"` or `url_file`.",
            );
            return None;
        }
    };
    let url = SecretUrl::new(resolve_sqlite(&url, value.base()));
    let Some(kind) = StoreKind::of(&url) else {
        if is_redis(&url) {
            value.wrong_as(Code::NotAvailable, format!("names Redis, {NO_REDIS}"), USE_A_DATABASE);
        } else {
            let cure = "Begin the URL with `sqlite:`, `postgres:` or `mysql:`.";
            value.wrong("names no database that Hapax knows", cure);
        }
        return None;
    };
    Some((Placed::new(url, value.place()), kind))
}

/// An SQLite URL whose path is relative, made relative to the configuration file like every other path: the
/// same configuration means the same database wherever the program is started.
fn resolve_sqlite(url: &str, base: &Path) -> String {
    let Some(rest) = url.strip_prefix("sqlite:") else { return url.to_owned() };
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let path = rest.split('?').next().unwrap_or_default();
    if path.is_empty() || path == ":memory:" || path.starts_with('/') {
        return url.to_owned();
    }
    // The URL's path is percent-decoded by the driver; the directory must survive that.
    let base = base.to_string_lossy().replace('%', "%25").replace('?', "%3F");
    let separator = if base.is_empty() || base.ends_with('/') { "" } else { "/" };
    format!("sqlite://{base}{separator}{rest}")
}

fn read_schema(value: &Value<'_>) -> Option<String> {
    let schema = value.text()?.value;
    let fits = schema.len() <= LONGEST_SCHEMA
        && schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && schema.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if !fits {
        let cure = format!(
            "Use lower-case letters, digits and `_`, no digit first, at most {LONGEST_SCHEMA} characters."
        );
        value.wrong("is not a plain identifier", cure);
    }
    fits.then_some(schema)
}

fn read_setup(value: &Value<'_>) -> Option<Setup> {
    value.file().map(|(path, sql)| Setup { path, sql: Secret::new(sql) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_sqlite_path_starts_at_the_configuration_file() {
        for (url, resolved) in [
            ("sqlite:shop.db", "sqlite:///etc/50%25/shop.db"),
            ("sqlite://data/shop.db?mode=rwc", "sqlite:///etc/50%25/data/shop.db?mode=rwc"),
            ("sqlite:///var/shop.db", "sqlite:///var/shop.db"),
            ("sqlite::memory:", "sqlite::memory:"),
            ("postgres://db/shop", "postgres://db/shop"),
        ] {
            assert_eq!(resolve_sqlite(url, Path::new("/etc/50%")), resolved);
        }
        assert_eq!(resolve_sqlite("sqlite:shop.db", Path::new("")), "sqlite://shop.db");
    }
}
