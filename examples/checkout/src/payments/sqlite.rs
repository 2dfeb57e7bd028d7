//! Payments on SQLite.

use hapax::SqliteTx as Tx;
use hapax::sqlx::SqliteConnection as Connection;

#[path = "ledger.rs"]
pub(crate) mod ledger;
