//! Accounts on SQLite.

use hapax::SqliteTx as Tx;
use hapax::sqlx::SqliteConnection as Connection;

#[path = "books.rs"]
pub(crate) mod books;
