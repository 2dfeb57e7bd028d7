//! The collections of Hapax in one database, under a prefix.

use hapax_core::{ConsumerName, MessageId};
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Collection, Database};

macro_rules! tables {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Each collection.
        #[derive(Clone, Debug)]
        pub(crate) struct Tables {
            $($(#[$about])* pub(crate) $name: Collection<Document>,)*
        }

        impl Tables {
            /// Their names, without the prefix.
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

            pub(crate) fn of(database: &Database, prefix: &str) -> Self {
                Self { $($name: database.collection(&format!("{prefix}_{}", stringify!($name))),)* }
            }
        }
    };
}

tables! {
    /// `_id`: version.
    schema_version,
    /// `_id: {consumer, message}`, state, digest, `sent_at`, `processed_at`. State 0 done, 1 waiting, 2 dead, 3 running.
    /// Once it was running, fence; while it is, `lease_until`, `holder`, `taken_over`. The result is what was kept
    /// beside a record.
    inbox,
    /// `_id`: place. Written in transactions only.
    waiting,
    /// `_id`: place. Beside `waiting`, since a renewal would otherwise conflict with the transaction of whom it
    /// is renewed for. Counts only while its `turn` is that of the waiting row.
    leases,
    /// `_id`: number.
    dead_letters,
    /// `_id`: what is counted.
    counters,
    /// `_id: {consumer, instance}`.
    instances,
    /// `_id: {consumer, message}`.
    starts,
    /// `_id: {consumer, message, label}`. In progress until `finished_at`.
    calls,
    /// `_id`: consumer. The newest `sent_at` that was ever purged.
    horizon,
    /// `_id: {consumer, entity}`.
    versions,
    /// `_id`: number, `written`: when, by the cluster's time, in whose order they are published. State 0 unsent, 1 sent,
    /// 2 parked.
    outbox,
    /// `_id`: bucket.
    buckets,
}

/// The key of a message's inbox row. A key is compared byte by byte and field by field: the order is fixed.
pub(crate) fn scoped(consumer: &ConsumerName, id: &MessageId) -> Document {
    doc! { "consumer": consumer.as_str(), "message": id.as_str() }
}

/// The keys of messages.
pub(crate) fn scoped_all<'i>(
    consumer: &ConsumerName,
    ids: impl IntoIterator<Item = &'i MessageId>,
) -> Vec<Bson> {
    ids.into_iter().map(|id| scoped(consumer, id).into()).collect()
}
