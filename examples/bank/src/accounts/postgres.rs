//! Accounts on PostgreSQL: the same file, compiled with the types of another database.

use hapax::PgTx as Tx;
use hapax::sqlx::PgConnection as Connection;

#[path = "books.rs"]
#[allow(clippy::duplicate_mod, reason = "the books are written once for both databases")]
pub(crate) mod books;
