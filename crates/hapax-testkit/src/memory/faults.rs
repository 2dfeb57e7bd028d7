//! What goes wrong on request.

use std::collections::{HashMap, VecDeque};

use hapax_core::{Code, Error, ErrorKind};

/// The driver's error of a [`MemoryStore`](super::MemoryStore), as `sqlx::Error` is that of a real one.
///
/// Handlers pass it on with `?`; [`Store::kind_of`](hapax_core::Store::kind_of) recognises it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{context}")]
pub struct MemoryError {
    kind: ErrorKind,
    context: String,
}

impl MemoryError {
    pub(super) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into() }
    }

    /// What it means for the message in hand.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The code that goes with its kind.
    pub fn code(&self) -> Code {
        code(self.kind)
    }
}

/// An operation of a [`MemoryStore`](super::MemoryStore) that a test can let fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// `begin_claim`: no transaction was begun.
    BeginClaim,
    /// A statement of the handler on its transaction, which is broken by it.
    Statement,
    /// `finish`: rolled back.
    Finish,
    /// `ping`.
    Ping,
    /// `check`.
    Check,
    /// `look`.
    Look,
    /// `record` and `record_in`.
    Record,
    /// `rename`.
    Rename,
    /// `park`.
    Park,
    /// `lease`.
    Lease,
    /// `renew`.
    Renew,
    /// `give_back`.
    GiveBack,
    /// `depth`.
    Depth,
    /// `waiting`.
    Waiting,
    /// `bury`.
    Bury,
    /// `dead` and `count_dead`.
    Dead,
    /// `redrive`.
    Redrive,
    /// `discard`.
    Discard,
    /// `enlist`.
    Enlist,
    /// `beat`.
    Beat,
    /// `leave`.
    Leave,
    /// Every operation of the outbox but `sent`.
    Outbox,
    /// `sent`.
    Sent,
    /// Every operation on messages in progress.
    Running,
    /// Every operation on calls.
    Call,
    /// `charge_start`.
    ChargeStart,
    /// `starts`.
    Starts,
    /// `purge`.
    Purge,
    /// `horizon`.
    Horizon,
    /// `newer`.
    Newer,
}

/// A commit whose answer is to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostAnswer {
    Applied,
    RolledBack,
}

/// The faults that a test has asked for, each taken once.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) away: bool,
    next: HashMap<Op, VecDeque<ErrorKind>>,
    lost_answers: VecDeque<LostAnswer>,
}

impl Faults {
    pub(super) fn fail_next(&mut self, op: Op, kind: ErrorKind) {
        self.next.entry(op).or_default().push_back(kind);
    }

    pub(super) fn lose_next_answer(&mut self, answer: LostAnswer) {
        self.lost_answers.push_back(answer);
    }

    pub(super) fn lost_answer(&mut self) -> Option<LostAnswer> {
        self.lost_answers.pop_front()
    }

    /// Fails if the store is away or this operation was to fail.
    pub(super) fn check(&mut self, op: Op) -> Result<(), MemoryError> {
        if self.away {
            return Err(MemoryError::new(ErrorKind::Unavailable, "the memory store is away"));
        }
        match self.next.get_mut(&op).and_then(VecDeque::pop_front) {
            Some(kind) => Err(MemoryError::new(kind, format!("{op:?} was to fail"))),
            None => Ok(()),
        }
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Self {
        Error::new(error.kind, error.code(), "the memory store did not do it").because(error)
    }
}

/// The code that a store gives an error of this kind when it knows no better one.
fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Unavailable => Code::StoreUnavailable,
        ErrorKind::Busy => Code::StoreBusy,
        ErrorKind::Conflict => Code::StoreConflict,
        ErrorKind::Broken => Code::TransactionBroken,
        ErrorKind::Unknown => Code::OutcomeUnknown,
        ErrorKind::Setup => Code::StoreRefused,
        ErrorKind::NotFound => Code::NotFound,
        _ => Code::StoreFailed,
    }
}
