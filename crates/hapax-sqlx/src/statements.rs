//! The table of statements: one text for every database, resolved once per store.
//!
//! Placeholders: a table's name (`{inbox}`), the database's clock (`{now}`, and `{at}` where an index
//! is to be compared with it), `{key}`, `{skip_locked}`, `{greatest}`, `{in_ints $2}`, `{in_texts $2}`, `{place $1}`.

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::dialect::Dialect;

/// Every table of the schema.
const TABLES: [&str; 12] = [
    "schema_version",
    "inbox",
    "waiting",
    "dead_letters",
    "outbox",
    "buckets",
    "calls",
    "instances",
    "starts",
    "horizon",
    "versions",
    "queue",
];

/// Fills a template's placeholders.
pub(crate) fn resolve<D: Dialect>(template: &str, schema: &str) -> SqlStr {
    let mut sql = String::with_capacity(template.len() + 64);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        sql.push_str(before);
        sql.push_str(&fill::<D>(name, schema));
        rest = after;
    }
    sql.push_str(rest);
    AssertSqlSafe(sql).into_sql_str()
}

fn fill<D: Dialect>(name: &str, schema: &str) -> String {
    match name.split_once(' ') {
        Some(("in_ints", parameter)) => return D::in_ints(parameter),
        Some(("in_texts", parameter)) => return D::in_texts(parameter),
        Some(("place", parameter)) => return D::place(schema, parameter),
        _ => {}
    }
    match name {
        "now" => D::NOW.to_owned(),
        "at" => D::AT.to_owned(),
        "key" => D::KEY.to_owned(),
        "greatest" => D::GREATEST.to_owned(),
        "skip_locked" => D::SKIP_LOCKED.to_owned(),
        "unheld" => resolve::<D>(D::UNHELD, schema).as_str().to_owned(),
        "seed" => seed(schema).to_string(),
        "schema" => schema.to_owned(),
        table => {
            debug_assert!(TABLES.contains(&table), "no table or placeholder `{table}`");
            D::table(schema, table)
        }
    }
}

/// Keeps the advisory locks of two schemas in one database apart (FNV-1a).
fn seed(schema: &str) -> i64 {
    let hash = schema.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i64::from_be_bytes(hash.to_be_bytes())
}

macro_rules! statements {
    ($($name:ident = $template:expr;)*) => {
        /// Every statement, ready to run.
        #[allow(dead_code)] // a dialect uses as many of the claim's texts as it needs
        pub struct Statements<D: Dialect> {
            /// The schema or prefix that they are for.
            pub(crate) schema: String,
            $(pub(crate) $name: D::Sql,)*
        }

        impl<D: Dialect> Statements<D> {
            /// The statements of a dialect for a schema or prefix.
            pub(crate) fn of(schema: &str) -> Self {
                Self { schema: schema.to_owned(), $($name: D::sql(resolve::<D>($template, schema)),)* }
            }
        }
    };
}

/// Of a key's messages only the first is ever due, and none while a dead letter stands before it.
macro_rules! first_of_key {
    () => {
        "(w.order_key IS NULL OR (
            NOT EXISTS (SELECT 1 FROM {waiting} e
                        WHERE e.consumer = w.consumer AND e.order_key = w.order_key AND e.number < w.number)
            AND NOT EXISTS (SELECT 1 FROM {dead_letters} d
                            WHERE d.consumer = w.consumer AND d.order_key = w.order_key
                              AND d.redriven_at IS NULL AND d.place < w.number)))"
    };
}

/// A row `i` of the inbox that a claim of the key `$1`, `$2` with the place `$3` and the fence `$4` may take.
macro_rules! may_be_taken {
    () => {
        "(i.state = 1 AND EXISTS (SELECT 1 FROM {waiting} w WHERE w.number = $3 AND w.consumer = $1 AND w.id = $2)
          OR i.state = 3 AND COALESCE(i.fence = $4, i.lease_until <= {at}))"
    };
}

/// A row `i` of the inbox that may be put under a lease: its own has ended, or it waits at the place `$6`.
macro_rules! may_begin {
    () => {
        "(i.state = 3 AND i.lease_until <= {at}
          OR i.state = 1 AND EXISTS
              (SELECT 1 FROM {waiting} w WHERE w.number = $6 AND w.consumer = $1 AND w.id = $2))"
    };
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
/// Puts a message under a lease: one that is new, or one that may be begun. Any other is passed over before the
/// insert, which would lock its row, and so would cost a duplicate a commit.
///
/// A fence is the clock, so that none is ever given twice, even if the row was given up in between. It is odd
/// if another one's lease had ended, and even otherwise.
macro_rules! begin_running {
    () => {
        concat!(
            "INSERT INTO {inbox} AS i (consumer, id, digest, sent_at, processed_at, state, fence, lease_until)
             SELECT $1, $2, $3, $4, {now}, 3, {now} / 2 * 2, {now} + $5
             WHERE {unheld} AND NOT EXISTS (SELECT 1 FROM {inbox} i WHERE i.consumer = $1 AND i.id = $2 AND NOT ",
            may_begin!(),
            ") ON CONFLICT (consumer, id) DO UPDATE SET
                 state = 3, digest = CASE WHEN i.state = 3 THEN i.digest ELSE excluded.digest END,
                 sent_at = excluded.sent_at, processed_at = excluded.processed_at,
                 lease_until = excluded.lease_until,
                 fence = {greatest}(excluded.fence, COALESCE(i.fence, 0) / 2 * 2 + 2)
                     + CASE WHEN i.state = 3 THEN 1 ELSE 0 END
             WHERE ",
            may_begin!(),
            " RETURNING fence, processed_at, state, digest"
        )
    };
}
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use begin_running;
pub(crate) use may_begin;

/// Waiting, due, and in nobody's hands.
macro_rules! leasable {
    () => {
        concat!(
            "w.consumer = $1 AND w.due_at <= {at} AND (w.lease_until IS NULL OR w.lease_until <= {at}) AND ",
            first_of_key!()
        )
    };
}

/// Which dead letters a filter lets through.
macro_rules! filtered {
    () => {
        "redriven_at IS NULL AND ($1 IS NULL OR consumer = $1) AND ($2 IS NULL OR reason = $2)
         AND ($3 IS NULL OR id = $3) AND number > $4"
    };
}

/// A row of the outbox that no failing one of its key stands before, where that matters.
macro_rules! unblocked {
    () => {
        "($3 = 1 OR o.{key} IS NULL OR NOT EXISTS
            (SELECT 1 FROM {outbox} e
             WHERE e.{key} = o.{key} AND e.number < o.number AND e.attempts > 0 AND e.state <> 1))"
    };
}
pub(crate) use unblocked;
#[cfg(feature = "mysql")]
pub(crate) use {first_of_key, leasable, may_be_taken};

/// Which rows of the outbox a filter lets through.
macro_rules! outbox_filtered {
    () => {
        "($1 IS NULL OR state = $1) AND ($2 IS NULL OR consumer = $2) AND ($3 IS NULL OR {key} = $3)
         AND ($4 IS NULL OR id = $4) AND (($5 = 0) OR (attempts > 0 AND state <> 1)) AND number > $6"
    };
}

/// The statements whose shape is another where a database has neither `RETURNING` nor `ON CONFLICT`, nor takes a
/// change inside a `WITH`. Parameters and results are the same everywhere.
#[derive(Debug)]
#[allow(missing_docs)] // named as in the table below
pub struct Shapes {
    pub(crate) record: &'static str,
    pub(crate) renew_running: &'static str,
    pub(crate) turn_waiting: &'static str,
    pub(crate) turn_dead: &'static str,
    pub(crate) readmit: &'static str,
    pub(crate) park: &'static str,
    pub(crate) lease: &'static str,
    pub(crate) leave_waiting: &'static str,
    pub(crate) bury: &'static str,
    pub(crate) redrive: &'static str,
    pub(crate) wait_again: &'static str,
    pub(crate) beat: &'static str,
    pub(crate) charge_start: &'static str,
    pub(crate) purge: &'static str,
    pub(crate) move_horizon: &'static str,
    pub(crate) begin_call: &'static str,
    pub(crate) newer: &'static str,
    pub(crate) yield_buckets: &'static str,
    pub(crate) take_buckets: &'static str,
    pub(crate) purge_sent: &'static str,
    pub(crate) queue_lease: &'static str,
    pub(crate) queue_extend: &'static str,
    pub(crate) queue_ack: &'static str,
    pub(crate) queue_hand_back: &'static str,
}

/// The shapes that PostgreSQL and SQLite share.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const STANDARD: Shapes = Shapes {
    record: "INSERT INTO {inbox} AS i (consumer, id, digest, sent_at, processed_at, state)
              VALUES ($1, $2, $3, $4, {now}, 0)
              ON CONFLICT (consumer, id) DO UPDATE SET state = 0, processed_at = excluded.processed_at
              WHERE i.state = 1 AND EXISTS
                  (SELECT 1 FROM {waiting} w WHERE w.number = $5 AND w.consumer = $1 AND w.id = $2)",
    renew_running: "WITH ours AS MATERIALIZED (
                         SELECT id FROM {inbox}
                         WHERE consumer = $1 AND id {in_texts $2} AND state = 3
                           AND id || ':' || fence {in_texts $3} {skip_locked})
                     UPDATE {inbox} SET lease_until = {now} + $4
                     WHERE consumer = $1 AND id IN (SELECT id FROM ours) RETURNING id",
    turn_waiting: "UPDATE {inbox} SET state = 1, processed_at = {now} WHERE consumer = $1 AND id = $2",
    turn_dead: "UPDATE {inbox} SET state = 2, processed_at = {now} WHERE consumer = $1 AND id = $2",
    readmit: "INSERT INTO {inbox} AS i (consumer, id, digest, processed_at, state)
               VALUES ($1, $2, $3, {now}, 1)
               ON CONFLICT (consumer, id) DO UPDATE SET state = 1, processed_at = excluded.processed_at
               WHERE i.state = 2",
    park: "INSERT INTO {waiting} AS w (consumer, id, kind, order_key, failures, code, error, due_at, parked_at,
                                        first_failed_at, label, body)
            VALUES ($1, $2, $3, $4, $5, $6, $7, {now} + $8, {now},
                    CASE WHEN $6 IS NOT NULL THEN {now} END, $9, $10)
            ON CONFLICT (consumer, id) DO UPDATE SET
                failures = excluded.failures, code = excluded.code, error = excluded.error,
                due_at = excluded.due_at, lease_until = NULL, leases = 0,
                first_failed_at = COALESCE(w.first_failed_at, excluded.first_failed_at)",
    lease: concat!(
        "WITH picked AS MATERIALIZED (SELECT w.number FROM {waiting} w WHERE ", leasable!(),
        " ORDER BY w.due_at, w.number LIMIT $2 {skip_locked})
         UPDATE {waiting} SET lease_until = {now} + $3, leases = leases + 1
         WHERE number IN (SELECT number FROM picked)
         RETURNING number, id, failures, leases, label, body, due_at, order_key"),
    leave_waiting: "DELETE FROM {waiting} WHERE consumer = $1 AND id = $2
                     RETURNING number, first_failed_at",
    bury: "INSERT INTO {dead_letters} (consumer, id, kind, order_key, place, reason, error, failures, crashes,
                                        first_failed_at, died_at, label, body)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, COALESCE($10, {now}), {now}, $11, $12)
            RETURNING number",
    redrive: "UPDATE {dead_letters} SET redriven_at = {now}, redriven_by = $2, id = COALESCE(id, $3)
               WHERE number = $1 AND redriven_at IS NULL AND (id IS NOT NULL OR $3 IS NOT NULL)
               RETURNING consumer, id, kind, order_key, place, first_failed_at, label, body",
    wait_again: "INSERT INTO {waiting} (number, consumer, id, kind, order_key, failures, error, due_at, parked_at,
                                         first_failed_at, label, body)
                  VALUES ({place $1}, $2, $3, $4, $5, 0, '', {now}, {now}, $6, $7, $8)
                  ON CONFLICT (consumer, id) DO NOTHING",
    beat: "INSERT INTO {instances} (consumer, instance, started_at, beat_at) VALUES ($1, $2, {now}, {now})
            ON CONFLICT (consumer, instance) DO UPDATE SET beat_at = excluded.beat_at, ended_at = NULL",
    charge_start: concat!("INSERT INTO {starts} AS s (consumer, id, count, started_at)
                    SELECT $1, $2, 1, {now}
                    WHERE NOT EXISTS (SELECT 1 FROM {inbox} i WHERE i.consumer = $1 AND i.id = $2 AND NOT ", may_be_taken!(),
                   ") AND $5 > 0 AND {unheld}
                    ON CONFLICT (consumer, id) DO UPDATE SET count = s.count + 1, started_at = excluded.started_at
                    WHERE s.count < $5
                    RETURNING count"),
    purge: "WITH due AS MATERIALIZED (
                 SELECT id FROM {inbox}
                 WHERE consumer = $1 AND state = 0
                   AND processed_at / 60000000 <= ({at} - $2) / 60000000
                   AND processed_at < {at} - $2 AND COALESCE(sent_at, processed_at) < {at} - $2
                 ORDER BY processed_at / 60000000 LIMIT $3 {skip_locked})
             DELETE FROM {inbox} WHERE consumer = $1 AND id IN (SELECT id FROM due) RETURNING sent_at, id",
    move_horizon: "INSERT INTO {horizon} AS h (consumer, sent_at) VALUES ($1, $2)
                    ON CONFLICT (consumer) DO UPDATE SET
                        sent_at = {greatest}(COALESCE(h.sent_at, excluded.sent_at), excluded.sent_at)",
    begin_call: "INSERT INTO {calls} AS c (consumer, id, label, request, lease_until, key_valid_until, key, started_at)
                  SELECT $1, $2, $3, $4, {now} + $5, {now} + $6, $7, {now}
                  WHERE NOT EXISTS (SELECT 1 FROM {calls} c
                                    WHERE c.consumer = $1 AND c.id = $2 AND c.label = $3 AND c.finished_at IS NOT NULL)
                  ON CONFLICT (consumer, id, label) DO UPDATE SET fence = c.fence + 1, lease_until = excluded.lease_until
                  WHERE c.finished_at IS NULL AND c.request = excluded.request
                    AND c.lease_until <= {at} AND c.key_valid_until > {at}
                  RETURNING fence, key",
    newer: "INSERT INTO {versions} AS v (consumer, entity, version, noted_at) VALUES ($1, $2, $3, {now})
             ON CONFLICT (consumer, entity) DO UPDATE SET version = excluded.version, noted_at = excluded.noted_at
             WHERE v.version < excluded.version",
    yield_buckets: "UPDATE {buckets} SET owner = NULL, lease_until = NULL
                     WHERE owner = $1 AND bucket NOT IN
                         (SELECT bucket FROM {buckets} WHERE owner = $1 ORDER BY bucket LIMIT $2)",
    take_buckets: "WITH free AS MATERIALIZED (
                        SELECT bucket FROM {buckets} WHERE owner IS NULL OR lease_until <= {at}
                        ORDER BY bucket
                        LIMIT (SELECT {greatest}($3 - count(*), 0) FROM {buckets} WHERE owner = $1) {skip_locked})
                    UPDATE {buckets} SET owner = $1, lease_until = {now} + $2
                    WHERE bucket IN (SELECT bucket FROM free)",
    purge_sent: "DELETE FROM {outbox} WHERE number IN
                      (SELECT number FROM {outbox} WHERE state = 1 AND sent_at < {at} - $1
                       ORDER BY sent_at LIMIT $2 {skip_locked})",
    queue_lease: "WITH picked AS MATERIALIZED (
                       SELECT number FROM {queue} WHERE queue = $1 AND (lease_until IS NULL OR lease_until <= {at})
                       ORDER BY number + 0 LIMIT $2 {skip_locked})
                   UPDATE {queue} SET fence = fence + 1, lease_until = {now} + $3
                   WHERE number IN (SELECT number FROM picked)
                   RETURNING number, fence, label, body",
    queue_extend: "UPDATE {queue} SET lease_until = {now} + $3
                    WHERE number {in_ints $1} AND number || ':' || fence {in_texts $2} RETURNING number",
    queue_ack: "DELETE FROM {queue} WHERE number {in_ints $1} AND number || ':' || fence {in_texts $2}
                 RETURNING number",
    queue_hand_back: "UPDATE {queue} SET lease_until = NULL
                       WHERE number {in_ints $1} AND number || ':' || fence {in_texts $2} RETURNING number",
};

statements! {
    // claim
    claim_first = D::CLAIM[0];
    claim_second = D::CLAIM[1];
    claim_third = D::CLAIM[2];
    claim_fourth = D::CLAIM[3];
    claim_fifth = D::CLAIM[4];
    claim_sixth = D::CLAIM[5];
    held = D::HELD;
    horizon = "SELECT sent_at FROM {horizon} WHERE consumer = $1";

    // inbox
    look = D::LOOK;
    record = D::SHAPES.record;
    begin_running = D::BEGIN_RUNNING;
    renew_running = D::SHAPES.renew_running;
    end_running = "UPDATE {inbox} SET state = 0, processed_at = {now}, lease_until = NULL, result = $4
                   WHERE consumer = $1 AND id = $2 AND state = 3 AND fence = $3";
    drop_running = "DELETE FROM {inbox}
                    WHERE consumer = $1 AND id = $2 AND state = 3 AND fence = $3 AND NOT EXISTS
                        (SELECT 1 FROM {waiting} w WHERE w.consumer = $1 AND w.id = $2)";
    wait_on = "UPDATE {inbox} SET state = 1, lease_until = NULL
               WHERE consumer = $1 AND id = $2 AND state = 3 AND fence = $3";
    turn_waiting = D::SHAPES.turn_waiting;
    turn_dead = D::SHAPES.turn_dead;
    readmit = D::SHAPES.readmit;
    has_records = "SELECT CASE WHEN EXISTS (SELECT 1 FROM {inbox} WHERE consumer = $1)
                       OR EXISTS (SELECT 1 FROM {waiting} WHERE consumer = $1)
                       OR EXISTS (SELECT 1 FROM {dead_letters} WHERE consumer = $1)
                       OR EXISTS (SELECT 1 FROM {calls} WHERE consumer = $1)
                       OR EXISTS (SELECT 1 FROM {versions} WHERE consumer = $1)
                       OR EXISTS (SELECT 1 FROM {horizon} WHERE consumer = $1) THEN 1 ELSE 0 END";
    forget_instances_of = "DELETE FROM {instances} WHERE consumer = $1";
    forget_starts_of = "DELETE FROM {starts} WHERE consumer = $1";
    rename_inbox = "UPDATE {inbox} SET consumer = $2 WHERE consumer = $1";
    rename_waiting = "UPDATE {waiting} SET consumer = $2 WHERE consumer = $1";
    rename_dead = "UPDATE {dead_letters} SET consumer = $2 WHERE consumer = $1";
    rename_outbox = "UPDATE {outbox} SET consumer = $2 WHERE consumer = $1";
    rename_calls = "UPDATE {calls} SET consumer = $2 WHERE consumer = $1";
    rename_instances = "UPDATE {instances} SET consumer = $2 WHERE consumer = $1";
    rename_starts = "UPDATE {starts} SET consumer = $2 WHERE consumer = $1";
    rename_horizon = "UPDATE {horizon} SET consumer = $2 WHERE consumer = $1";
    rename_versions = "UPDATE {versions} SET consumer = $2 WHERE consumer = $1";

    // waiting room
    park = D::SHAPES.park;
    lease_peek = concat!("SELECT 1 FROM {waiting} w WHERE ", leasable!(), " LIMIT 1");
    lease = D::SHAPES.lease;
    renew = "UPDATE {waiting} SET lease_until = {now} + $3
             WHERE consumer = $1 AND number {in_ints $2} AND leases > 0";
    give_back = "UPDATE {waiting} SET lease_until = NULL, leases = 0
                 WHERE consumer = $1 AND number {in_ints $2} AND leases > 0";
    depth = concat!(
        "SELECT count(*), count(CASE WHEN first = 1 AND due_at <= clock THEN 1 END),
                min(CASE WHEN first = 1 AND due_at > clock THEN due_at - clock END)
         FROM (SELECT w.due_at, {at} AS clock, CASE WHEN ", first_of_key!(), " THEN 1 ELSE 0 END AS first
               FROM {waiting} w WHERE w.consumer = $1) heads");
    waiting = "SELECT number, failures, code, error, due_at, parked_at FROM {waiting}
               WHERE consumer = $1 AND id = $2";

    // dead letters
    leave_waiting = D::SHAPES.leave_waiting;
    new_place = D::NEW_PLACE;
    bury = D::SHAPES.bury;
    dead = concat!(
        "SELECT number, consumer, id, kind, order_key, reason, error, failures, crashes, first_failed_at,
                died_at, label, body
         FROM {dead_letters} WHERE ", filtered!(), " ORDER BY number LIMIT $5");
    count_dead = concat!("SELECT count(*) FROM {dead_letters} WHERE ", filtered!());
    redrive = D::SHAPES.redrive;
    wait_again = D::SHAPES.wait_again;
    forget_starts = "DELETE FROM {starts} WHERE consumer = $1 AND id = $2";
    discard = "DELETE FROM {dead_letters} WHERE number = $1 AND redriven_at IS NULL";
    dead_one = "SELECT redriven_at FROM {dead_letters} WHERE number = $1";
    last_dead = D::LAST_DEAD;

    // instances
    beat = D::SHAPES.beat;
    forget = "DELETE FROM {instances} WHERE consumer = $1 AND beat_at < {now} - $2";
    others = "SELECT instance, beat_at FROM {instances}
              WHERE consumer = $1 AND instance <> $2 AND ended_at IS NULL ORDER BY instance";
    leave = "UPDATE {instances} SET ended_at = {now} WHERE consumer = $1 AND instance = $2";
    charge_start = D::SHAPES.charge_start;
    starts = "SELECT count FROM {starts} WHERE consumer = $1 AND id = $2";
    starts_if_free = concat!("SELECT COALESCE((SELECT count FROM {starts} WHERE consumer = $1 AND id = $2), 0)
                      WHERE NOT EXISTS (SELECT 1 FROM {inbox} i WHERE i.consumer = $1 AND i.id = $2 AND NOT ",
                      may_be_taken!(), ")");

    // retention
    purge = D::SHAPES.purge;
    move_horizon = D::SHAPES.move_horizon;
    forget_finished = "DELETE FROM {starts} WHERE consumer = $1 AND EXISTS
                           (SELECT 1 FROM {inbox} i WHERE i.consumer = $1 AND i.id = {starts}.id AND i.state = 0)";

    // calls
    begin_call = D::SHAPES.begin_call;
    call = "SELECT request, result, lease_until - {now}, key_valid_until - {now} FROM {calls}
            WHERE consumer = $1 AND id = $2 AND label = $3";
    renew_call = "UPDATE {calls} SET lease_until = {now} + $5
                  WHERE consumer = $1 AND id = $2 AND label = $3 AND fence = $4 AND finished_at IS NULL";
    end_call = "UPDATE {calls} SET lease_until = NULL, finished_at = {now}, result = $5
                WHERE consumer = $1 AND id = $2 AND label = $3 AND fence = $4 AND finished_at IS NULL";
    calls = "SELECT label, request, result, started_at, finished_at, lease_until, key_valid_until, {key} FROM {calls}
             WHERE consumer = $1 AND id = $2 ORDER BY started_at, label";
    forget_calls = "DELETE FROM {calls} WHERE consumer = $1 AND id {in_texts $2}";

    // versions
    newer = D::SHAPES.newer;

    // outbox
    relays = "SELECT count(*) FROM {instances} WHERE consumer = $1 AND ended_at IS NULL AND beat_at > {now} - $2";
    forget_instance = "DELETE FROM {instances} WHERE consumer = $1 AND instance = $2";
    keep_buckets = "UPDATE {buckets} SET lease_until = {now} + $2 WHERE owner = $1";
    yield_buckets = D::SHAPES.yield_buckets;
    take_buckets = D::SHAPES.take_buckets;
    own_buckets = "SELECT bucket FROM {buckets} WHERE owner = $1 ORDER BY bucket";
    leave_buckets = "UPDATE {buckets} SET owner = NULL, lease_until = NULL WHERE owner = $1";
    unsent = D::UNSENT;
    sent_forget = "DELETE FROM {outbox} WHERE number {in_ints $1}";
    sent_keep = "UPDATE {outbox} SET state = 1, sent_at = {now}, attempts = 0, code = NULL, error = NULL
                 WHERE number {in_ints $1}";
    not_sent = "UPDATE {outbox} SET code = $2, error = $3, attempts = attempts + $4, due_at = {now} + $5,
                    state = $6, parked_at = CASE WHEN $6 = 2 THEN {now} END
                WHERE number = $1 AND state = 0";
    not_sent_wait = "UPDATE {outbox} SET code = $2, error = $3 WHERE number = $1 AND state = 0";
    purge_sent = D::SHAPES.purge_sent;
    outbox = concat!(
        "SELECT number, id, consumer, cause, kind, {key}, broker, destination, routing_key, state, attempts, code, error,
                created_at, due_at, sent_at, parked_at, label, body
         FROM {outbox} WHERE ", outbox_filtered!(), " ORDER BY number LIMIT $7");
    count_outbox = concat!("SELECT count(*) FROM {outbox} WHERE ", outbox_filtered!());
    unpark = "UPDATE {outbox} SET state = 0, attempts = 0, code = NULL, error = NULL, parked_at = NULL,
                  due_at = {now}
              WHERE number = $1 AND state <> 1";
    discard_unsent = "DELETE FROM {outbox} WHERE number = $1 AND state <> 1";

    // queue
    send = "INSERT INTO {queue} (queue, sent_at, label, body) VALUES ($1, {now}, $2, $3)";
    queue_peek = "SELECT 1 FROM {queue} WHERE queue = $1 AND (lease_until IS NULL OR lease_until <= {at})
                  LIMIT 1";
    queue_lease = D::SHAPES.queue_lease;
    queue_extend = D::SHAPES.queue_extend;
    queue_ack = D::SHAPES.queue_ack;
    queue_hand_back = D::SHAPES.queue_hand_back;
    queue_depth = "SELECT count(*) FROM {queue} WHERE queue = $1";

    // schema
    probe = D::PROBE;
    probe_write = D::PROBE_WRITE;
    find_schema = D::FIND_SCHEMA;
    schema_version = "SELECT max(version) FROM {schema_version}";
    lock_migrations = D::LOCK_MIGRATIONS;
}
