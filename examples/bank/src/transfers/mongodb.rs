//! Transfers on MongoDB.

use hapax::BoxError;
use hapax::MongoTx;
use hapax::mongodb::bson::{Document, doc};
use hapax::mongodb::options::IndexOptions;
use hapax::mongodb::{Client, IndexModel};
use serde::{Deserialize, Serialize};

use super::{State, Transfer, Transfers};
use crate::money::Money;

const TRANSFERS: &str = "transfers";
const ACCOUNTS: &str = "known_accounts";

/// A transfer as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(rename = "_id")]
    id: String,
    request_key: String,
    payer: String,
    payee: String,
    amount: i64,
    state: State,
    reason: Option<String>,
}

impl From<Kept> for Transfer {
    fn from(kept: Kept) -> Self {
        let Kept { id, payer, payee, amount, state, reason, .. } = kept;
        Self { id, from: payer, to: payee, amount: Money(amount), state, reason }
    }
}

/// Creates what is not there. Collections are made up front, since to make one takes a lock that transactions
/// conflict with.
pub(super) async fn create_collections(url: &str) -> Result<(), BoxError> {
    let client = Client::with_uri_str(url).await?;
    let database = client.default_database().ok_or("the URL names no database")?;
    let unique = IndexOptions::builder().unique(true).build();
    let by_key = IndexModel::builder().keys(doc! { "request_key": 1 }).options(unique).build();
    let by_state = IndexModel::builder().keys(doc! { "state": 1 }).build();
    database.collection::<Document>(TRANSFERS).create_indexes([by_key, by_state]).await?;
    let there = database.list_collection_names().await?;
    if !there.iter().any(|name| name == ACCOUNTS) {
        database.create_collection(ACCOUNTS).await?;
    }
    Ok(())
}

fn not_ended() -> Document {
    doc! { "state": { "$nin": [State::Completed.as_str(), State::Failed.as_str()] } }
}

fn count(documents: u64) -> i64 {
    i64::try_from(documents).unwrap_or(i64::MAX)
}

impl Transfers for MongoTx {
    async fn add(&mut self, transfer: &Transfer, key: &str) -> hapax::Result {
        let Transfer { id, from, to, amount, state, reason } = transfer.clone();
        let request_key = key.to_owned();
        let kept = Kept { id, request_key, payer: from, payee: to, amount: amount.0, state, reason };
        self.collection::<Kept>(TRANSFERS).insert_one(kept).await?;
        Ok(())
    }

    async fn find(&mut self, id: &str) -> hapax::Result<Option<Transfer>> {
        Ok(self.collection::<Kept>(TRANSFERS).find_one(doc! { "_id": id }).await?.map(Transfer::from))
    }

    async fn asked_for(&mut self, key: &str) -> hapax::Result<Option<Transfer>> {
        let kept = self.collection::<Kept>(TRANSFERS).find_one(doc! { "request_key": key }).await?;
        Ok(kept.map(Transfer::from))
    }

    async fn update(&mut self, transfer: &Transfer) -> hapax::Result {
        let Transfer { id, state, reason, .. } = transfer;
        let update = doc! { "$set": { "state": state.as_str(), "reason": reason.as_deref() } };
        self.collection::<Kept>(TRANSFERS).update_one(doc! { "_id": id }, update).await?;
        Ok(())
    }

    async fn all(&mut self) -> hapax::Result<Vec<Transfer>> {
        let all = self.collection::<Kept>(TRANSFERS).find(doc! {}).await?;
        Ok(all.into_iter().map(Transfer::from).collect())
    }

    async fn moving(&mut self) -> hapax::Result<i64> {
        Ok(count(self.collection::<Kept>(TRANSFERS).count_documents(not_ended()).await?))
    }

    async fn learn(&mut self, account: &str) -> hapax::Result {
        let learn = doc! { "$setOnInsert": { "_id": account } };
        let mut accounts = self.collection::<Document>(ACCOUNTS);
        accounts.update_one(doc! { "_id": account }, learn).upsert(true).await?;
        Ok(())
    }

    async fn knows(&mut self, account: &str) -> hapax::Result<bool> {
        let known = self.collection::<Document>(ACCOUNTS).find_one(doc! { "_id": account }).await?;
        Ok(known.is_some())
    }

    async fn known(&mut self) -> hapax::Result<i64> {
        Ok(count(self.collection::<Document>(ACCOUNTS).count_documents(doc! {}).await?))
    }
}
