//! The customers: open accounts, and ask for transfers until each is accepted.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use hapax::BoxError;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Answer, get, post, put, send};
use crate::money::Money;

/// Each account begins with as much.
const BALANCE: Money = Money(500_000);
/// The largest transfer that is meant seriously.
const LARGEST: i64 = 10_000;
/// One in so many asks for more than anybody has, so that there is something to refuse.
const GREEDY: usize = 20;
/// Every so many accounts one is closed and refuses credits, so that there is something to compensate.
const CLOSED: usize = 8;
/// So many customers ask at once.
const CUSTOMERS: usize = 8;
/// How long a customer waits before asking again.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a customer goes on asking for one transfer.
const PATIENCE: Duration = Duration::from_mins(3);

/// One transfer that is to be asked for.
#[derive(Clone, Debug)]
struct Wish {
    key: String,
    body: String,
    is_repeated: bool,
    asked_since: Option<Instant>,
}

/// All that is to be asked for, and how far it has got.
pub(crate) struct Load {
    accounts: usize,
    wishes: Mutex<VecDeque<Wish>>,
    accepted: Mutex<Vec<String>>,
    asked: AtomicUsize,
}

impl Load {
    /// Draws transfers between random accounts; a share of them is asked for twice.
    pub(crate) fn draw(transfers: usize, accounts: usize, repeated: f64, random: &mut Rng) -> Self {
        let wishes = (0..transfers).map(|number| {
            let from = random.usize(..accounts);
            let to = (from + random.usize(1..accounts)) % accounts;
            let times = if number % GREEDY == 0 { 1_000 } else { 1 };
            let amount = Money(random.i64(LARGEST / 10..=LARGEST) * times);
            let body = json!({ "from": name(from), "to": name(to), "amount": amount }).to_string();
            let key = format!("{:032x}", random.u128(..));
            Wish { key, body, is_repeated: random.f64() < repeated, asked_since: None }
        });
        let wishes = Mutex::new(wishes.collect());
        Self { accounts, wishes, accepted: Mutex::default(), asked: AtomicUsize::new(0) }
    }

    /// How many have been accepted.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// The ids of those that have been accepted.
    pub(crate) fn accepted(&self) -> Vec<String> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the accounts, and waits until the transfer service has heard of them.
    pub(crate) async fn open_accounts(
        &self,
        transfers: SocketAddr,
        accounts: SocketAddr,
    ) -> Result<(), BoxError> {
        let begun = Instant::now();
        for number in 0..self.accounts {
            let opening = json!({ "balance": BALANCE, "closed": number % CLOSED == CLOSED - 1 });
            while taken(accounts, put(&format!("/accounts/{}", name(number)), &opening)?).await?.is_none() {
                if begun.elapsed() > PATIENCE {
                    return Err("the account service does not answer".into());
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
        loop {
            if moving(transfers).await.is_some_and(|moving| moving.accounts >= self.accounts) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err("the transfer service does not hear of the accounts".into());
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Asks for all transfers, several at a time.
    pub(crate) async fn ask(self: Arc<Self>, transfers: SocketAddr) -> Result<(), BoxError> {
        let mut customers = JoinSet::new();
        for _ in 0..CUSTOMERS {
            let load = Arc::clone(&self);
            customers.spawn(async move { load.ask_one_by_one(transfers).await });
        }
        while let Some(customer) = customers.join_next().await {
            customer??;
        }
        Ok(())
    }

    /// A transfer that is not accepted now is asked for again later, after others: whoever was killed with a request in
    /// hand may hold its key until the database has given him up.
    async fn ask_one_by_one(&self, transfers: SocketAddr) -> Result<(), BoxError> {
        loop {
            let wish = self.wishes.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(mut wish) = wish else { return Ok(()) };
            let Some(id) = ask_for(transfers, &wish).await? else {
                let since = *wish.asked_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    return Err(format!("a transfer was not accepted within {PATIENCE:?}").into());
                }
                self.wishes.lock().unwrap_or_else(PoisonError::into_inner).push_back(wish);
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            if wish.is_repeated && ask_for(transfers, &wish).await?.is_some_and(|again| again != id) {
                return Err(format!("one Idempotency-Key led to two transfers, {id} is one of them").into());
            }
            self.accepted.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn name(number: usize) -> String {
    format!("account-{number}")
}

/// Asks for a transfer and answers with its id, unless it cannot be accepted now.
async fn ask_for(transfers: SocketAddr, wish: &Wish) -> Result<Option<String>, BoxError> {
    let Some(answer) = taken(transfers, post("/transfers", Some(&wish.key), wish.body.clone())?).await?
    else {
        return Ok(None);
    };
    let transfer: Value = serde_json::from_slice(&answer.body)?;
    Ok(Some(transfer["id"].as_str().ok_or("a transfer has no id")?.to_owned()))
}

/// The answer, if somebody answers and it is not that it is impossible now.
async fn taken(server: SocketAddr, request: Request<Full<Bytes>>) -> Result<Option<Answer>, BoxError> {
    match send(server, request).await {
        Ok(answer) if answer.status.is_success() => Ok(Some(answer)),
        Ok(Answer { status: StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE, .. }) | Err(_) => {
            Ok(None)
        }
        Ok(answer) => Err(format!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body)).into()),
    }
}

/// What the transfer service has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Moving {
    /// Transfers that are not at their end.
    pub(crate) moving: usize,
    /// Accounts that it knows.
    pub(crate) accounts: usize,
}

/// Asks for it; nothing if it does not answer.
pub(crate) async fn moving(transfers: SocketAddr) -> Option<Moving> {
    let answer = send(transfers, get("/moving").ok()?).await.ok()?;
    serde_json::from_slice(&answer.body).ok()
}
