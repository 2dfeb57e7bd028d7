//! A small shop: payments come through the embedded queue, and each is booked in a ledger.

use crate::program::Folder;

/// Its configuration; tests change lines of it.
pub(crate) const CONFIG: &str = r#"version = 1

[store]
url = "sqlite:shop.db"
migrate = "apply"
setup = "schema.sql"

[consumers.orders]
source = { queue = "orders" }
id = "json:/id"
type = "json:/type"
key = "json:/order"
sent_at = "json:/sent_at"
retry = { attempts = 1000, first = "50ms", max = "50ms", jitter = false }

[consumers.orders.on.Paid.params]
id = { json = "/id", type = "text", nullable = true }
order = { json = "/order", type = "int" }
amount = { json = "/amount", type = "decimal" }

[[consumers.orders.on.Paid.sql]]
run = "UPDATE orders SET payments = payments + 1 WHERE id = :order"
expect_rows = 1
on_mismatch = "reject"

[[consumers.orders.on.Paid.sql]]
run = "INSERT INTO ledger (id, order_id, amount) VALUES (:id, :order, :amount)"
"#;

/// The orders 1, 2 and 3. The ledger keeps the order in which payments were booked.
const SCHEMA: &str = "
CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, payments BIGINT NOT NULL DEFAULT 0);
CREATE TABLE ledger (n INTEGER PRIMARY KEY, id TEXT, order_id BIGINT NOT NULL, amount TEXT NOT NULL);
INSERT INTO orders (id) VALUES (1), (2), (3);
";

/// The shop in a folder of its own, with `changes` made to its configuration. There is no database yet.
pub(crate) fn folder(changes: &[(&str, &str)]) -> Folder {
    Folder::with(&[("hapax.toml", &changed(changes)), ("schema.sql", SCHEMA)])
}

/// The configuration with changes.
pub(crate) fn changed(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(CONFIG.to_owned(), |config, (from, to)| {
        assert!(config.contains(from), "the configuration has no {from}");
        config.replacen(from, to, 1)
    })
}

/// A payment for an order.
pub(crate) fn paid(id: &str, order: u32) -> String {
    format!(
        r#"{{"id":"{id}","type":"Paid","sent_at":"2026-01-01T00:00:00Z","order":{order},"amount":12.50}}"#
    ) + "\n"
}
