//! Payments and accounts, as they are kept and as they are asked for.

pub(crate) mod desk;
mod postgres;
mod sqlite;

use std::future::Future;

use hapax::sqlx;
use hapax::{CallRecords, ConsumerStore, Outbox, Transaction};
use serde::{Deserialize, Serialize};

use crate::amount::Amount;

/// A payment that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Payment {
    pub(crate) id: String,
    pub(crate) account: String,
    pub(crate) amount: Amount,
    /// The provider's receipt, once it is charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) receipt: Option<String>,
    /// How often it was marked as charged: never more than once.
    pub(crate) charges: i64,
}

/// What was paid from an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) total: Amount,
    pub(crate) payments: i64,
}

/// What is kept, as one transaction sees and changes it. Both writes are relative: wrong if they are done twice.
pub(crate) trait Payments: Transaction {
    /// Adds a payment, and its amount to its account's total.
    fn add(&mut self, payment: &Payment) -> impl Future<Output = hapax::Result> + Send;
    /// Marks a payment as charged; false if there is none.
    fn mark_charged(&mut self, id: &str, receipt: &str) -> impl Future<Output = hapax::Result<bool>> + Send;
    /// Finds a payment.
    fn payment(&mut self, id: &str) -> impl Future<Output = hapax::Result<Option<Payment>>> + Send;
    /// All payments.
    fn payments(&mut self) -> impl Future<Output = hapax::Result<Vec<Payment>>> + Send;
    /// Finds an account.
    fn account(&mut self, name: &str) -> impl Future<Output = hapax::Result<Option<Account>>> + Send;
    /// All accounts.
    fn accounts(&mut self) -> impl Future<Output = hapax::Result<Vec<Account>>> + Send;
    /// How many payments there are, and how many of them are charged.
    fn progress(&mut self) -> impl Future<Output = hapax::Result<(i64, i64)>> + Send;
}

/// A store that can keep payments and what is asked of the provider.
pub(crate) trait PaymentStore: ConsumerStore<Tx: Payments> + Outbox + CallRecords {}

impl<S: ConsumerStore<Tx: Payments> + Outbox + CallRecords> PaymentStore for S {}

/// Creates the tables that are not there.
pub(crate) async fn create_tables(url: &str) -> Result<(), sqlx::Error> {
    if url.starts_with("sqlite:") {
        sqlite::ledger::create_tables(url).await
    } else {
        postgres::ledger::create_tables(url).await
    }
}
