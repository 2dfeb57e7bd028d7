//! The services of the shop.

use hapax::{
    BoxError, BoxPublisher, BoxSource, Broker, Consumer, Destination, Event, Failure, Format, Message,
    Publication, Relay, Summary, Transaction as _,
};
use serde::{Deserialize, Serialize};

use crate::Shop;
use crate::books::Books;
use crate::payments::{PaymentReceived, publish_twice};

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
async fn mark_paid<B: Books>(tx: &mut B::Tx, payment: &PaymentReceived, mails: &str) -> hapax::Result {
    if !B::pay(tx, payment.order_id, payment.cents).await? {
        return Err(Failure::reject("there is no such order")); // set aside: nor will there be one later
    }
    let mail = Publication::of(&ConfirmationMail { order_id: payment.order_id })?;
    tx.publish(mail.to(Destination::queue(mails)))
}

/// The mail service. It counts; one that hands over to a mail server can do so twice if it dies in between.
async fn send_mail<B: Books>(tx: &mut B::Tx, mail: Message<ConfirmationMail>) -> hapax::Result {
    Ok(B::mail(tx, mail.order_id).await?)
}

/// The accounting service: the same event, and a record of its own.
async fn book<B: Books>(tx: &mut B::Tx, payment: Message<PaymentReceived>) -> hapax::Result {
    Ok(B::book(tx, payment.order_id, payment.cents).await?)
}

/// A consumer as all three services have it. It ends when nothing has come for a while, or at Ctrl-C.
fn consumer<B: Books>(
    name: &str,
    store: &B,
    source: BoxSource,
    shop: &Shop,
) -> Result<Consumer<B, BoxSource>, BoxError> {
    Ok(Consumer::new(name, store.clone(), source)?
        .format(Format::default().key("json:/order_id".parse()?)) // one order, one worker
        .strategy(shop.strategy)
        .until_idle(shop.patience()))
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
    async fn open<B: Books>(shop: &Shop, orders: &B) -> Result<Self, BoxError> {
        let [payments, mails, bookings] = shop.queues();
        let Some(url) = &shop.broker else {
            let embedded =
                |queue: &str| orders.embedded(queue).ok_or("this store has no queues: set HAPAX_BROKER");
            let ((payments, publisher), (mails, _), (bookings, _)) =
                (embedded(&payments)?, embedded(&mails)?, embedded(&bookings)?);
            return Ok(Self { publisher, payments, mails, bookings });
        };
        let broker = Broker::open(url).await?.declare();
        let publisher = broker.publisher();
        for queue in [&payments, &mails, &bookings] {
            publisher.declare(queue).await?;
        }
        let source = |queue: &str| broker.source(queue, queue); // each has one reader
        let (payments, mails, bookings) = (source(&payments), source(&mails), source(&bookings));
        Ok(Self { publisher: BoxPublisher::new(publisher), payments, mails, bookings })
    }
}

/// Runs the services side by side: orders with its relay, mails, and accounting, whose inbox is another one.
async fn serve<B: Books>(shop: &Shop, store: &B, lines: Lines) -> Result<[Summary; 3], BoxError> {
    let accounting = B::open(&shop.store, "accounting").await?;
    let [_, mails_queue, _] = shop.queues();
    let take_payment = async move |tx: &mut B::Tx, payment: Message<PaymentReceived>| {
        mark_paid::<B>(tx, &payment, &mails_queue).await
    };
    let orders = consumer("orders", store, lines.payments, shop)?.on_event(take_payment);
    let mails = consumer("mails", store, lines.mails, shop)?.on_event(send_mail::<B>);
    let books = consumer("accounting", &accounting, lines.bookings, shop)?.on_event(book::<B>);
    let (all_done, done) = tokio::sync::oneshot::channel::<()>();
    let relay = Relay::new(store.clone(), lines.publisher).run_until(async { drop(done.await) });
    let consumers = async {
        let (orders, mails, books) =
            (orders.run_until(interrupted()), mails.run_until(interrupted()), books.run_until(interrupted()));
        let summaries = tokio::try_join!(orders, mails, books);
        drop(all_done);
        summaries
    };
    let ((orders, mails, books), _) = tokio::try_join!(consumers, relay)?;
    Ok([orders, mails, books])
}

/// Opens three orders, has the payment of each announced twice, and shows what came of it.
pub(crate) async fn demonstrate<B: Books>(shop: &Shop) -> Result<(), BoxError> {
    let store = B::open(&shop.store, "hapax").await?;
    let mut payments = Vec::new();
    for cents in [2500, 990, 129_900] {
        payments.push(PaymentReceived::new(store.new_order(&shop.store).await?, cents));
    }
    let lines = Lines::open(shop, &store).await?;
    let [to_orders, _, to_accounting] = shop.queues();
    for queue in [to_orders, to_accounting] {
        publish_twice(&payments, &lines.publisher, &queue).await?;
    }
    let summaries = serve(shop, &store, lines).await?;

    println!("{:>6}  {:<6}  {:>9}  {:>7}  {:>9}", "order", "status", "paid", "e-mails", "booked");
    for payment in &payments {
        let (status, paid, emails, booked) = store.look_up(&shop.store, payment.order_id).await?;
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
