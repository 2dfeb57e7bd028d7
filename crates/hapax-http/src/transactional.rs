//! The mode *transactional*: key, change, outbox and answer in one transaction.

use std::sync::Arc;

use hapax_core::{
    Cause, Claim, ClaimRequest, Code, Envelope, Error, ErrorKind, Headers, Inbox, InboxRow, InboxState,
    Transaction as _,
};
use http::request::Parts;
use http::{Response, StatusCode};

use crate::body::Body;
use crate::kept::Kept;
use crate::mode::{ATTEMPTS, Mode, Verdict, pause};
use crate::problem::Problem;
use crate::run::{Answer, Asked, Handler, NoAnswer, kept_problem, not_on_record, panicked, run, too_large};
use crate::tx::Slot;

/// Headers of the W3C's trace context, which a message that is published takes over from its request.
const TRACE: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// The mode *transactional*, see [`Idempotency::transactional`](crate::Idempotency::transactional).
#[derive(Clone, Debug)]
pub struct Transactional<S> {
    store: S,
}

impl<S> Transactional<S> {
    pub(crate) fn new(store: S) -> Self {
        Self { store }
    }
}

/// What one attempt came to.
enum Attempt<E> {
    Ended(Verdict<E>),
    /// The database undid it, or nobody knows whether it committed.
    Again(Problem),
}

impl<S: Inbox> Mode for Transactional<S> {
    async fn answer<H: Handler>(&self, asked: &Asked, handler: H) -> Verdict<H::Error> {
        // A replay is the common case after the first time, and needs no transaction.
        match self.look(asked).await {
            Err(error) => return Verdict::of_error(asked, &error),
            // The lease of one that was begun in the other mode may have ended: the claim knows.
            Ok(Some(row)) if row.state == InboxState::Running && row.digest == asked.digest => {}
            Ok(Some(row)) => return Verdict::of_row(asked, &row),
            Ok(None) => {}
        }
        let mut attempt = 1;
        loop {
            match self.attempt(asked, handler.clone()).await {
                Attempt::Ended(verdict) => return verdict,
                Attempt::Again(problem) if attempt == ATTEMPTS => return Verdict::Refused(problem),
                Attempt::Again(_) => pause(attempt).await,
            }
            attempt += 1;
        }
    }
}

impl<S: Inbox> Transactional<S> {
    async fn look(&self, asked: &Asked) -> Result<Option<InboxRow>, Error> {
        let rows = self.store.look(&asked.rules.consumer, std::slice::from_ref(&asked.id)).await?;
        Ok(rows.into_iter().flatten().next())
    }

    async fn attempt<H: Handler>(&self, asked: &Asked, handler: H) -> Attempt<H::Error> {
        let (tx, claim) = match self.claim(asked).await {
            Ok(begun) => begun,
            Err(error) => return failed(asked, &error),
        };
        if claim.is_ours() {
            return self.run(asked, handler, tx).await;
        }
        self.store.roll_back(tx).await;
        Attempt::Ended(self.not_ours(asked, claim).await)
    }

    async fn claim(&self, asked: &Asked) -> Result<(S::Tx, Claim), Error> {
        let keys = [asked.hapax_key()];
        let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(&asked.rules.consumer) };
        let (tx, claims) = self.store.begin_claim(&request).await?;
        Ok((tx, claims.first().copied().unwrap_or(Claim::Busy))) // one key, one answer
    }

    /// Somebody else holds it, or was faster since we looked.
    async fn not_ours<E>(&self, asked: &Asked, claim: Claim) -> Verdict<E> {
        match claim {
            claim if claim.differs() => Verdict::Reused,
            Claim::Duplicate { .. } => match self.look(asked).await {
                Ok(Some(row)) => Verdict::of_row(asked, &row),
                Ok(None) => Verdict::Running, // purged in between: as new
                Err(error) => Verdict::of_error(asked, &error),
            },
            Claim::Waiting { .. } | Claim::Dead { .. } => Verdict::foreign(asked),
            _ => Verdict::Running,
        }
    }

    async fn run<H: Handler>(&self, asked: &Asked, handler: H, mut tx: S::Tx) -> Attempt<H::Error> {
        tx.meta().outbox.caused_by(Some(cause(asked)));
        let slot = Slot::new(self.store.clone(), tx);
        let mut request = asked.request(false);
        request.extensions_mut().insert(slot.clone());
        let ran = run(handler, request, &asked.rules).await;
        let Some(tx) = slot.close() else {
            let code = Code::TransactionMisplaced;
            tracing::error!(consumer = %asked.rules.consumer, "{code}: the handler kept its transaction");
            return Attempt::Ended(Verdict::Refused(withheld()));
        };
        match ran {
            Ok(answer) => self.end(asked, tx, answer).await,
            Err(NoAnswer::Panicked) => {
                // It may have been in the middle of a statement.
                self.store.abort(tx).await;
                Attempt::Ended(Verdict::Refused(panicked()))
            }
            Err(NoAnswer::Failed(error)) => {
                self.store.roll_back(tx).await;
                Attempt::Ended(Verdict::Failed(error))
            }
        }
    }

    async fn end<E>(&self, asked: &Asked, tx: S::Tx, answer: Answer) -> Attempt<E> {
        let (response, kept) = match answer {
            Answer::Kept(response, kept) => (response, kept),
            Answer::TooLarge(Some(response)) => (response, kept_problem(&not_on_record(), &asked.rules)),
            Answer::TooLarge(None) => {
                self.store.roll_back(tx).await;
                return Attempt::Ended(Verdict::Refused(too_large()));
            }
            Answer::NotKept(response) => {
                self.store.roll_back(tx).await;
                return Attempt::Ended(Verdict::First(response, None));
            }
            Answer::Undone(_) => {
                self.store.roll_back(tx).await;
                return Attempt::Again(undone());
            }
        };
        match self.commit(asked, tx, &kept).await {
            Ok(()) => Attempt::Ended(Verdict::First(response, Some(Arc::new(kept)))),
            // A statement failed, which ends a transaction on PostgreSQL, and the handler says that it was the
            // client's fault: nothing is left of it but its word.
            Err(error) if error.kind() == ErrorKind::Broken && kept.status.is_client_error() => {
                self.record_alone(asked, response, kept).await
            }
            Err(error) => failed(asked, &error),
        }
    }

    /// Records a refusal in a transaction of its own.
    async fn record_alone<E>(&self, asked: &Asked, response: Response<Body>, kept: Kept) -> Attempt<E> {
        let (tx, claim) = match self.claim(asked).await {
            Ok(begun) => begun,
            Err(error) => return failed(asked, &error),
        };
        if !claim.is_ours() {
            self.store.roll_back(tx).await;
            return Attempt::Ended(self.not_ours(asked, claim).await);
        }
        match self.commit(asked, tx, &kept).await {
            Ok(()) => Attempt::Ended(Verdict::First(response, Some(Arc::new(kept)))),
            Err(error) => failed(asked, &error),
        }
    }

    async fn commit(&self, asked: &Asked, mut tx: S::Tx, kept: &Kept) -> Result<(), Error> {
        tx.meta().results.push((asked.id.clone(), kept.encode()));
        self.store.finish(tx).await
    }
}

/// What the next attempt may mend, and what it will not. After a commit without an answer the next claim
/// sees whether it took effect.
fn failed<E>(asked: &Asked, error: &Error) -> Attempt<E> {
    match error.kind() {
        ErrorKind::Conflict | ErrorKind::Unknown => Attempt::Again(Problem::of(error)),
        _ => Attempt::Ended(Verdict::of_error(asked, error)),
    }
}

/// What is published in the transaction is caused by the request.
fn cause(asked: &Asked) -> Cause {
    let envelope = Envelope { headers: trace_of(&asked.parts), ..Envelope::default() };
    Cause::of_envelope(asked.id.clone(), &envelope).whose_id_is_used_again()
}

fn trace_of(parts: &Parts) -> Headers {
    let header = |name: &&'static str| Some((*name, parts.headers.get(*name)?.to_str().ok()?));
    TRACE.iter().filter_map(header).collect()
}

fn withheld() -> Problem {
    let detail =
        "the handler returned without its transaction, which is rolled back; the key can be used again";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::TransactionMisplaced, detail)
}

fn undone() -> Problem {
    let detail = "the database undid the request each time; ask again, with the same key";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, Code::StoreConflict, detail)
        .retry_after(crate::problem::SOON)
}
