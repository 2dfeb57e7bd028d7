//! The payments demo in a folder of its own, and what it leaves in its tables.

use std::path::Path;

use crate::program::Folder;

/// Each table as one text a row, in a form that SQLite and PostgreSQL write alike.
pub(crate) const TABLES: [&str; 2] = [
    "SELECT CAST(id AS TEXT) || ' ' || status || ' ' || CAST(payments AS TEXT) || ' ' || CAST(refunds AS TEXT) \
     || ' ' || CAST(balance_cents AS TEXT) || ' ' || CAST(parcels AS TEXT) || ' ' || coalesce(shipping, '-') \
     || ' ' || coalesce(parcel, '-') || ' ' || coalesce(shipped_at, '-') || ' ' || coalesce(note, '-') \
     FROM orders",
    "SELECT CAST(order_id AS TEXT) || ' ' || payment_id || ' ' || kind || ' ' || amount || ' ' \
     || CAST(amount_cents AS TEXT) || ' ' || booked_at || ' ' || coalesce(note, '-') FROM ledger",
];

/// The demo's three files, with `changes` made to the configuration.
pub(crate) fn folder(changes: &[(&str, &str)]) -> Folder {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/payments");
    let read = |name| std::fs::read_to_string(demo.join(name)).expect("the demo is in the repository");
    let mut config = read("hapax.toml");
    for (from, to) in changes {
        assert!(config.contains(from), "the demo's configuration has no {from}");
        config = config.replacen(from, to, 1);
    }
    let (lines, schema) = (read("payments.jsonl"), read("schema.sql"));
    Folder::with(&[("hapax.toml", &config), ("payments.jsonl", &lines), ("schema.sql", &schema)])
}

/// What the demo leaves on SQLite: every row of its tables, sorted.
pub(crate) async fn rows(folder: &Folder) -> Vec<String> {
    let mut database = folder.database("payments.db").await;
    let mut rows = Vec::new();
    for table in TABLES {
        rows.extend(sqlx::query_scalar(table).fetch_all(&mut database).await.expect("the demo's tables"));
    }
    rows.sort();
    rows
}
