//! What `[defaults]` sets for every consumer and a consumer may override, key by key.

use std::time::Duration;

use super::problem::Placed;
use super::read::{Choice, Table, Value};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// The largest payload that can be allowed: what a PostgreSQL value holds at most.
const LARGEST_PAYLOAD: u64 = 1 << 30;

/// When the inbox row is written relative to the handler (design, section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// In the handler's transaction, before the handler.
    #[default]
    Transactional,
    /// After the handler.
    Lazy,
    /// Before the handler and outside its transaction, with a lease.
    Eager,
    /// Not at all: the handler's statements are idempotent by themselves.
    Natural,
}

impl Choice for Strategy {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("transactional", Self::Transactional),
        ("lazy", Self::Lazy),
        ("eager", Self::Eager),
        ("natural", Self::Natural),
    ];
}

/// What becomes of a message whose type no handler is registered for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnknownType {
    /// It is set aside as a dead letter.
    #[default]
    DeadLetter,
    /// It is recorded as handled, without an effect.
    Ignore,
}

impl Choice for UnknownType {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("dead-letter", Self::DeadLetter), ("ignore", Self::Ignore)];
}

/// Whether a failed message holds up those behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// It holds up nobody.
    #[default]
    None,
    /// It holds up the messages of its key.
    Key,
    /// It holds up the messages of its lane: a Kafka partition, an SQS FIFO group.
    Lane,
}

impl Choice for Order {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("key", Self::Key), ("lane", Self::Lane)];
}

/// What becomes of a message that may have been handled before its record was purged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ambiguous {
    /// It is set aside as a dead letter.
    #[default]
    DeadLetter,
    /// It is handled, perhaps for the second time.
    Process,
}

impl Choice for Ambiguous {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("dead-letter", Self::DeadLetter), ("process", Self::Process)];
}

/// How often and when a failed message is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    /// The most attempts, the first one included.
    pub attempts: u32,
    /// The wait before the second attempt; doubled before each further one.
    pub first: Duration,
    /// The longest wait.
    pub max: Duration,
    /// Whether waits are spread at random, so that what failed together does not come back together.
    pub jitter: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 5, first: SECOND, max: 5 * MINUTE, jitter: true }
    }
}

impl Retry {
    fn read(table: &mut Table<'_>, base: &Self) -> Self {
        let retry = Self {
            attempts: table.or("attempts", base.attempts, |value| value.integer(1, 1_000)),
            first: table.or("first", base.first, Value::positive_duration),
            max: table.or("max", base.max, Value::positive_duration),
            jitter: table.or("jitter", base.jitter, Value::boolean),
        };
        if retry.first > retry.max {
            table.wrong("has a `first` wait that is longer than `max`", "Raise `max`, or lower `first`.");
        }
        retry
    }
}

/// How long the inbox remembers (design, section 4, "Retention").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retention {
    /// How long the record of a handled message is kept.
    pub keep: Duration,
    /// How far clocks may differ: added to the horizon before a message counts as newer than it.
    pub slack: Duration,
    /// The time between two purges.
    pub purge_every: Duration,
    /// The most records that one statement deletes.
    pub purge_batch: u32,
    /// What becomes of a message that may have been handled before its record was purged.
    pub ambiguous: Ambiguous,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            keep: 14 * DAY,
            slack: HOUR,
            purge_every: MINUTE,
            purge_batch: 1_000,
            ambiguous: Ambiguous::default(),
        }
    }
}

impl Retention {
    fn read(table: &mut Table<'_>, base: &Self) -> Self {
        Self {
            keep: table.or("keep", base.keep, |value| value.duration(MINUTE)),
            slack: table.or("slack", base.slack, |value| value.duration(Duration::ZERO)),
            purge_every: table.or("purge_every", base.purge_every, |value| value.duration(SECOND)),
            purge_batch: table.or("purge_batch", base.purge_batch, |value| value.integer(1, 100_000)),
            ambiguous: table.or("ambiguous", base.ambiguous, Value::choice),
        }
    }
}

/// How many messages share one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The most messages in one transaction; `1` handles every message singly.
    pub max: u32,
    /// How long a free worker waits for a batch to fill up.
    pub wait: Duration,
}

impl Default for Batch {
    fn default() -> Self {
        Self { max: 50, wait: Duration::ZERO }
    }
}

impl Batch {
    fn read(table: &mut Table<'_>, base: &Self) -> Self {
        Self {
            max: table.or("max", base.max, |value| value.integer(1, 10_000)),
            wait: table.or("wait", base.wait, |value| value.duration(Duration::ZERO)),
        }
    }
}

/// How a consumer goes about its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// When the inbox row is written.
    pub strategy: Placed<Strategy>,
    /// Eager: how long a record in progress is left alone. Renewed while the handler runs.
    pub lease: Option<Placed<Duration>>,
    /// How often and when a failed message is tried again.
    pub retry: Retry,
    /// How long a handler may take for one message.
    pub timeout: Duration,
    /// What becomes of a message of an unknown type.
    pub unknown_type: UnknownType,
    /// Whether a failed message holds up those behind it.
    pub order: Placed<Order>,
    /// The largest payload in bytes; a larger one is set aside.
    pub max_payload: u64,
    /// How long the inbox remembers.
    pub retention: Retention,
    /// How many messages share one transaction.
    pub batch: Batch,
    /// The number of workers, each with a connection of its own.
    pub concurrency: Placed<u32>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            strategy: Strategy::default().into(),
            lease: None,
            retry: Retry::default(),
            timeout: Duration::from_secs(20),
            unknown_type: UnknownType::default(),
            order: Order::default().into(),
            max_payload: 4 << 20,
            retention: Retention::default(),
            batch: Batch::default(),
            concurrency: 4.into(),
        }
    }
}

impl Policy {
    /// Reads the policy's keys of a table; what the table does not say is as in `base`, also inside
    /// `retry`, `retention` and `batch`.
    pub(super) fn read(table: &mut Table<'_>, base: &Self) -> Self {
        let lease = table.optional("lease", |value| value.placed(Value::positive_duration));
        Self {
            strategy: table.or("strategy", base.strategy, |value| value.placed(Value::choice)),
            lease: lease.or(base.lease),
            retry: table
                .or("retry", base.retry, |value| value.table(|table| Some(Retry::read(table, &base.retry)))),
            timeout: table.or("timeout", base.timeout, Value::positive_duration),
            unknown_type: table.or("unknown_type", base.unknown_type, Value::choice),
            order: table.or("order", base.order, |value| value.placed(Value::choice)),
            max_payload: table.or("max_payload", base.max_payload, |value| value.size(LARGEST_PAYLOAD)),
            retention: table.or("retention", base.retention, |value| {
                value.table(|table| Some(Retention::read(table, &base.retention)))
            }),
            batch: table
                .or("batch", base.batch, |value| value.table(|table| Some(Batch::read(table, &base.batch)))),
            concurrency: table
                .or("concurrency", base.concurrency, |value| value.placed(|value| value.integer(1, 1_000))),
        }
    }
}
