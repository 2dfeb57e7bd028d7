-- Hapax, schema version 1, MySQL and MariaDB.
-- Every table of the first releases, so that a later release needs no rewrite of this one.
-- Times are microseconds since 1970-01-01T00:00:00Z. Message ids are compared byte by byte.
-- No statement of it is undone by a roll-back, so that each may be run again where it was interrupted.

CREATE TABLE IF NOT EXISTS hapax_schema_version (
    version    INT          PRIMARY KEY,
    name       VARCHAR(100) NOT NULL,
    applied_at BIGINT       NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

-- state: 0 done, 1 waiting, 2 dead, 3 running (with fence and lease_until). The result is what was kept beside a
-- record, such as the answer to a request. The token tells who wrote a row last, which affected rows do not.
-- A claim makes a running row whose lease has ended, and is done only with its commit: where a handler commits
-- early, its messages come again.
CREATE TABLE IF NOT EXISTS hapax_inbox (
    consumer     VARBINARY(255) NOT NULL,
    id           VARBINARY(255) NOT NULL,
    token        BIGINT         NOT NULL DEFAULT 0,
    digest       BIGINT         NOT NULL,
    sent_at      BIGINT,
    processed_at BIGINT         NOT NULL,
    fence        BIGINT,
    lease_until  BIGINT,
    state        TINYINT        NOT NULL,
    result       LONGBLOB,
    PRIMARY KEY (consumer, id),
    KEY inbox_age (consumer, state, processed_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

-- The id is the primary key, since a second unique index is checked under a lock on the gap beside the row.
CREATE TABLE IF NOT EXISTS hapax_waiting (
    number          BIGINT          NOT NULL AUTO_INCREMENT,
    consumer        VARBINARY(255)  NOT NULL,
    id              VARBINARY(255)  NOT NULL,
    kind            TEXT            NOT NULL,
    order_key       VARBINARY(2048),
    failures        BIGINT          NOT NULL,
    code            VARCHAR(20),
    error           LONGTEXT        NOT NULL,
    due_at          BIGINT          NOT NULL,
    lease_until     BIGINT,
    leases          INT             NOT NULL DEFAULT 0,
    parked_at       BIGINT          NOT NULL,
    first_failed_at BIGINT,
    label           LONGTEXT        NOT NULL,
    body            LONGBLOB        NOT NULL,
    PRIMARY KEY (consumer, id),
    UNIQUE KEY waiting_number (number),
    KEY waiting_due (consumer, due_at, number),
    KEY waiting_order (consumer, order_key, number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

-- A redriven letter stays for the record, with redriven_at and redriven_by.
CREATE TABLE IF NOT EXISTS hapax_dead_letters (
    number          BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    token           BIGINT          NOT NULL DEFAULT 0,
    place           BIGINT,
    consumer        VARBINARY(255)  NOT NULL,
    id              VARBINARY(255),
    kind            TEXT            NOT NULL,
    order_key       VARBINARY(2048),
    reason          VARCHAR(20)     NOT NULL,
    error           LONGTEXT        NOT NULL,
    failures        BIGINT          NOT NULL,
    crashes         BIGINT          NOT NULL,
    first_failed_at BIGINT          NOT NULL,
    died_at         BIGINT          NOT NULL,
    redriven_at     BIGINT,
    redriven_by     TEXT,
    label           LONGTEXT        NOT NULL,
    body            LONGBLOB        NOT NULL,
    KEY dead_letters_open (redriven_at, number),
    KEY dead_letters_id (consumer, id),
    KEY dead_letters_order (consumer, order_key, place)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

-- state: 0 unsent, 1 sent, 2 parked.
CREATE TABLE IF NOT EXISTS hapax_outbox (
    number      BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id          VARBINARY(255)  NOT NULL,
    consumer    VARBINARY(255)  NOT NULL,
    cause       VARBINARY(255),
    kind        TEXT            NOT NULL,
    `key`       VARBINARY(2048),
    bucket      SMALLINT        NOT NULL,
    state       TINYINT         NOT NULL DEFAULT 0,
    broker      VARBINARY(255)  NOT NULL,
    destination TEXT            NOT NULL,
    routing_key TEXT            NOT NULL,
    attempts    BIGINT          NOT NULL DEFAULT 0,
    code        VARCHAR(20),
    error       LONGTEXT,
    due_at      BIGINT          NOT NULL,
    parked_at   BIGINT,
    created_at  BIGINT          NOT NULL,
    sent_at     BIGINT,
    label       LONGTEXT        NOT NULL,
    body        LONGBLOB        NOT NULL,
    KEY outbox_unsent (state, number),
    KEY outbox_key (`key`, number),
    KEY outbox_sent (state, sent_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_buckets (
    bucket      SMALLINT       PRIMARY KEY,
    owner       VARBINARY(512),
    lease_until BIGINT
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
INSERT INTO hapax_buckets (bucket)
SELECT 8 * eights.n + ones.n
FROM (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) eights
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) ones
WHERE TRUE -- or its ON would be the join's
ON DUPLICATE KEY UPDATE bucket = VALUES(bucket);

-- In progress until finished_at.
CREATE TABLE IF NOT EXISTS hapax_calls (
    consumer        VARBINARY(255)  NOT NULL,
    id              VARBINARY(255)  NOT NULL,
    label           VARBINARY(1024) NOT NULL,
    token           BIGINT          NOT NULL DEFAULT 0,
    `key`           TEXT            NOT NULL,
    request         LONGBLOB        NOT NULL,
    result          LONGBLOB,
    fence           BIGINT          NOT NULL DEFAULT 0,
    lease_until     BIGINT,
    key_valid_until BIGINT          NOT NULL,
    started_at      BIGINT          NOT NULL,
    finished_at     BIGINT,
    PRIMARY KEY (consumer, id, label)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_instances (
    consumer   VARBINARY(255) NOT NULL,
    instance   VARBINARY(512) NOT NULL,
    started_at BIGINT         NOT NULL,
    beat_at    BIGINT         NOT NULL,
    ended_at   BIGINT,
    PRIMARY KEY (consumer, instance)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_starts (
    consumer   VARBINARY(255) NOT NULL,
    id         VARBINARY(255) NOT NULL,
    token      BIGINT         NOT NULL DEFAULT 0,
    count      BIGINT         NOT NULL,
    started_at BIGINT         NOT NULL,
    PRIMARY KEY (consumer, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

-- The newest sent_at that was ever purged, per consumer.
CREATE TABLE IF NOT EXISTS hapax_horizon (
    consumer VARBINARY(255) PRIMARY KEY,
    sent_at  BIGINT
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_versions (
    consumer VARBINARY(255)  NOT NULL,
    entity   VARBINARY(2048) NOT NULL,
    token    BIGINT          NOT NULL DEFAULT 0,
    version  BIGINT          NOT NULL,
    noted_at BIGINT          NOT NULL,
    PRIMARY KEY (consumer, entity)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

CREATE TABLE IF NOT EXISTS hapax_queue (
    number      BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    queue       VARBINARY(1024) NOT NULL,
    fence       BIGINT          NOT NULL DEFAULT 0,
    lease_until BIGINT,
    sent_at     BIGINT          NOT NULL,
    label       LONGTEXT        NOT NULL,
    body        LONGBLOB        NOT NULL,
    KEY queue_next (queue, number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

INSERT INTO hapax_schema_version (version, name, applied_at)
VALUES (1, 'initial', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
ON DUPLICATE KEY UPDATE version = VALUES(version);
