//! One transaction: claim → handle → commit, for one message or a batch of them.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use hapax_core::{
    Burial, Cause, Claim, ClaimRequest, Code, ConsumerStore, DeadNumber, Error, ErrorKind, Failure, Fault,
    Key, Parking, Settled, Settler, Transaction as _, crash_point,
};
use tracing::{Instrument as _, debug_span, warn};

use crate::copies::returned;
use crate::handler::{ErasedHandler, Input};
use crate::janitor::AmbiguousPolicy;
use crate::job::{Content, Flaw, Hold, Job, Order};
use crate::metrics;
use crate::shared::{OtherPayload, Shared, Strategy, UnknownType};

/// A store that takes longer over a question was away.
const SILENCE: Duration = Duration::from_secs(1);

/// What became of a message once its transaction is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Handled {
        ambiguous: bool,
    },
    Duplicate,
    Dead(Code),
    Parked {
        wait: Duration,
    },
    Busy,
    /// The copy of a dead letter came back: it is redriven, then acked.
    Returned(DeadNumber),
}

/// Why nothing of a transaction took effect.
#[derive(Debug)]
pub(crate) enum Setback {
    /// The handler of these messages failed.
    Failed { range: Range<usize>, failure: Failure },
    /// Some handler broke the transaction; which one is found by running fewer of them.
    Broken(Error),
    /// The database undid it; run it again.
    Conflict,
    /// The commit had no answer; claim again and see.
    Unknown {
        error: Error,
        /// How each message would have ended; none if it was not yet known.
        ends: Vec<End>,
    },
    /// The store is away.
    Away(Error),
    /// The store is locked.
    Locked,
    /// The time to drain is over.
    Aborted,
}

impl From<Error> for Setback {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::Unknown => Self::Unknown { error, ends: Vec::new() },
            ErrorKind::Busy => Self::Locked,
            ErrorKind::Broken | ErrorKind::Statement => Self::Broken(error),
            _ => Self::Away(error),
        }
    }
}

/// What is to be done with one claimed message.
enum Fate {
    Handle,
    /// Recorded without a handler: its type is ignored by configuration.
    Record,
    Bury(Flaw),
    /// A copy under a known id whose payload differs: set aside without touching that id's record.
    BuryCopy(Flaw),
    Queue,
    /// It became free after it was seen to be somebody's: what goes before its handler has not been done.
    Again,
    Leave(End),
}

/// How a call of a handler ended, if not well.
enum Stopped {
    Failed(Failure),
    /// Its future was dropped half way: the connection cannot be used any more.
    Dropped(Failure),
    Aborted,
}

impl<S: ConsumerStore, T: Settler<R>, R: Clone + Send + Sync + 'static> Shared<S, T, R> {
    /// Runs one transaction over these messages. On a setback nothing of it took effect.
    pub(crate) async fn attempt(&self, jobs: &[Job<R>]) -> Result<Vec<End>, Setback> {
        let (keys, of_job) = self.keys(jobs);
        let request = ClaimRequest {
            consumer: &self.consumer,
            keys: &keys,
            slack: self.settings.keep.slack,
            timeout: self.settings.timeout,
        };
        crash_point!("before-claim");
        let begun = Instant::now();
        let span = debug_span!("claim", consumer = %self.consumer, messages = jobs.len());
        let (mut tx, answers) = self.store.begin_claim(&request).instrument(span).await?;
        metrics::claimed(&self.consumer, jobs.len(), begun.elapsed());
        crash_point!("after-claim");

        let claims: Vec<Option<Claim>> = of_job.iter().map(|key| key.map(|key| answers[key])).collect();
        match self.fill(&mut tx, jobs, &claims).await {
            Ok(ends) => {
                self.settle_inside(&mut tx, jobs, &ends);
                crash_point!("before-commit");
                let begun = Instant::now();
                let span = debug_span!("commit", consumer = %self.consumer, messages = jobs.len());
                match self.store.finish(tx).instrument(span).await {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::Unknown => {
                        return Err(Setback::Unknown { error, ends });
                    }
                    Err(error) => return Err(error.into()),
                }
                metrics::committed(&self.consumer, begun.elapsed());
                crash_point!("after-commit");
                Ok(ends)
            }
            Err((setback, Connection::Usable)) => {
                self.store.roll_back(tx).await;
                crash_point!("after-rollback");
                Err(setback)
            }
            Err((setback, Connection::Lost)) => {
                let setback = self.unless_silent(setback).await;
                self.store.abort(tx).await;
                Err(setback)
            }
        }
    }

    /// A handler that ran out of time may have waited for the store. If the store has nothing to say to us
    /// either, or only after a while, that is nobody's attempt. Asked at once, before it may be back.
    async fn unless_silent(&self, setback: Setback) -> Setback {
        let timed_out = matches!(&setback, Setback::Failed { failure: Failure::Retry(fault), .. }
            if fault.code() == Code::HandlerTimedOut);
        if !timed_out {
            return setback;
        }
        let asked = Instant::now();
        match self.store.ping().await {
            Ok(()) if asked.elapsed() < SILENCE => setback,
            Ok(()) => {
                let context = "the store was silent while a handler ran out of time";
                Setback::Away(Error::new(ErrorKind::Unavailable, Code::StoreUnavailable, context))
            }
            Err(error) => Setback::Away(error),
        }
    }

    /// The keys to claim, and for each message which of them is its own.
    fn keys(&self, jobs: &[Job<R>]) -> (Vec<Key>, Vec<Option<usize>>) {
        let mut keys = Vec::with_capacity(jobs.len());
        let of_job = jobs
            .iter()
            .map(|job| {
                if self.settings.strategy == Strategy::Natural && job.place().is_none() {
                    return None;
                }
                keys.push(job.key(self.settings.order)?);
                Some(keys.len() - 1)
            })
            .collect();
        (keys, of_job)
    }

    /// Does inside the transaction what each message's claim asks for, in delivery order.
    async fn fill(
        &self,
        tx: &mut S::Tx,
        jobs: &[Job<R>],
        claims: &[Option<Claim>],
    ) -> Result<Vec<End>, (Setback, Connection)> {
        if self.overtakes_busy(jobs, claims) {
            return Err((Setback::Locked, Connection::Usable));
        }
        let mut ends = Vec::with_capacity(jobs.len());
        let mut held: Vec<&str> = Vec::new();
        while ends.len() < jobs.len() {
            let index = ends.len();
            let job = &jobs[index];
            let order = job.order_key(self.settings.order);
            let fate = match self.fate(job, claims[index]) {
                Fate::Handle | Fate::Record if order.is_some_and(|key| held.contains(&key)) => Fate::Queue,
                fate => fate,
            };
            if matches!(fate, Fate::Bury(_) | Fate::Queue) {
                held.extend(order);
            }
            match fate {
                Fate::Handle => {
                    let run = self.run_of(jobs, claims, &held, index);
                    self.handle(tx, &jobs[run.clone()], run.start, claims, &mut ends).await?;
                }
                Fate::Record => ends.push(End::Handled { ambiguous: false }),
                Fate::Bury(_) if self.is_set_aside_already(job).await.map_err(usable)? => {
                    ends.push(End::Duplicate);
                }
                Fate::Bury(flaw) => ends.push(self.bury(tx, job, &flaw).await?),
                Fate::BuryCopy(flaw) => ends.push(self.bury_copy(tx, job, &flaw).await?),
                Fate::Queue => ends.push(self.queue_up(tx, job).await?),
                Fate::Again => return Err((Setback::Locked, Connection::Usable)),
                Fate::Leave(end) => ends.push(end),
            }
        }
        Ok(ends)
    }

    /// Where order is kept, a message must not overtake one of its key that somebody else holds.
    fn overtakes_busy(&self, jobs: &[Job<R>], claims: &[Option<Claim>]) -> bool {
        if self.settings.order == Order::None {
            return false;
        }
        let mut busy: Vec<&str> = Vec::new();
        for (job, claim) in jobs.iter().zip(claims) {
            let Some(key) = job.order_key(self.settings.order) else { continue };
            match claim {
                Some(Claim::Busy) => busy.push(key),
                Some(claim) if claim.is_ours() && busy.contains(&key) => return true,
                _ => {}
            }
        }
        false
    }

    fn fate(&self, job: &Job<R>, claim: Option<Claim>) -> Fate {
        let claim = match (claim, job.id()) {
            (Some(claim), _) => claim,
            (None, None) => return Fate::Bury(self.flaw(job).unwrap_or_else(no_id)),
            (None, Some(_)) => Claim::New, // natural: nothing is claimed
        };
        match claim {
            Claim::Busy => Fate::Leave(End::Busy),
            Claim::Waiting { .. } if job.place().is_some() => Fate::Leave(End::Busy),
            Claim::Duplicate { .. } if job.uncertain => Fate::Leave(End::Handled { ambiguous: false }),
            Claim::Duplicate { .. } | Claim::Waiting { .. } | Claim::Dead { .. } => self.copy(job, claim),
            Claim::Held => self.flaw(job).map_or(Fate::Queue, Fate::Bury),
            Claim::Ambiguous if self.settings.keep.ambiguous == AmbiguousPolicy::DeadLetter => {
                let reason =
                    "its sent_at lies before what was purged: it may have been handled and forgotten";
                Fate::Bury(Flaw { code: Code::Ambiguous, reason: reason.to_owned() })
            }
            _ => match self.flaw(job) {
                Some(flaw) => Fate::Bury(flaw),
                None if self.is_unready(job) => Fate::Again,
                None if self.handlers.contains_key(job.kind()) => Fate::Handle,
                None => Fate::Record,
            },
        }
    }

    /// A copy of a message that is known already.
    fn copy(&self, job: &Job<R>, claim: Claim) -> Fate {
        if let (Claim::Dead { .. }, Some(number)) = (claim, returned(job)) {
            return Fate::Leave(End::Returned(number));
        }
        if claim.differs() {
            self.tell_of_other_payload(job);
            if self.settings.other_payload == OtherPayload::DeadLetter {
                let reason = format!("id `{}` is known with another payload", job.id_text());
                return Fate::BuryCopy(Flaw { code: Code::PayloadDiffers, reason });
            }
        }
        Fate::Leave(End::Duplicate)
    }

    pub(crate) fn tell_of_other_payload(&self, job: &Job<R>) {
        metrics::payload_differs(&self.consumer);
        warn!(consumer = %self.consumer, message_id = job.id_text(), code = %Code::PayloadDiffers,
            "a copy with another payload arrived under a known id");
    }

    /// Why a message cannot be handled, as far as that shows before its payload is decoded.
    fn flaw(&self, job: &Job<R>) -> Option<Flaw> {
        match &job.content {
            Content::Unreadable(unreadable) => {
                Some(Flaw { code: unreadable.code, reason: unreadable.reason.clone() })
            }
            Content::Message(message) if self.handlers.contains_key(&message.kind) => None,
            Content::Message(_) if self.settings.unknown_type == UnknownType::Ignore => None,
            Content::Message(message) if message.kind.is_empty() => {
                Some(Flaw { code: Code::TypeMissing, reason: "the message has no type".to_owned() })
            }
            Content::Message(message) => Some(Flaw {
                code: Code::TypeUnknown,
                reason: format!("no handler is registered for type `{}`", message.kind),
            }),
        }
    }

    /// The messages from `start` that go into one call: one, or all that follow each other and share a
    /// handler that takes batches.
    fn run_of(&self, jobs: &[Job<R>], claims: &[Option<Claim>], held: &[&str], start: usize) -> Range<usize> {
        let kind = jobs[start].kind();
        let batches = self.handlers.get(kind).is_some_and(|handler| handler.takes_batches());
        let joins = |index: usize| {
            let free = jobs[index].order_key(self.settings.order).is_none_or(|key| !held.contains(&key));
            free && jobs[index].kind() == kind
                && matches!(self.fate(&jobs[index], claims[index]), Fate::Handle)
        };
        let more =
            if batches { (start + 1..jobs.len()).take_while(|index| joins(*index)).count() } else { 0 };
        start..start + 1 + more
    }

    /// Decodes and handles a run of messages of one type, which begins at `start` in its batch.
    async fn handle(
        &self,
        tx: &mut S::Tx,
        run: &[Job<R>],
        start: usize,
        claims: &[Option<Claim>],
        ends: &mut Vec<End>,
    ) -> Result<(), (Setback, Connection)> {
        let Some(handler) = self.handlers.get(run[0].kind()) else { return Ok(()) };
        let mut inputs: Vec<Input> = Vec::with_capacity(run.len());
        for (offset, job) in run.iter().enumerate() {
            match decode(handler, job) {
                Ok(input) => {
                    inputs.push(input);
                    let ambiguous = job.ambiguous || claims[start + offset] == Some(Claim::Ambiguous);
                    ends.push(End::Handled { ambiguous });
                }
                Err(flaw) => ends.push(self.bury(tx, job, &flaw).await?),
            }
        }
        if inputs.is_empty() {
            return Ok(());
        }
        tx.meta().outbox.caused_by(if handler.takes_batches() { None } else { cause(&run[0]) });
        let span = debug_span!("handle", consumer = %self.consumer, message_id = run[0].id_text(), messages = run.len());
        let begun = Instant::now();
        let range = start..start + run.len();
        let called = self.call(handler, tx, inputs).instrument(span).await;
        metrics::handled(&self.consumer, begun.elapsed());
        crash_point!("after-handler");
        called.map_err(|stopped| match stopped {
            Stopped::Failed(failure) => (self.setback(range, failure), Connection::Usable),
            Stopped::Dropped(failure) => (Setback::Failed { range, failure }, Connection::Lost),
            Stopped::Aborted => (Setback::Aborted, Connection::Lost),
        })
    }

    /// One call, guarded against panics, its time limit and the end of draining.
    async fn call(
        &self,
        handler: &Arc<dyn ErasedHandler<S>>,
        tx: &mut S::Tx,
        inputs: Vec<Input>,
    ) -> Result<(), Stopped> {
        let guarded = AssertUnwindSafe(async { handler.call(tx, inputs).await }).catch_unwind();
        let limit = self.settings.timeout.unwrap_or(Duration::MAX);
        let called = tokio::select! {
            () = self.abort.cancelled() => return Err(Stopped::Aborted),
            called = tokio::time::timeout(limit, guarded) => called,
        };
        match called {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(failure))) => Err(Stopped::Failed(failure)),
            Ok(Err(panic)) => {
                let fault = Fault::new(Code::HandlerPanicked, panic_text(panic.as_ref()));
                Err(Stopped::Dropped(Failure::Retry(fault)))
            }
            Err(_) => {
                let text = format!("the handler did not finish within {limit:?}");
                Err(Stopped::Dropped(Failure::Retry(Fault::new(Code::HandlerTimedOut, text))))
            }
        }
    }

    /// What a failure means once the store has been asked whether it is one of its own.
    pub(crate) fn setback(&self, range: Range<usize>, failure: Failure) -> Setback {
        let Failure::Retry(fault) = &failure else { return Setback::Failed { range, failure } };
        if let Some(setback) = fault.error().downcast_ref::<Error>().and_then(of_store) {
            return setback;
        }
        match self.store.kind_of(fault.error().as_ref()) {
            Some((ErrorKind::Conflict, _)) => Setback::Conflict,
            Some((ErrorKind::Broken, code)) => Setback::Broken(
                Error::new(ErrorKind::Broken, code, "the handler ended the transaction")
                    .because(fault.to_string()),
            ),
            Some((ErrorKind::Unavailable, code)) => {
                Setback::Away(Error::new(ErrorKind::Unavailable, code, fault.to_string()))
            }
            Some((_, Code::HandlerTimedOut)) => {
                let fault = Fault::new(Code::HandlerTimedOut, fault.to_string());
                Setback::Failed { range, failure: Failure::Retry(fault) }
            }
            _ => Setback::Failed { range, failure },
        }
    }

    /// Sets a message aside inside the transaction that claimed it.
    pub(crate) async fn bury(
        &self,
        tx: &mut S::Tx,
        job: &Job<R>,
        flaw: &Flaw,
    ) -> Result<End, (Setback, Connection)> {
        self.bury_as(tx, job, flaw, job.failures, 0).await
    }

    pub(crate) async fn bury_as(
        &self,
        tx: &mut S::Tx,
        job: &Job<R>,
        flaw: &Flaw,
        failures: u32,
        crashes: u32,
    ) -> Result<End, (Setback, Connection)> {
        let burial = Burial { id: job.id(), failures, crashes, ..self.burial(job, flaw) };
        let number = self.store.bury(tx, &self.consumer, &burial).await.map_err(usable)?;
        self.publish_copy(tx, job, number, flaw);
        Ok(End::Dead(flaw.code))
    }

    async fn bury_copy(
        &self,
        tx: &mut S::Tx,
        job: &Job<R>,
        flaw: &Flaw,
    ) -> Result<End, (Setback, Connection)> {
        let burial = Burial { id: None, place: None, order: None, ..self.burial(job, flaw) };
        let number = self.store.bury(tx, &self.consumer, &burial).await.map_err(usable)?;
        self.publish_copy(tx, job, number, flaw);
        Ok(End::Dead(flaw.code))
    }

    fn burial<'j>(&self, job: &'j Job<R>, flaw: &'j Flaw) -> Burial<'j> {
        Burial {
            envelope: job.envelope(),
            id: None,
            kind: job.kind(),
            order: job.order_key(self.settings.order),
            place: job.place(),
            reason: flaw.code,
            error: &flaw.reason,
            failures: job.failures,
            crashes: 0,
        }
    }

    /// Puts a message behind the one of its key that is waiting or dead.
    async fn queue_up(&self, tx: &mut S::Tx, job: &Job<R>) -> Result<End, (Setback, Connection)> {
        let Some(message) = job.message() else { return Ok(End::Busy) };
        let parking = Parking {
            message,
            failures: job.failures,
            error: "",
            code: None,
            wait: Duration::ZERO,
            order: job.order_key(self.settings.order),
        };
        self.store.park(tx, &self.consumer, &parking).await.map_err(usable)?;
        Ok(End::Parked { wait: Duration::ZERO })
    }

    /// Names the rows that go when this transaction's changes come.
    pub(crate) fn settle_inside(&self, tx: &mut S::Tx, jobs: &[Job<R>], ends: &[End]) {
        let here = self.store.instance();
        let meta = tx.meta();
        for (job, end) in jobs.iter().zip(ends) {
            match &job.hold {
                _ if matches!(end, End::Busy | End::Returned(_)) => {}
                Hold::Delivery(delivery) => {
                    let receipt = delivery.in_store.filter(|receipt| receipt.store == here);
                    meta.settled.extend(receipt.map(Settled::Queued));
                }
                Hold::Waiting(_) if matches!(end, End::Parked { .. } | End::Dead(_)) => {}
                Hold::Waiting(place) => meta.settled.push(Settled::Waiting(*place)),
            }
            if job.start_charged && *end != End::Busy {
                meta.erased_starts.extend(job.id().cloned());
            }
        }
    }
}

/// Whether a transaction's connection can still be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    Usable,
    Lost,
}

/// What an error of a store's operation, which a handler let through, means for the message.
pub(crate) fn of_store(error: &Error) -> Option<Setback> {
    match error.kind() {
        ErrorKind::Conflict => Some(Setback::Conflict),
        ErrorKind::Busy => Some(Setback::Locked),
        ErrorKind::Unavailable | ErrorKind::Unknown => {
            Some(Setback::Away(Error::new(ErrorKind::Unavailable, error.code(), error.to_string())))
        }
        _ => None,
    }
}

fn usable(error: Error) -> (Setback, Connection) {
    (Setback::from(error), Connection::Usable)
}

fn decode<S: ConsumerStore, R>(handler: &Arc<dyn ErasedHandler<S>>, job: &Job<R>) -> Result<Input, Flaw> {
    let Some(message) = job.message() else { return Err(no_id()) };
    handler
        .decode(message, job.circumstances())
        .map_err(|error| Flaw { code: Code::PayloadUndecodable, reason: error.to_string() })
}

/// The message whose handling publishes others.
fn cause<R>(job: &Job<R>) -> Option<Cause> {
    job.message().map(|message| Cause::of_envelope(message.id.clone(), &message.envelope))
}

fn no_id() -> Flaw {
    Flaw { code: Code::IdMissing, reason: "the message has no id".to_owned() }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    said.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the handler panicked".to_owned())
}
