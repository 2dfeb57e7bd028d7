//! The desk: where transfers are asked for over HTTP. A request's key takes effect once, like a message's id.

use axum::Router;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use hapax::{BoxError, Cause, Claim, ClaimRequest, ConsumerName, Digest, Failure, Key, MessageId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{DESK, State, Transfer, TransferStore, Transfers};
use crate::events::{self, Entry, say};
use crate::money::Money;
use crate::problem::{Problem, json, read};

/// What is asked for.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    from: String,
    to: String,
    amount: Money,
}

#[derive(Clone)]
struct Desk<S> {
    store: S,
    name: ConsumerName,
}

/// `POST /transfers`, `GET /transfers`, `GET /transfers/{id}`, and what is going on: `GET /moving`.
pub(super) fn routes<S: TransferStore>(store: S) -> Result<Router, BoxError> {
    let desk = Desk { store, name: ConsumerName::new(DESK)? };
    Ok(Router::new()
        .route("/transfers", post(ask::<S>).get(list::<S>))
        .route("/transfers/{id}", get(look_up::<S>))
        .route("/moving", get(moving::<S>))
        .with_state(desk))
}

/// Accepts a transfer: 202 with the transfer, the same one for the same key.
async fn ask<S: TransferStore>(
    Shared(desk): Shared<Desk<S>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    let request: Request = read(body)?;
    check(&request)?;
    let digest = Digest::of(&serde_json::to_vec(&request).map_err(Failure::retry)?);
    let keys = [Key::new(key.clone(), digest)];
    let claiming = ClaimRequest { keys: &keys, ..ClaimRequest::none(&desk.name) };
    let (mut tx, claims) = desk.store.begin_claim(&claiming).await?;
    match answer(&mut tx, claims[0], &key, request).await {
        Ok(Answer::Accepted(transfer)) => {
            desk.store.finish(tx).await?;
            json(StatusCode::ACCEPTED, &transfer)
        }
        Ok(Answer::Again(transfer)) => {
            desk.store.roll_back(tx).await;
            json(StatusCode::ACCEPTED, &transfer)
        }
        Err(problem) => {
            desk.store.roll_back(tx).await;
            Err(problem)
        }
    }
}

enum Answer {
    /// To be committed.
    Accepted(Transfer),
    /// It was accepted before.
    Again(Transfer),
}

async fn answer<Tx: Transfers>(
    tx: &mut Tx,
    claim: Claim,
    key: &MessageId,
    request: Request,
) -> Result<Answer, Problem> {
    if claim.differs() {
        return Err(Problem::unprocessable(
            "key-reused",
            "another request was made under this Idempotency-Key",
        ));
    }
    if claim == Claim::Busy {
        return Err(Problem::in_progress());
    }
    // Keys are forgotten after a while, transfers are not.
    if let Some(transfer) = tx.asked_for(key.as_str()).await? {
        return Ok(Answer::Again(transfer));
    }
    for account in [&request.from, &request.to] {
        if !tx.knows(account).await? {
            return Err(Problem::unprocessable(
                "unknown-account",
                format!("there is no account `{account}`"),
            ));
        }
    }
    let Request { from, to, amount } = request;
    let id = uuid::Uuid::now_v7().to_string();
    let transfer = Transfer { id, from, to, amount, state: State::Requested, reason: None };
    tx.add(&transfer, key.as_str()).await?;
    tx.meta().outbox.caused_by(Some(Cause::new(key.clone())));
    say(tx, events::REQUESTED, &transfer.id, transfer.movement(Entry::Debit))?;
    Ok(Answer::Accepted(transfer))
}

fn idempotency_key(headers: &HeaderMap) -> Result<MessageId, Problem> {
    let malformed = |why: String| Problem::malformed("idempotency-key", why);
    let header = headers
        .get("idempotency-key")
        .ok_or_else(|| malformed("the header Idempotency-Key is missing".into()))?;
    let text = header.to_str().map_err(|error| malformed(error.to_string()))?;
    MessageId::new(text.trim_matches('"')).map_err(|error| malformed(error.to_string()))
}

fn check(request: &Request) -> Result<(), Problem> {
    if request.amount <= Money(0) {
        return Err(Problem::unprocessable("invalid-amount", "the amount must be more than nothing"));
    }
    if request.from == request.to {
        return Err(Problem::unprocessable("same-account", "payer and payee are the same account"));
    }
    Ok(())
}

async fn list<S: TransferStore>(Shared(desk): Shared<Desk<S>>) -> Result<Response, Problem> {
    let (mut tx, _) = desk.store.begin_claim(&ClaimRequest::none(&desk.name)).await?;
    let transfers = tx.all().await;
    desk.store.roll_back(tx).await;
    json(StatusCode::OK, &transfers?)
}

async fn look_up<S: TransferStore>(
    Shared(desk): Shared<Desk<S>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let (mut tx, _) = desk.store.begin_claim(&ClaimRequest::none(&desk.name)).await?;
    let transfer = tx.find(&id).await;
    desk.store.roll_back(tx).await;
    match transfer? {
        Some(transfer) => json(StatusCode::OK, &transfer),
        None => Err(Problem::not_found(format!("there is no transfer `{id}`"))),
    }
}

async fn moving<S: TransferStore>(Shared(desk): Shared<Desk<S>>) -> Result<Response, Problem> {
    let (mut tx, _) = desk.store.begin_claim(&ClaimRequest::none(&desk.name)).await?;
    let moving = tx.moving().await;
    let accounts = tx.known().await;
    desk.store.roll_back(tx).await;
    json(StatusCode::OK, &json!({ "moving": moving?, "accounts": accounts? }))
}
