//! The counter: where accounts are opened and looked at over HTTP.

use axum::Router;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use hapax::{BoxError, Cause, ClaimRequest, ConsumerName, MessageId, Transaction as _};
use serde::Deserialize;

use super::account::{Account, Fact};
use super::{AccountStore, Accounts, Balance, COUNTER};
use crate::events::{self, Opened, say};
use crate::money::Money;
use crate::problem::{Problem, json, read};

/// How an account is opened.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Opening {
    balance: Money,
    /// Whether it is closed at once, and takes no credits.
    #[serde(default)]
    closed: bool,
}

#[derive(Clone)]
struct Counter<S> {
    store: S,
    name: ConsumerName,
}

/// `PUT /accounts/{id}`, `GET /accounts/{id}`, `GET /accounts`, `GET /ledger`.
pub(super) fn routes<S: AccountStore>(store: S) -> Result<Router, BoxError> {
    let counter = Counter { store, name: ConsumerName::new(COUNTER)? };
    Ok(Router::new()
        .route("/accounts", get(list::<S>))
        .route("/accounts/{id}", get(look_up::<S>).put(open::<S>))
        .route("/ledger", get(ledger::<S>))
        .with_state(counter))
}

impl<S: AccountStore> Counter<S> {
    async fn begin(&self) -> Result<S::Tx, Problem> {
        Ok(self.store.begin_claim(&ClaimRequest::none(&self.name)).await?.0)
    }
}

/// Opens an account. Naturally idempotent: one that is open stays as it is.
async fn open<S: AccountStore>(
    State(counter): State<Counter<S>>,
    Path(account): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let opening: Opening = read(body)?;
    let cause =
        MessageId::new(&account).map_err(|error| Problem::malformed("account-name", error.to_string()))?;
    if opening.balance < Money(0) {
        return Err(Problem::unprocessable(
            "invalid-balance",
            "an account cannot begin with less than nothing",
        ));
    }
    let mut tx = counter.begin().await?;
    tx.meta().outbox.caused_by(Some(Cause::new(cause)));
    match opened(&mut tx, &account, &opening).await {
        Ok(balance) => {
            counter.store.finish(tx).await?;
            json(StatusCode::OK, &Balance { account, balance })
        }
        Err(failure) => {
            counter.store.roll_back(tx).await;
            Err(failure.into())
        }
    }
}

async fn opened<Tx: Accounts>(tx: &mut Tx, account: &str, opening: &Opening) -> hapax::Result<Money> {
    if let Some(account) = Account::replay(&tx.history(account).await?) {
        return Ok(account.balance);
    }
    tx.append(account, 1, &Fact::Opened(opening.balance)).await?;
    if opening.closed {
        tx.append(account, 2, &Fact::Closed).await?;
    }
    say(tx, events::OPENED, account, Opened { account: account.to_owned() })?;
    Ok(opening.balance)
}

async fn look_up<S: AccountStore>(
    State(counter): State<Counter<S>>,
    Path(account): Path<String>,
) -> Result<Response, Problem> {
    let mut tx = counter.begin().await?;
    let history = tx.history(&account).await;
    counter.store.roll_back(tx).await;
    let Some(Account { balance, .. }) = Account::replay(&history?) else {
        return Err(Problem::not_found(format!("there is no account `{account}`")));
    };
    json(StatusCode::OK, &Balance { account, balance })
}

async fn list<S: AccountStore>(State(counter): State<Counter<S>>) -> Result<Response, Problem> {
    let mut tx = counter.begin().await?;
    let balances = balances(&mut tx).await;
    counter.store.roll_back(tx).await;
    json(StatusCode::OK, &balances?)
}

async fn balances<Tx: Accounts>(tx: &mut Tx) -> hapax::Result<Vec<Balance>> {
    let mut balances = Vec::new();
    for account in tx.names().await? {
        let balance = Account::replay(&tx.history(&account).await?).unwrap_or_default().balance;
        balances.push(Balance { account, balance });
    }
    Ok(balances)
}

async fn ledger<S: AccountStore>(State(counter): State<Counter<S>>) -> Result<Response, Problem> {
    let mut tx = counter.begin().await?;
    let ledger = tx.ledger().await;
    counter.store.roll_back(tx).await;
    json(StatusCode::OK, &ledger?)
}
