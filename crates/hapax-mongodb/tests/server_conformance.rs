//! The MongoDB store does what every store must do.

mod server {
    use hapax_core::BoxError;
    use hapax_mongodb::mongodb::bson::{Document, doc};
    use hapax_mongodb::mongodb::{Client, Collection};
    use hapax_mongodb::{MongoStore, MongoTx};
    use hapax_testkit::conformance::store::StoreFixture;
    use hapax_testkit::servers::{MongoDatabase, Server, require};

    const ACCOUNTS: &str = "accounts";

    /// A database of its own.
    struct OnMongo {
        store: MongoStore,
        accounts: Collection<Document>,
        database: MongoDatabase,
    }

    async fn open(database: &MongoDatabase) -> MongoStore {
        MongoStore::connect(database.url()).await.expect("the database answers")
    }

    impl StoreFixture for OnMongo {
        type Store = MongoStore;

        async fn fresh() -> Option<Self> {
            if !require(Server::MongoDb) {
                return None;
            }
            let database = MongoDatabase::create().expect("a database of its own");
            let store = open(&database).await;
            store.migrate().await.expect("the schema is made");
            let client = Client::with_uri_str(database.url()).await.expect("the database answers");
            let ours = client.database(database.name());
            ours.create_collection(ACCOUNTS).await.expect("the collection is made");
            Some(Self { store, accounts: ours.collection(ACCOUNTS), database })
        }

        fn store(&self) -> MongoStore {
            self.store.clone()
        }

        async fn reopened(&self) -> MongoStore {
            open(&self.database).await
        }

        async fn add(tx: &mut MongoTx, account: &str, n: i64) -> Result<(), BoxError> {
            let add = doc! { "$inc": { "total": n } };
            let account = doc! { "_id": account };
            tx.collection::<Document>(ACCOUNTS).update_one(account, add).upsert(true).await?;
            Ok(())
        }

        async fn total(&self, account: &str) -> i64 {
            let account = self.accounts.find_one(doc! { "_id": account }).await.expect("an answer");
            account.map_or(0, |account| account.get_i64("total").expect("a total"))
        }
    }

    hapax_testkit::store_conformance!(OnMongo);
}
