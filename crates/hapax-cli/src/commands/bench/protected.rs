//! Consumers as Hapax runs them, with every default on.

use std::path::Path;

use hapax::sql::{SqlStore, SqlTx};
use hapax::{
    Body, BoxSource, ClaimRequest, Code, Consumer, ConsumerName, Error, ErrorKind, Format, Message, Part,
    Pointer, Store as _, Summary,
};
use tokio_util::sync::CancellationToken;

use super::contender::Contender;
use super::ground::{Arena, Ground, defect};
use super::pace::Pace;
use super::payments::{KIND, Payment};
use super::stock::Stock;
use crate::config::Config;
use crate::config::handler::Sql;
use crate::config::interpolate::Surroundings;
use crate::config::parameter::Parameter;
use crate::sql::{SqlHandler, Step};
use crate::trouble::Trouble;

/// The configuration whose handler `sql-handlers` runs; only the handler of it is used.
const CONFIG: &str = r#"
version = 1
[store]
url = "sqlite:bench.db"
[consumers.bench]
source = { queue = "bench" }
[consumers.bench.on.PaymentReceived]
params.order_id = { json = "/order_id", type = "int" }
params.amount = { json = "/amount", type = "int" }
sql = [{ run = "{statement}", expect_rows = 1 }]
"#;

/// Lets the contender's consumer handle everything.
pub(super) async fn run<D: Arena>(
    ground: &Ground<D>,
    contender: Contender,
    workers: u32,
    stock: &Stock,
    stop: &CancellationToken,
) -> Result<Pace, Trouble> {
    let summary = consume(ground, contender, workers, stock, stop).await?;
    is_clean(contender, summary, summary.duplicates)?;
    Ok(stock.pace())
}

/// The same once more, when everything has been handled.
pub(super) async fn run_again<D: Arena>(
    ground: &Ground<D>,
    contender: Contender,
    workers: u32,
    stock: &Stock,
    stop: &CancellationToken,
) -> Result<Pace, Trouble> {
    let summary = consume(ground, contender, workers, stock, stop).await?;
    is_clean(contender, summary, summary.handled)?;
    Ok(stock.pace())
}

/// A message that was not handled as planned spoils the measurement, even if the totals are right.
fn is_clean(contender: Contender, summary: Summary, unexpected: u64) -> Result<(), Error> {
    if unexpected == 0 && summary.dead == 0 && summary.waiting == 0 && summary.retried == 0 {
        return Ok(());
    }
    let context = format!("`{}` did not handle each message once: {summary:?}", contender.name());
    Err(Error::new(ErrorKind::Broken, Code::TotalsWrong, context))
}

async fn consume<D: Arena>(
    ground: &Ground<D>,
    contender: Contender,
    workers: u32,
    stock: &Stock,
    stop: &CancellationToken,
) -> Result<Summary, Trouble> {
    let stop = stop.clone().cancelled_owned();
    let summary = match contender {
        Contender::OnBatch { .. } => {
            let sql = ground.texts.add_all.clone();
            let handler = async move |tx: &mut SqlTx<D>, messages: Vec<Message<Payment>>| -> hapax::Result {
                let payments: Vec<Payment> = messages.iter().map(|message| *message.payload()).collect();
                D::add_all(tx.conn(), &sql, &payments).await?;
                Ok(())
            };
            let consumer = consumer(ground, contender, workers, stock)?;
            consumer.on_batch(KIND, handler).run_until(stop).await?
        }
        Contender::SqlHandlers { .. } => {
            let consumer = consumer(ground, contender, workers, stock)?;
            let handler = sql_handler(ground).await?;
            consumer.on_handler::<Body, _>(KIND, handler).run_until(stop).await?
        }
        _ => {
            let sql = ground.texts.add.clone();
            let handler = async move |tx: &mut SqlTx<D>, payment: Message<Payment>| -> hapax::Result {
                D::add(tx.conn(), &sql, *payment).await?;
                Ok(())
            };
            consumer(ground, contender, workers, stock)?.on(KIND, handler).run_until(stop).await?
        }
    };
    Ok(summary)
}

/// Everything by default but the size of the batch, the number of workers, and the key: without it, workers
/// whose batches touch the same rows in different orders would deadlock. The source is boxed, as in `hapax run`.
fn consumer<D: Arena>(
    ground: &Ground<D>,
    contender: Contender,
    workers: u32,
    stock: &Stock,
) -> Result<Consumer<SqlStore<D>, BoxSource>, Error> {
    let source = BoxSource::new(stock.clone());
    Ok(Consumer::new(contender.name(), ground.store.clone(), source)?
        .format(Format::default().key(Part::KeyProperty))
        .batch(contender.batch())
        .concurrency(usize::try_from(workers).unwrap_or(usize::MAX)))
}

/// The handler that `hapax run` makes of a configuration.
async fn sql_handler<D: Arena>(ground: &Ground<D>) -> Result<SqlHandler, Trouble> {
    let text = CONFIG.replace("{statement}", &ground.add_by_name());
    let config = Config::parse("bench", &text, Path::new(""), &Surroundings::of_process())?;
    let handlers = config.consumers.into_values().flat_map(|consumer| consumer.on.into_values());
    let mut parameters: Vec<Parameter> = Vec::new();
    let mut steps = Vec::new();
    for handler in handlers {
        parameters.extend(handler.params.into_values().map(|parameter| parameter.value));
        for sql in handler.sql {
            steps.push(prove(ground, sql, &parameters).await?);
        }
    }
    let pointed = parameters.into_iter().map(|parameter| {
        let pointer: Pointer = parameter.json.as_str().parse().map_err(defect)?;
        Ok((parameter, pointer))
    });
    Ok(SqlHandler::new(pointed.collect::<Result<_, Error>>()?, steps, Vec::new()))
}

async fn prove<D: Arena>(ground: &Ground<D>, sql: Sql, parameters: &[Parameter]) -> Result<Step, Error> {
    let scope = ConsumerName::new("bench").map_err(defect)?;
    let (mut tx, _) = ground.store.begin_claim(&ClaimRequest::none(&scope)).await?;
    let proven = D::prove(tx.conn(), &sql.run.value, parameters).await;
    ground.store.roll_back(tx).await;
    let statement = proven.map_err(defect)?;
    Ok(Step { statement, expect_rows: sql.expect_rows, on_mismatch: sql.on_mismatch })
}
