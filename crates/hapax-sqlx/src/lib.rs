//! Hapax stores on [`sqlx`]: PostgreSQL, MySQL/MariaDB and SQLite, and the embedded queue in the same database.
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")]
//! # async fn example() -> Result<(), hapax_core::Error> {
//! use hapax_sqlx::SqliteStore;
//!
//! let store = SqliteStore::connect("sqlite:shop.db").await?;
//! store.migrate().await?;
//! let orders = store.queue("orders"); // a `Source` in the same database
//! # Ok(()) }
//! ```
//!
//! One set of logic serves every database; what differs between them is a table of statements and a
//! `Dialect`. A worker keeps its connection: the store holds raw connections of its own instead of a
//! sqlx pool, whose ping at acquire and release costs a small transaction 1.4 to 1.6 times its time.

#![cfg_attr(
    not(any(feature = "postgres", feature = "sqlite", feature = "mysql")),
    allow(dead_code, unused_imports)
)] // no database

mod calls;
mod claim;
mod connection;
mod dead;
mod dialect;
mod error;
mod inbox;
mod instances;
mod migrate;
mod news;
mod outbox;
mod queue;
mod queues;
mod retention;
mod running;
mod statements;
mod store;
mod transaction;
mod value;
mod versions;
mod waiting;

pub use dialect::Dialect;
#[cfg(feature = "mysql")]
pub use dialect::mysql::Isolation;
pub use migrate::{Migration, migrations};
pub use outbox::SqlOutbox;
pub use queue::{Queue, QueueReceipt, QueueSettler};
pub use queues::Queues;
pub use sqlx;
pub use store::{Builder, SqlStore};
pub use transaction::SqlTx;

/// The store on PostgreSQL.
#[cfg(feature = "postgres")]
pub type PgStore = SqlStore<sqlx::Postgres>;
/// The transaction of a [`PgStore`].
#[cfg(feature = "postgres")]
pub type PgTx = SqlTx<sqlx::Postgres>;

/// The store on SQLite.
#[cfg(feature = "sqlite")]
pub type SqliteStore = SqlStore<sqlx::Sqlite>;
/// The transaction of a [`SqliteStore`].
#[cfg(feature = "sqlite")]
pub type SqliteTx = SqlTx<sqlx::Sqlite>;

/// The store on MySQL or MariaDB.
#[cfg(feature = "mysql")]
pub type MySqlStore = SqlStore<sqlx::MySql>;
/// The transaction of a [`MySqlStore`].
#[cfg(feature = "mysql")]
pub type MySqlTx = SqlTx<sqlx::MySql>;
