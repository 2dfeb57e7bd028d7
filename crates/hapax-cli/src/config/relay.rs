//! `[relay]`: how rows of the outbox are published.

use std::time::Duration;

use super::read::{Choice, Value};

/// What happens behind a row that keeps failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// Later rows of its key wait.
    #[default]
    Block,
    /// Later rows of its key go on.
    Skip,
}

impl Choice for OnFailure {
    const CHOICES: &'static [(&'static str, Self)] = &[("block", Self::Block), ("skip", Self::Skip)];
}

/// The relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Relay {
    /// The most rows that are published together.
    pub batch: u32,
    /// What happens behind a row that keeps failing.
    pub on_failure: OnFailure,
    /// The number of failures after which a row is parked.
    pub park_after: u32,
    /// How long a row is kept after it was published; none removes it at once.
    pub keep_sent: Option<Duration>,
    /// How long others wait before they take over what a silent relay has.
    pub lease: Duration,
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            batch: 100,
            on_failure: OnFailure::default(),
            park_after: 20,
            keep_sent: None,
            lease: Duration::from_secs(10),
        }
    }
}

impl Relay {
    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        let default = Self::default();
        value.table(|table| {
            Some(Self {
                batch: table.or("batch", default.batch, |value| value.integer(1, 10_000)),
                on_failure: table.or("on_failure", default.on_failure, Value::choice),
                park_after: table.or("park_after", default.park_after, |value| value.integer(1, 1_000_000)),
                lease: table.or("lease", default.lease, |value| value.duration(Duration::from_secs(1))),
                keep_sent: table.optional("keep_sent", Value::positive_duration),
            })
        })
    }
}
