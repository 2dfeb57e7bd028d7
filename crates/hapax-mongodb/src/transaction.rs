//! The transaction that a handler gets.

use std::fmt;
use std::time::Duration;

use hapax_core::{ConsumerName, MessageId, Publishable, Settled, Transaction, TxMeta};
use mongodb::Database;
use mongodb::bson::{Document, doc};

use crate::collection::TxCollection;
use crate::document::binary;
use crate::error::{Answer, answered};
use crate::session::Held;
use crate::store::MongoStore;
use crate::tables::{scoped, scoped_all};

/// A transaction in which messages were claimed: owned, without a lifetime.
///
/// What runs on its [collections](Self::collection) commits with the claims or not at all. There is no way to the
/// session or to a collection of the driver's, since an operation that is not told its session runs outside the
/// transaction at once. Dropped, it is undone.
///
/// An error that the server answers inside a transaction ends it, a duplicate key as well as a conflict. Pass it on
/// with `?`: if it is swallowed, what follows answers with the same error, and nothing is committed.
pub struct MongoTx {
    pub(crate) held: Held,
    pub(crate) database: Database,
    pub(crate) consumer: ConsumerName,
    /// The messages whose inbox rows this transaction holds.
    pub(crate) taken: Vec<MessageId>,
    /// The longest an operation of the handler may run on the server.
    pub(crate) longest: Option<Duration>,
    /// Places in the waiting room that this transaction leaves.
    pub(crate) left: Vec<i64>,
    pub(crate) meta: TxMeta,
}

impl MongoTx {
    /// A collection of the store's database, all of whose operations run in this transaction.
    ///
    /// ```no_run
    /// # use hapax_mongodb::{MongoTx, mongodb::bson::{Document, doc}};
    /// # async fn example(tx: &mut MongoTx) -> Result<(), hapax_mongodb::mongodb::error::Error> {
    /// let add = doc! { "$inc": { "total": 5_i64 } };
    /// tx.collection::<Document>("accounts").update_one(doc! { "_id": "ada" }, add).upsert(true).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The collection should exist: to create one takes a lock that others conflict with.
    pub fn collection<T: Send + Sync>(&mut self, name: &str) -> TxCollection<'_, T> {
        let collection = self.database.collection(name);
        self.bind(collection)
    }

    /// A collection of another database of the same replica set, in this transaction.
    pub fn collection_in<T: Send + Sync>(&mut self, database: &str, name: &str) -> TxCollection<'_, T> {
        let collection = self.database.client().database(database).collection(name);
        self.bind(collection)
    }

    /// Publishes a message if and when this transaction commits: an [`Event`](hapax_core::Event), or a
    /// [`Publication`](hapax_core::Publication) that says more. It costs no round trip of its own.
    ///
    /// [`Failure::Reject`](hapax_core::Failure::Reject), under
    /// [`Code::PublicationInvalid`](hapax_core::Code::PublicationInvalid): it cannot be published as it is given.
    pub fn publish(&mut self, message: impl Publishable) -> hapax_core::Result {
        Transaction::publish(self, message)
    }

    fn bind<T: Send + Sync>(&mut self, collection: mongodb::Collection<T>) -> TxCollection<'_, T> {
        let longest = self.longest;
        let (session, fate) = self.held.parts();
        TxCollection { collection, session, fate, longest }
    }

    /// Whether the inbox row of a message is held by this transaction.
    pub(crate) fn holds(&self, consumer: &ConsumerName, id: &MessageId) -> bool {
        self.consumer == *consumer && self.taken.contains(id)
    }
}

impl MongoStore {
    /// Writes what is settled by the transaction.
    pub(crate) async fn settle(&self, tx: &mut MongoTx) -> Answer<()> {
        let places = waiting(&tx.meta);
        let limit = tx.held.limit();
        if !places.is_empty() {
            let these = doc! { "_id": { "$in": places.clone() } };
            let (session, fate) = tx.held.parts();
            let gone = self.tables().waiting.delete_many(these).session(session);
            fate.watch(answered(limit, gone)).await?;
            tx.left.extend(places);
        }
        if !tx.meta.erased_starts.is_empty() {
            let these = doc! { "_id": { "$in": scoped_all(&tx.consumer, &tx.meta.erased_starts) } };
            let (session, fate) = tx.held.parts();
            let gone = self.tables().starts.delete_many(these).session(session);
            fate.watch(answered(limit, gone)).await?;
        }
        let results = tx.meta.results.iter().filter(|(id, _)| tx.taken.contains(id));
        let results: Vec<Document> = results.map(|(id, result)| kept(&tx.consumer, id, result)).collect();
        if !results.is_empty() {
            tx.held.update_each(&self.tables().inbox, results).await?;
        }
        Ok(())
    }
}

/// The update that keeps a result beside a record.
fn kept(consumer: &ConsumerName, id: &MessageId, result: &[u8]) -> Document {
    doc! { "q": { "_id": scoped(consumer, id) }, "u": { "$set": { "result": binary(result) } } }
}

fn waiting(meta: &TxMeta) -> Vec<i64> {
    let waiting = meta.settled.iter().filter_map(|settled| match settled {
        Settled::Waiting(place) => Some(place.0),
        _ => None,
    });
    waiting.collect()
}

impl Transaction for MongoTx {
    fn meta(&mut self) -> &mut TxMeta {
        &mut self.meta
    }
}

impl fmt::Debug for MongoTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoTx")
            .field("consumer", &self.consumer.as_str())
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}
