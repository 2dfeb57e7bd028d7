//! `hapax bench --http`: requests with a key beside the handler that has none in front of it.

use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use hapax::http::Tx;
use hapax::sql::SqlStore;
use hapax::{Code, Error, ErrorKind};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::contender::{Contender, Mode};
use super::ground::{Arena, Ground, defect};
use super::pace::Pace;
use super::payments::Payment;
use super::stock::Stock;
use crate::trouble::Trouble;

/// Sends every payment as a request under its id, and wants each to be answered with 201.
pub(super) async fn run<D: Arena>(
    ground: &Ground<D>,
    (contender, mode): (Contender, Mode),
    workers: u32,
    stock: &Stock,
    stop: &CancellationToken,
) -> Result<Pace, Trouble> {
    let app = app(ground, contender, mode)?;
    let mut running = JoinSet::new();
    for _ in 0..workers {
        running.spawn(send(app.clone(), stock.clone(), stop.clone()));
    }
    let mut outcome = Ok(());
    while let Some(ended) = running.join_next().await {
        outcome = outcome.and(ended.map_err(defect).flatten());
    }
    outcome?;
    Ok(stock.pace())
}

/// In this process and without a socket, which would cost each of them the same.
async fn send(app: Router, stock: Stock, stop: CancellationToken) -> Result<(), Error> {
    while let Some((envelope, handed_out)) = stock.take().filter(|_| !stop.is_cancelled()) {
        let id = envelope.properties.message_id.unwrap_or_default();
        let request = Request::post("/payments")
            .header("content-type", "application/json")
            .header("idempotency-key", format!("\"{id}\""))
            .body(Body::from(envelope.body))
            .map_err(defect)?;
        let Ok(response) = app.clone().oneshot(request).await;
        if response.status() != StatusCode::CREATED {
            let context = format!("a request was answered with {}", response.status());
            return Err(Error::new(ErrorKind::Broken, Code::TotalsWrong, context));
        }
        stock.settle(std::iter::once::<Instant>(handed_out));
    }
    Ok(())
}

fn app<D: Arena>(ground: &Ground<D>, contender: Contender, mode: Mode) -> Result<Router, Error> {
    let consumer = contender.name(); // each has its own records, since all get the same requests
    let store = ground.store.clone();
    let bare = || post(pay_on_pool::<D>).with_state(ground.clone());
    let route = match mode {
        Mode::Bare => bare(),
        Mode::Recorded => {
            bare().route_layer(hapax::http::Idempotency::recorded(consumer, store)?.one_tenant())
        }
        Mode::Transactional => post(pay_in_transaction::<D>)
            .with_state(ground.clone())
            .route_layer(hapax::http::Idempotency::transactional(consumer, store)?.one_tenant()),
    };
    Ok(Router::new().route("/payments", route))
}

/// BEGIN, UPDATE, COMMIT on a pool of sqlx's, as people write it.
async fn pay_on_pool<D: Arena>(
    State(ground): State<Ground<D>>,
    body: Bytes,
) -> Result<(StatusCode, String), StatusCode> {
    let payment = read(&body)?;
    let paid = async {
        let mut tx = D::begin(&ground.pool).await?;
        D::add(&mut tx, &ground.texts.add, payment).await?;
        tx.commit().await
    };
    paid.await.map_err(|error| failed(&error))?;
    Ok(answer(payment))
}

async fn pay_in_transaction<D: Arena>(
    State(ground): State<Ground<D>>,
    mut tx: Tx<SqlStore<D>>,
    body: Bytes,
) -> Result<(StatusCode, String), StatusCode> {
    let payment = read(&body)?;
    D::add(tx.conn(), &ground.texts.add, payment).await.map_err(|error| failed(&error))?;
    Ok(answer(payment))
}

fn read(body: &[u8]) -> Result<Payment, StatusCode> {
    serde_json::from_slice(body).map_err(|_| StatusCode::BAD_REQUEST)
}

fn answer(payment: Payment) -> (StatusCode, String) {
    (StatusCode::CREATED, format!(r#"{{"order_id":{},"amount":{}}}"#, payment.order_id, payment.amount))
}

fn failed(error: &sqlx::Error) -> StatusCode {
    tracing::warn!(%error, "a statement of the measurement failed");
    StatusCode::INTERNAL_SERVER_ERROR
}
