//! The desk: where payments are asked for over HTTP. A request's key takes effect once.

use axum::Router;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use hapax::http::{Idempotency, Transactional, Tx};
use hapax::{ClaimRequest, ConsumerName};
use serde::{Deserialize, Serialize};

use super::{Account, Payment, PaymentStore, Payments};
use crate::amount::Amount;
use crate::charges::ChargeRequested;
use crate::problem::{Problem, json, read};

/// In this name requests are on record.
pub(crate) const DESK: &str = "http.payments";

/// What is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    account: String,
    amount: Amount,
}

#[derive(Clone)]
struct Desk<S> {
    store: S,
    name: ConsumerName,
}

/// `POST /payments` under the layer; `GET /payments`, `/payments/{id}`, `/accounts` and `/accounts/{name}`.
///
/// The layer stands on the one route that it is for: a request for an address that does not exist is 404,
/// and not asked for a key.
pub(crate) fn routes<S: PaymentStore>(
    store: S,
    idempotency: &Idempotency<Transactional<S>>,
) -> Result<Router, hapax::BoxError> {
    let desk = Desk { store, name: ConsumerName::new(DESK)? };
    Ok(Router::new()
        .route("/payments", post(pay::<S>))
        .route_layer(idempotency.clone())
        .route("/payments", get(list::<S>))
        .route("/payments/{id}", get(payment::<S>))
        .route("/accounts", get(accounts::<S>))
        .route("/accounts/{name}", get(account::<S>))
        .with_state(desk))
}

/// Accepts a payment. The key, the payment, the account's total, the message that asks for the charge, and the
/// answer commit together, or not at all.
async fn pay<S: PaymentStore>(
    State(desk): State<Desk<S>>,
    mut tx: Tx<S>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let Order { account, amount } = check(read(body)?)?;
    let id = uuid::Uuid::now_v7().to_string();
    let payment = Payment { id, account, amount, receipt: None, charges: 0 };
    accept(&mut *tx, &payment).await.map_err(|failure| Problem::of_failure(&desk.store, &failure))?;
    let location = [(header::LOCATION, format!("/payments/{}", payment.id))];
    Ok((location, json(StatusCode::CREATED, &payment)).into_response())
}

async fn accept<T: Payments>(tx: &mut T, payment: &Payment) -> hapax::Result {
    tx.add(payment).await?;
    let Payment { id, account, amount, .. } = payment.clone();
    tx.publish(ChargeRequested { payment: id, account, amount })
}

fn check(order: Order) -> Result<Order, Problem> {
    if !is_name(&order.account) {
        let detail = "an account's name is 1 to 64 letters, digits, `-`, `_` and `.`";
        return Err(Problem::unprocessable("invalid-account", detail));
    }
    if order.amount == Amount(0) {
        return Err(Problem::unprocessable("invalid-amount", "the amount must be more than nothing"));
    }
    Ok(order)
}

/// What accounts and payments can be called. Whatever else is asked for is not there; a database may have its own
/// opinion of a zero byte.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
}

impl<S: PaymentStore> Desk<S> {
    async fn begin(&self) -> Result<S::Tx, Problem> {
        Ok(self.store.begin_claim(&ClaimRequest::none(&self.name)).await?.0)
    }

    /// What a look into the books has found.
    async fn found<T>(&self, tx: S::Tx, found: hapax::Result<T>) -> Result<T, Problem> {
        self.store.roll_back(tx).await;
        found.map_err(|failure| Problem::of_failure(&self.store, &failure))
    }
}

fn one<T: Serialize>(found: Option<T>) -> Result<Response, Problem> {
    let found = found.ok_or_else(|| Problem::not_found("there is nothing of that name"))?;
    Ok(json(StatusCode::OK, &found))
}

async fn payment<S: PaymentStore>(
    State(desk): State<Desk<S>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    if !is_name(&id) {
        return one(None::<Payment>);
    }
    let mut tx = desk.begin().await?;
    let found = tx.payment(&id).await;
    one(desk.found(tx, found).await?)
}

async fn account<S: PaymentStore>(
    State(desk): State<Desk<S>>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    if !is_name(&name) {
        return one(None::<Account>);
    }
    let mut tx = desk.begin().await?;
    let found = tx.account(&name).await;
    one(desk.found(tx, found).await?)
}

async fn list<S: PaymentStore>(State(desk): State<Desk<S>>) -> Result<Response, Problem> {
    let mut tx = desk.begin().await?;
    let found = tx.payments().await;
    Ok(json(StatusCode::OK, &desk.found(tx, found).await?))
}

async fn accounts<S: PaymentStore>(State(desk): State<Desk<S>>) -> Result<Response, Problem> {
    let mut tx = desk.begin().await?;
    let found = tx.accounts().await;
    Ok(json(StatusCode::OK, &desk.found(tx, found).await?))
}
