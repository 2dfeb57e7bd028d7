//! A store, a consumer, and the driver's own view of the same database.

use std::time::Duration;

use hapax_core::{
    Claim, ClaimRequest, Code, ConsumerName, Digest, Envelope, Key, MessageId, Parking, Place, RawMessage,
    Store as _, WaitingRoom as _,
};
use hapax_mongodb::mongodb::bson::{Document, doc};
use hapax_mongodb::mongodb::{Client, Collection, Database};
use hapax_mongodb::{Builder, MongoStore, MongoTx};

pub(super) const ACCOUNTS: &str = "accounts";

pub(super) struct Ground {
    pub(super) store: MongoStore,
    pub(super) consumer: ConsumerName,
    pub(super) database: Database,
}

impl Ground {
    pub(super) async fn new(url: &str) -> Self {
        Self::with(MongoStore::builder(url), url).await
    }

    /// With a store that is set up in another way.
    pub(super) async fn with(builder: Builder, url: &str) -> Self {
        let store = builder.connect().await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        let client = Client::with_uri_str(url).await.expect("the server answers");
        let database = client.default_database().expect("the URL names a database");
        database.create_collection(ACCOUNTS).await.expect("the collection is made");
        Self { store, consumer: ConsumerName::new("orders").expect("a name"), database }
    }

    pub(super) fn accounts(&self) -> Collection<Document> {
        self.database.collection(ACCOUNTS)
    }

    pub(super) async fn count(&self) -> u64 {
        self.accounts().count_documents(doc! {}).await.expect("it counts")
    }

    pub(super) async fn claim(&self, keys: &[Key]) -> (MongoTx, Vec<Claim>) {
        let request = ClaimRequest { keys, ..ClaimRequest::none(&self.consumer) };
        self.store.begin_claim(&request).await.expect("the claim is answered")
    }

    pub(super) async fn begin(&self) -> MongoTx {
        self.claim(&[]).await.0
    }

    /// Puts a message into the waiting room.
    pub(super) async fn park(&self, id: &str, order: Option<&str>) -> Place {
        let (mut tx, _) = self.claim(&[key(id)]).await;
        self.park_in(&mut tx, id, order).await;
        self.store.finish(tx).await.expect("it is parked");
        let waiting = self.store.waiting(&self.consumer, &key(id).id).await.expect("the room answers");
        waiting.expect("it waits").place
    }

    pub(super) async fn park_in(&self, tx: &mut MongoTx, id: &str, order: Option<&str>) {
        let message = RawMessage {
            id: key(id).id,
            kind: "Paid".into(),
            key: None,
            sent_at: None,
            digest: key(id).digest,
            payload: "1".into(),
            envelope: Envelope::new("1"),
        };
        let (code, wait) = (Some(Code::HandlerFailed), Duration::ZERO);
        let parking = Parking { message: &message, failures: 1, error: "$error", code, wait, order };
        self.store.park(tx, &self.consumer, &parking).await.expect("it is parked");
    }
}

pub(super) fn key(id: &str) -> Key {
    Key::new(MessageId::new(id).expect("an id"), Digest::of(id.as_bytes()))
}

/// Inserts an account, as a handler does.
pub(super) async fn insert(tx: &mut MongoTx, id: &str) -> hapax_mongodb::mongodb::error::Result<()> {
    let account = doc! { "_id": id, "total": 1_i64 };
    tx.collection::<Document>(ACCOUNTS).insert_one(account).await.map(drop)
}
