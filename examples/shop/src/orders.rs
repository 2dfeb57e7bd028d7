//! The services of the shop. `Store`, `Tx` and `Connection` are those of the module around: SQLite or PostgreSQL.

use std::time::Duration;

use hapax::rabbitmq::RabbitMq;
use hapax::sqlx::{self, Connection as _};
use hapax::{
    BoxError, BoxPublisher, BoxSource, Consumer, Destination, Event, Failure, Format, Message, Publication,
    Relay, Source, Strategy, Summary,
};
use serde::{Deserialize, Serialize};

use super::{Connection, Store, Tx};
use crate::Shop;
use crate::payments::{PaymentReceived, publish_twice};

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS shop_orders (
    id           BIGINT PRIMARY KEY,
    status       TEXT   NOT NULL DEFAULT 'open',
    paid_cents   BIGINT NOT NULL DEFAULT 0,
    emails       BIGINT NOT NULL DEFAULT 0,
    booked_cents BIGINT NOT NULL DEFAULT 0
)";

/// An e-mail that is to be sent.
#[derive(Serialize, Deserialize)]
struct ConfirmationMail {
    order_id: i64,
}

impl Event for ConfirmationMail {
    const TYPE: &'static str = "ConfirmationMail";

    /// Mails for one order leave in their order.
    fn key(&self) -> Option<String> {
        Some(format!("order-{}", self.order_id))
    }
}

/// Marks the order paid and asks for the confirmation. Run twice it would add twice, but it commits together
/// with the record of the payment's id, and a copy finds that record. The mail is asked for in the same
/// transaction: neither is there without the other.
async fn mark_paid(tx: &mut Tx, payment: &PaymentReceived, mails: &str) -> hapax::Result {
    let paid = "UPDATE shop_orders SET status = 'paid', paid_cents = paid_cents + $1 WHERE id = $2";
    let paid = sqlx::query(paid).bind(payment.cents).bind(payment.order_id).execute(tx.conn()).await?;
    if paid.rows_affected() == 0 {
        return Err(Failure::reject("there is no such order")); // set aside: nor will there be one later
    }
    let mail = Publication::of(&ConfirmationMail { order_id: payment.order_id })?;
    tx.publish(mail.to(Destination::queue(mails)))
}

/// The mail service. It counts; one that hands over to a mail server can do so twice if it dies in between.
async fn send_mail(tx: &mut Tx, mail: Message<ConfirmationMail>) -> hapax::Result {
    let sent = "UPDATE shop_orders SET emails = emails + 1 WHERE id = $1";
    sqlx::query(sent).bind(mail.order_id).execute(tx.conn()).await?;
    Ok(())
}

/// The accounting service: the same event, and a record of its own.
async fn book(tx: &mut Tx, payment: Message<PaymentReceived>) -> hapax::Result {
    let booked = "UPDATE shop_orders SET booked_cents = booked_cents + $1 WHERE id = $2";
    sqlx::query(booked).bind(payment.cents).bind(payment.order_id).execute(tx.conn()).await?;
    Ok(())
}

/// A consumer as all three services have it. It ends when nothing has come for a second, or at Ctrl-C.
fn consumer<S: Source>(
    name: &str,
    store: &Store,
    source: S,
    strategy: Strategy,
) -> Result<Consumer<Store, S>, BoxError> {
    Ok(Consumer::new(name, store.clone(), source)?
        .format(Format::default().key("json:/order_id".parse()?)) // one order, one worker
        .strategy(strategy)
        .until_idle(Duration::from_secs(1)))
}

async fn interrupted() {
    drop(tokio::signal::ctrl_c().await);
}

/// Where messages are published and taken from: a broker, or queues in the stores themselves.
struct Lines {
    publisher: BoxPublisher,
    payments: BoxSource,
    mails: BoxSource,
    bookings: BoxSource,
}

impl Lines {
    async fn open(shop: &Shop, orders: &Store) -> Result<Self, BoxError> {
        let [payments, mails, bookings] = shop.queues();
        let Some(url) = &shop.broker else {
            let source = |queue: &str| BoxSource::new(orders.queue(queue));
            let (payments, mails, bookings) = (source(&payments), source(&mails), source(&bookings));
            return Ok(Self { publisher: BoxPublisher::new(orders.queues()), payments, mails, bookings });
        };
        let broker = RabbitMq::new(url)?;
        let publisher = broker.publisher();
        for queue in [&payments, &mails, &bookings] {
            publisher.declare_queue(queue).await?;
        }
        let source = |queue: &str| BoxSource::new(broker.source(queue));
        let (payments, mails, bookings) = (source(&payments), source(&mails), source(&bookings));
        Ok(Self { publisher: BoxPublisher::new(publisher), payments, mails, bookings })
    }
}

/// Runs the services side by side: orders with its relay, mails, and accounting, whose inbox is another one.
async fn serve(shop: &Shop, store: &Store, lines: Lines) -> Result<[Summary; 3], BoxError> {
    let accounting = Store::builder(&shop.store).schema("accounting").connect().await?;
    accounting.migrate().await?;
    let [_, mails_queue, _] = shop.queues();
    let take_payment = async move |tx: &mut Tx, payment: Message<PaymentReceived>| {
        mark_paid(tx, &payment, &mails_queue).await
    };
    let orders = consumer("orders", store, lines.payments, shop.strategy)?.on_event(take_payment);
    let mails = consumer("mails", store, lines.mails, shop.strategy)?.on_event(send_mail);
    let books = consumer("accounting", &accounting, lines.bookings, shop.strategy)?.on_event(book);
    let relay = Relay::new(store.clone(), lines.publisher).until_idle(Duration::from_secs(1));
    let (orders, mails, books, _) = tokio::try_join!(
        orders.run_until(interrupted()),
        mails.run_until(interrupted()),
        books.run_until(interrupted()),
        relay.run_until(interrupted()),
    )?;
    Ok([orders, mails, books])
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
    let lines = Lines::open(shop, &store).await?;
    let [to_orders, _, to_accounting] = shop.queues();
    for queue in [to_orders, to_accounting] {
        publish_twice(&payments, &lines.publisher, &queue).await?;
    }
    let summaries = serve(shop, &store, lines).await?;

    println!("{:>6}  {:<6}  {:>9}  {:>7}  {:>9}", "order", "status", "paid", "e-mails", "booked");
    for payment in &payments {
        let (status, paid, emails, booked) = look_up(&mut database, payment.order_id).await?;
        let (paid, booked) = (money(paid), money(booked));
        println!("{:>6}  {status:<6}  {paid:>9}  {emails:>7}  {booked:>9}", payment.order_id);
    }
    for (name, summary) in ["orders", "mails", "accounting"].iter().zip(summaries) {
        println!("{name}: {} handled, {} duplicates", summary.handled, summary.duplicates);
    }
    Ok(())
}

fn money(cents: i64) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

async fn open_order(database: &mut Connection) -> Result<i64, sqlx::Error> {
    let next = "INSERT INTO shop_orders (id) SELECT COALESCE(MAX(id), 0) + 1 FROM shop_orders RETURNING id";
    sqlx::query_scalar(next).fetch_one(database).await
}

async fn look_up(database: &mut Connection, order: i64) -> Result<(String, i64, i64, i64), sqlx::Error> {
    let row = "SELECT status, paid_cents, emails, booked_cents FROM shop_orders WHERE id = $1";
    sqlx::query_as(row).bind(order).fetch_one(database).await
}
