//! Orders in MongoDB.

use hapax::mongodb::bson::{Document, doc};
use hapax::mongodb::{Client, Collection};
use hapax::{BoxError, BoxPublisher, BoxSource, MongoStore, MongoTx};

use super::{Books, Order};

const ORDERS: &str = "shop_orders";

impl Books for MongoStore {
    async fn open(url: &str, schema: &str) -> Result<Self, BoxError> {
        let store = Self::builder(url).prefix(schema).connect().await?;
        store.migrate().await?;
        Ok(store)
    }

    async fn pay(tx: &mut MongoTx, order: i64, cents: i64) -> Result<bool, BoxError> {
        let paid = doc! { "$set": { "status": "paid" }, "$inc": { "paid_cents": cents } };
        let paid = tx.collection::<Document>(ORDERS).update_one(doc! { "_id": order }, paid).await?;
        Ok(paid.matched_count > 0)
    }

    async fn mail(tx: &mut MongoTx, order: i64) -> Result<(), BoxError> {
        let sent = doc! { "$inc": { "emails": 1_i64 } };
        tx.collection::<Document>(ORDERS).update_one(doc! { "_id": order }, sent).await?;
        Ok(())
    }

    async fn book(tx: &mut MongoTx, order: i64, cents: i64) -> Result<(), BoxError> {
        let booked = doc! { "$inc": { "booked_cents": cents } };
        tx.collection::<Document>(ORDERS).update_one(doc! { "_id": order }, booked).await?;
        Ok(())
    }

    async fn new_order(&self, url: &str) -> Result<i64, BoxError> {
        let orders = orders(url).await?;
        let last = orders.find_one(doc! {}).sort(doc! { "_id": -1 }).await?;
        let next = last.map_or(Ok(0), |order| order.get_i64("_id"))? + 1;
        let open = doc! { "_id": next, "status": "open", "paid_cents": 0_i64, "emails": 0_i64, "booked_cents": 0_i64 };
        orders.insert_one(open).await?;
        Ok(next)
    }

    async fn look_up(&self, url: &str, order: i64) -> Result<Order, BoxError> {
        let order = orders(url).await?.find_one(doc! { "_id": order }).await?.ok_or("it is gone")?;
        let number = |name| order.get_i64(name);
        let status = order.get_str("status")?.to_owned();
        Ok((status, number("paid_cents")?, number("emails")?, number("booked_cents")?))
    }

    fn embedded(&self, _queue: &str) -> Option<(BoxSource, BoxPublisher)> {
        None
    }
}

/// The orders, outside any message's transaction.
async fn orders(url: &str) -> Result<Collection<Document>, BoxError> {
    let database = Client::with_uri_str(url).await?.default_database();
    Ok(database.ok_or("HAPAX_STORE names no database: mongodb://host/shop")?.collection(ORDERS))
}
