//! Who runs, how they ended, and what they had begun.

use std::time::Duration;

use hapax_core::{Claim, ConsumerName, Error, InstanceBeat, InstanceId, Instances, Key, MessageId, Start};

use super::database::{Database, instance_key};
use super::faults::Op;
use super::store::MemoryStore;

impl Instances for MemoryStore {
    async fn enlist(&self, consumer: &ConsumerName, instance: &InstanceId) -> Result<(), Error> {
        self.call(Op::Enlist, |database| {
            database.beat(consumer, instance);
            Ok(())
        })
        .await
    }

    async fn beat(
        &self,
        consumer: &ConsumerName,
        instance: &InstanceId,
        forget: Duration,
    ) -> Result<Vec<InstanceBeat>, Error> {
        self.call(Op::Beat, |database| {
            database.forget_instances(consumer, forget);
            database.beat(consumer, instance);
            Ok(database.other_instances(consumer, instance))
        })
        .await
    }

    async fn leave(&self, consumer: &ConsumerName, instance: &InstanceId) -> Result<(), Error> {
        self.call(Op::Leave, |database| {
            database.instances.remove(&instance_key(consumer, instance));
            Ok(())
        })
        .await
    }

    async fn charge_start(&self, consumer: &ConsumerName, key: &Key, limit: u32) -> Result<Start, Error> {
        self.call(Op::ChargeStart, |database| Ok(database.charge_start(consumer, key, limit))).await
    }

    async fn starts(&self, consumer: &ConsumerName, id: &MessageId) -> Result<u32, Error> {
        self.call(Op::Starts, |database| {
            Ok(database.starts.get(&(consumer.clone(), id.clone())).copied().unwrap_or(0))
        })
        .await
    }
}

impl Database {
    fn beat(&mut self, consumer: &ConsumerName, instance: &InstanceId) {
        self.instances.insert(instance_key(consumer, instance), self.now());
    }

    fn forget_instances(&mut self, consumer: &ConsumerName, forget: Duration) {
        let since = self.now().minus(forget);
        self.instances.retain(|(name, _), beat_at| name != consumer || *beat_at >= since);
    }

    fn other_instances(&self, consumer: &ConsumerName, instance: &InstanceId) -> Vec<InstanceBeat> {
        self.instances
            .iter()
            .filter(|((name, other), _)| name == consumer && *other != instance.0)
            .map(|((_, other), beat_at)| InstanceBeat {
                instance: InstanceId(other.clone()),
                beat_at: *beat_at,
            })
            .collect()
    }

    fn charge_start(&mut self, consumer: &ConsumerName, key: &Key, limit: u32) -> Start {
        let claim = self.claim_of(consumer, key, Duration::ZERO);
        // What must queue up behind others of its key will not run either.
        if !claim.is_ours() || claim == Claim::Held {
            return Start::NotNeeded;
        }
        let starts = self.starts.entry((consumer.clone(), key.id.clone())).or_default();
        if *starts >= limit {
            return Start::Spent(*starts);
        }
        *starts += 1;
        Start::Charged
    }
}
