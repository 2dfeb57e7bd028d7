//! How long a run is.

use std::env;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    pub(crate) messages: usize,
    /// Database and broker are each away once in a round.
    pub(crate) rounds: u32,
    pub(crate) outage: Duration,
    /// Between two outages, in which the consumer is killed again and again.
    pub(crate) calm: Duration,
    /// Kills in one calm time.
    pub(crate) kills: u32,
}

impl Length {
    /// In full: 5,000 messages, 20 kills, two outages of each server.
    pub(crate) fn from_environment() -> Self {
        let seconds = Duration::from_secs;
        if env::var_os("HAPAX_SOAK").is_none() {
            return Self { messages: 500, rounds: 1, outage: seconds(3), calm: seconds(3), kills: 2 };
        }
        Self { messages: 5_000, rounds: 2, outage: seconds(15), calm: seconds(12), kills: 5 }
    }

    /// The same with outages of a minute and twice as many messages.
    pub(crate) fn longer(self) -> Self {
        if env::var_os("HAPAX_SOAK").is_none() {
            return self;
        }
        let number = |name: &str| env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
        let (outage, calm) = (Duration::from_mins(1), Duration::from_secs(30));
        let messages = number("HAPAX_SOAK_MESSAGES").unwrap_or(10_000) as usize;
        let round = u32::try_from(2 * (outage + calm).as_secs()).unwrap_or(u32::MAX);
        let rounds = (number("HAPAX_SOAK_MINUTES").unwrap_or(6) * 60 / round).max(1);
        Self { messages, rounds, outage, calm, kills: 6 }
    }

    /// How long messages are sent.
    pub(crate) fn total(&self) -> Duration {
        2 * self.rounds * (self.outage + self.calm)
    }
}
