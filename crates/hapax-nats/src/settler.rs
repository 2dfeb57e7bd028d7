//! Acks, hand-backs and extensions, each confirmed by the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures::future::join_all;
use hapax_core::{Error, Settle, Settlement, Settler, crash_point};
use tokio::time::{Instant, timeout_at};

use crate::error;
use crate::ledger::{Held, Ledger, Receipt};
use crate::link::Unanswered;

/// How long the server may take to confirm, a new connection included.
const PATIENCE: Duration = Duration::from_secs(5);
const ACK: &[u8] = b"+ACK";
const HAND_BACK: &[u8] = b"-NAK";
const IN_PROGRESS: &[u8] = b"+WPI";

/// Acks and hands back a source's deliveries. Cheap to clone, and used by many workers at once.
///
/// Each ack is confirmed by the server ("double ack"). Those of a call travel together: one round trip. If
/// the connection is lost meanwhile, they are sent again on the next one, as long as the ack wait allows.
/// A settlement that comes after its ack wait has passed is discarded with `Ok`: the broker has the message
/// delivered again, as a duplicate.
#[derive(Clone)]
pub struct NatsSettler {
    ledger: Arc<Ledger>,
}

impl NatsSettler {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger }
    }

    async fn settle_one(&self, Settlement { receipt, verdict }: Settlement<Receipt>) -> Result<(), Error> {
        let metrics = &self.ledger.metrics;
        let Some(held) = self.ledger.release(receipt) else {
            metrics.stale.increment(1);
            tracing::debug!(
                ?receipt,
                "discarded a settlement: its ack wait has passed or it is settled already"
            );
            return Ok(());
        };
        let (word, counter) = match verdict {
            Settle::HandBack => (HAND_BACK, &metrics.hand_backs),
            _ => (ACK, &metrics.acks),
        };
        self.tell(&held, word).await?;
        counter.increment(1);
        Ok(())
    }

    async fn extend_one(&self, receipt: Receipt) -> Result<(), Error> {
        let held = self.ledger.held(receipt).ok_or_else(error::not_held)?;
        let before = Instant::now();
        self.tell(&held, IN_PROGRESS).await?;
        self.ledger.renew(receipt, before);
        Ok(())
    }

    /// Gives deliveries back that nobody will settle.
    pub(crate) async fn give_up(&self, deliveries: Vec<Held>) {
        for told in join_all(deliveries.iter().map(|held| self.tell(held, HAND_BACK))).await {
            match told {
                Ok(()) => self.ledger.metrics.hand_backs.increment(1),
                Err(error) => tracing::debug!(%error, "not handed back; it comes again after its ack wait"),
            }
        }
    }

    /// Says a word about a delivery and waits until the server has heard it.
    async fn tell(&self, held: &Held, word: &'static [u8]) -> Result<(), Error> {
        let until = held.until.min(Instant::now() + PATIENCE);
        let mut last = Unanswered::Lost("there is no connection".into());
        while let Some(link) = self.ledger.link(until).await {
            let left = until.saturating_duration_since(Instant::now());
            match link.ask(&held.ack, HeaderMap::new(), Bytes::from_static(word), left).await {
                Ok(_) => return Ok(()),
                Err(Unanswered::Lost(cause)) => last = Unanswered::Lost(cause), // heard twice is heard once
                Err(cause) => return Err(error::settling(cause)),
            }
            let _ = timeout_at(until, link.lost()).await; // until then, the next round ends the loop
        }
        Err(error::settling(last))
    }
}

impl fmt::Debug for NatsSettler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSettler").finish_non_exhaustive()
    }
}

impl Settler<Receipt> for NatsSettler {
    async fn settle(&self, settlements: Vec<Settlement<Receipt>>) -> Vec<Result<(), Error>> {
        crash_point!("nats-before-ack");
        let results = join_all(settlements.into_iter().map(|settlement| self.settle_one(settlement))).await;
        crash_point!("nats-after-ack");
        results
    }

    async fn extend(&self, receipts: Vec<Receipt>) -> Vec<Result<(), Error>> {
        join_all(receipts.into_iter().map(|receipt| self.extend_one(receipt))).await
    }

    fn holds(&self, receipt: &Receipt) -> bool {
        self.ledger.held(*receipt).is_some()
    }
}
