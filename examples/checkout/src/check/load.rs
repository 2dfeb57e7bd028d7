//! The customers: ask for every payment several times, each time until there is an answer.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use hapax::BoxError;
use hyper::StatusCode;
use tokio::task::JoinSet;

use crate::amount::Amount;
use crate::client::{Answer, Server};
use crate::pay::Wish;

/// So many customers ask at once.
const CUSTOMERS: usize = 16;
/// All payments are spread over so many accounts.
const ACCOUNTS: usize = 10;
/// The largest payment.
const LARGEST: i64 = 10_000;
/// How long a customer goes on asking for one payment.
const PATIENCE: Duration = Duration::from_mins(3);

/// What a client is told: all copies of a request must be told the same.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    status: StatusCode,
    location: String,
    body: Bytes,
}

/// A payment that is to be made.
pub(super) struct Wanted {
    pub(super) account: String,
    pub(super) amount: Amount,
    wish: Wish,
    said: Mutex<Option<Said>>,
}

/// All that is to be asked for, and how far it has got.
pub(super) struct Load {
    pub(super) wanted: Vec<Wanted>,
    /// Each copy of each payment, in the order in which they are sent.
    turns: Vec<usize>,
    next: AtomicUsize,
    answered: AtomicUsize,
    requests: AtomicU64,
    differing: AtomicUsize,
}

impl Load {
    /// Draws payments. `run` is part of keys and accounts, so that one database can see several runs.
    pub(super) fn draw(payments: usize, copies: usize, run: &str, random: &mut Rng) -> Self {
        let wanted = (0..payments).map(|number| {
            let account = format!("{run}-{}", random.usize(..ACCOUNTS));
            let amount = Amount(random.i64(1..=LARGEST));
            let wish = Wish::new(format!("{run}-{number}"), &account, amount);
            Wanted { account, amount, wish, said: Mutex::default() }
        });
        let (wanted, turns) = (wanted.collect(), spread(payments, copies, random));
        let (next, answered, requests, differing) = Default::default();
        Self { wanted, turns, next, answered, requests, differing }
    }

    /// How many requests have their answer.
    pub(super) fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// How many requests were sent, those without an answer included.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// How many answers were other than the first one to the same request.
    pub(super) fn differing(&self) -> usize {
        self.differing.load(Ordering::SeqCst)
    }

    /// Asks for all payments, several at a time.
    pub(super) async fn ask(self: Arc<Self>, server: Server) -> Result<(), BoxError> {
        let mut customers = JoinSet::new();
        for _ in 0..CUSTOMERS {
            let (load, server) = (Arc::clone(&self), server.clone());
            customers.spawn(async move { load.ask_one_by_one(&server).await });
        }
        while let Some(customer) = customers.join_next().await {
            customer??;
        }
        Ok(())
    }

    async fn ask_one_by_one(&self, server: &Server) -> Result<(), BoxError> {
        while let Some(turn) = self.turns.get(self.next.fetch_add(1, Ordering::SeqCst)) {
            let (wanted, begun) = (&self.wanted[*turn], Instant::now());
            let again = |_, why: String| {
                self.requests.fetch_add(1, Ordering::SeqCst);
                if begun.elapsed() < PATIENCE { Ok(()) } else { Err(BoxError::from(why)) }
            };
            let answer = wanted.wish.until_answered(server, again).await?;
            self.requests.fetch_add(1, Ordering::SeqCst);
            if !wanted.compare(&answer) {
                self.differing.fetch_add(1, Ordering::SeqCst);
            }
            self.answered.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

impl Wanted {
    /// The id that the first answer told, if that was a payment.
    pub(super) fn id(&self) -> Option<String> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.as_ref().filter(|said| said.status == StatusCode::CREATED)?;
        said.location.strip_prefix("/payments/").map(str::to_owned)
    }

    /// Whether an answer is the first, or the same as the first.
    pub(super) fn compare(&self, answer: &Answer) -> bool {
        let location = answer.header("location").to_owned();
        let said = Said { status: answer.status, location, body: answer.body.clone() };
        let mut first = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        *first.get_or_insert_with(|| said.clone()) == said
    }
}

/// Each payment's number as often as there are copies: some close together, so that they are at work at the same
/// time, and some far behind.
fn spread(payments: usize, copies: usize, random: &mut Rng) -> Vec<usize> {
    let all = u32::try_from(payments).unwrap_or(u32::MAX);
    let mut turns: Vec<(f64, usize)> = (0..payments)
        .zip(0_u32..)
        .flat_map(|(payment, place)| std::iter::repeat_n((f64::from(place), payment), copies))
        .map(|(place, payment)| (place + f64::from(all) * random.f64().powi(8), payment))
        .collect();
    turns.sort_by(|one, other| one.0.total_cmp(&other.0));
    turns.into_iter().map(|(_, payment)| payment).collect()
}
