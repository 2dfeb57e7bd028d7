//! Numbers that are given out once: places of the waiting room, dead letters, rows of the outbox.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mongodb::error::Error as Driver;
use mongodb::options::ReturnDocument;

use crate::document::{int, now, span};
use crate::error::{Answer, Result, answered, failed, no_schema};
use crate::store::MongoStore;

/// How many numbers of the outbox a process takes at once.
const BLOCK: i64 = 1_024;
/// How long what the server said of its clock is gone by.
const FRESH: Duration = Duration::from_mins(1);

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    Places,
    DeadLetters,
    Outbox,
}

/// Numbers that were given out together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// The lowest of them.
    pub(crate) first: i64,
    /// The server's clock.
    pub(crate) now: i64,
}

/// Numbers that were taken beforehand, and the server's clock as it was read with them.
#[derive(Debug)]
pub(crate) struct Block {
    first: i64,
    left: i64,
    now: i64,
    read: Instant,
}

impl Block {
    /// One with no numbers in it.
    pub(crate) fn empty() -> Self {
        Self { first: 0, left: 0, now: 0, read: Instant::now() }
    }

    fn renew(&mut self, counted: Counted, numbers: i64) {
        if numbers > 0 {
            (self.first, self.left) = (counted.first, numbers);
        }
        (self.now, self.read) = (counted.now, Instant::now());
    }

    /// The next numbers, of which there are enough.
    fn give(&mut self, numbers: i64) -> Counted {
        let given = Counted { first: self.first, now: self.now.saturating_add(span(self.read.elapsed())) };
        (self.first, self.left) = (self.first + numbers, self.left - numbers);
        given
    }
}

impl Counter {
    /// Every counter, as the schema has them.
    pub(crate) const NAMES: [&str; 3] = [Self::Places.name(), Self::DeadLetters.name(), Self::Outbox.name()];

    const fn name(self) -> &'static str {
        match self {
            Self::Places => "places",
            Self::DeadLetters => "dead_letters",
            Self::Outbox => "outbox",
        }
    }
}

impl MongoStore {
    /// The next number. Outside every transaction, or all that count would conflict; a transaction that is rolled
    /// back leaves a gap. One round trip.
    pub(crate) async fn next(&self, counter: Counter) -> Result<i64> {
        self.next_of(counter, 1).await.map(|given| given.first)
    }

    /// So many numbers in a row. One round trip.
    pub(crate) async fn next_of(&self, counter: Counter, numbers: i64) -> Result<Counted> {
        let _turn = self.sessions().side_turn().await?;
        let given = answered(self.sessions().limit(), self.count(counter, numbers)).await;
        given.map_err(failed("cannot give out a number"))
    }

    /// The same for whoever has a turn already.
    pub(crate) async fn count(&self, counter: Counter, numbers: i64) -> Answer<Counted> {
        let count = vec![doc! { "$set": {
            "last": { "$add": [{ "$ifNull": ["$last", 0_i64] }, numbers] },
            "at": now(),
        } }];
        let given = self.tables().counters.find_one_and_update(doc! { "_id": counter.name() }, count);
        let given = given.upsert(true).return_document(ReturnDocument::After).await?;
        let given = given.and_then(|row| {
            let first = row.get_i64("last").ok()? - numbers + 1;
            Some(Counted { first, now: row.get_i64("at").ok()? })
        });
        given.ok_or_else(|| Driver::custom("a counter is not a number"))
    }

    /// Numbers for rows of the outbox. No round trip as long as the last block has enough of them and what was read of
    /// the server's clock is fresh; else one.
    pub(crate) async fn outbox_numbers(&self, numbers: i64) -> Result<Counted> {
        let mut block = self.inner.block.lock().await;
        let enough = block.left >= numbers;
        if !enough || block.read.elapsed() >= FRESH {
            let more = if enough { 0 } else { numbers.max(BLOCK) };
            let counted = self.next_of(Counter::Outbox, more).await?;
            block.renew(counted, more);
        }
        Ok(block.give(numbers))
    }

    /// The last number that was given out.
    pub(crate) async fn last(&self, counter: Counter) -> Result<i64> {
        let _turn = self.sessions().side_turn().await?;
        let found = self.tables().counters.find_one(doc! { "_id": counter.name() });
        let found =
            answered(self.sessions().limit(), found).await.map_err(failed("cannot read a counter"))?;
        int(&found.ok_or_else(no_schema)?, "last")
    }
}
