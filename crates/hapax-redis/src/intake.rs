//! The task that stays connected and takes in what a group is given.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Error, ErrorKind, Settler};
use redis::{RedisError, Value};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::Redis;
use crate::backoff::Backoff;
use crate::envelope::Place;
use crate::error;
use crate::ledger::{Ledger, Received};
use crate::link::{Link, Reading};
use crate::reply::{self, Described, Entry, Reclaimed};
use crate::script::Seat;
use crate::settler::RedisSettler;
use crate::trimming::trimmed;

/// The longest wait for new entries at a time, and between two looks for entries that others have left.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The most entries taken over at a time.
const RECLAIMED_AT_ONCE: usize = 100;
/// How often it is looked whether entries were trimmed.
const LOOK: Duration = Duration::from_secs(10);
/// The goodbye waits this long for deliveries that are still in hand. They will come again.
const PATIENCE: Duration = Duration::from_secs(2);
/// A connection that lasted this long was a good one; what ended it has nothing to do with earlier failures.
const STEADY: Duration = Duration::from_secs(10);
/// Consumers of ours that have been silent for this long, and have nothing, are forgotten.
const FORGOTTEN_AFTER_MS: u64 = 24 * 60 * 60 * 1_000;
/// What the names of our consumers begin with.
pub(crate) const OURS: &str = "hapax-";
/// The first version with XAUTOCLAIM.
const OLDEST: (u64, u64) = (6, 2);

/// What to consume, and how.
#[derive(Clone, Debug)]
pub(crate) struct Intake {
    pub(crate) broker: Redis,
    pub(crate) seat: Arc<Seat>,
    pub(crate) place: Place,
    pub(crate) capacity: usize,
    pub(crate) lease: Duration,
    pub(crate) declare: bool,
}

/// A connection to a group that is there, and one to wait on.
pub(crate) struct Found {
    link: Arc<Link>,
    reading: Reading,
}

/// Why taking in ended.
enum End {
    Stopped,
    Lost(RedisError),
}

impl Intake {
    /// The first connection. What no waiting will mend is an error at once, and so is a server that cannot be
    /// reached before the time is up.
    pub(crate) async fn first(&self) -> Result<Found, Error> {
        self.in_time(|| self.find()).await
    }

    /// The same without declaring or reading anything.
    pub(crate) async fn look(&self) -> Result<(), Error> {
        let look = async || {
            let link = self.broker.open().await?;
            self.refuse_too_old(&link).await?;
            self.refuse_missing(&link).await
        };
        match self.in_time(look).await {
            // It would be declared.
            Err(missing) if self.declare && error::is_missing(&missing) => Ok(()),
            found => found,
        }
    }

    async fn in_time<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let limit = self.broker.time_to_connect();
        let deadline = Instant::now() + limit;
        let mut backoff = Backoff::new();
        loop {
            let cause = match timeout_at(deadline, attempt()).await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(cause)) => cause,
                Err(_) => error::connect_timed_out(&self.broker.address(), limit),
            };
            let wait = backoff.wait();
            if cause.kind() == ErrorKind::Setup || Instant::now() + wait >= deadline {
                return Err(cause);
            }
            tracing::warn!(stream = %self.seat.stream, error = %cause, "not connected yet, trying again");
            sleep(wait).await;
        }
    }

    /// Takes in deliveries until told to stop, whatever happens to the server meanwhile.
    pub(crate) async fn run(self, first: Found, ledger: Arc<Ledger>, stop: CancellationToken) {
        let mut found = first;
        let mut backoff = Backoff::new();
        let mut round = Round::new(self.lease);
        self.forget_the_silent(&found.link).await;
        loop {
            let since = Instant::now();
            ledger.begin(Arc::clone(&found.link));
            let cause = match self.take_in(&mut found, &ledger, &stop, &mut round).await {
                End::Stopped => return self.leave(&found.link, &ledger).await,
                End::Lost(cause) => error::stream(&self.what(), cause),
            };
            tracing::warn!(stream = %self.seat.stream, error = %cause, "lost the stream, trying again");
            found.link.give_up();
            ledger.end();
            ledger.metrics.connections_lost.increment(1);
            if since.elapsed() > STEADY {
                backoff = Backoff::new();
            }
            found = tokio::select! {
                again = self.find_again(&mut backoff) => again,
                () = stop.cancelled() => return ledger.close(),
            };
            ledger.metrics.reconnects.increment(1);
            tracing::info!(stream = %self.seat.stream, "consuming again");
        }
    }

    /// Tries until it succeeds. After a first success even a missing group or refused credentials are
    /// somebody's mistake in passing, and no reason to end a consumer.
    async fn find_again(&self, backoff: &mut Backoff) -> Found {
        loop {
            sleep(backoff.wait()).await;
            match self.find().await {
                Ok(found) => return found,
                Err(cause) => {
                    tracing::warn!(stream = %self.seat.stream, error = %cause, "cannot consume, trying again");
                }
            }
        }
    }

    async fn find(&self) -> Result<Found, Error> {
        let link = self.broker.open().await?;
        self.refuse_too_old(&link).await?;
        if self.declare {
            self.create(&link).await?;
        }
        self.refuse_missing(&link).await?;
        let reading = self.broker.open_reading(LONGEST_WAIT).await?;
        Ok(Found { link: Arc::new(link), reading })
    }

    async fn refuse_too_old(&self, link: &Link) -> Result<(), Error> {
        let mut command = redis::cmd("INFO");
        let info = match link.ask(command.arg("server")).await {
            Ok(info) => reply::text(info).unwrap_or_default(),
            // Whoever may not ask finds out by the first command that is not there.
            Err(cause) if error::is_refusal(&cause) && cause.code() == Some("NOPERM") => return Ok(()),
            Err(cause) => return Err(error::connecting(&self.broker.address(), cause)),
        };
        match version(&info) {
            Some((version, numbers)) if numbers < OLDEST => {
                Err(error::too_old(&self.broker.address(), version))
            }
            _ => Ok(()),
        }
    }

    async fn create(&self, link: &Link) -> Result<(), Error> {
        match link.ask(&self.seat.create()).await {
            Ok(_) => Ok(()),
            Err(cause) if cause.code() == Some("BUSYGROUP") => Ok(()), // it is there
            Err(cause) => Err(error::stream(&self.what(), cause)),
        }
    }

    async fn refuse_missing(&self, link: &Link) -> Result<(), Error> {
        link.ask(&self.seat.pending()).await.map(drop).map_err(|cause| error::stream(&self.what(), cause))
    }

    fn what(&self) -> String {
        format!("group \"{}\" of stream \"{}\"", self.seat.group, self.seat.stream)
    }

    /// Ends when told to stop, or when the connection, the stream or the group is lost.
    async fn take_in(
        &self,
        found: &mut Found,
        ledger: &Arc<Ledger>,
        stop: &CancellationToken,
        round: &mut Round,
    ) -> End {
        let link = Arc::clone(&found.link);
        let seat = Arc::clone(&self.seat);
        tokio::select! {
            end = self.read_on(found, ledger, stop, round) => end,
            () = keep_buffered(ledger, seat) => End::Stopped, // never: it goes on for ever
            () = knock(&link) => End::Stopped, // nor does this
            () = link.lost() => End::Lost(RedisError::from((redis::ErrorKind::Io, "the connection was lost"))),
        }
    }

    async fn read_on(
        &self,
        found: &mut Found,
        ledger: &Ledger,
        stop: &CancellationToken,
        round: &mut Round,
    ) -> End {
        loop {
            let room = tokio::select! {
                room = ledger.room(self.capacity) => room,
                () = stop.cancelled() => return End::Stopped,
            };
            let read = match self.look_around(&found.link, ledger, round, room).await {
                Ok(0) => self.read(found, stop, room, round.wait()).await,
                Ok(_) => continue, // there may be less room now, and more to take over
                Err(cause) => Err(cause),
            };
            match read {
                Ok(entries) => ledger.receive(self.received(entries)),
                Err(cause) => return End::Lost(cause),
            }
            if stop.is_cancelled() {
                return End::Stopped;
            }
        }
    }

    /// New entries. A wait that is cut short for the goodbye still hears what the server has sent.
    async fn read(
        &self,
        found: &mut Found,
        stop: &CancellationToken,
        room: usize,
        wait: Duration,
    ) -> Result<Vec<Entry>, RedisError> {
        let unblock = found.reading.unblock();
        let command = self.seat.read(room, milliseconds(wait).max(1));
        let waiting = found.reading.wait_for(&command);
        tokio::pin!(waiting);
        let answer = tokio::select! {
            answer = &mut waiting => answer,
            () = stop.cancelled() => {
                if let Some(unblock) = unblock {
                    let _ = found.link.ask(&unblock).await; // else it ends by itself, within a second
                }
                waiting.await
            }
        };
        answer.map(reply::read)
    }

    /// What is due beside reading, and how many entries came of it.
    async fn look_around(
        &self,
        link: &Link,
        ledger: &Ledger,
        round: &mut Round,
        room: usize,
    ) -> Result<usize, RedisError> {
        if round.look_is_due() {
            self.look_for_trimmed(link, ledger, round).await?;
        }
        if round.reclaim_is_due() { self.reclaim(link, ledger, round, room).await } else { Ok(0) }
    }

    /// Takes over what others have left: their leases have ended, or they handed it back.
    async fn reclaim(
        &self,
        link: &Link,
        ledger: &Ledger,
        round: &mut Round,
        room: usize,
    ) -> Result<usize, RedisError> {
        let count = room.min(RECLAIMED_AT_ONCE);
        let answer = link.ask(&self.seat.reclaim(milliseconds(self.lease), &round.from, count)).await?;
        let Some(Reclaimed { next, entries, deleted }) = reply::reclaimed(answer) else { return Ok(0) };
        if deleted > 0 {
            ledger.metrics.trimmed.increment(deleted);
            tracing::warn!(
                stream = %self.seat.stream, entries = deleted,
                "entries were trimmed or deleted while they were being handled, and cannot be delivered again"
            );
        }
        round.reclaimed(next);
        let taken = entries.len();
        ledger.metrics.reclaimed.increment(taken as u64);
        ledger.receive(self.received(entries));
        Ok(taken)
    }

    async fn look_for_trimmed(
        &self,
        link: &Link,
        ledger: &Ledger,
        round: &mut Round,
    ) -> Result<(), RedisError> {
        let look = async || -> Result<(Value, Value), RedisError> {
            Ok((
                link.ask(&self.seat.describe("STREAM")).await?,
                link.ask(&self.seat.describe("GROUPS")).await?,
            ))
        };
        let (stream, groups) = match look().await {
            Ok(described) => described,
            Err(cause) if error::is_loss(&cause) => return Err(cause),
            Err(_) => return Ok(()), // may not be asked; or there is none, as reading will tell
        };
        let lost = trimmed(stream, groups, &self.seat.group).unwrap_or(0);
        if lost > round.trimmed {
            ledger.metrics.trimmed.increment(lost - round.trimmed);
            tracing::warn!(
                stream = %self.seat.stream, group = %self.seat.group, entries = lost,
                "the stream was trimmed before the group had read it: these entries are lost to it"
            );
            round.trimmed = lost;
        }
        Ok(())
    }

    fn received(&self, entries: Vec<Entry>) -> Vec<Received> {
        let received = entries.into_iter().map(|entry| {
            let (id, deliveries) = (entry.id.clone(), entry.deliveries);
            Received { envelope: self.place.envelope(entry), entry: id, deliveries }
        });
        received.collect()
    }

    /// Takes nothing more, lets what is in hand be settled, hands back the rest, and leaves the group.
    async fn leave(&self, link: &Link, ledger: &Arc<Ledger>) {
        ledger.close();
        let settler = RedisSettler::new(Arc::clone(ledger), Arc::clone(&self.seat));
        settler.give_up(ledger.give_up_buffered()).await;
        if timeout(PATIENCE, ledger.drained()).await.is_err() {
            tracing::debug!("closing with deliveries in hand; they are handed back");
        }
        settler.give_up(ledger.give_up()).await;
        ledger.end();
        // What was handed back is with this name until somebody takes it. Then the name is forgotten later.
        let _ = link.ask(&self.seat.leave()).await;
    }

    /// Every instance has a name of its own, and one that was killed leaves it behind.
    async fn forget_the_silent(&self, link: &Link) {
        let mut command = redis::cmd("XINFO");
        let asked = link.ask(command.arg("CONSUMERS").arg(&self.seat.stream).arg(&self.seat.group)).await;
        let Ok(consumers) = asked else { return };
        for consumer in reply::array(consumers).into_iter().map(Described::of) {
            let silent = consumer.number("idle").is_some_and(|idle| idle > FORGOTTEN_AFTER_MS);
            if let Some(name) = consumer.text("name").filter(|name| silent && name.starts_with(OURS)) {
                let seat = Seat { consumer: name, ..Seat::clone(&self.seat) };
                let _ = link.ask(&seat.leave()).await; // does nothing if it has entries still
            }
        }
    }
}

/// What is due, and when.
struct Round {
    reclaim_every: Duration,
    next_reclaim: Instant,
    next_look: Instant,
    /// Where the next look for what others have left begins.
    from: String,
    /// How many trimmed entries have been told of.
    trimmed: u64,
}

impl Round {
    fn new(lease: Duration) -> Self {
        let now = Instant::now();
        Self {
            reclaim_every: (lease / 3).min(LONGEST_WAIT),
            next_reclaim: now,
            next_look: now,
            from: START.into(),
            trimmed: 0,
        }
    }

    fn reclaim_is_due(&self) -> bool {
        Instant::now() >= self.next_reclaim
    }

    /// The group was looked through up to `next`; if that is the end, there is time until the next look.
    fn reclaimed(&mut self, next: String) {
        if next == START {
            self.next_reclaim = Instant::now() + self.reclaim_every;
        }
        self.from = next;
    }

    fn look_is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.next_look;
        if due {
            self.next_look = now + LOOK;
        }
        due
    }

    /// How long reading may wait.
    fn wait(&self) -> Duration {
        self.next_reclaim.saturating_duration_since(Instant::now())
    }
}

/// Where a stream begins, and what the server says at its end.
const START: &str = "0-0";

/// Extends what lies in the buffer: while the store is away, nobody takes it out.
async fn keep_buffered(ledger: &Arc<Ledger>, seat: Arc<Seat>) {
    let settler = RedisSettler::new(Arc::clone(ledger), seat);
    loop {
        sleep(ledger.lease / 3).await;
        let buffered = ledger.buffered();
        if !buffered.is_empty() {
            settler.extend(buffered).await; // one that was taken or settled meanwhile does not matter
        }
    }
}

/// Asks for a sign of life now and then: while everything is in hand, nothing else is said on the connection.
async fn knock(link: &Link) {
    loop {
        sleep(LONGEST_WAIT).await;
        let _ = link.ask(&redis::cmd("PING")).await; // no answer is noticed there; any other is one
    }
}

/// `redis_version:7.0.15`, as text and as numbers.
fn version(info: &str) -> Option<(&str, (u64, u64))> {
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"))?.trim();
    let mut numbers = version.split('.').map(str::parse);
    Some((version, (numbers.next()?.ok()?, numbers.next()?.ok()?)))
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How a stream is called in logs and dead letters.
pub(crate) fn source_name(stream: &str) -> String {
    format!("redis:{stream}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_and_compared() {
        let info = "# Server\r\nredis_version:5.0.14\r\nos:Linux\r\n";
        assert_eq!(version(info), Some(("5.0.14", (5, 0))));
        assert!((6, 0) < OLDEST && (6, 2) >= OLDEST);
        assert_eq!(version("# Server\r\n"), None);
    }
}
