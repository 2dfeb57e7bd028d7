//! `[log]`: how the program logs.

use super::read::{Choice, Value};

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Choice for LogFormat {
    const CHOICES: &'static [(&'static str, Self)] = &[("text", Self::Text), ("json", Self::Json)];
}

/// The log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    /// The form of its lines.
    pub format: LogFormat,
}

impl Log {
    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        value.table(|table| Some(Self { format: table.or("format", LogFormat::default(), Value::choice) }))
    }
}
