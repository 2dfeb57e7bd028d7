//! `source`: where a consumer's messages come from.

use std::path::PathBuf;

use super::problem::Placed;
use super::read::{Table, Value};

/// Where a consumer's messages come from: one of four forms, told apart by their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// `{ broker, queue, prefetch }`: a queue of a broker.
    Queue {
        /// The broker's name under `[brokers]`.
        broker: Placed<String>,
        /// The queue's name on the broker.
        queue: Placed<String>,
        /// The most deliveries that are unsettled at once; none leaves it to
        /// `Consumer::prefetch`.
        prefetch: Option<Placed<u16>>,
    },
    /// `{ broker, topics, group }`: topics of a log.
    Topics {
        /// The broker's name under `[brokers]`.
        broker: Placed<String>,
        /// The topics' names.
        topics: Placed<Vec<String>>,
        /// The consumer group whose offsets are committed.
        group: String,
    },
    /// `{ file }`: JSON Lines, one message a line, byte for byte.
    File(Placed<Lines>),
    /// `{ queue }`: the embedded queue, in the store itself.
    Embedded {
        /// The queue's name.
        queue: Placed<String>,
    },
}

/// Where lines are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    /// `"-"`: standard input.
    StandardInput,
    /// A file, already resolved against the configuration file.
    File(PathBuf),
}

/// The keys of all forms at once, before it is known which form it is.
struct Keys {
    broker: Option<Placed<String>>,
    queue: Option<Placed<String>>,
    prefetch: Option<Placed<u16>>,
    topics: Option<Placed<Vec<String>>>,
    group: Option<Placed<String>>,
    file: Option<Placed<Lines>>,
}

const FORMS: &str = "Write one of `{ broker = …, queue = … }`, `{ broker = …, topics = […], group = … }`, \
                     `{ file = \"lines.jsonl\" }` and `{ queue = … }` (the embedded queue).";

impl Source {
    /// The broker's name, if the source is on a broker.
    pub(crate) fn broker(&self) -> Option<&Placed<String>> {
        match self {
            Self::Queue { broker, .. } | Self::Topics { broker, .. } => Some(broker),
            Self::File(_) | Self::Embedded { .. } => None,
        }
    }

    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        value.table(|table| {
            let name = |value: &Value<'_>| value.placed(Value::name);
            let before = table.problems();
            let keys = Keys {
                broker: table.optional("broker", name),
                queue: table.optional("queue", name),
                prefetch: table
                    .optional("prefetch", |value| value.placed(|value| value.integer(1, u16::MAX))),
                topics: table.optional("topics", |value| value.placed(read_topics)),
                group: table.optional("group", name),
                file: table.optional("file", |value| value.placed(read_lines)),
            };
            if table.problems() > before {
                // A key that could not be read would be taken for one that is missing.
                return None;
            }
            Self::of_keys(keys, table)
        })
    }

    fn of_keys(keys: Keys, table: &Table<'_>) -> Option<Self> {
        let source = match keys {
            Keys {
                file: Some(file),
                broker: None,
                queue: None,
                prefetch: None,
                topics: None,
                group: None,
            } => Self::File(file),
            Keys {
                broker: Some(broker),
                queue: Some(queue),
                prefetch,
                topics: None,
                group: None,
                file: None,
            } => Self::Queue { broker, queue, prefetch },
            Keys {
                broker: Some(broker),
                topics: Some(topics),
                group: Some(group),
                queue: None,
                prefetch: None,
                file: None,
            } => Self::Topics { broker, topics, group: group.value },
            Keys {
                queue: Some(queue),
                broker: None,
                prefetch: None,
                topics: None,
                group: None,
                file: None,
            } => Self::Embedded { queue },
            _ => {
                table.wrong("mixes or lacks the keys that a source is told by", FORMS);
                return None;
            }
        };
        Some(source)
    }
}

fn read_topics(value: &Value<'_>) -> Option<Vec<String>> {
    let topics = value.list(Value::name)?;
    if topics.is_empty() {
        value.wrong("is empty", "Name at least one topic.");
    }
    Some(topics)
}

fn read_lines(value: &Value<'_>) -> Option<Lines> {
    if value.name()? == "-" { Some(Lines::StandardInput) } else { value.path().map(Lines::File) }
}
