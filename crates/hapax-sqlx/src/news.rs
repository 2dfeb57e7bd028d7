//! News of the outbox: that rows came in, told in this process at once and to others now and then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::dialect::Dialect;
use crate::store::{Inner, SqlStore};

/// The shortest time between two notifications: each is a transaction that wakes every relay.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// How long to wait before listening again after the connection was lost.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// What is known of rows that came in.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Counts commits of this store with rows in them.
    ours: watch::Sender<u64>,
    /// Counts these and what was heard of others.
    all: watch::Sender<u64>,
    tells: AtomicBool,
    listens: AtomicBool,
}

impl News {
    fn count(counter: &watch::Sender<u64>) {
        counter.send_modify(|count| *count += 1);
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Rows were committed: whoever relays is told.
    pub(crate) fn tell(&self) {
        let news = &self.inner.news;
        News::count(&news.all);
        if !D::CAN_NOTIFY {
            return;
        }
        News::count(&news.ours);
        if !news.tells.swap(true, Ordering::SeqCst) {
            let mut ours = news.ours.subscribe();
            ours.mark_changed();
            tokio::spawn(tell_others(Arc::downgrade(&self.inner), ours));
        }
    }

    /// Waits for more than `seen` counts.
    pub(crate) async fn hear(&self, seen: &mut u64) {
        let news = &self.inner.news;
        if D::CAN_NOTIFY && !news.listens.swap(true, Ordering::SeqCst) {
            tokio::spawn(listen_to_others(Arc::downgrade(&self.inner), news.all.subscribe()));
        }
        let mut all = news.all.subscribe();
        match all.wait_for(|count| count != seen).await.map(|count| *count) {
            Ok(count) => *seen = count,
            Err(_) => std::future::pending().await, // the store outlives its relays
        }
    }

    /// Tells the processes of one store from those of another in the same database.
    fn channel(&self) -> String {
        format!("hapax_outbox_{}", self.inner.schema)
    }

    /// Tells this store from others.
    fn token(&self) -> String {
        self.inner.token.to_string()
    }
}

/// Notifies others after a commit, soon after the first and not again before some time has passed. Ends with
/// the store.
async fn tell_others<D: Dialect>(store: Weak<Inner<D>>, mut ours: watch::Receiver<u64>) {
    while ours.changed().await.is_ok() {
        let Some(inner) = store.upgrade() else { return };
        let store = SqlStore { inner };
        match store.connections().side().await {
            Ok(mut held) => {
                let told = D::notify(held.conn(), &store.channel(), &store.token()).await;
                if let Err(error) = held.answer(told) {
                    tracing::debug!(%error, "other relays were not told; they poll besides");
                }
            }
            Err(error) => tracing::debug!(%error, "other relays were not told; they poll besides"),
        }
        drop(store);
        tokio::time::sleep(DEBOUNCE).await;
    }
}

/// Listens to other processes. Ends with the store.
async fn listen_to_others<D: Dialect>(store: Weak<Inner<D>>, mut all: watch::Receiver<u64>) {
    loop {
        let Some(inner) = store.upgrade() else { return };
        let (channel, token, options) = {
            let store = SqlStore { inner };
            (store.channel(), store.token(), store.connections().options().clone())
        };
        let heard = || {
            if let Some(inner) = store.upgrade() {
                News::count(&inner.news.all);
            }
        };
        let ended = async { while all.changed().await.is_ok() {} };
        tokio::select! {
            () = ended => return,
            lost = D::listen(options, &channel, &token, heard) => {
                tracing::debug!(error = ?lost.err(), "nothing is heard of other processes for now; relays poll besides");
            }
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}
