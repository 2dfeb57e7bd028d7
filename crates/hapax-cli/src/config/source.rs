//! `source`: where a consumer's messages come from.

use std::path::PathBuf;

use super::problem::Placed;
use super::read::Value;

/// Where a consumer's messages come from: one of five forms, told apart by their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// `{ broker, queue, group, prefetch }`: a queue of a broker, whatever that broker calls it.
    Queue {
        /// The broker's name under `[brokers]`.
        broker: Placed<String>,
        /// The queue's name on the broker.
        queue: Placed<String>,
        /// Under which name the broker remembers how far it was read; none is the consumer's name.
        group: Option<Placed<String>>,
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
        /// The consumer group whose offsets are committed; none is the consumer's name.
        group: Option<Placed<String>>,
    },
    /// `{ broker, stream, group }`, or `consumer` in place of `group`: a stream of JetStream's or of Redis.
    Stream {
        /// The broker's name under `[brokers]`.
        broker: Placed<String>,
        /// The stream's name.
        stream: Placed<String>,
        /// The durable consumer or the group; none is the consumer's name.
        group: Option<Placed<String>>,
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
    stream: Option<Placed<String>>,
    group: Option<Placed<String>>,
    consumer: Option<Placed<String>>,
    file: Option<Placed<Lines>>,
}

const FORMS: &str = "Write one of `{ broker = …, queue = … }`, `{ broker = …, topics = […], group = … }`, \
                     `{ broker = …, stream = …, group = … }`, `{ file = \"lines.jsonl\" }` and `{ queue = … }` (the \
                     embedded queue).";

impl Source {
    /// The broker's name, if the source is on a broker.
    pub(crate) fn broker(&self) -> Option<&Placed<String>> {
        match self {
            Self::Queue { broker, .. } | Self::Topics { broker, .. } | Self::Stream { broker, .. } => {
                Some(broker)
            }
            Self::File(_) | Self::Embedded { .. } => None,
        }
    }

    /// The group that the file names.
    pub(crate) fn group(&self) -> Option<&Placed<String>> {
        match self {
            Self::Queue { group, .. } | Self::Topics { group, .. } | Self::Stream { group, .. } => {
                group.as_ref()
            }
            Self::File(_) | Self::Embedded { .. } => None,
        }
    }

    /// The one queue, stream or embedded queue that it reads.
    pub(crate) fn queue(&self) -> Option<&Placed<String>> {
        match self {
            Self::Queue { queue, .. } | Self::Embedded { queue } => Some(queue),
            Self::Stream { stream, .. } => Some(stream),
            Self::Topics { .. } | Self::File(_) => None,
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
                stream: table.optional("stream", name),
                group: table.optional("group", name),
                consumer: table.optional("consumer", name),
                file: table.optional("file", |value| value.placed(read_lines)),
            };
            if table.problems() > before {
                // A key that could not be read would be taken for one that is missing.
                return None;
            }
            let source = Self::of_keys(keys);
            if source.is_none() {
                table.wrong("mixes or lacks the keys that a source is told by", FORMS);
            }
            source
        })
    }

    fn of_keys(keys: Keys) -> Option<Self> {
        let Keys { broker, queue, prefetch, topics, stream, group, consumer, file } = keys;
        let group = match (group, consumer) {
            (Some(_), Some(_)) => return None,
            (group, consumer) => group.or(consumer),
        };
        let Some(broker) = broker else {
            return match (file, queue) {
                _ if prefetch.is_some() || topics.is_some() || stream.is_some() || group.is_some() => None,
                (Some(file), None) => Some(Self::File(file)),
                (None, Some(queue)) => Some(Self::Embedded { queue }),
                _ => None,
            };
        };
        match (queue, topics, stream) {
            _ if file.is_some() => None,
            (Some(queue), None, None) => Some(Self::Queue { broker, queue, group, prefetch }),
            _ if prefetch.is_some() => None,
            (None, Some(topics), None) => Some(Self::Topics { broker, topics, group }),
            (None, None, Some(stream)) => Some(Self::Stream { broker, stream, group }),
            _ => None,
        }
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
