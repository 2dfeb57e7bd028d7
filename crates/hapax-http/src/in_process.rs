//! Requests at work in this process: copies of them need not ask the store, which may not see them yet.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_core::{Digest, MessageId};
use tokio::sync::watch;

use crate::kept::Kept;

type Ended = Option<Arc<Kept>>;

/// Who is at work on what. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct InProcess {
    at_work: Arc<Mutex<HashMap<MessageId, AtWork>>>,
    count: Arc<watch::Sender<usize>>,
}

#[derive(Debug)]
struct AtWork {
    digest: Digest,
    ended: watch::Receiver<Ended>,
}

/// What a request finds.
#[derive(Debug)]
pub(crate) enum Entrance {
    /// Nobody is at work on it: it is ours until the place is left or dropped.
    First(Place),
    /// Somebody is at work on it.
    Running(Outcome),
    /// Somebody is at work on another request under this key.
    Reused,
}

impl InProcess {
    pub(crate) fn enter(&self, id: &MessageId, digest: Digest) -> Entrance {
        let mut at_work = self.lock();
        match at_work.entry(id.clone()) {
            Entry::Occupied(entry) if entry.get().digest != digest => Entrance::Reused,
            Entry::Occupied(entry) => Entrance::Running(Outcome(entry.get().ended.clone())),
            Entry::Vacant(entry) => {
                let (sender, ended) = watch::channel(None);
                entry.insert(AtWork { digest, ended });
                self.count.send_replace(at_work.len());
                Entrance::First(Place { in_process: self.clone(), id: id.clone(), ended: sender })
            }
        }
    }

    /// Waits until nobody is at work.
    pub(crate) async fn drained(&self) {
        let mut count = self.count.subscribe();
        // It fails only if the sender is gone, and we hold it.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MessageId, AtWork>> {
        // Every change is one call: a panic leaves nothing half done.
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's place among those at work.
#[derive(Debug)]
pub(crate) struct Place {
    in_process: InProcess,
    id: MessageId,
    ended: watch::Sender<Ended>,
}

impl Place {
    /// Ends the work, with the answer that is on record, if one is.
    pub(crate) fn leave(self, kept: Option<Arc<Kept>>) {
        self.ended.send_replace(kept);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut at_work = self.in_process.lock();
        at_work.remove(&self.id);
        self.in_process.count.send_replace(at_work.len());
    }
}

/// How somebody else's work will end.
#[derive(Debug)]
pub(crate) struct Outcome(watch::Receiver<Ended>);

impl Outcome {
    /// The answer, once there is one; none if it ended without one that is kept.
    pub(crate) async fn wait(mut self) -> Option<Arc<Kept>> {
        self.0.wait_for(Option::is_some).await.ok()?.clone()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hapax_core::Timestamp;
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn id(text: &str) -> MessageId {
        MessageId::new(text).unwrap()
    }

    fn kept() -> Arc<Kept> {
        let at = Timestamp::from_micros(0);
        Arc::new(Kept { status: StatusCode::OK, at, headers: HeaderMap::new(), body: Bytes::new() })
    }

    #[tokio::test]
    async fn a_copy_gets_the_answer_and_another_request_is_told_from_it() {
        let here = InProcess::default();
        let Entrance::First(place) = here.enter(&id("a"), Digest::of(b"1")) else {
            panic!("nobody is there")
        };
        assert!(matches!(here.enter(&id("a"), Digest::of(b"2")), Entrance::Reused));
        assert!(matches!(here.enter(&id("b"), Digest::of(b"2")), Entrance::First(_)));
        let Entrance::Running(outcome) = here.enter(&id("a"), Digest::of(b"1")) else { panic!("at work") };
        place.leave(Some(kept()));
        assert_eq!(outcome.wait().await, Some(kept()));
        here.drained().await;
        assert!(matches!(here.enter(&id("a"), Digest::of(b"2")), Entrance::First(_)));
    }

    #[tokio::test]
    async fn a_place_that_is_dropped_is_free_and_whoever_waits_is_told() {
        let here = InProcess::default();
        let Entrance::First(place) = here.enter(&id("a"), Digest::of(b"1")) else {
            panic!("nobody is there")
        };
        let Entrance::Running(outcome) = here.enter(&id("a"), Digest::of(b"1")) else { panic!("at work") };
        drop(place);
        assert_eq!(outcome.wait().await, None);
        here.drained().await;
    }
}
