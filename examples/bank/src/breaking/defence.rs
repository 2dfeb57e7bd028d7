//! The defences, and how each is taken away and put back.

use hapax::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use hapax::{BoxError, PgStore, SqliteStore};

use crate::accounts::{INDEXES, Without, create_books};

/// An index that is dropped for real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    /// The ledger's: a movement of a transfer happens once.
    Ledger,
    /// That of the hand-built consumer's `processed_messages`.
    Processed,
    /// That of Hapax's inbox.
    Inbox,
}

/// One row of the table.
pub(super) struct Attempt {
    pub(super) title: String,
    /// The hand-built consumer, and what it does without; else Hapax.
    without: Option<Without>,
    dropped: &'static [Index],
    /// Whether it has to end clean.
    pub(super) promises: bool,
}

/// All rows, the last one with everything in place.
pub(super) fn attempts(redis: Option<&str>) -> Vec<Attempt> {
    use Index::{Inbox, Ledger, Processed};
    let marks = if redis.is_some() { "Redis" } else { "another file, as in Redis" };
    let attempt = |title: &str, without, dropped: &'static [Index]| {
        let promises = dropped.is_empty() && matches!(without, None | Some(Without::Hapax));
        Attempt { title: title.to_owned(), without, dropped, promises }
    };
    let by_hand = |title: &str, dropped| attempt(&format!("by hand: {title}"), Some(Without::Hapax), dropped);
    vec![
        by_hand("nothing", &[]),
        by_hand("the inbox's unique index", &[Processed]),
        by_hand("the ledger's unique index", &[Ledger]),
        by_hand("both indexes", &[Processed, Ledger]),
        attempt(
            "by hand: the inbox row is written in a step of its own; no ledger index",
            Some(Without::OneTransaction),
            &[Ledger],
        ),
        attempt(&format!("by hand: the mark is kept in {marks}"), Some(Without::SameDatabase), &[]),
        attempt("by hand: published after the commit, no outbox", Some(Without::Outbox), &[]),
        attempt("Hapax: the ledger's unique index", None, &[Ledger]),
        attempt("Hapax: its inbox's primary key", None, &[Inbox]),
        attempt("Hapax: nothing", None, &[]),
    ]
}

impl Attempt {
    /// How the account service is told.
    pub(super) fn arguments(&self, marks: &str) -> Vec<String> {
        let without = match self.without {
            None => return Vec::new(),
            Some(Without::Hapax) => "hapax",
            Some(Without::OneTransaction) => "one-transaction",
            Some(Without::SameDatabase) => "same-database",
            Some(Without::Outbox) => "outbox",
        };
        ["--without", without, "--marks", marks].map(str::to_owned).to_vec()
    }

    /// Makes the books and drops the indexes.
    pub(super) async fn take_away(&self, accounts: &str) -> Result<(), BoxError> {
        if accounts.starts_with("sqlite:") {
            SqliteStore::connect(accounts).await?.migrate().await?;
        } else {
            PgStore::connect(accounts).await?.migrate().await?;
        }
        create_books(accounts).await?;
        for index in self.dropped {
            execute(accounts, index.drop_on(accounts)).await?;
        }
        Ok(())
    }

    /// Puts the indexes back, for which what is double has to go.
    pub(super) async fn restore(&self, accounts: &str) -> Result<(), BoxError> {
        for index in self.dropped {
            execute(accounts, index.restore_on(accounts)).await?;
        }
        Ok(())
    }
}

impl Index {
    fn drop_on(self, accounts: &str) -> String {
        match self {
            Self::Ledger => "DROP INDEX ledger_once".to_owned(),
            Self::Processed => "DROP INDEX processed_once".to_owned(),
            // SQLite drops no primary key, but makes a table without one.
            Self::Inbox if accounts.starts_with("sqlite:") => {
                "ALTER TABLE hapax_inbox RENAME TO inbox_with_key;
                 CREATE TABLE hapax_inbox AS SELECT * FROM inbox_with_key"
                    .to_owned()
            }
            Self::Inbox => "ALTER TABLE hapax.inbox DROP CONSTRAINT inbox_pkey".to_owned(),
        }
    }

    fn restore_on(self, accounts: &str) -> String {
        match self {
            Self::Ledger => distinct("ledger", INDEXES[0]),
            Self::Processed => distinct("processed_messages", INDEXES[1]),
            Self::Inbox if accounts.starts_with("sqlite:") => {
                "DROP TABLE hapax_inbox; ALTER TABLE inbox_with_key RENAME TO hapax_inbox".to_owned()
            }
            Self::Inbox => "ALTER TABLE hapax.inbox ADD PRIMARY KEY (consumer, id)".to_owned(),
        }
    }
}

fn distinct(table: &str, create_index: &str) -> String {
    format!(
        "CREATE TABLE kept AS SELECT DISTINCT * FROM {table};
         DELETE FROM {table};
         INSERT INTO {table} SELECT * FROM kept;
         DROP TABLE kept;
         {create_index}"
    )
}

async fn execute(url: &str, statements: String) -> Result<(), sqlx::Error> {
    let statements = sqlx::raw_sql(AssertSqlSafe(statements));
    if url.starts_with("sqlite:") {
        let mut database = SqliteConnection::connect(url).await?;
        statements.execute(&mut database).await?;
        return database.close().await;
    }
    let mut database = PgConnection::connect(url).await?;
    statements.execute(&mut database).await?;
    database.close().await
}
