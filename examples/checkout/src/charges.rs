//! Charging: asks the provider outside of any transaction, and writes down what it said in one.

use std::time::Duration;

use hapax::{
    BoxError, Calls, Consumer, Destination, Event, Failure, Message, OrReject as _, Retry, Source, Strategy,
};
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};

use crate::amount::Amount;
use crate::client::{Body, Server, send};
use crate::payments::{PaymentStore, Payments};

/// In this name payments are charged.
pub(crate) const CONSUMER: &str = "charges";
/// The queue, in the service's own database.
pub(crate) const QUEUE: &str = "charges";
/// After so long without a sign of life what a killed process was charging is taken over. A call that takes
/// longer is safe: its lease is renewed.
const LEASE: Duration = Duration::from_secs(3);

/// Asks for a payment to be charged; published together with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChargeRequested {
    pub(crate) payment: String,
    pub(crate) account: String,
    pub(crate) amount: Amount,
}

impl Event for ChargeRequested {
    const TYPE: &'static str = "ChargeRequested";

    fn destination(&self) -> Destination {
        Destination::queue(QUEUE)
    }
}

/// What the provider says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Charged {
    pub(crate) receipt: String,
}

/// The consumer: under the eager strategy, since it calls somebody, and with the call on record, so that a message
/// that comes again takes the receipt from there instead of asking for another.
pub(crate) fn consumer<S: PaymentStore, Src: Source>(
    store: &S,
    queue: Src,
    provider: Server,
) -> Result<Consumer<S, Src>, BoxError> {
    let calls = Calls::new(CONSUMER, store.clone())?.lease(LEASE)?;
    let charge = async move |asked: Message<ChargeRequested>| {
        let request = asked.payload();
        calls.of(&asked).run("charge", request, async |key| ask(&provider, request, key.as_str()).await).await
    };
    Ok(Consumer::new(CONSUMER, store.clone(), queue)?
        .strategy(Strategy::Eager { lease: LEASE })
        .concurrency(8)
        // Generous, since an attempt is spent on each answer that the provider loses.
        .retry(
            Retry::exponential().attempts(20).first(Duration::from_millis(100)).max(Duration::from_secs(2)),
        )
        .prepare(ChargeRequested::TYPE, charge)
        .on_event(note::<S::Tx>))
}

/// Marks the payment as charged, in the transaction that marks the message as done.
async fn note<Tx: Payments>(tx: &mut Tx, asked: Message<ChargeRequested>) -> hapax::Result {
    let charged: &Charged = asked.prepared().ok_or("not charged")?;
    if !tx.mark_charged(&asked.payment, &charged.receipt).await? {
        return Err(Failure::reject("there is no such payment"));
    }
    Ok(())
}

/// Charges at the provider. Without an answer nobody knows whether it has charged; asked again under the same key it
/// says so, and charges nobody twice.
async fn ask(provider: &Server, request: &ChargeRequested, key: &str) -> hapax::Result<Charged> {
    let body = serde_json::to_vec(request).or_reject()?;
    let request = Request::post("/charges")
        .header("content-type", "application/json")
        .header("idempotency-key", format!("\"{key}\""))
        .body(Body::from(body))
        .or_reject()?;
    let answer = send(provider, request).await?;
    match answer.status {
        status if status.is_success() => Ok(serde_json::from_slice(&answer.body).or_reject()?),
        status if status.is_client_error() && !is_for_now(status) => {
            Err(Failure::reject(format!("the provider refuses: {status}")))
        }
        status => Err(Failure::retry(format!("the provider cannot: {status}"))),
    }
}

/// Refusals that may pass by themselves.
fn is_for_now(status: StatusCode) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS)
}
