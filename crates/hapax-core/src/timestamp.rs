//! Points in time as the stores keep them.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point in time: whole microseconds since 1970-01-01T00:00:00Z.
///
/// Every store keeps times as this one integer, so that no database's time zone or rounding can
/// change a value on its way. Prints and parses as RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The process's clock. Leases and deadlines are set by the database's clock instead.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// From microseconds since the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// `self + duration`, at most the largest representable time.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }

    /// `self − duration`, at least the smallest representable time.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }

    /// How long until `later`; zero if that has passed.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_micros(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }
}

/// A duration in microseconds, at most `i64::MAX`.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self(micros(since)),
            Err(before) => Self(-micros(before.duration())),
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => write!(f, "{} µs", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = NotATimestamp;

    /// RFC 3339 with an offset, such as `2026-11-30T10:00:00Z`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<jiff::Timestamp>().map(|time| Self(time.as_microsecond())).map_err(|_| NotATimestamp)
    }
}

/// The text is not an RFC 3339 time with an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time with an offset, such as 2026-11-30T10:00:00Z")]
pub struct NotATimestamp;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses_rfc_3339() {
        let time: Timestamp = "2026-11-30T12:00:00.000001+02:00".parse().unwrap();
        assert_eq!(time.to_string(), "2026-11-30T10:00:00.000001Z");
        assert_eq!(time.to_string().parse(), Ok(time));
        assert_eq!("2026-11-30 12:00".parse::<Timestamp>(), Err(NotATimestamp));
    }

    #[test]
    fn arithmetic_saturates() {
        let last = Timestamp::from_micros(i64::MAX);
        assert_eq!(last.plus(Duration::MAX), last);
        assert_eq!(last.until(Timestamp::from_micros(0)), Duration::ZERO);
    }
}
