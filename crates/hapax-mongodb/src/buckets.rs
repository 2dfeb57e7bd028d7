//! The outbox's buckets, shared among relays by lease.
//!
//! Each step is a write that takes effect bucket by bucket, and only where the bucket is still as it was read: no
//! transaction is needed for that, and of two relays that want one bucket one gets it.

use std::time::Duration;

use futures::TryStreamExt as _;
use hapax_core::{BUCKETS, ConsumerName, InstanceId};
use mongodb::bson::{Bson, Document, doc};

use crate::document::{after, before, now};
use crate::error::{Answer, Result, is_rival, spoilt};
use crate::instances::of_instance;
use crate::store::MongoStore;

/// In whose name relays are among the instances.
const RELAYS: &str = "hapax.relay";
/// A relay that was silent for so many leases is forgotten.
const FORGET: u32 = 100;

/// The name under which relays show that they live.
pub(crate) fn relays() -> Result<ConsumerName> {
    ConsumerName::new(RELAYS).map_err(|error| spoilt(error.to_string()))
}

impl MongoStore {
    /// Makes the buckets that are not there yet.
    pub(crate) async fn make_buckets(&self) -> Answer<()> {
        let bucket =
            |number: u16| doc! { "_id": i64::from(number), "owner": Bson::Null, "lease_until": Bson::Null };
        match self.tables().buckets.insert_many((0..BUCKETS).map(bucket)).ordered(false).await {
            Err(error) if !is_rival(&error) => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) async fn share(
        &self,
        relays: &ConsumerName,
        relay: &InstanceId,
        lease: Duration,
    ) -> Answer<Vec<u16>> {
        let buckets = &self.tables().buckets;
        self.keep(relays, relay, lease).await?;
        let silent = doc! { "$lt": ["$beat_at", before(lease.saturating_mul(FORGET))] };
        let silent = doc! { "_id.consumer": RELAYS, "$expr": silent };
        self.tables().instances.delete_many(silent).await?;
        let alive = doc! { "$gt": ["$beat_at", before(lease)] };
        let alive = doc! { "_id.consumer": RELAYS, "ended_at": Bson::Null, "$expr": alive };
        let alive = self.tables().instances.count_documents(alive).await?.max(1);
        let share = usize::try_from(u64::from(BUCKETS).div_ceil(alive)).unwrap_or(usize::from(BUCKETS));

        let mut ours = self.buckets(of(relay), usize::MAX).await?;
        if ours.len() > share {
            let mut more = of(relay);
            more.insert("_id", doc! { "$in": ours.split_off(share) });
            buckets.update_many(more, free()).await?;
        } else if ours.len() < share {
            let mut some = unowned();
            some.insert("_id", doc! { "$in": self.buckets(unowned(), share - ours.len()).await? });
            let take = vec![doc! { "$set": { "owner": relay.0.as_str(), "lease_until": after(lease) } }];
            buckets.update_many(some, take).await?;
        }
        let ours = self.buckets(of(relay), usize::MAX).await?;
        Ok(ours.iter().filter_map(Bson::as_i64).filter_map(|bucket| u16::try_from(bucket).ok()).collect())
    }

    pub(crate) async fn keep(
        &self,
        relays: &ConsumerName,
        relay: &InstanceId,
        lease: Duration,
    ) -> Answer<()> {
        self.note_beat(relays, relay).await?;
        let keep = vec![doc! { "$set": { "lease_until": after(lease) } }];
        self.tables().buckets.update_many(of(relay), keep).await.map(drop)
    }

    pub(crate) async fn leave_all(&self, relays: &ConsumerName, relay: &InstanceId) -> Answer<()> {
        self.tables().buckets.update_many(of(relay), free()).await?;
        self.tables().instances.delete_one(of_instance(relays, relay)).await.map(drop)
    }

    /// Buckets by their numbers, in order.
    async fn buckets(&self, these: Document, max: usize) -> Answer<Vec<Bson>> {
        let limit = i64::try_from(max.min(usize::from(BUCKETS))).unwrap_or(i64::MAX);
        let found = self.tables().buckets.find(these).sort(doc! { "_id": 1 }).limit(limit).await?;
        let found: Vec<Document> = found.try_collect().await?;
        Ok(found.iter().filter_map(|bucket| bucket.get("_id").cloned()).collect())
    }
}

fn of(relay: &InstanceId) -> Document {
    doc! { "owner": relay.0.as_str() }
}

fn unowned() -> Document {
    doc! { "$or": [{ "owner": Bson::Null }, { "$expr": { "$lte": ["$lease_until", now()] } }] }
}

fn free() -> Document {
    doc! { "$set": { "owner": Bson::Null, "lease_until": Bson::Null } }
}
