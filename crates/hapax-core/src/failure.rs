//! What a handler returns when a message did not take effect.

use std::fmt;
use std::time::Duration;

use crate::{BoxError, Code};

/// What a handler returns: `Ok` commits its changes together with the inbox row, `Err` rolls both back.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// Why a message did not take effect, and what is to become of it.
///
/// `?` turns any error into [`Failure::Retry`], which is why this is deliberately not a
/// [`std::error::Error`] itself.
///
/// ```
/// use hapax_core::{Failure, OrReject};
///
/// fn amount(text: &str) -> hapax_core::Result<i64> {
///     Ok(text.parse::<i64>().or_reject()?)      // nobody can mend this by trying again
/// }
/// assert!(matches!(amount("many"), Err(Failure::Reject(_))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Try again later, by the retry policy; after its last attempt the message becomes a dead letter.
    Retry(Fault),
    /// Set the message aside now: trying again cannot help.
    Reject(Fault),
    /// Not a failure: hand the message over again after this time. No attempt is counted.
    Defer(Duration),
}

/// The error behind a [`Failure`], with its code.
#[derive(Debug)]
pub struct Fault {
    code: Code,
    error: BoxError,
    wait: Duration,
}

impl Fault {
    /// An error under its code.
    pub fn new(code: Code, error: impl Into<BoxError>) -> Self {
        Self { code, error: error.into(), wait: Duration::ZERO }
    }

    /// The next attempt is not made before this time is over, whatever the retry policy says: the other side has
    /// asked for it.
    #[must_use]
    pub fn not_before(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// How long to wait at least.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// The code to look up under `docs/errors/`.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Its text with its code before it, once: an [`Error`](crate::Error) names its code itself.
    pub fn with_code(&self) -> String {
        let text = self.to_string();
        if text.starts_with(self.code.as_str()) { text } else { format!("{}: {text}", self.code) }
    }

    /// The error itself.
    pub fn error(&self) -> &BoxError {
        &self.error
    }
}

impl fmt::Display for Fault {
    /// The error with the causes it does not already name, since this text is what an operator will read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.error.to_string();
        let mut cause = self.error.source();
        while let Some(error) = cause {
            let next = error.to_string();
            if !text.contains(&next) {
                text = format!("{text}: {next}");
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

impl Failure {
    /// A failure worth another attempt.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::Retry(Fault::new(Code::HandlerFailed, error))
    }

    /// A failure that no further attempt can mend.
    pub fn reject(error: impl Into<BoxError>) -> Self {
        Self::Reject(Fault::new(Code::Rejected, error))
    }

    /// Hand the message over again after `delay`; no attempt is counted.
    pub fn defer(delay: Duration) -> Self {
        Self::Defer(delay)
    }
}

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

/// Turns an error that no further attempt can mend into [`Failure::Reject`].
pub trait OrReject<T> {
    /// `Err(e)` becomes `Err(Failure::Reject(e))`.
    fn or_reject(self) -> Result<T>;
}

impl<T, E: Into<BoxError>> OrReject<T> for std::result::Result<T, E> {
    fn or_reject(self) -> Result<T> {
        self.map_err(Failure::reject)
    }
}

impl<T> OrReject<T> for Option<T> {
    fn or_reject(self) -> Result<T> {
        self.ok_or_else(|| Failure::reject("a value that must be there is missing"))
    }
}

/// What a classifier makes of an error that a handler let through with `?`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// As [`Failure::Retry`].
    Retry,
    /// As [`Failure::Reject`].
    Reject,
    /// As [`Failure::Defer`].
    Defer(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_mark_retries_any_error() {
        fn handler() -> Result {
            Err("no such order")?;
            Ok(())
        }
        assert!(matches!(handler(), Err(Failure::Retry(fault)) if fault.to_string() == "no such order"));
    }

    #[test]
    fn a_fault_names_every_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::io::Error);
        let fault = Fault::new(Code::HandlerFailed, Outer(std::io::Error::other("inner")));
        assert_eq!(fault.to_string(), "outer: inner");
    }
}
