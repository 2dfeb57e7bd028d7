//! Commits beside the thread that polls: each waits for the broker's answer, which may take its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::ledger::Place;
use crate::rebalance::GroupContext;

type Offsets = Vec<(Place, i64)>;

/// The polling thread's end: one commit at a time is under way.
pub(crate) struct Committer {
    offsets: SyncSender<Offsets>,
    busy: Arc<AtomicBool>,
}

/// The committing thread's end.
pub(crate) struct Commits {
    offsets: Receiver<Offsets>,
    busy: Arc<AtomicBool>,
}

impl Committer {
    pub(crate) fn new() -> (Self, Commits) {
        let (send, receive) = sync_channel(1);
        let busy = Arc::new(AtomicBool::new(false));
        (Self { offsets: send, busy: Arc::clone(&busy) }, Commits { offsets: receive, busy })
    }

    pub(crate) fn is_free(&self) -> bool {
        !self.busy.load(Ordering::Acquire)
    }

    /// Has these offsets committed. To be called when it is free.
    pub(crate) fn commit(&self, offsets: Offsets) {
        if offsets.is_empty() {
            return;
        }
        self.busy.store(true, Ordering::Release);
        let _ = self.offsets.send(offsets); // the other end lives until this one goes
    }
}

impl Commits {
    /// Commits until the other end goes.
    pub(crate) fn serve(self, consumer: &BaseConsumer<GroupContext>) {
        for offsets in self.offsets {
            consumer.context().commit_now(consumer, &offsets);
            self.busy.store(false, Ordering::Release);
        }
    }
}
