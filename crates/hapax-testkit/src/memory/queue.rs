//! A queue: what waits, what is in flight, and who owns which lane.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hapax_core::{Code, Envelope, Error, ErrorKind, Lane};
use tokio::time::Instant;

/// What has become of a queue's messages so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Messages that came in.
    pub published: u64,
    /// Handings-over, every time counted.
    pub delivered: u64,
    /// Those of them that were not the first of their message.
    pub redelivered: u64,
    /// Deliveries that were acked.
    pub acked: u64,
    /// Deliveries that were handed back.
    pub handed_back: u64,
    /// Settlements and extensions that came too late: the delivery was in flight no longer.
    pub stale: u64,
    /// Deliveries that were extended.
    pub extended: u64,
    /// Messages that wait to be delivered.
    pub ready: usize,
    /// Messages that are in somebody's hands.
    pub in_flight: usize,
}

/// The messages of a queue, by the number they were published under: what comes back stands where it stood.
#[derive(Debug, Default)]
pub(super) struct Queue {
    ready: BTreeMap<u64, Stored>,
    in_flight: BTreeMap<u64, InFlight>,
    sources: BTreeMap<u64, Lanes>,
    stats: QueueStats,
}

#[derive(Debug)]
struct Stored {
    envelope: Envelope,
    redelivered: bool,
}

#[derive(Debug)]
struct InFlight {
    number: u64,
    stored: Stored,
    source: u64,
    until: Option<Instant>,
}

/// The lanes that an attached source has lost.
#[derive(Debug, Default)]
struct Lanes {
    lost: BTreeSet<String>,
    unannounced: Vec<Lane>,
}

/// What a source asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) source: u64,
    /// How many now.
    pub(super) max: usize,
    /// How many at a time.
    pub(super) in_flight: usize,
    /// How long until a delivery that is not extended comes back.
    pub(super) visibility: Option<Duration>,
}

/// A message handed over.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) tag: u64,
    pub(super) number: u64,
    pub(super) envelope: Envelope,
    pub(super) redelivered: bool,
}

/// What a source gets.
#[derive(Debug)]
pub(super) enum Offer {
    Messages(Vec<Handed>),
    Lost(Vec<Lane>),
    /// Nothing now; at that time a delivery may come back.
    Nothing(Option<Instant>),
    /// Nothing, and nothing in flight that could come back.
    Empty,
}

impl Queue {
    pub(super) fn publish(&mut self, number: u64, envelope: Envelope) {
        self.ready.insert(number, Stored { envelope, redelivered: false });
        self.stats.published += 1;
    }

    pub(super) fn stats(&self) -> QueueStats {
        QueueStats { ready: self.ready.len(), in_flight: self.in_flight.len(), ..self.stats }
    }

    pub(super) fn ready(&self) -> Vec<Envelope> {
        self.ready.values().map(|stored| stored.envelope.clone()).collect()
    }

    pub(super) fn attach(&mut self, source: u64) {
        self.sources.insert(source, Lanes::default());
    }

    pub(super) fn detach(&mut self, source: u64) {
        self.sources.remove(&source);
        self.requeue(|delivery| delivery.source == source);
    }

    pub(super) fn requeue_all(&mut self) {
        self.requeue(|_| true);
    }

    pub(super) fn lose_lane(&mut self, lane: &str) {
        for lanes in self.sources.values_mut() {
            if lanes.lost.insert(lane.to_owned()) {
                lanes.unannounced.push(Lane(lane.into()));
            }
        }
        self.requeue(|delivery| delivery.stored.envelope.properties.key.as_deref() == Some(lane));
    }

    pub(super) fn give_lane(&mut self, lane: &str) {
        for lanes in self.sources.values_mut() {
            lanes.lost.remove(lane);
        }
    }

    pub(super) fn offer(&mut self, tags: &mut u64, demand: Demand) -> Offer {
        let now = Instant::now();
        self.requeue(|delivery| delivery.until.is_some_and(|until| until <= now));
        if let Some(lost) = self.unannounced(demand.source) {
            return Offer::Lost(lost);
        }
        let handed = self.hand_over(tags, demand, now);
        if !handed.is_empty() {
            return Offer::Messages(handed);
        }
        if self.ready.is_empty() && self.in_flight.is_empty() {
            return Offer::Empty;
        }
        Offer::Nothing(self.in_flight.values().filter_map(|delivery| delivery.until).min())
    }

    pub(super) fn settle(&mut self, tag: u64, ack: bool) -> Result<(), Error> {
        let delivery = self.take(tag)?;
        if ack {
            self.stats.acked += 1;
        } else {
            self.stats.handed_back += 1;
            self.put_back(delivery);
        }
        Ok(())
    }

    pub(super) fn extend(&mut self, tag: u64, visibility: Option<Duration>) -> Result<(), Error> {
        let mut delivery = self.take(tag)?;
        delivery.until = visibility.map(|visibility| Instant::now() + visibility);
        self.in_flight.insert(tag, delivery);
        self.stats.extended += 1;
        Ok(())
    }

    pub(super) fn holds(&self, tag: u64) -> bool {
        let now = Instant::now();
        self.in_flight.get(&tag).is_some_and(|delivery| delivery.until.is_none_or(|until| until > now))
    }

    /// A delivery that is still in flight. A tag is used once, so an old receipt never means another
    /// delivery.
    fn take(&mut self, tag: u64) -> Result<InFlight, Error> {
        let now = Instant::now();
        self.requeue(|delivery| delivery.until.is_some_and(|until| until <= now));
        self.in_flight.remove(&tag).ok_or_else(|| {
            self.stats.stale += 1;
            Error::new(ErrorKind::NotFound, Code::NotFound, "the delivery is no longer in flight")
        })
    }

    fn unannounced(&mut self, source: u64) -> Option<Vec<Lane>> {
        let lanes = self.sources.get_mut(&source)?;
        (!lanes.unannounced.is_empty()).then(|| std::mem::take(&mut lanes.unannounced))
    }

    /// Up to `max` messages of the lanes that are the source's.
    fn hand_over(&mut self, tags: &mut u64, demand: Demand, now: Instant) -> Vec<Handed> {
        let in_hand = self.in_flight.values().filter(|delivery| delivery.source == demand.source).count();
        let max = demand.max.min(demand.in_flight.saturating_sub(in_hand));
        let until = demand.visibility.map(|visibility| now + visibility);
        let mut handed = Vec::new();
        for number in self.numbers_for(demand.source, max) {
            let Some(stored) = self.ready.remove(&number) else { continue };
            *tags += 1;
            handed.push(self.hand_one(*tags, InFlight { number, stored, source: demand.source, until }));
        }
        handed
    }

    fn numbers_for(&self, source: u64, max: usize) -> Vec<u64> {
        let lost = self.sources.get(&source).map(|lanes| &lanes.lost);
        let is_lost = |stored: &Stored| match (&stored.envelope.properties.key, lost) {
            (Some(key), Some(lost)) => lost.contains(key),
            _ => false,
        };
        let ours = self.ready.iter().filter(|(_, stored)| !is_lost(stored));
        ours.map(|(number, _)| *number).take(max).collect()
    }

    fn hand_one(&mut self, tag: u64, delivery: InFlight) -> Handed {
        let Stored { envelope, redelivered } = &delivery.stored;
        let (envelope, redelivered) = (envelope.clone(), *redelivered);
        self.stats.delivered += 1;
        self.stats.redelivered += u64::from(redelivered);
        let number = delivery.number;
        self.in_flight.insert(tag, delivery);
        Handed { tag, number, envelope, redelivered }
    }

    fn requeue(&mut self, which: impl Fn(&InFlight) -> bool) {
        let back: Vec<u64> =
            self.in_flight.iter().filter(|(_, delivery)| which(delivery)).map(|(tag, _)| *tag).collect();
        for delivery in back.into_iter().filter_map(|tag| self.in_flight.remove(&tag)).collect::<Vec<_>>() {
            self.put_back(delivery);
        }
    }

    fn put_back(&mut self, delivery: InFlight) {
        self.ready.insert(delivery.number, Stored { redelivered: true, ..delivery.stored });
    }
}
