//! Why a task failed, in words for whoever ran it.

use std::{fmt, io};

/// What the functions of this program return.
pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

/// A message that says what failed and, where we know, what to do.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Says what was being done when an error came up.
pub(crate) trait Context<T> {
    fn context(self, doing: &str) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: &str) -> Result<T> {
        self.map_err(|error| Failure(format!("{doing}: {error}")))
    }
}
