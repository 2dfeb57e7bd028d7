//! The schema's version: what is there, what is missing, and how it gets there.

use hapax_core::{Code, Error, ErrorKind};
use mongodb::bson::{Document, doc};
use mongodb::{Collection, IndexModel};

use crate::counter::Counter;
use crate::document::{int, now};
use crate::error::{Answer, Result, answered, failed, is_there};
use crate::store::MongoStore;
use crate::tables::Tables;

/// The version that this release makes.
const LATEST: i64 = 1;
const NAME: &str = "initial";

impl MongoStore {
    /// Creates the collections and indexes that are missing and answers with the versions that were applied. Each
    /// step can be repeated, so several may do it at once, and one that is interrupted is run again.
    ///
    /// Collections are made up front: to make one inside a transaction takes a lock that others conflict with.
    ///
    /// [`Code::SchemaTooNew`] if a later release was here.
    pub async fn migrate(&self) -> Result<Vec<u32>> {
        let missing = self.pending().await?;
        if !missing.is_empty() {
            self.apply().await.map_err(failed("cannot apply the schema"))?;
        }
        Ok(missing)
    }

    /// The versions that [`migrate`](Self::migrate) would apply. One round trip.
    pub async fn pending(&self) -> Result<Vec<u32>> {
        let current = self.version().await?;
        if current > LATEST {
            let prefix = self.prefix();
            let context =
                format!("the schema `{prefix}` has version {current}; this release knows up to {LATEST}");
            return Err(Error::new(ErrorKind::Setup, Code::SchemaTooNew, context));
        }
        Ok((current + 1..=LATEST).filter_map(|version| u32::try_from(version).ok()).collect())
    }

    pub(crate) async fn check_schema(&self) -> Result<()> {
        let pending = self.pending().await?;
        let Some(first) = pending.first() else { return Ok(()) };
        let context = format!("the schema `{}` lacks migration {first:04}", self.prefix());
        Err(Error::new(ErrorKind::Setup, Code::SchemaMissing, context))
    }

    /// The version that is there; zero for none.
    async fn version(&self) -> Result<i64> {
        let _turn = self.sessions().side_turn().await?;
        let newest = self.tables().schema_version.find_one(doc! {}).sort(doc! { "_id": -1 });
        let newest = answered(self.sessions().limit(), newest).await;
        let newest = newest.map_err(failed("cannot read the schema's version"))?;
        newest.map_or(Ok(0), |newest| int(&newest, "_id"))
    }

    async fn apply(&self) -> Answer<()> {
        for name in Tables::NAMES {
            let name = format!("{}_{name}", self.prefix());
            match self.inner.database.create_collection(name).await {
                Err(error) if !is_there(&error) => return Err(error),
                _ => {}
            }
        }
        for (table, indexes) in indexes(self.tables()) {
            table.create_indexes(indexes).await?;
        }
        for counter in Counter::NAMES {
            let from_zero = doc! { "$setOnInsert": { "last": 0_i64 } };
            self.tables().counters.update_one(doc! { "_id": counter }, from_zero).upsert(true).await?;
        }
        self.make_buckets().await?;
        let applied =
            vec![doc! { "$set": { "name": NAME, "applied_at": { "$ifNull": ["$applied_at", now()] } } }];
        self.tables().schema_version.update_one(doc! { "_id": LATEST }, applied).upsert(true).await.map(drop)
    }
}

fn indexes(tables: &Tables) -> Vec<(&Collection<Document>, Vec<IndexModel>)> {
    let index = |keys: Document| IndexModel::builder().keys(keys).build();
    let mut once = index(doc! { "consumer": 1, "message": 1 });
    once.options.get_or_insert_default().unique = Some(true);
    let only = |keys: Document, these: Document| {
        let mut index = index(keys);
        index.options.get_or_insert_default().partial_filter_expression = Some(these);
        index
    };
    let ordered = |keys: Document| only(keys, doc! { "order": { "$type": "string" } });
    vec![
        // What retention reads.
        (&tables.inbox, vec![index(doc! { "_id.consumer": 1, "state": 1, "processed_at": 1 })]),
        (
            &tables.waiting,
            vec![
                once,
                index(doc! { "consumer": 1, "due_at": 1 }),
                ordered(doc! { "consumer": 1, "order": 1, "_id": 1 }),
            ],
        ),
        (&tables.leases, vec![index(doc! { "consumer": 1, "until": 1 })]),
        (
            &tables.dead_letters,
            vec![
                index(doc! { "redriven_at": 1, "_id": 1 }),
                index(doc! { "consumer": 1, "message": 1 }),
                ordered(doc! { "consumer": 1, "order": 1, "redriven_at": 1, "place": 1 }),
            ],
        ),
        (&tables.instances, vec![index(doc! { "_id.consumer": 1 })]),
        (&tables.starts, vec![index(doc! { "_id.consumer": 1 })]),
        (&tables.calls, vec![index(doc! { "_id.consumer": 1, "_id.message": 1 })]),
        (&tables.versions, vec![index(doc! { "_id.consumer": 1 })]),
        (
            &tables.outbox,
            vec![
                index(doc! { "state": 1, "written": 1, "_id": 1 }),
                // Those that hold up others of their key. Nearly always empty.
                only(doc! { "key": 1 }, doc! { "attempts": { "$gt": 0_i64 } }),
                only(doc! { "sent_at": 1 }, doc! { "sent_at": { "$type": "long" } }),
            ],
        ),
    ]
}
