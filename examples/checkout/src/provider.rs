//! `checkout provider`: somebody else's payment service, in memory. It charges once under a key, is slow on purpose,
//! and loses answers: it does what it was asked, and then breaks the connection.

mod book;
mod unreliable;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use hapax::BoxError;
use tokio::net::TcpListener;

use crate::charges::ChargeRequested;
use crate::problem::{Problem, json, read};
use book::{Book, Reused};
use unreliable::{Chance, lost};

pub(crate) use book::Charge;

/// How the provider behaves.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProviderArgs {
    /// Where to answer HTTP.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    listen: SocketAddr,
    /// Loses the answers to this share of all charges.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = crate::check::share)]
    lose: f64,
    /// Takes so many milliseconds for a charge.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    slow: u64,
    /// What chance is drawn from; by default another number each time.
    #[arg(long)]
    seed: Option<u64>,
}

struct Provider {
    book: Book,
    chance: Chance,
    slow: Duration,
}

/// Runs until it is told to stop.
pub(crate) async fn run(args: &ProviderArgs) -> Result<(), BoxError> {
    let chance = Chance::new(args.lose, args.seed.unwrap_or_else(|| fastrand::u64(..)));
    let provider = Provider { book: Book::default(), chance, slow: Duration::from_millis(args.slow) };
    let routes = Router::new()
        .route("/charges", post(charge).get(list))
        .fallback(async || Problem::not_found("there is nothing at this address"))
        .method_not_allowed_fallback(async || Problem::wrong_method())
        .with_state(Arc::new(provider));
    let listener = TcpListener::bind(args.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    tokio::select! {
        ended = unreliable::serve(listener, routes) => ended,
        () = crate::told_to_stop() => Ok(()),
    }
}

/// Charges, once under a key; another request under it is refused.
async fn charge(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    tokio::time::sleep(provider.slow).await;
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    if key.is_empty() {
        return Err(Problem::malformed("key-missing", "the header Idempotency-Key is missing"));
    }
    let request: ChargeRequested = read(body)?;
    let charged = provider.book.charge(key, &request).map_err(|Reused| {
        Problem::unprocessable("key-reused", "another charge was asked for under this Idempotency-Key")
    })?;
    Ok(if provider.chance.is_bad() { lost() } else { json(StatusCode::CREATED, &charged) })
}

/// What was charged, by key.
async fn list(State(provider): State<Arc<Provider>>) -> Response {
    json(StatusCode::OK, &provider.book.charges())
}
