//! One turn of a relay: read, publish, mark.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use hapax_core::{
    Code, Error, ErrorKind, InstanceId, NotSent, Outbox, OutboxFilter, OutboxNumber, OutboxState, Take, Then,
    Unsent, crash_point,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Settings;
use super::broker::{Broker, Fate};
use super::page::Page;
use super::vitals::Vitals;
use crate::metrics;

/// So many batches are read at a time.
const PAGE: usize = 4;
/// How often rows are counted, and old ones removed.
const SWEEP: Duration = Duration::from_secs(10);
/// Rows removed in one transaction.
const SWEPT: u32 = 1_000;

/// A run that ends when it is idle waits so much longer for a broker that is away.
const PATIENCE: Duration = Duration::from_secs(25);

/// What a turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Messages were published or refused.
    Progress,
    /// Nothing was due, or the broker of all that was is away.
    Nothing,
}

/// A relay at work.
pub(super) struct Turns<'r, S> {
    store: &'r S,
    relay: InstanceId,
    brokers: BTreeMap<String, Broker>,
    settings: Settings,
    pub(super) vitals: Arc<Vitals>,
    /// The buckets it holds, and when it last made sure of that.
    buckets: HashSet<u16>,
    shared_at: Option<Instant>,
    swept_at: Option<Instant>,
    /// Published, and not yet marked as such.
    unmarked: Vec<OutboxNumber>,
    /// What it has seen of the outbox's news.
    seen: u64,
}

impl<'r, S: Outbox> Turns<'r, S> {
    pub(super) fn new(
        store: &'r S,
        relay: InstanceId,
        brokers: BTreeMap<String, Broker>,
        settings: Settings,
        vitals: Arc<Vitals>,
    ) -> Self {
        Self {
            store,
            relay,
            brokers,
            settings,
            vitals,
            buckets: HashSet::new(),
            shared_at: None,
            swept_at: None,
            unmarked: Vec::new(),
            seen: 0,
        }
    }

    /// Publishes a page of the outbox. An error is the store's.
    pub(super) async fn turn(&mut self, stop: &CancellationToken) -> Result<Turn, Error> {
        self.mark().await?;
        self.share_in_time().await?;
        self.sweep_in_time().await?;
        let (now, max) = (Instant::now(), self.settings.batch.saturating_mul(PAGE));
        let is_away = |broker: &Broker| broker.away_until().is_some_and(|until| until > now);
        let away: Vec<String> =
            self.brokers.iter().filter(|(_, broker)| is_away(broker)).map(|(name, _)| name.clone()).collect();
        let take = Take {
            relay: &self.relay,
            max: u32::try_from(max).unwrap_or(u32::MAX),
            on_failure: self.settings.on_failure,
            away: &away,
        };
        let rows = self.store.unsent(&take).await?;
        if rows.is_empty() {
            return Ok(Turn::Nothing);
        }
        let before = self.vitals.summary();
        let mut page = Page::new(rows, self.settings.on_failure);
        while !page.is_empty() && !stop.is_cancelled() {
            self.vitals.pulse.turn();
            if self.share_in_time().await? {
                page.retain(|row| self.buckets.contains(&row.bucket));
            }
            let not_sent = self.publish(page.wave(self.settings.batch)).await?;
            page.hold_back(&not_sent);
            page.retain(|row| {
                self.brokers.get(&row.destination.broker).is_none_or(|broker| broker.away_until().is_none())
            });
        }
        self.mark().await?;
        Ok(if self.vitals.summary() == before { Turn::Nothing } else { Turn::Progress })
    }

    /// Publishes rows and marks meanwhile those that were published before them. Answers with the keys of
    /// those that were not.
    async fn publish(&mut self, rows: Vec<Unsent>) -> Result<HashSet<String>, Error> {
        let mut groups: HashMap<String, Vec<Unsent>> = HashMap::new();
        for row in rows {
            groups.entry(row.destination.broker.clone()).or_default().push(row);
        }
        let mut fates = Vec::new();
        let mut publishing = Vec::new();
        for (name, broker) in &mut self.brokers {
            if let Some(rows) = groups.remove(name) {
                publishing.push(broker.publish(rows));
            }
        }
        for row in groups.into_values().flatten() {
            let context = format!("the relay has no broker named `{}`", row.destination.broker);
            fates
                .push((row, Fate::Refused(Error::new(ErrorKind::NotFound, Code::PublisherMissing, context))));
        }
        crash_point!("relay-before-publish");
        let marked: Vec<_> = std::mem::take(&mut self.unmarked);
        let marking = mark(self.store, &marked, self.settings.keep.is_some());
        let keeping = keep(self.store, &self.relay, self.settings.lease);
        let both = futures::future::join(join_all(publishing), marking);
        let (published, marking) = tokio::select! {
            both = both => both,
            never = keeping => never,
        };
        crash_point!("relay-after-publish");
        if let Err(error) = marking {
            self.unmarked = marked;
            self.take_note(published.into_iter().flatten(), &mut HashSet::new());
            return Err(error);
        }
        fates.extend(published.into_iter().flatten());
        let mut keys = HashSet::new();
        let not_sent = self.take_note(fates.into_iter(), &mut keys);
        self.tell_away();
        self.note(&not_sent).await?;
        Ok(keys)
    }

    /// Takes down what was sent; answers with what was not, and collects its keys.
    fn take_note(
        &mut self,
        fates: impl Iterator<Item = (Unsent, Fate)>,
        keys: &mut HashSet<String>,
    ) -> Vec<(Unsent, Error, Then)> {
        let mut not_sent = Vec::new();
        let before = self.unmarked.len();
        let (mut refused, mut parked) = (0, 0);
        for (row, fate) in fates {
            let (error, then) = match fate {
                Fate::Sent => {
                    self.unmarked.push(row.number);
                    continue;
                }
                Fate::Away(error) => (error, Then::Wait),
                Fate::Refused(error) => {
                    refused += 1;
                    let then = self.settings.retry.after(row.attempts + 1).map_or(Then::Park, Then::Retry);
                    parked += u64::from(then == Then::Park);
                    (error, then)
                }
            };
            keys.extend(row.key.clone());
            not_sent.push((row, error, then));
        }
        let published = self.unmarked.len() - before;
        metrics::published(published);
        self.vitals.count(published as u64, refused, parked);
        not_sent
    }

    /// Writes down why rows were not sent.
    async fn note(&self, not_sent: &[(Unsent, Error, Then)]) -> Result<(), Error> {
        if not_sent.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = not_sent.iter().map(|(_, error, _)| reason(error)).collect();
        let mut notes = Vec::with_capacity(not_sent.len());
        for ((row, error, then), text) in not_sent.iter().zip(&texts) {
            metrics::not_published(error.code().as_str());
            if *then == Then::Park {
                metrics::parked();
                warn!(number = %row.number, destination = %row.destination, code = %error.code(), reason = text,
                    "a message was parked: it failed as often as is allowed; `hapax outbox list` shows it");
            } else {
                debug!(number = %row.number, destination = %row.destination, code = %error.code(), reason = text, "not published");
            }
            notes.push(NotSent { number: row.number, code: error.code(), error: text, then: *then });
        }
        self.store.not_sent(&notes).await
    }

    fn tell_away(&self) {
        let away = self.brokers.iter().filter(|(_, broker)| !broker.is_healthy());
        self.vitals.brokers_are_away(away.map(|(name, _)| name.clone()).collect());
    }

    async fn mark(&mut self) -> Result<(), Error> {
        mark(self.store, &self.unmarked, self.settings.keep.is_some()).await?;
        self.unmarked.clear();
        Ok(())
    }

    /// Renews what it holds and takes its share, now and then; says whether it did.
    async fn share_in_time(&mut self) -> Result<bool, Error> {
        if self.shared_at.is_some_and(|at| at.elapsed() < self.settings.lease / 3) {
            return Ok(false);
        }
        let asked_at = Instant::now();
        let buckets = self.store.share_buckets(&self.relay, self.settings.lease).await?;
        self.buckets = buckets.into_iter().collect();
        self.shared_at = Some(asked_at);
        Ok(true)
    }

    /// Counts rows for the metrics and removes old ones, now and then.
    async fn sweep_in_time(&mut self) -> Result<(), Error> {
        if self.swept_at.is_some_and(|at| at.elapsed() < SWEEP) {
            return Ok(());
        }
        self.swept_at = Some(Instant::now());
        for state in [OutboxState::Unsent, OutboxState::Parked] {
            let filter = OutboxFilter { state: Some(state), ..OutboxFilter::default() };
            metrics::outbox(state.as_str(), self.store.count_outbox(&filter).await?);
        }
        if let Some(keep) = self.settings.keep {
            self.store.purge_sent(keep, SWEPT).await?;
        }
        Ok(())
    }

    /// Whether a run that ends when it is idle has been so for long enough.
    pub(super) fn is_done(&self, idle: Duration) -> bool {
        let holds_all = self.buckets.len() == usize::from(hapax_core::BUCKETS);
        // Others may hold what is due; whoever ends early leaves it to them.
        let is_quiet = holds_all || idle >= self.settings.lease;
        let all_answer = self.brokers.values().all(Broker::is_healthy);
        let patience = if all_answer { Duration::ZERO } else { PATIENCE };
        is_quiet && self.settings.until_idle.is_some_and(|silence| idle >= silence + patience)
    }

    /// Waits for news, or until it is time to look again.
    pub(super) async fn rest(&mut self, stop: &CancellationToken, idle_since: Instant) {
        let now = Instant::now();
        let again = self.brokers.values().filter_map(Broker::away_until).min();
        let share = self.shared_at.map(|at| at + self.settings.lease / 3);
        let done = self.settings.until_idle.map(|silence| idle_since + silence).filter(|done| *done > now);
        let poll = now + self.settings.poll;
        let until = [again, share, done].into_iter().flatten().fold(poll, Instant::min);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep_until(until) => {}
            () = self.store.outbox_changed(&mut self.seen) => {}
        }
    }

    /// Marks what is left and gives the buckets back, as far as the store lets it.
    pub(super) async fn leave(&mut self) {
        if let Err(error) = self.mark().await {
            warn!(%error, "{} published messages were not marked; they are published again", self.unmarked.len());
        }
        if let Err(error) = self.store.leave_buckets(&self.relay).await {
            debug!(%error, "the relay's keys were not given back; others take them when its lease ends");
        }
    }
}

async fn mark<S: Outbox>(store: &S, numbers: &[OutboxNumber], keep: bool) -> Result<(), Error> {
    if numbers.is_empty() { Ok(()) } else { store.sent(numbers, keep).await }
}

/// Renews the lease as long as a broker takes its time.
async fn keep<S: Outbox>(store: &S, relay: &InstanceId, lease: Duration) -> ! {
    loop {
        tokio::time::sleep(lease / 3).await;
        if let Err(error) = store.keep_buckets(relay, lease).await {
            debug!(%error, "a relay's lease was not renewed");
        }
    }
}

/// The error with its causes and without its code, which is kept beside it.
fn reason(error: &Error) -> String {
    let text = hapax_core::Fault::new(error.code(), error.to_string()).to_string();
    text.strip_prefix(&format!("{}: ", error.code())).unwrap_or(&text).to_owned()
}
