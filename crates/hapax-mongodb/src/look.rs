//! One look, in a claim's snapshot, at all that decides about its keys.

use std::collections::HashMap;

use futures::TryStreamExt as _;
use hapax_core::{Claim, ConsumerName, Error, InboxState, Key, Timestamp};
use mongodb::bson::{Bson, Document, doc};

use crate::document::{documents, int, maybe_int, now, text};
use crate::error::{Answer, Result, answered, no_schema};
use crate::session::Held;
use crate::tables::{Tables, scoped_all};

/// An inbox row as it stands, as far as a claim asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) state: i64,
    pub(crate) digest: i64,
    fence: Option<i64>,
    lease_until: Option<i64>,
}

impl Kept {
    fn read(row: &Document) -> Result<Self> {
        Ok(Self {
            state: int(row, "state")?,
            digest: int(row, "digest")?,
            fence: maybe_int(row, "fence"),
            lease_until: maybe_int(row, "lease_until"),
        })
    }
}

/// What a look found. All of it is of one snapshot: a message whose row was purged in between shows in the horizon.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// The server's clock.
    pub(crate) now: i64,
    rows: HashMap<String, Kept>,
    horizon: Option<i64>,
    /// The messages at the places that the keys name.
    places: HashMap<i64, String>,
    /// The first place of each order key, waiting or dead.
    first: HashMap<String, i64>,
}

/// What a key can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is no row: to be inserted.
    Free,
    /// It waits at the place that its key names: to be taken.
    Waiting,
    /// It is running under the fence that its key names, or its lease has ended: to be taken.
    Running,
    /// There is a row that is not ours.
    Kept(Kept),
}

impl Look {
    /// Looks. One round trip.
    pub(crate) async fn at(
        tables: &Tables,
        held: &mut Held,
        consumer: &ConsumerName,
        keys: &[Key],
    ) -> Answer<Result<Self>> {
        let limit = held.limit();
        let (session, fate) = held.parts();
        let found = async {
            let look = tables.schema_version.aggregate(pipeline(tables, consumer, keys));
            let mut cursor = look.session(&mut *session).await?;
            cursor.stream(session).try_next().await
        };
        let found: Option<Document> = fate.watch(answered(limit, found)).await?;
        Ok(found.map_or_else(|| Err(no_schema()), |found| Self::read(&found)))
    }

    fn read(found: &Document) -> Result<Self> {
        let mut look = Self { now: int(found, "now")?, ..Self::default() };
        for row in documents(found, "rows") {
            let id = row.get_document("_id").map_err(|_| no_schema())?;
            look.rows.insert(text(id, "message")?.to_owned(), Kept::read(row)?);
        }
        look.horizon = documents(found, "horizon").find_map(|row| maybe_int(row, "sent_at"));
        for row in documents(found, "places") {
            look.places.insert(int(row, "_id")?, text(row, "message")?.to_owned());
        }
        for row in documents(found, "waiting").chain(documents(found, "dead")) {
            let first = look.first.entry(text(row, "_id")?.to_owned()).or_insert(i64::MAX);
            *first = int(row, "first")?.min(*first);
        }
        Ok(look)
    }

    /// What a key is.
    pub(crate) fn found(&self, key: &Key) -> Found {
        let Some(kept) = self.rows.get(key.id.as_str()) else { return Found::Free };
        let at_its_place = || {
            let there = key.place.and_then(|place| self.places.get(&place.0));
            there.is_some_and(|message| message == key.id.as_str())
        };
        if kept.state == InboxState::Waiting.as_i64() && at_its_place() {
            return Found::Waiting;
        }
        if kept.state == InboxState::Running.as_i64() && self.may_take(key, *kept) {
            return Found::Running;
        }
        Found::Kept(*kept)
    }

    /// Whether a running row is this key's, or nobody's any more.
    fn may_take(&self, key: &Key, kept: Kept) -> bool {
        match key.fence {
            Some(fence) => kept.fence == Some(fence.0),
            None => kept.lease_until.is_some_and(|until| until <= self.now),
        }
    }

    /// What the claim of a key that we took is answered. Ambiguity comes before order: a message that is parked
    /// would lose it.
    pub(crate) fn taken(&self, key: &Key, found: Found, slack: std::time::Duration) -> Claim {
        let horizon = self.horizon.map(|horizon| Timestamp::from_micros(horizon).plus(slack));
        let purged = key.sent_at.zip(horizon).is_some_and(|(sent_at, horizon)| sent_at <= horizon);
        match found {
            Found::Free if purged => Claim::Ambiguous,
            _ if self.is_held(key) => Claim::Held,
            _ => Claim::New,
        }
    }

    /// Whether an earlier message of its key is waiting or dead.
    pub(crate) fn is_held(&self, key: &Key) -> bool {
        let first = key.order.as_ref().and_then(|order| self.first.get(order));
        first.is_some_and(|first| key.place.is_none_or(|place| *first < place.0))
    }
}

/// What is on record for a key that is not ours.
pub(crate) fn on_record(key: &Key, kept: Kept) -> Claim {
    let other_payload = kept.digest != key.digest.as_i64();
    match InboxState::from_i64(kept.state) {
        Some(InboxState::Done) => Claim::Duplicate { other_payload },
        Some(InboxState::Waiting) => Claim::Waiting { other_payload },
        Some(InboxState::Dead) => Claim::Dead { other_payload },
        _ => Claim::Busy,
    }
}

/// The rows of these messages, as documents of the inbox are read.
pub(crate) fn kept(row: &Document) -> Result<(String, Kept), Error> {
    let id = row.get_document("_id").map_err(|_| no_schema())?;
    Ok((text(id, "message")?.to_owned(), Kept::read(row)?))
}

fn pipeline(tables: &Tables, consumer: &ConsumerName, keys: &[Key]) -> Vec<Document> {
    let ids = scoped_all(consumer, keys.iter().map(|key| &key.id));
    let rows = vec![
        doc! { "$match": { "_id": { "$in": ids } } },
        doc! { "$project": { "state": 1, "digest": 1, "fence": 1, "lease_until": 1 } },
    ];
    let mut stages = vec![
        doc! { "$sort": { "_id": -1 } },
        doc! { "$limit": 1 },
        doc! { "$project": { "now": now() } },
        beside(tables.inbox.name(), rows, "rows"),
    ];
    if keys.iter().any(|key| key.sent_at.is_some()) {
        let horizon = vec![doc! { "$match": { "_id": consumer.as_str() } }];
        stages.push(beside(tables.horizon.name(), horizon, "horizon"));
    }
    let places: Vec<i64> = keys.iter().filter_map(|key| Some(key.place?.0)).collect();
    if !places.is_empty() {
        let at = vec![
            doc! { "$match": { "_id": { "$in": places }, "consumer": consumer.as_str() } },
            doc! { "$project": { "message": 1 } },
        ];
        stages.push(beside(tables.waiting.name(), at, "places"));
    }
    let orders: Vec<&str> = keys.iter().filter_map(|key| key.order.as_deref()).collect();
    if !orders.is_empty() {
        let ours = doc! { "consumer": consumer.as_str(), "order": { "$in": orders } };
        let mut open = ours.clone();
        open.insert("redriven_at", Bson::Null);
        let waiting = vec![
            doc! { "$match": ours },
            doc! { "$group": { "_id": "$order", "first": { "$min": "$_id" } } },
        ];
        let dead = vec![
            doc! { "$match": open },
            doc! { "$group": { "_id": "$order", "first": { "$min": "$place" } } },
        ];
        stages.push(beside(tables.waiting.name(), waiting, "waiting"));
        stages.push(beside(tables.dead_letters.name(), dead, "dead"));
    }
    stages
}

fn beside(collection: &str, pipeline: Vec<Document>, name: &str) -> Document {
    doc! { "$lookup": { "from": collection, "pipeline": pipeline, "as": name } }
}
