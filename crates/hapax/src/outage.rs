//! Waiting for a store that is away: one worker asks, the others wait for its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::{Code, Error, Store};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::health::Vitals;

/// The first wait between two questions, doubled each time.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait between two questions.
const LONGEST: Duration = Duration::from_secs(5);

/// Whether the store is away.
pub(crate) struct Outage {
    asking: Mutex<()>,
    ended: AtomicU64,
    away: watch::Sender<bool>,
    vitals: Arc<Vitals>,
}

impl Outage {
    pub(crate) fn new(vitals: Arc<Vitals>) -> Self {
        Self { asking: Mutex::new(()), ended: AtomicU64::new(0), away: watch::Sender::new(false), vitals }
    }

    fn set_away(&self, away: bool) {
        self.away.send_replace(away);
        self.vitals.store_away.store(away, Ordering::Relaxed);
    }

    pub(crate) fn is_away(&self) -> bool {
        *self.away.borrow()
    }

    /// Waits while the store is away; false when `stop` came first.
    pub(crate) async fn wait(&self, stop: &CancellationToken) -> bool {
        let mut away = self.away.subscribe();
        tokio::select! {
            () = stop.cancelled() => false,
            _ = away.wait_for(|away| !away) => true,
        }
    }

    /// Asks the store until it answers; false when `stop` came first. However many workers find the
    /// store away, only one of them asks, so that a recovering server is not run over. `times` is how often
    /// the same work met the same: a store that answers questions and refuses work is asked less and less.
    pub(crate) async fn wait_until_back<S: Store>(
        &self,
        store: &S,
        error: &Error,
        times: u32,
        stop: &CancellationToken,
    ) -> bool {
        let seen = self.ended.load(Ordering::SeqCst);
        let asking = tokio::select! {
            () = stop.cancelled() => return false,
            asking = self.asking.lock() => asking,
        };
        if self.ended.load(Ordering::SeqCst) != seen {
            return true;
        }
        warn!(%error, "the store is away; fetching stops until it is back");
        self.set_away(true);
        let back = ask(store, error.code(), times, stop).await;
        if back {
            info!("the store is back");
            self.ended.fetch_add(1, Ordering::SeqCst);
            self.set_away(false);
        }
        drop(asking);
        back
    }
}

async fn ask<S: Store>(store: &S, mut told: Code, times: u32, stop: &CancellationToken) -> bool {
    let mut pause = FIRST.saturating_mul(1 << times.saturating_sub(1).min(10)).min(LONGEST);
    loop {
        tokio::select! {
            () = stop.cancelled() => return false,
            () = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
        }
        // Not under the select: a connection attempt is never cancelled half way.
        match store.ping().await {
            Ok(()) => return true,
            Err(error) if error.code() != told => {
                warn!(%error, "the store is still away, now for another reason");
                told = error.code();
            }
            Err(_) => {}
        }
        pause = (pause * 2).min(LONGEST);
    }
}
