-- The demo's own tables. Runs unchanged on SQLite and PostgreSQL, and any number of times.
-- Amounts are whole cents, or text as it came: SQLite has no decimal type, and a float loses digits.

CREATE TABLE IF NOT EXISTS orders (
    id            BIGINT  NOT NULL PRIMARY KEY,
    status        TEXT    NOT NULL,
    payments      INTEGER NOT NULL,
    refunds       INTEGER NOT NULL,
    balance_cents BIGINT  NOT NULL,
    parcels       INTEGER NOT NULL,
    shipping      TEXT,
    parcel        TEXT,
    shipped_at    TEXT,
    note          TEXT
);

-- No unique index on purpose: a payment that took effect twice would stand here twice.
CREATE TABLE IF NOT EXISTS ledger (
    order_id     BIGINT NOT NULL,
    payment_id   TEXT   NOT NULL,
    kind         TEXT   NOT NULL,
    amount       TEXT   NOT NULL,
    amount_cents BIGINT NOT NULL,
    booked_at    TEXT   NOT NULL,
    note         TEXT
);

-- The orders 1 to 240, open and unpaid. (`WHERE true` tells SQLite that ON belongs to the INSERT.)
INSERT INTO orders (id, status, payments, refunds, balance_cents, parcels)
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 240)
SELECT n, 'open', 0, 0, 0, 0 FROM numbers WHERE true
ON CONFLICT (id) DO NOTHING;
