//! A broker as a relay sees it: there, or away for a while.

use std::collections::HashMap;
use std::time::Duration;

use hapax_core::{Error, ErrorKind, OutboxNumber, Publisher as _, Unsent};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::boxed::BoxPublisher;

/// The first wait before a broker that is away is tried again, doubled each time.
const FIRST: Duration = Duration::from_millis(100);
/// The longest such wait.
const LONGEST: Duration = Duration::from_secs(5);
/// A row that so often takes a healthy broker's connection along is at fault itself.
const FAULTS: u32 = 3;

/// More suspects than that are of outages long past: another relay has published them since.
const MOST_SUSPECTS: usize = 10_000;

/// What became of a row.
pub(super) enum Fate {
    Sent,
    /// Its broker is away; it is charged nothing.
    Away(Error),
    /// The row is refused.
    Refused(Error),
}

/// A broker and how it has been.
pub(super) struct Broker {
    name: String,
    publisher: BoxPublisher,
    /// When it was last tried, it took a message or answered for it.
    is_healthy: bool,
    away_until: Option<Instant>,
    pause: Duration,
    /// Rows that were under way when it went away, and how often each did alone what may have sent it away:
    /// they are published one by one until they are through.
    suspects: HashMap<OutboxNumber, u32>,
}

impl Broker {
    pub(super) fn new(name: String, publisher: BoxPublisher) -> Self {
        Self { name, publisher, is_healthy: true, away_until: None, pause: FIRST, suspects: HashMap::new() }
    }

    /// Until when it is left alone.
    pub(super) fn away_until(&self) -> Option<Instant> {
        self.away_until.filter(|until| *until > Instant::now())
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.is_healthy
    }

    /// Publishes rows and says of each what became of it. Rows it does not mention were not tried.
    pub(super) async fn publish(&mut self, rows: Vec<Unsent>) -> Vec<(Unsent, Fate)> {
        let mut fates = Vec::with_capacity(rows.len());
        let (suspects, free): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| self.suspects.contains_key(&row.number));
        let mut free = free.into_iter();
        // One that nothing is known against goes ahead to see whether the broker is back.
        let scout = if self.is_healthy { None } else { free.next() };
        for row in scout.into_iter().chain(suspects) {
            let fate = self.publish_alone(&row).await;
            fates.push((row, fate));
            if !self.is_healthy {
                return fates;
            }
        }
        let rest: Vec<_> = free.collect();
        if !rest.is_empty() {
            fates.extend(self.publish_together(rest).await);
        }
        fates
    }

    async fn publish_alone(&mut self, row: &Unsent) -> Fate {
        let answer = self.publisher.publish(vec![row.outgoing()]).await.pop();
        let error = match answer {
            None | Some(Ok(())) => {
                self.suspects.remove(&row.number);
                self.answers();
                return Fate::Sent;
            }
            Some(Err(error)) => error,
        };
        if !is_away(&error) {
            self.suspects.remove(&row.number);
            self.answers();
            return Fate::Refused(error);
        }
        let faults = self.suspects.entry(row.number).or_default();
        *faults += u32::from(self.is_healthy);
        let is_at_fault = *faults >= FAULTS;
        if is_at_fault {
            self.suspects.remove(&row.number);
        }
        self.goes_away(&error);
        if is_at_fault { Fate::Refused(error) } else { Fate::Away(error) }
    }

    async fn publish_together(&mut self, rows: Vec<Unsent>) -> Vec<(Unsent, Fate)> {
        let answers = self.publisher.publish(rows.iter().map(Unsent::outgoing).collect()).await;
        let fate = |(row, answer): (Unsent, Result<(), Error>)| match answer {
            Ok(()) => (row, Fate::Sent),
            Err(error) if is_away(&error) => (row, Fate::Away(error)),
            Err(error) => (row, Fate::Refused(error)),
        };
        let fates: Vec<_> = rows.into_iter().zip(answers).map(fate).collect();
        let mut away = None;
        if self.suspects.len() > MOST_SUSPECTS {
            self.suspects.clear();
        }
        for (row, fate) in &fates {
            if let Fate::Away(error) = fate {
                self.suspects.insert(row.number, 0);
                away.get_or_insert(error);
            }
        }
        match away {
            Some(error) => self.goes_away(error),
            None => self.answers(),
        }
        fates
    }

    fn answers(&mut self) {
        if !self.is_healthy {
            info!(broker = self.name, "the broker is back; the relay goes on");
        }
        self.is_healthy = true;
        self.away_until = None;
        self.pause = FIRST;
    }

    fn goes_away(&mut self, error: &Error) {
        if self.is_healthy {
            warn!(broker = self.name, %error, "the broker is away; its messages wait in the outbox");
        }
        self.is_healthy = false;
        self.away_until = Some(Instant::now() + self.pause.mul_f64(0.5 + fastrand::f64() / 2.0));
        self.pause = (self.pause * 2).min(LONGEST);
    }
}

/// Whether an error is the broker's and no message's.
fn is_away(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Setup | ErrorKind::Unknown | ErrorKind::Busy)
}
