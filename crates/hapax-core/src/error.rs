//! What a store or a source answers when it cannot do what it was asked.

use std::borrow::Cow;
use std::fmt;

use crate::Code;

/// Any error, as handlers and adapters pass it on.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What an error means for the message in hand: the part of an [`Error`] that code decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server is away, read-only or full. Nobody's attempt: stop fetching, back off, go on when it is back.
    Unavailable,
    /// A lock is held by somebody else. Nobody's attempt: try again.
    Busy,
    /// Deadlock or serialization failure: the database undid the transaction. Nobody's attempt: run it again.
    Conflict,
    /// The transaction that is to be committed is no longer the one the claim was made in. The handler's failure.
    Broken,
    /// The answer to a commit was lost. Nobody's attempt: claim again and see.
    Unknown,
    /// A statement was refused for what it says. In a handler, the handler's failure.
    Statement,
    /// The set-up is wrong (credentials, schema, a missing queue): no retry will mend it.
    Setup,
    /// What was named does not exist, or somebody else was faster.
    NotFound,
}

/// An error of a store, source or publisher: a kind to decide by, a code to look up, a cause to read.
///
/// Handlers return [`Failure`](crate::Failure) instead.
pub struct Error {
    kind: ErrorKind,
    code: Code,
    context: Cow<'static, str>,
    source: Option<BoxError>,
}

impl Error {
    /// An error without a cause of its own; `context` says what was attempted and what stood in the way.
    pub fn new(kind: ErrorKind, code: Code, context: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, code, context: context.into(), source: None }
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn because(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What it means for the message in hand.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The code to look up under `docs/errors/`.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What was attempted and what stood in the way, without the cause.
    pub fn context(&self) -> &str {
        &self.context
    }
}

/// As [`Display`](fmt::Display), with the page to look up: what `fn main() -> Result<…>` prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({}; docs/errors/{}.md)", self.code.summary(), self.code)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.context)?;
        let mut said = self.context.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let text = error.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_prints_code_context_and_cause_once() {
        let error = Error::new(ErrorKind::Unavailable, Code::StoreUnavailable, "cannot connect")
            .because("connection refused");
        assert_eq!(error.to_string(), "HX0010: cannot connect: connection refused");
        assert!(std::error::Error::source(&error).is_some());
    }
}
