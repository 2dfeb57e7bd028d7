//! The orders service on PostgreSQL: the same file, compiled with the types of another database.

use hapax::sqlx::PgConnection as Connection;
use hapax::{PgStore as Store, PgTx as Tx};

#[path = "orders.rs"]
#[allow(clippy::duplicate_mod, reason = "the service is written once for both databases")]
pub(crate) mod orders;
