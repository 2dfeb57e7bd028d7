//! The orders service. `Store`, `Tx` and `Connection` are those of the module around: SQLite or PostgreSQL.

use std::time::Duration;

use hapax::rabbitmq::RabbitMq;
use hapax::sqlx::{self, Connection as _};
use hapax::{BoxError, Consumer, Failure, Format, Message, Source, Strategy, Summary};

use super::{Connection, Store, Tx};
use crate::Shop;
use crate::payments::{PaymentReceived, publish_twice};

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS shop_orders (
    id         BIGINT PRIMARY KEY,
    status     TEXT   NOT NULL DEFAULT 'open',
    paid_cents BIGINT NOT NULL DEFAULT 0,
    emails     BIGINT NOT NULL DEFAULT 0
)";

/// Marks the order paid and counts the confirmation. Run twice it would add and count twice, but it commits
/// together with the record of the payment's id, and a copy finds that record.
async fn mark_paid(tx: &mut Tx, payment: Message<PaymentReceived>) -> hapax::Result {
    let paid = "UPDATE shop_orders SET status = 'paid', paid_cents = paid_cents + $1 WHERE id = $2";
    let paid = sqlx::query(paid).bind(payment.cents).bind(payment.order_id).execute(tx.conn()).await?;
    if paid.rows_affected() == 0 {
        return Err(Failure::reject("there is no such order")); // set aside: nor will there be one later
    }
    let confirmed = "UPDATE shop_orders SET emails = emails + 1 WHERE id = $1";
    sqlx::query(confirmed).bind(payment.order_id).execute(tx.conn()).await?;
    Ok(())
}

/// Handles what is in the queue, and ends when nothing has come for a second, or at Ctrl-C.
async fn consume(store: Store, source: impl Source, strategy: Strategy) -> Result<Summary, BoxError> {
    let summary = Consumer::new("orders", store, source)?
        .on_event(mark_paid)
        .format(Format::default().key("json:/order_id".parse()?)) // one order, one worker
        .strategy(strategy)
        .until_idle(Duration::from_secs(1))
        .run_until(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    Ok(summary)
}

/// Opens three orders, has the payment of each announced twice, and shows what came of it.
pub(crate) async fn demonstrate(shop: &Shop) -> Result<(), BoxError> {
    let store = Store::connect(&shop.store).await?;
    store.migrate().await?; // the tables of Hapax, in a schema of their own or under a prefix
    let mut database = Connection::connect(&shop.store).await?;
    sqlx::query(SCHEMA).execute(&mut database).await?;

    let mut payments = Vec::new();
    for cents in [2500, 990, 129_900] {
        payments.push(PaymentReceived::new(open_order(&mut database).await?, cents));
    }
    let summary = match &shop.broker {
        None => {
            publish_twice(&payments, &store, &shop.queue).await?;
            consume(store.clone(), store.queue(&shop.queue), shop.strategy).await?
        }
        Some(url) => {
            let broker = RabbitMq::new(url)?;
            let publisher = broker.publisher();
            publisher.declare_queue(&shop.queue).await?;
            publish_twice(&payments, &publisher, &shop.queue).await?;
            publisher.close().await;
            consume(store, broker.source(&shop.queue), shop.strategy).await?
        }
    };

    println!("{:>6}  {:<6}  {:>9}  {:>7}", "order", "status", "paid", "e-mails");
    for payment in &payments {
        let (status, cents, emails) = look_up(&mut database, payment.order_id).await?;
        let paid = format!("{}.{:02}", cents / 100, cents % 100);
        println!("{:>6}  {status:<6}  {paid:>9}  {emails:>7}", payment.order_id);
    }
    println!("{} handled, {} duplicates", summary.handled, summary.duplicates);
    Ok(())
}

async fn open_order(database: &mut Connection) -> Result<i64, sqlx::Error> {
    let next = "INSERT INTO shop_orders (id) SELECT COALESCE(MAX(id), 0) + 1 FROM shop_orders RETURNING id";
    sqlx::query_scalar(next).fetch_one(database).await
}

async fn look_up(database: &mut Connection, order: i64) -> Result<(String, i64, i64), sqlx::Error> {
    let row = "SELECT status, paid_cents, emails FROM shop_orders WHERE id = $1";
    sqlx::query_as(row).bind(order).fetch_one(database).await
}
