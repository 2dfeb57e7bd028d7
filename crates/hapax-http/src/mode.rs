//! What both ways of recording a request share.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{Code, Error, ErrorKind, InboxRow, InboxState};
use http::{Response, StatusCode};

use crate::body::Body;
use crate::kept::Kept;
use crate::problem::Problem;
use crate::run::{Asked, Handler, not_on_record};

/// How often something that the database undid is tried.
pub(crate) const ATTEMPTS: u32 = 5;

/// A way of recording a request and running its handler.
pub trait Mode: Clone + Send + Sync + 'static {
    /// Finds the request's record, or runs the handler and makes one.
    fn answer<H: Handler>(&self, asked: &Asked, handler: H)
    -> impl Future<Output = Verdict<H::Error>> + Send;
}

/// What became of a request.
#[derive(Debug)]
pub enum Verdict<E> {
    /// The handler ran; what is on record now, if anything is.
    First(Response<Body>, Option<Arc<Kept>>),
    /// It was answered before.
    Replay(Arc<Kept>),
    /// Somebody else is at work on it.
    Running,
    /// The key stands for another request.
    Reused,
    /// Something stood in the way.
    Refused(Problem),
    /// The handler's own error.
    Failed(E),
}

impl<E> Verdict<E> {
    /// Of an error of the store's, which is logged here.
    pub(crate) fn of_error(asked: &Asked, error: &Error) -> Self {
        tracing::error!(consumer = %asked.rules.consumer, "a request could not be answered: {error}");
        Self::Refused(Problem::of(error))
    }

    /// Of a row that is there.
    pub(crate) fn of_row(asked: &Asked, row: &InboxRow) -> Self {
        match row.state {
            _ if row.digest != asked.digest => Self::Reused,
            InboxState::Running => Self::Running,
            InboxState::Done => Self::of_result(asked, row.result.as_ref()),
            _ => Self::foreign(asked),
        }
    }

    /// Of what is kept beside a record.
    pub(crate) fn of_result(asked: &Asked, result: Option<&Bytes>) -> Self {
        match result.map(Kept::decode) {
            Some(Ok(kept)) => Self::Replay(Arc::new(kept)),
            _ => Self::foreign(asked),
        }
    }

    /// The record is none of this layer's.
    pub(crate) fn foreign(asked: &Asked) -> Self {
        let consumer = &asked.rules.consumer;
        let code = Code::AnswerNotKept;
        tracing::error!(%consumer, "{code}: a record holds no answer; does something else use this consumer name?");
        Self::Refused(not_on_record())
    }
}

/// Calls a store again as long as the database undoes it to resolve a conflict.
pub(crate) async fn unless_undone<T, F>(mut call: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut attempt = 1;
    loop {
        match call().await {
            Err(error) if error.kind() == ErrorKind::Conflict && attempt < ATTEMPTS => pause(attempt).await,
            ended => return ended,
        }
        attempt += 1;
    }
}

/// 10 to 40 ms after the first attempt, twice as long after each other one up to a second, with jitter so
/// that rivals part.
pub(crate) async fn pause(attempt: u32) {
    let longest = 20_u64 << attempt.min(6);
    tokio::time::sleep(Duration::from_millis(fastrand::u64(longest / 4..=longest))).await;
}

pub(crate) fn reused() -> Problem {
    let detail = "another request was made under this Idempotency-Key; use a new key for a new request";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, Code::RequestKeyReused, detail)
}

pub(crate) fn running() -> Problem {
    let detail =
        "the first request with this Idempotency-Key is still being processed; ask again for its answer";
    Problem::new(StatusCode::CONFLICT, Code::RequestRunning, detail).retry_after(crate::problem::SOON)
}
