//! The Hapax store on [`mongodb`]: a replica set whose transactions hold the claim and the handler's writes.
//!
//! ```no_run
//! # async fn example() -> Result<(), hapax_core::Error> {
//! use hapax_mongodb::MongoStore;
//!
//! let store = MongoStore::connect("mongodb://db1,db2,db3/shop?replicaSet=rs0").await?;
//! store.migrate().await?;
//! # Ok(()) }
//! ```
//!
//! A handler gets collections that are bound to its transaction, and nothing else: with the driver alone an
//! operation that forgets its session runs *outside* the transaction, and nobody notices.
//!
//! ```no_run
//! # use hapax_core::{Message, Result};
//! # use hapax_mongodb::{MongoTx, mongodb::bson::{Document, doc}};
//! # #[derive(serde::Deserialize)] struct PaymentReceived { order_id: i64 }
//! async fn mark_paid(tx: &mut MongoTx, payment: Message<PaymentReceived>) -> Result {
//!     let paid = doc! { "$set": { "status": "paid" } };
//!     tx.collection::<Document>("orders").update_one(doc! { "_id": payment.order_id }, paid).await?;
//!     Ok(())
//! }
//! ```

mod buckets;
mod builder;
mod calls;
mod claim;
mod collection;
mod counter;
mod dead;
mod document;
mod error;
mod fate;
mod inbox;
mod instances;
mod lease;
mod look;
mod migrate;
mod orphans;
mod outbox;
mod relay;
mod retention;
mod running;
mod session;
mod store;
mod tables;
mod transaction;
mod versions;
mod waiting;

pub use builder::Builder;
pub use collection::{TxAggregate, TxCollection, TxFind, TxOperation};
pub use error::DriverError;
pub use mongodb;
pub use store::MongoStore;
pub use transaction::MongoTx;
