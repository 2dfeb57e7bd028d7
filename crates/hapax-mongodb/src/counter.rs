//! Numbers that are given out once: places of the waiting room, and dead letters.

use mongodb::bson::doc;
use mongodb::error::Error as Driver;
use mongodb::options::ReturnDocument;

use crate::document::{int, now};
use crate::error::{Answer, Result, answered, failed, no_schema};
use crate::store::MongoStore;

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

    /// The last number that was given out.
    pub(crate) async fn last(&self, counter: Counter) -> Result<i64> {
        let _turn = self.sessions().side_turn().await?;
        let found = self.tables().counters.find_one(doc! { "_id": counter.name() });
        let found =
            answered(self.sessions().limit(), found).await.map_err(failed("cannot read a counter"))?;
        int(&found.ok_or_else(no_schema)?, "last")
    }
}
