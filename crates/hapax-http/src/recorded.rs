//! The mode *recorded*: any handler, with a record before and after it.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Code, ConsumerName, Error, ErrorKind, Fence, Grip, MessageId, Running};
use http::{Response, StatusCode};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::body::Body;
use crate::kept::Kept;
use crate::metrics;
use crate::mode::{ATTEMPTS, Mode, Verdict, pause, unless_undone};
use crate::problem::Problem;
use crate::rules::Takeover;
use crate::run::{Answer, Asked, Handler, NoAnswer, kept_problem, not_on_record, panicked, run};

/// The mode *recorded*, see [`Idempotency::recorded`](crate::Idempotency::recorded).
#[derive(Clone, Debug)]
pub struct Recorded<S> {
    store: S,
}

impl<S> Recorded<S> {
    pub(crate) fn new(store: S) -> Self {
        Self { store }
    }
}

impl<S: Running> Mode for Recorded<S> {
    async fn answer<H: Handler>(&self, asked: &Asked, handler: H) -> Verdict<H::Error> {
        let (rules, key) = (&asked.rules, asked.hapax_key());
        let begin = || self.store.begin_running(&rules.consumer, &key, rules.lease, Duration::ZERO);
        match unless_undone(begin).await {
            Err(error) => Verdict::of_error(asked, &error),
            Ok(Grip::Ours { fence, other_payload: true, .. }) => {
                Ours { store: &self.store, asked, fence }.leave_as_it_was().await;
                Verdict::Reused
            }
            Ok(Grip::Ours { fence, taken_over, ambiguous, .. }) => {
                let ours = Ours { store: &self.store, asked, fence };
                ours.answer(handler, taken_over || ambiguous).await
            }
            Ok(
                Grip::Done { other_payload: true, .. }
                | Grip::Running { other_payload: true, .. }
                | Grip::Waiting { other_payload: true }
                | Grip::Dead { other_payload: true },
            ) => Verdict::Reused,
            Ok(Grip::Done { result, .. }) => Verdict::of_result(asked, result.as_ref()),
            Ok(Grip::Running { .. } | Grip::Busy) => Verdict::Running,
            Ok(_) => Verdict::foreign(asked),
        }
    }
}

/// A request that we hold under a lease.
struct Ours<'h, S> {
    store: &'h S,
    asked: &'h Asked,
    fence: Fence,
}

impl<S: Running> Ours<'_, S> {
    async fn answer<H: Handler>(&self, handler: H, taken_over: bool) -> Verdict<H::Error> {
        let rules = &self.asked.rules;
        if taken_over {
            metrics::taken_over(&rules.consumer);
            if rules.takeover == Takeover::Refuse {
                let problem = unknown_run();
                return self.end(problem.response(&rules.docs), kept_problem(&problem, rules)).await;
            }
        }
        let renewal = Renewal::start(self.store.clone(), self.asked, self.fence);
        let ran = run(handler, self.asked.request(taken_over), rules).await;
        renewal.stop().await;
        match ran {
            Ok(Answer::Kept(response, kept)) => self.end(response, kept).await,
            Ok(Answer::TooLarge(passed)) => {
                // The effect may be outside, and a retry must not repeat it.
                let problem = not_on_record();
                let response = passed.unwrap_or_else(|| problem.response(&rules.docs));
                self.end(response, kept_problem(&problem, rules)).await
            }
            Ok(Answer::NotKept(response) | Answer::Undone(response)) => {
                self.give_up().await;
                Verdict::First(response, None)
            }
            Err(NoAnswer::Panicked) => {
                self.give_up().await;
                Verdict::Refused(panicked())
            }
            Err(NoAnswer::Failed(error)) => {
                self.give_up().await;
                Verdict::Failed(error)
            }
        }
    }

    /// Records the answer and gives it; or gives the one of whoever took the request over meanwhile.
    async fn end<E>(&self, response: Response<Body>, kept: Kept) -> Verdict<E> {
        let (consumer, id) = (&self.asked.rules.consumer, &self.asked.id);
        let encoded = kept.encode();
        let end = || self.store.end_running(consumer, id, self.fence, Some(&encoded));
        match self.persist(end).await {
            Ok(true) => Verdict::First(response, Some(Arc::new(kept))),
            // A call whose answer was lost can have ended it, too: then what is on record is our own answer.
            Ok(false) => self.somebody_elses().await,
            Err(error) => {
                // The work is done. To hold its answer back would only make the client ask for it again.
                metrics::not_recorded(consumer);
                tracing::error!(%consumer, "an answer is given that could not be recorded: {error}");
                Verdict::First(response, None)
            }
        }
    }

    async fn somebody_elses<E>(&self) -> Verdict<E> {
        let ids = std::slice::from_ref(&self.asked.id);
        match self.store.look(&self.asked.rules.consumer, ids).await {
            Err(error) => Verdict::of_error(self.asked, &error),
            Ok(rows) => match rows.into_iter().flatten().next() {
                Some(row) => Verdict::of_row(self.asked, &row),
                None => Verdict::Running,
            },
        }
    }

    /// Ends the lease at once: the request that died under this key is another one, and its own retry takes it over.
    async fn leave_as_it_was(&self) {
        let (consumer, held) = (&self.asked.rules.consumer, [(self.asked.id.clone(), self.fence)]);
        if let Err(error) = self.store.renew_running(consumer, &held, Duration::ZERO).await {
            tracing::warn!(%consumer, "a key stays busy until its lease ends: {error}");
        }
    }

    /// Drops the record, so that the key can be used again.
    async fn give_up(&self) {
        let (consumer, id) = (&self.asked.rules.consumer, &self.asked.id);
        let drop = || self.store.drop_running(consumer, id, self.fence);
        if let Err(error) = self.persist(drop).await {
            tracing::warn!(%consumer, "a key stays busy until its lease ends: {error}");
        }
    }

    /// Tries again through a short outage.
    async fn persist<F>(&self, mut call: impl FnMut() -> F) -> Result<bool, Error>
    where
        F: Future<Output = Result<bool, Error>>,
    {
        let mut attempt = 1;
        loop {
            match call().await {
                Err(error) if may_pass(&error) && attempt < ATTEMPTS => pause(attempt).await,
                ended => return ended,
            }
            attempt += 1;
        }
    }
}

fn may_pass(error: &Error) -> bool {
    let kind = error.kind();
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Conflict | ErrorKind::Unknown)
}

fn unknown_run() -> Problem {
    let detail =
        "an earlier run of this request ended without saying whether it took effect; it is not run again";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::RunUnknown, detail)
}

/// Renews a lease every third of it, on a task of its own, so that a handler that keeps its thread busy
/// does not lose it.
struct Renewal {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Renewal {
    fn start<S: Running>(store: S, asked: &Asked, fence: Fence) -> Self {
        let (stop, stopped) = oneshot::channel();
        let lease = asked.rules.lease;
        let held = (asked.id.clone(), fence);
        let task = tokio::spawn(renew(store, asked.rules.consumer.clone(), held, lease, stopped));
        Self { stop, task }
    }

    /// Ends it, after the call that may be under way: a store's calls are not cut off.
    async fn stop(self) {
        drop(self.stop);
        let _ = self.task.await; // it cannot panic, and nobody aborts it
    }
}

async fn renew<S: Running>(
    store: S,
    consumer: ConsumerName,
    held: (MessageId, Fence),
    lease: Duration,
    mut stopped: oneshot::Receiver<()>,
) {
    let third = (lease / 3).max(Duration::from_millis(10));
    loop {
        tokio::select! {
            _ = &mut stopped => return,
            () = tokio::time::sleep(third) => {}
        }
        match store.renew_running(&consumer, std::slice::from_ref(&held), lease).await {
            Ok(ours) if ours.first() == Some(&false) => {
                tracing::warn!(%consumer, "a request's lease ended and somebody else took it over");
                return;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%consumer, "a request's lease was not renewed: {error}"),
        }
    }
}
