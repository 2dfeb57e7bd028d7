//! What became of a transaction so far, as the answers to its operations tell.
//!
//! An error that the server answers inside a transaction has ended it. A handler may swallow that error and
//! carry on; so each answer is noted here, and `finish` does not rely on the server's word alone.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use mongodb::error::Error as Driver;

use crate::error::{Answer, dropped, is_ours, is_over, overdue};

/// The life of one transaction.
#[derive(Debug)]
pub(crate) struct Fate {
    state: State,
    began: Instant,
    /// How long the server lets a transaction live.
    lifetime: Duration,
}

#[derive(Debug)]
enum State {
    /// As far as anybody knows it is open.
    Open,
    /// An operation is on its way; still so afterwards if its future was dropped.
    InFlight,
    /// This error ended it.
    Over(Driver),
}

impl Fate {
    pub(crate) fn new(lifetime: Duration) -> Self {
        Self { state: State::Open, began: Instant::now(), lifetime }
    }

    /// A new transaction on the same session.
    pub(crate) fn begin(&mut self) {
        (self.state, self.began) = (State::Open, Instant::now());
    }

    /// What ended it, if anything did.
    pub(crate) fn ended(&self) -> Option<Driver> {
        match &self.state {
            State::Open => None,
            State::InFlight => Some(dropped()),
            State::Over(error) => Some(error.clone()),
        }
    }

    /// Whether an operation's answer is still to come.
    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self.state, State::InFlight)
    }

    /// Whether it is older than the server lets any become.
    pub(crate) fn is_overdue(&self) -> bool {
        self.began.elapsed() >= self.lifetime
    }

    /// Runs an operation of the transaction and notes its answer. After an error that ended it nothing runs:
    /// the error is answered again, since it is the cause of all that follows.
    pub(crate) async fn watch<T>(&mut self, operation: impl IntoFuture<Output = Answer<T>>) -> Answer<T> {
        if let Some(error) = self.ended() {
            return Err(error);
        }
        self.state = State::InFlight;
        let answer = match operation.await {
            // No error of ours came before, so the server ended it by itself.
            Err(error) if is_over(&error) && self.is_overdue() => Err(overdue()),
            answer => answer,
        };
        self.state = match &answer {
            Err(error) if !is_ours(error) => State::Over(error.clone()),
            _ => State::Open,
        };
        answer
    }
}
