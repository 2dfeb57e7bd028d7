-- Hapax, schema version 1, SQLite.
-- Every table of the first releases, so that a later release needs no rewrite of this one.
-- Times are microseconds since 1970-01-01T00:00:00Z. Message ids are compared byte by byte.

CREATE TABLE hapax_schema_version (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
);

-- state: 0 done, 1 waiting, 2 dead, 3 running (with fence and lease_until). The result is what was kept beside a
-- record, such as the answer to a request.
CREATE TABLE hapax_inbox (
    consumer     TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    state        INTEGER NOT NULL,
    digest       INTEGER NOT NULL,
    sent_at      INTEGER,
    processed_at INTEGER NOT NULL,
    fence        INTEGER,
    lease_until  INTEGER,
    result       BLOB,
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;
-- What retention reads.
CREATE INDEX hapax_inbox_age ON hapax_inbox (consumer, processed_at / 60000000);

-- AUTOINCREMENT: a place or number is never given twice, or a late owner could settle another's row.
CREATE TABLE hapax_waiting (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer        TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    order_key       TEXT,
    failures        INTEGER NOT NULL,
    code            TEXT,
    error           TEXT    NOT NULL,
    due_at          INTEGER NOT NULL,
    lease_until     INTEGER,
    leases          INTEGER NOT NULL DEFAULT 0,
    parked_at       INTEGER NOT NULL,
    first_failed_at INTEGER,
    label           TEXT    NOT NULL,
    body            BLOB    NOT NULL,
    UNIQUE (consumer, id)
);
CREATE INDEX hapax_waiting_due ON hapax_waiting (consumer, due_at);
CREATE INDEX hapax_waiting_order ON hapax_waiting (consumer, order_key, number) WHERE order_key IS NOT NULL;
INSERT INTO sqlite_sequence (name, seq) VALUES ('hapax_waiting', 0);

-- A redriven letter stays for the record, with redriven_at and redriven_by.
CREATE TABLE hapax_dead_letters (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    place           INTEGER,
    consumer        TEXT    NOT NULL,
    id              TEXT,
    kind            TEXT    NOT NULL,
    order_key       TEXT,
    reason          TEXT    NOT NULL,
    error           TEXT    NOT NULL,
    failures        INTEGER NOT NULL,
    crashes         INTEGER NOT NULL,
    first_failed_at INTEGER NOT NULL,
    died_at         INTEGER NOT NULL,
    redriven_at     INTEGER,
    redriven_by     TEXT,
    label           TEXT    NOT NULL,
    body            BLOB    NOT NULL
);
CREATE INDEX hapax_dead_letters_open ON hapax_dead_letters (number) WHERE redriven_at IS NULL;
CREATE INDEX hapax_dead_letters_id ON hapax_dead_letters (consumer, id);
CREATE INDEX hapax_dead_letters_order ON hapax_dead_letters (consumer, order_key, place)
    WHERE order_key IS NOT NULL AND redriven_at IS NULL;

-- state: 0 unsent, 1 sent, 2 parked.
CREATE TABLE hapax_outbox (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL,
    consumer    TEXT    NOT NULL,
    cause       TEXT,
    kind        TEXT    NOT NULL,
    key         TEXT,
    bucket      INTEGER NOT NULL,
    state       INTEGER NOT NULL DEFAULT 0,
    broker      TEXT    NOT NULL,
    destination TEXT    NOT NULL,
    routing_key TEXT    NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    code        TEXT,
    error       TEXT,
    due_at      INTEGER NOT NULL,
    parked_at   INTEGER,
    created_at  INTEGER NOT NULL,
    sent_at     INTEGER,
    label       TEXT    NOT NULL,
    body        BLOB    NOT NULL
);
-- In the order of their numbers, which every index ends with.
CREATE INDEX hapax_outbox_unsent ON hapax_outbox (state) WHERE state = 0;
-- Those that hold up others of their key. Nearly always empty.
CREATE INDEX hapax_outbox_failing ON hapax_outbox (key, number) WHERE attempts > 0 AND state <> 1;
CREATE INDEX hapax_outbox_sent ON hapax_outbox (sent_at) WHERE state = 1;

CREATE TABLE hapax_buckets (
    bucket      INTEGER PRIMARY KEY,
    owner       TEXT,
    lease_until INTEGER
);
INSERT INTO hapax_buckets (bucket)
WITH RECURSIVE each(bucket) AS (SELECT 0 UNION ALL SELECT bucket + 1 FROM each WHERE bucket < 63)
SELECT bucket FROM each;

-- In progress until finished_at.
CREATE TABLE hapax_calls (
    consumer        TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    label           TEXT    NOT NULL,
    key             TEXT    NOT NULL,
    request         BLOB    NOT NULL,
    result          BLOB,
    fence           INTEGER NOT NULL DEFAULT 0,
    lease_until     INTEGER,
    key_valid_until INTEGER NOT NULL,
    started_at      INTEGER NOT NULL,
    finished_at     INTEGER,
    PRIMARY KEY (consumer, id, label)
) WITHOUT ROWID;

CREATE TABLE hapax_instances (
    consumer   TEXT    NOT NULL,
    instance   TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    beat_at    INTEGER NOT NULL,
    ended_at   INTEGER,
    PRIMARY KEY (consumer, instance)
) WITHOUT ROWID;

CREATE TABLE hapax_starts (
    consumer   TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    count      INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;

-- The newest sent_at that was ever purged, per consumer.
CREATE TABLE hapax_horizon (
    consumer TEXT PRIMARY KEY NOT NULL,
    sent_at  INTEGER
) WITHOUT ROWID;

CREATE TABLE hapax_versions (
    consumer TEXT    NOT NULL,
    entity   TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    noted_at INTEGER NOT NULL,
    PRIMARY KEY (consumer, entity)
) WITHOUT ROWID;

CREATE TABLE hapax_queue (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    queue       TEXT    NOT NULL,
    fence       INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER,
    sent_at     INTEGER NOT NULL,
    label       TEXT    NOT NULL,
    body        BLOB    NOT NULL
);
CREATE INDEX hapax_queue_next ON hapax_queue (queue, number + 0);

INSERT INTO hapax_schema_version (version, name, applied_at)
VALUES (1, 'initial', CAST(unixepoch('subsec') * 1000000 AS INTEGER));
