//! Wrapping a store.

/// Implements every role but [`Store`](hapax_core::Store) for a tuple struct over a store, by passing each
/// call on to its field: for wrappers that change how transactions begin or end.
///
/// The wrapper implements `Store` itself, with the same `Tx`.
#[macro_export]
macro_rules! delegate_roles {
    ($wrapper:ident<$inner:ident>, $field:tt) => {
        const _: () = {
            use std::time::Duration;
            use $crate::hapax_core::*;
            type Answer<T> = std::result::Result<T, Error>;

            impl<$inner: ConsumerStore> Inbox for $wrapper<$inner> {
                async fn look(
                    &self,
                    consumer: &ConsumerName,
                    ids: &[MessageId],
                ) -> Answer<Vec<Option<InboxRow>>> {
                    self.$field.look(consumer, ids).await
                }
                async fn record(&self, consumer: &ConsumerName, key: &Key) -> Answer<bool> {
                    self.$field.record(consumer, key).await
                }
                async fn record_in(
                    &self,
                    tx: &mut Self::Tx,
                    consumer: &ConsumerName,
                    key: &Key,
                ) -> Answer<bool> {
                    self.$field.record_in(tx, consumer, key).await
                }
                async fn rename(&self, from: &ConsumerName, to: &ConsumerName) -> Answer<u64> {
                    self.$field.rename(from, to).await
                }
            }

            impl<$inner: ConsumerStore> Running for $wrapper<$inner> {
                async fn begin_running(
                    &self,
                    consumer: &ConsumerName,
                    key: &Key,
                    lease: Duration,
                    slack: Duration,
                ) -> Answer<Grip> {
                    self.$field.begin_running(consumer, key, lease, slack).await
                }
                async fn renew_running(
                    &self,
                    consumer: &ConsumerName,
                    running: &[(MessageId, Fence)],
                    lease: Duration,
                ) -> Answer<Vec<bool>> {
                    self.$field.renew_running(consumer, running, lease).await
                }
                async fn end_running(
                    &self,
                    consumer: &ConsumerName,
                    id: &MessageId,
                    fence: Fence,
                    result: Option<&[u8]>,
                ) -> Answer<bool> {
                    self.$field.end_running(consumer, id, fence, result).await
                }
                async fn drop_running(
                    &self,
                    consumer: &ConsumerName,
                    id: &MessageId,
                    fence: Fence,
                ) -> Answer<bool> {
                    self.$field.drop_running(consumer, id, fence).await
                }
            }

            impl<$inner: ConsumerStore> WaitingRoom for $wrapper<$inner> {
                async fn park(
                    &self,
                    tx: &mut Self::Tx,
                    consumer: &ConsumerName,
                    parking: &Parking<'_>,
                ) -> Answer<()> {
                    self.$field.park(tx, consumer, parking).await
                }
                async fn lease(
                    &self,
                    consumer: &ConsumerName,
                    max: usize,
                    lease: Duration,
                ) -> Answer<Vec<Waiting>> {
                    self.$field.lease(consumer, max, lease).await
                }
                async fn renew(
                    &self,
                    consumer: &ConsumerName,
                    places: &[Place],
                    lease: Duration,
                ) -> Answer<()> {
                    self.$field.renew(consumer, places, lease).await
                }
                async fn give_back(&self, consumer: &ConsumerName, places: &[Place]) -> Answer<()> {
                    self.$field.give_back(consumer, places).await
                }
                async fn depth(&self, consumer: &ConsumerName) -> Answer<WaitingDepth> {
                    self.$field.depth(consumer).await
                }
                async fn waiting(
                    &self,
                    consumer: &ConsumerName,
                    id: &MessageId,
                ) -> Answer<Option<WaitingRow>> {
                    self.$field.waiting(consumer, id).await
                }
            }

            impl<$inner: ConsumerStore> DeadLetters for $wrapper<$inner> {
                async fn bury(
                    &self,
                    tx: &mut Self::Tx,
                    consumer: &ConsumerName,
                    burial: &Burial<'_>,
                ) -> Answer<DeadNumber> {
                    self.$field.bury(tx, consumer, burial).await
                }
                async fn dead(&self, filter: &DeadFilter) -> Answer<Vec<DeadLetter>> {
                    self.$field.dead(filter).await
                }
                async fn count_dead(&self, filter: &DeadFilter) -> Answer<u64> {
                    self.$field.count_dead(filter).await
                }
                async fn redrive(&self, redrive: &Redrive<'_>) -> Answer<()> {
                    self.$field.redrive(redrive).await
                }
                async fn discard(&self, number: DeadNumber) -> Answer<()> {
                    self.$field.discard(number).await
                }
            }

            impl<$inner: ConsumerStore> Instances for $wrapper<$inner> {
                async fn enlist(&self, consumer: &ConsumerName, instance: &InstanceId) -> Answer<()> {
                    self.$field.enlist(consumer, instance).await
                }
                async fn beat(
                    &self,
                    consumer: &ConsumerName,
                    instance: &InstanceId,
                    forget: Duration,
                ) -> Answer<Vec<InstanceBeat>> {
                    self.$field.beat(consumer, instance, forget).await
                }
                async fn leave(&self, consumer: &ConsumerName, instance: &InstanceId) -> Answer<()> {
                    self.$field.leave(consumer, instance).await
                }
                async fn charge_start(
                    &self,
                    consumer: &ConsumerName,
                    key: &Key,
                    limit: u32,
                ) -> Answer<Start> {
                    self.$field.charge_start(consumer, key, limit).await
                }
                async fn starts(&self, consumer: &ConsumerName, id: &MessageId) -> Answer<u32> {
                    self.$field.starts(consumer, id).await
                }
            }

            impl<$inner: ConsumerStore> Retention for $wrapper<$inner> {
                async fn purge(&self, consumer: &ConsumerName, keep: Duration, max: u32) -> Answer<Purged> {
                    self.$field.purge(consumer, keep, max).await
                }
                async fn horizon(&self, consumer: &ConsumerName) -> Answer<Option<Timestamp>> {
                    self.$field.horizon(consumer).await
                }
            }
        };
    };
}
