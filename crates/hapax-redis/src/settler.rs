//! Acks, hand-backs and extensions, of this delivery and no other.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Error, Settle, Settlement, Settler, crash_point};
use tokio::time::{Instant, timeout_at};

use crate::error;
use crate::ledger::{Held, Ledger, Receipt};
use crate::reply;
use crate::script::{Seat, Word};

/// How long the server may take to answer, a new connection included.
const PATIENCE: Duration = Duration::from_secs(5);

/// Acks and hands back a source's deliveries. Cheap to clone, and used by many workers at once.
///
/// Each call is one round trip: a script that the server runs, which does for each delivery what was asked if the
/// entry is with this consumer still, and delivered as often as then. If the connection is lost meanwhile, it is
/// sent again on the next one. A settlement of a delivery that is no longer ours is `Ok` and does nothing:
/// the message comes again, as a duplicate.
#[derive(Clone)]
pub struct RedisSettler {
    ledger: Arc<Ledger>,
    seat: Arc<Seat>,
}

impl RedisSettler {
    pub(crate) fn new(ledger: Arc<Ledger>, seat: Arc<Seat>) -> Self {
        Self { ledger, seat }
    }

    /// Gives deliveries back that nobody will settle.
    pub(crate) async fn give_up(&self, deliveries: Vec<Held>) {
        if deliveries.is_empty() {
            return;
        }
        match self.tell(deliveries.iter().map(|held| (held, Word::HandBack))).await {
            Ok(done) => {
                let done = done.into_iter().filter(|done| *done).count();
                self.ledger.metrics.hand_backs.increment(done as u64);
            }
            Err(error) => tracing::debug!(%error, "not handed back; they come again after their lease"),
        }
    }

    /// Says a word about each delivery, and answers with whether it was ours.
    async fn tell<'h>(
        &self,
        words: impl ExactSizeIterator<Item = (&'h Held, Word)>,
    ) -> Result<Vec<bool>, Error> {
        let count = words.len();
        let command = self.seat.settle(words);
        let until = Instant::now() + PATIENCE;
        let mut last = error::not_connected();
        while let Some(link) = self.ledger.link(until).await {
            match link.ask(&command).await {
                Ok(answer) => {
                    let done: Vec<bool> =
                        reply::array(answer).iter().map(|done| reply::number(done) == Some(1)).collect();
                    return if done.len() == count { Ok(done) } else { Err(error::garbled("settlements")) };
                }
                // Done or not: when it is said again, the server knows.
                Err(cause) if error::is_loss(&cause) => last = error::settling(cause),
                Err(cause) => return Err(error::settling(cause)),
            }
            let _ = timeout_at(until, link.lost()).await; // until then, the next round ends the loop
        }
        Err(last)
    }

    fn note(&self, word: Word, done: bool) {
        let metrics = &self.ledger.metrics;
        let counter = match (done, word) {
            (false, _) => &metrics.stale,
            (true, Word::HandBack) => &metrics.hand_backs,
            (true, _) => &metrics.acks,
        };
        counter.increment(1);
    }

    async fn settle_all(&self, settlements: Vec<Settlement<Receipt>>) -> Vec<Result<(), Error>> {
        let mut results: Vec<_> = settlements.iter().map(|_| Ok(())).collect();
        let mut ours = Vec::with_capacity(settlements.len());
        for (place, Settlement { receipt, verdict }) in settlements.into_iter().enumerate() {
            let word = if verdict == Settle::HandBack { Word::HandBack } else { Word::Ack };
            match self.ledger.release(receipt) {
                Some(held) => ours.push((place, held, word)),
                None => self.note(word, false),
            }
        }
        if ours.is_empty() {
            return results;
        }
        match self.tell(ours.iter().map(|(_, held, word)| (held, *word))).await {
            Ok(done) => ours.iter().zip(done).for_each(|((_, _, word), done)| self.note(*word, done)),
            Err(error) => {
                for (place, ..) in ours {
                    results[place] = Err(error::again(&error));
                }
            }
        }
        results
    }

    async fn extend_all(&self, receipts: Vec<Receipt>) -> Vec<Result<(), Error>> {
        let held: Vec<_> =
            receipts.iter().map(|receipt| self.ledger.held(*receipt).map(|held| (*receipt, held))).collect();
        let ours: Vec<_> = held.iter().flatten().collect();
        if ours.is_empty() {
            return receipts.iter().map(|_| Err(error::not_held())).collect();
        }
        let before = Instant::now();
        let told = self.tell(ours.iter().map(|(_, held)| (held, Word::Keep))).await;
        let done = match told {
            Ok(done) => done,
            Err(error) => return receipts.iter().map(|_| Err(error::again(&error))).collect(),
        };
        for ((receipt, _), done) in ours.iter().zip(&done) {
            if *done {
                self.ledger.renew(*receipt, before);
            } else {
                self.ledger.lose(*receipt);
            }
        }
        let mut done = done.into_iter();
        let result = |is_ours: bool| match is_ours.then(|| done.next()).flatten() {
            Some(true) => Ok(()),
            _ => Err(error::not_held()),
        };
        held.iter().map(Option::is_some).map(result).collect()
    }
}

impl fmt::Debug for RedisSettler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettler").finish_non_exhaustive()
    }
}

impl Settler<Receipt> for RedisSettler {
    async fn settle(&self, settlements: Vec<Settlement<Receipt>>) -> Vec<Result<(), Error>> {
        crash_point!("redis-before-ack");
        let results = self.settle_all(settlements).await;
        crash_point!("redis-after-ack");
        results
    }

    async fn extend(&self, receipts: Vec<Receipt>) -> Vec<Result<(), Error>> {
        self.extend_all(receipts).await
    }

    fn holds(&self, receipt: &Receipt) -> bool {
        self.ledger.held(*receipt).is_some()
    }
}
