//! The orders' table, in whichever database there is.

mod mongodb;
mod sql;

use std::future::Future;

use hapax::{BoxError, BoxPublisher, BoxSource, ConsumerStore, Outbox};

/// A store with the shop's orders in it. What is done with a `tx` commits together with the record of the message that it
/// was done for, or not at all.
pub(crate) trait Books: ConsumerStore + Outbox {
    /// Connects, and makes the tables: those of Hapax, under this name, and the orders.
    fn open(url: &str, schema: &str) -> impl Future<Output = Result<Self, BoxError>> + Send;

    /// Adds to what was paid for an order; says whether there is such an order.
    fn pay(tx: &mut Self::Tx, order: i64, cents: i64) -> impl Future<Output = Result<bool, BoxError>> + Send;

    /// Counts an e-mail.
    fn mail(tx: &mut Self::Tx, order: i64) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Adds to what accounting has booked.
    fn book(tx: &mut Self::Tx, order: i64, cents: i64) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// A new order.
    fn new_order(&self, url: &str) -> impl Future<Output = Result<i64, BoxError>> + Send;

    /// Status, cents paid, e-mails, cents booked.
    fn look_up(&self, url: &str, order: i64) -> impl Future<Output = Result<Order, BoxError>> + Send;

    /// A queue in the database itself, and who publishes to it, for those who have no broker.
    fn embedded(&self, queue: &str) -> Option<(BoxSource, BoxPublisher)>;
}

/// What is known of an order.
pub(crate) type Order = (String, i64, i64, i64);
