//! Numbers that are given out once: places of the waiting room, and dead letters.

use mongodb::bson::doc;
use mongodb::error::Error as Driver;
use mongodb::options::ReturnDocument;

use crate::document::int;
use crate::error::{Answer, Result, answered, failed, no_schema};
use crate::store::MongoStore;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    Places,
    DeadLetters,
}

impl Counter {
    /// Every counter, as the schema has them.
    pub(crate) const NAMES: [&str; 2] = [Self::Places.name(), Self::DeadLetters.name()];

    const fn name(self) -> &'static str {
        match self {
            Self::Places => "places",
            Self::DeadLetters => "dead_letters",
        }
    }
}

impl MongoStore {
    /// The next number. Outside every transaction, or all that count would conflict; a transaction that is rolled
    /// back leaves a gap. One round trip.
    pub(crate) async fn next(&self, counter: Counter) -> Result<i64> {
        let _turn = self.sessions().side_turn().await?;
        answered(self.sessions().limit(), self.count(counter))
            .await
            .map_err(failed("cannot give out a number"))
    }

    /// The same for whoever has a turn already.
    pub(crate) async fn count(&self, counter: Counter) -> Answer<i64> {
        let count = doc! { "$inc": { "last": 1_i64 } };
        let counted = self.tables().counters.find_one_and_update(doc! { "_id": counter.name() }, count);
        let counted = counted.upsert(true).return_document(ReturnDocument::After).await?;
        let last = counted.and_then(|counter| counter.get_i64("last").ok());
        last.ok_or_else(|| Driver::custom("a counter is not a number"))
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
