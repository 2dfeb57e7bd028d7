//! The orders service on SQLite.

use hapax::sqlx::SqliteConnection as Connection;
use hapax::{SqliteStore as Store, SqliteTx as Tx};

#[path = "orders.rs"]
pub(crate) mod orders;
