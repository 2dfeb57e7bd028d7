//! Operations through a handler's collections are inside its transaction, all of them.

use hapax_core::Store as _;
use hapax_mongodb::MongoTx;
use hapax_mongodb::mongodb::bson::{Bson, Document, doc};
use hapax_mongodb::mongodb::error::Result;
use hapax_mongodb::mongodb::options::ReturnDocument;
use hapax_testkit::servers::{MongoDatabase, Server, require};

use super::ground::{ACCOUNTS, Ground};

/// One of each operation that writes, and what the reads see of it.
async fn work(tx: &mut MongoTx) -> Result<()> {
    let mut accounts = tx.collection::<Document>(ACCOUNTS);
    accounts.insert_one(doc! { "_id": "one", "n": 1 }).await?;
    accounts
        .insert_many([doc! { "_id": "two", "n": 2 }, doc! { "_id": "three", "n": 3 }])
        .ordered(true)
        .await?;
    accounts.update_one(doc! { "_id": "four" }, doc! { "$set": { "n": 4 } }).upsert(true).await?;
    let double = doc! { "$set": { "list.$[each]": 20 } };
    accounts.update_one(doc! { "_id": "one" }, doc! { "$set": { "list": [1, 2] } }).await?;
    accounts.update_many(doc! { "_id": "one" }, double).array_filters([doc! { "each": 2 }]).await?;
    accounts.replace_one(doc! { "_id": "two" }, doc! { "n": 22 }).await?;
    accounts.delete_one(doc! { "_id": "kept 1" }).await?;
    accounts.delete_many(doc! { "_id": "kept 2" }).await?;
    let update = accounts.find_one_and_update(doc! { "_id": "three" }, doc! { "$inc": { "n": 30 } });
    let updated = update.return_document(ReturnDocument::After).projection(doc! { "_id": 0 }).await?;
    assert_eq!(updated, Some(doc! { "n": 33 }));
    let replaced = accounts.find_one_and_replace(doc! { "_id": "four" }, doc! { "n": 44 }).await?;
    assert_eq!(replaced, Some(doc! { "_id": "four", "n": 4 }));
    let deleted = accounts.find_one_and_delete(doc! { "_id": "kept 3" }).sort(doc! { "_id": 1 }).await?;
    assert!(deleted.is_some());

    assert_eq!(accounts.count_documents(doc! {}).await?, 4);
    let found =
        accounts.find(doc! { "n": { "$gt": 1 } }).sort(doc! { "n": -1 }).limit(2).batch_size(1).await?;
    assert_eq!(found, [doc! { "_id": "four", "n": 44 }, doc! { "_id": "three", "n": 33 }]);
    assert_eq!(accounts.distinct("list", doc! {}).await?, [Bson::Int32(1), Bson::Int32(20)]);
    let sum = accounts.aggregate([doc! { "$group": { "_id": Bson::Null, "sum": { "$sum": "$n" } } }]).await?;
    assert_eq!(sum, [doc! { "_id": Bson::Null, "sum": 100 }]);
    assert!(accounts.find_one(doc! { "_id": "kept 1" }).await?.is_none());
    Ok(())
}

async fn all(ground: &Ground) -> Vec<String> {
    use futures::TryStreamExt as _;
    let found = ground.accounts().find(doc! {}).sort(doc! { "_id": 1 }).await.expect("it is read");
    let found: Vec<Document> = found.try_collect().await.expect("it is read");
    found.iter().map(|account| account.get_str("_id").expect("a name").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_on_its_collections_commits_with_the_transaction_or_not_at_all() {
    if !require(Server::MongoDb) {
        return;
    }
    let database = MongoDatabase::create().expect("a database of its own");
    let ground = Ground::new(database.url()).await;
    let before = ["kept 1", "kept 2", "kept 3"];
    ground.accounts().insert_many(before.map(|id| doc! { "_id": id })).await.expect("they are inserted");

    let mut tx = ground.begin().await;
    work(&mut tx).await.expect("it runs");
    assert_eq!(all(&ground).await, before, "nothing shows before the commit");
    ground.store.roll_back(tx).await;
    assert_eq!(all(&ground).await, before, "nothing is left of it");

    let mut tx = ground.begin().await;
    work(&mut tx).await.expect("it runs");
    ground.store.finish(tx).await.expect("it commits");
    assert_eq!(all(&ground).await, ["four", "one", "three", "two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_of_another_database_is_inside_too() {
    if !require(Server::MongoDb) {
        return;
    }
    let (database, other) = (MongoDatabase::create(), MongoDatabase::create());
    let (database, other) = (database.expect("a database"), other.expect("another one"));
    let ground = Ground::new(database.url()).await;
    let elsewhere = ground.database.client().database(other.name());
    elsewhere.create_collection("events").await.expect("the collection is made");
    for (rolls_back, left) in [(true, 0), (false, 1)] {
        let mut tx = ground.begin().await;
        let event = doc! { "_id": 1 };
        tx.collection_in::<Document>(other.name(), "events").insert_one(event).await.expect("it is inserted");
        if rolls_back {
            ground.store.roll_back(tx).await;
        } else {
            ground.store.finish(tx).await.expect("it commits");
        }
        let events = elsewhere.collection::<Document>("events").count_documents(doc! {}).await;
        assert_eq!(events.expect("it counts"), left);
    }
}
