//! Consumers as people write them: a pool, and a transaction for each message.

use hapax::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::ground::{Arena, Ground};
use super::pace::Pace;
use super::payments::Payment;
use super::stock::Stock;
use crate::trouble::Trouble;

/// BEGIN, UPDATE, COMMIT.
pub(super) async fn run<D: Arena>(
    ground: &Ground<D>,
    workers: u32,
    stock: &Stock,
    stop: &CancellationToken,
) -> Result<Pace, Trouble> {
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (ground, stock, stop) = (ground.clone(), stock.clone(), stop.clone());
        running.spawn(async move {
            while let Some((envelope, handed_out)) = next(&stock, &stop) {
                let payment = read(&envelope.body)?;
                handle(&ground, payment).await.map_err(|error| ground.failed(error))?;
                stock.settle(std::iter::once(handed_out));
            }
            Ok(())
        });
    }
    finish(running, stock).await
}

/// Check, UPDATE, INSERT.
pub(super) async fn run_seed_form<D: Arena>(
    ground: &Ground<D>,
    workers: u32,
    stock: &Stock,
    stop: &CancellationToken,
) -> Result<Pace, Trouble> {
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (ground, stock, stop) = (ground.clone(), stock.clone(), stop.clone());
        running.spawn(async move {
            while let Some((envelope, handed_out)) = next(&stock, &stop) {
                let id = envelope.properties.message_id.as_deref().unwrap_or_default();
                let payment = read(&envelope.body)?;
                handle_unseen(&ground, id, payment).await.map_err(|error| ground.failed(error))?;
                stock.settle(std::iter::once(handed_out));
            }
            Ok(())
        });
    }
    finish(running, stock).await
}

fn next(stock: &Stock, stop: &CancellationToken) -> Option<(hapax::Envelope, std::time::Instant)> {
    if stop.is_cancelled() { None } else { stock.take() }
}

pub(super) fn read(body: &[u8]) -> Result<Payment, Error> {
    serde_json::from_slice(body).map_err(super::ground::defect)
}

pub(super) async fn handle<D: Arena>(ground: &Ground<D>, payment: Payment) -> Result<(), sqlx::Error> {
    let mut tx = D::begin(&ground.pool).await?;
    D::add(&mut tx, &ground.texts.add, payment).await?;
    tx.commit().await
}

async fn handle_unseen<D: Arena>(ground: &Ground<D>, id: &str, payment: Payment) -> Result<(), sqlx::Error> {
    let mut tx = D::begin(&ground.pool).await?;
    if D::is_seen(&mut tx, &ground.texts.is_seen, id).await? {
        return tx.rollback().await;
    }
    D::add(&mut tx, &ground.texts.add, payment).await?;
    D::see(&mut tx, &ground.texts.see, id).await?;
    tx.commit().await
}

/// Waits for all workers; the first error is the pass's.
async fn finish(mut running: JoinSet<Result<(), Error>>, stock: &Stock) -> Result<Pace, Trouble> {
    let mut outcome = Ok(());
    while let Some(ended) = running.join_next().await {
        outcome = outcome.and(ended.map_err(super::ground::defect).flatten());
    }
    outcome?;
    Ok(stock.pace())
}
