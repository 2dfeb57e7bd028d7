//! `checkout pay`: one payment, asked for until there is an answer.

use std::time::Duration;

use fastrand::Rng;
use hapax::BoxError;
use hyper::{Request, StatusCode};
use serde_json::json;

use crate::amount::Amount;
use crate::client::{Answer, Body, Server, send};

/// How long to wait before the second attempt, and at most before any.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// What is to be paid, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PayArgs {
    /// The service: `http://HOST:PORT`.
    #[arg(long)]
    url: Server,
    #[arg(long, value_name = "NAME")]
    account: String,
    /// Two decimals, such as 25.00.
    #[arg(long)]
    amount: Amount,
    /// The Idempotency-Key; by default a random UUID. To repeat a payment after this command was ended, give its key.
    #[arg(long)]
    key: Option<String>,
}

/// A payment that is to be made under a key. All its attempts have the same bytes.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) key: String,
    pub(crate) body: String,
}

impl Wish {
    pub(crate) fn new(key: String, account: &str, amount: Amount) -> Self {
        Self { key, body: json!({ "account": account, "amount": amount }).to_string() }
    }

    fn request(&self) -> Result<Request<Body>, BoxError> {
        Ok(Request::post("/payments")
            .header("content-type", "application/json")
            .header("idempotency-key", format!("\"{}\"", self.key))
            .body(Body::from(self.body.clone()))?)
    }

    /// Asks until there is an answer that is the last word. `again` is told why there was none, and how often so far.
    pub(crate) async fn until_answered(
        &self,
        server: &Server,
        mut again: impl FnMut(u32, String) -> Result<(), BoxError>,
    ) -> Result<Answer, BoxError> {
        let mut random = Rng::new();
        for attempt in 1.. {
            let (why, told) = match send(server, self.request()?).await {
                Ok(answer) if is_last_word(answer.status) => return Ok(answer),
                Ok(answer) => (answer.status.to_string(), retry_after(&answer)),
                Err(error) => (error.to_string(), None),
            };
            again(attempt, why)?;
            tokio::time::sleep(pause(attempt, told, random.f64())).await;
        }
        Err("asked too often".into())
    }
}

/// Everything but "not now", and what the service could not do.
fn is_last_word(status: StatusCode) -> bool {
    let is_for_now = matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::CONFLICT
            | StatusCode::TOO_EARLY
            | StatusCode::TOO_MANY_REQUESTS
    );
    !is_for_now && !status.is_server_error()
}

fn retry_after(answer: &Answer) -> Option<Duration> {
    answer.header("retry-after").parse().ok().map(Duration::from_secs)
}

/// What the server said, or a wait that doubles; with jitter, so that clients that failed together do not return
/// together.
fn pause(attempt: u32, told: Option<Duration>, jitter: f64) -> Duration {
    let doubled = FIRST.saturating_mul(1_u32.checked_shl(attempt - 1).unwrap_or(u32::MAX)).min(LONGEST);
    match told {
        Some(told) => told + FIRST.mul_f64(jitter),
        None => doubled.mul_f64(0.5 + jitter / 2.0),
    }
}

/// Makes the payment, and prints the answer; true if it was accepted.
pub(crate) async fn run(args: &PayArgs) -> Result<bool, BoxError> {
    let key = args.key.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    eprintln!("key {key}");
    let wish = Wish::new(key, &args.account, args.amount);
    let again = |attempt, why| {
        eprintln!("attempt {attempt}: {why}");
        Ok(())
    };
    let answer = wish.until_answered(&args.url, again).await?;
    let replayed = if answer.header("idempotency-replayed").is_empty() { "" } else { " (replayed)" };
    println!("{}{replayed}\n{}", answer.status, String::from_utf8_lossy(&answer.body));
    Ok(answer.status.is_success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_waits_longer_each_time_or_as_long_as_it_is_told() {
        let waits: Vec<_> = (1..=10).map(|attempt| pause(attempt, None, 1.0).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(pause(40, None, 0.0), LONGEST / 2);
        assert!(pause(1, Some(Duration::from_secs(7)), 0.0) >= Duration::from_secs(7));
    }

    #[test]
    fn what_says_not_now_is_no_last_word() {
        let is_last = |status| is_last_word(StatusCode::from_u16(status).unwrap());
        assert!([200, 201, 400, 404, 422].into_iter().all(is_last));
        assert!(![408, 409, 425, 429, 500, 503].into_iter().any(is_last));
    }
}
