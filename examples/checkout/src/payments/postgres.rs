//! Payments on PostgreSQL: the same file, compiled with the types of another database.

use hapax::PgTx as Tx;
use hapax::sqlx::PgConnection as Connection;

#[path = "ledger.rs"]
#[allow(clippy::duplicate_mod, reason = "the statements are written once for both databases")]
pub(crate) mod ledger;
