//! The statements that MySQL and MariaDB want in another shape.
//!
//! Neither answers with the rows that it changed (MariaDB does for some statements), and affected rows cannot be
//! relied on: the driver has found rows counted, so that a row that was kept counts like a new one. So a change
//! writes the token of its attempt, `$t`, and a query looks who has it. Where several rows are picked, they are
//! locked, changed by the column that was read last, `$0`, and read again, in a transaction.
//!
//! A list of keys is looked up in the index that is named. On a table whose statistics still say that it is small, the
//! servers would scan instead, and lock or wait for the rows of others.

use crate::statements::{Shapes, first_of_key, leasable, may_be_taken, may_begin};

pub(super) const SHAPES: Shapes = Shapes {
    record: "INSERT INTO {inbox} (consumer, id, token, digest, sent_at, processed_at, state)
             VALUES ($1, $2, $t, $3, $4, {now}, 0) ON DUPLICATE KEY UPDATE id = id;
             UPDATE {inbox} i SET i.state = 0, i.processed_at = {now}, i.token = $t
             WHERE i.consumer = $1 AND i.id = $2 AND i.state = 1 AND EXISTS
                 (SELECT 1 FROM {waiting} w WHERE w.number = $5 AND w.consumer = $1 AND w.id = $2);
             UPDATE {inbox} SET token = token WHERE consumer = $1 AND id = $2 AND token = $t",
    renew_running: "BEGIN;
             SELECT id FROM {inbox} FORCE INDEX (PRIMARY) WHERE consumer = $1 AND id {in_texts $2} AND state = 3
                 AND CONCAT(id, ':', fence) {in_texts $3} {skip_locked};
             UPDATE {inbox} FORCE INDEX (PRIMARY) SET lease_until = {now} + $4 WHERE consumer = $1 AND id IN ($0)",
    turn_waiting: "UPDATE {inbox} SET state = 1, token = 0, lease_until = NULL, processed_at = {now}
                   WHERE consumer = $1 AND id = $2",
    turn_dead: "UPDATE {inbox} SET state = 2, token = 0, lease_until = NULL, processed_at = {now}
                WHERE consumer = $1 AND id = $2",
    // Each value by what the row was before: assignments are made from left to right.
    readmit: "INSERT INTO {inbox} (consumer, id, digest, processed_at, state) VALUES ($1, $2, $3, {now}, 1)
              ON DUPLICATE KEY UPDATE processed_at = CASE state WHEN 2 THEN VALUES(processed_at) ELSE processed_at END,
                                      state = CASE state WHEN 2 THEN 1 ELSE state END",
    park: "INSERT INTO {waiting} (consumer, id, kind, order_key, failures, code, error, due_at, parked_at,
                                  first_failed_at, label, body)
           VALUES ($1, $2, $3, $4, $5, $6, $7, {now} + $8, {now},
                   CASE WHEN $6 IS NOT NULL THEN {now} END, $9, $10)
           ON DUPLICATE KEY UPDATE
               failures = VALUES(failures), code = VALUES(code), error = VALUES(error),
               due_at = VALUES(due_at), lease_until = NULL, leases = 0,
               first_failed_at = COALESCE(first_failed_at, VALUES(first_failed_at))",
    lease: concat!(
        "BEGIN; SELECT w.number FROM {waiting} w WHERE ",
        leasable!(),
        " ORDER BY w.due_at, w.number LIMIT $2 {skip_locked};
          UPDATE {waiting} FORCE INDEX (waiting_number) SET lease_until = {now} + $3, leases = leases + 1
          WHERE number IN ($0);
          SELECT number, id, failures, leases, label, body, due_at, order_key FROM {waiting} WHERE number IN ($0)"
    ),
    leave_waiting: "SELECT number, first_failed_at FROM {waiting} WHERE consumer = $1 AND id = $2 FOR UPDATE;
                    DELETE FROM {waiting} WHERE consumer = $1 AND id = $2",
    bury: "INSERT INTO {dead_letters} (consumer, id, kind, order_key, place, reason, error, failures, crashes,
                                       first_failed_at, died_at, label, body)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, COALESCE($10, {now}), {now}, $11, $12);
           SELECT CAST(LAST_INSERT_ID() AS SIGNED)",
    redrive: "UPDATE {dead_letters} SET redriven_at = {now}, redriven_by = $2, id = COALESCE(id, $3), token = $t
              WHERE number = $1 AND redriven_at IS NULL AND (id IS NOT NULL OR $3 IS NOT NULL);
              SELECT consumer, id, kind, order_key, place, first_failed_at, label, body FROM {dead_letters}
              WHERE number = $1 AND token = $t",
    // Whoever puts a message into the waiting room has its row of the inbox: nobody comes in between.
    wait_again: "INSERT INTO {waiting} (number, consumer, id, kind, order_key, failures, error, due_at, parked_at,
                                        first_failed_at, label, body)
                 SELECT {place $1}, $2, $3, $4, $5, 0, '', {now}, {now}, $6, $7, $8
                 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {waiting} w WHERE w.consumer = $2 AND w.id = $3)",
    beat: "INSERT INTO {instances} (consumer, instance, started_at, beat_at) VALUES ($1, $2, {now}, {now})
           ON DUPLICATE KEY UPDATE beat_at = VALUES(beat_at), ended_at = NULL",
    charge_start: concat!(
        "SELECT 1 FROM {inbox} WHERE consumer = $1 AND id = $2 FOR UPDATE NOWAIT;
         INSERT INTO {starts} (consumer, id, token, count, started_at)
         SELECT $1, $2, $t, 1, {now} FROM DUAL
         WHERE NOT EXISTS (SELECT 1 FROM {inbox} i WHERE i.consumer = $1 AND i.id = $2 AND NOT ",
        may_be_taken!(),
        ") AND $5 > 0
         ON DUPLICATE KEY UPDATE
             token = CASE WHEN count < $5 THEN VALUES(token) ELSE token END,
             started_at = CASE WHEN count < $5 THEN VALUES(started_at) ELSE started_at END,
             count = CASE WHEN count < $5 THEN count + 1 ELSE count END;
         SELECT count FROM {starts} WHERE consumer = $1 AND id = $2 AND token = $t"
    ),
    purge: "SELECT sent_at, id FROM {inbox}
            WHERE consumer = $1 AND state = 0 AND processed_at < {at} - $2
              AND COALESCE(sent_at, processed_at) < {at} - $2
            ORDER BY processed_at LIMIT $3 {skip_locked};
            DELETE i FROM {inbox} i FORCE INDEX (PRIMARY) WHERE i.consumer = $1 AND i.id IN ($0)",
    move_horizon: "INSERT INTO {horizon} (consumer, sent_at) VALUES ($1, $2)
                   ON DUPLICATE KEY UPDATE
                       sent_at = {greatest}(COALESCE(sent_at, VALUES(sent_at)), VALUES(sent_at))",
    // The lease comes last, since the others ask for what it was.
    begin_call: "INSERT INTO {calls} (consumer, id, label, token, request, lease_until, key_valid_until, {key}, started_at)
                 VALUES ($1, $2, $3, $t, $4, {now} + $5, {now} + $6, $7, {now})
                 ON DUPLICATE KEY UPDATE
                     fence = CASE WHEN finished_at IS NULL AND request = VALUES(request) AND lease_until <= {at}
                                   AND key_valid_until > {at} THEN fence + 1 ELSE fence END,
                     token = CASE WHEN finished_at IS NULL AND request = VALUES(request) AND lease_until <= {at}
                                   AND key_valid_until > {at} THEN VALUES(token) ELSE token END,
                     lease_until = CASE WHEN finished_at IS NULL AND request = VALUES(request) AND lease_until <= {at}
                                         AND key_valid_until > {at} THEN VALUES(lease_until) ELSE lease_until END;
                 SELECT fence, {key} FROM {calls} WHERE consumer = $1 AND id = $2 AND label = $3 AND token = $t",
    newer: "INSERT INTO {versions} (consumer, entity, token, version, noted_at) VALUES ($1, $2, $t, $3, {now})
            ON DUPLICATE KEY UPDATE
                token = CASE WHEN version < VALUES(version) THEN VALUES(token) ELSE token END,
                noted_at = CASE WHEN version < VALUES(version) THEN VALUES(noted_at) ELSE noted_at END,
                version = {greatest}(version, VALUES(version));
            UPDATE {versions} SET token = token WHERE consumer = $1 AND entity = $2 AND token = $t",
    yield_buckets: "UPDATE {buckets} SET owner = NULL, lease_until = NULL
                    WHERE owner = $1 AND bucket NOT IN (SELECT bucket FROM
                        (SELECT bucket FROM {buckets} WHERE owner = $1 ORDER BY bucket LIMIT $2) kept)",
    take_buckets: "SELECT bucket FROM
                       (SELECT bucket, ROW_NUMBER() OVER (ORDER BY bucket) AS n FROM {buckets}
                        WHERE owner IS NULL OR lease_until <= {at}) free
                   WHERE n <= $3 - (SELECT count(*) FROM {buckets} WHERE owner = $1);
                   UPDATE {buckets} SET owner = $1, lease_until = {now} + $2
                   WHERE bucket IN ($0) AND (owner IS NULL OR lease_until <= {at})",
    purge_sent: "DELETE FROM {outbox} WHERE state = 1 AND sent_at < {at} - $1 ORDER BY sent_at LIMIT $2",
    queue_lease: "BEGIN;
                  SELECT number FROM {queue} WHERE queue = $1 AND (lease_until IS NULL OR lease_until <= {at})
                  ORDER BY number LIMIT $2 {skip_locked};
                  UPDATE {queue} FORCE INDEX (PRIMARY) SET fence = fence + 1, lease_until = {now} + $3
                  WHERE number IN ($0);
                  SELECT number, fence, label, body FROM {queue} WHERE number IN ($0)",
    queue_extend: "BEGIN;
                   SELECT number FROM {queue} FORCE INDEX (PRIMARY)
                   WHERE number {in_ints $1} AND CONCAT(number, ':', fence) {in_texts $2} FOR UPDATE;
                   UPDATE {queue} FORCE INDEX (PRIMARY) SET lease_until = {now} + $3 WHERE number IN ($0)",
    queue_ack: "BEGIN;
                SELECT number FROM {queue} FORCE INDEX (PRIMARY)
                WHERE number {in_ints $1} AND CONCAT(number, ':', fence) {in_texts $2} FOR UPDATE;
                DELETE q FROM {queue} q FORCE INDEX (PRIMARY) WHERE q.number IN ($0)",
    queue_hand_back: "BEGIN;
                      SELECT number FROM {queue} FORCE INDEX (PRIMARY)
                      WHERE number {in_ints $1} AND CONCAT(number, ':', fence) {in_texts $2} FOR UPDATE;
                      UPDATE {queue} FORCE INDEX (PRIMARY) SET lease_until = NULL WHERE number IN ($0)",
};

/// Nobody waits for a rival: whose row is locked is busy.
pub(super) const BEGIN_RUNNING: &str = concat!(
    "/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
     INSERT INTO {inbox} (consumer, id, token, digest, sent_at, processed_at, state, fence, lease_until)
     VALUES ($1, $2, $t, $3, $4, {now}, 3, {now} DIV 2 * 2, {now} + $5) ON DUPLICATE KEY UPDATE id = id;
     /*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
     UPDATE {inbox} i SET
         i.token = $t,
         i.digest = CASE i.state WHEN 3 THEN i.digest ELSE $3 END,
         i.sent_at = $4,
         i.processed_at = {now},
         i.fence = {greatest}({now} DIV 2 * 2, COALESCE(i.fence, 0) DIV 2 * 2 + 2)
                   + CASE i.state WHEN 3 THEN 1 ELSE 0 END,
         i.lease_until = {now} + $5,
         i.state = 3
     WHERE i.consumer = $1 AND i.id = $2 AND i.token <> $t AND ",
    may_begin!(),
    ";
     SELECT CASE token WHEN $t THEN fence END, CASE token WHEN $t THEN processed_at ELSE lease_until - {now} END,
            state, digest, CASE token WHEN $t THEN NULL ELSE result END
     FROM {inbox} WHERE consumer = $1 AND id = $2"
);
