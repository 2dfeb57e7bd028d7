//! Publishing from `hapax run`, the relay and `hapax outbox`, on SQLite and embedded queues: no server is needed.

mod program;
mod shop;

use hapax_testkit::servers::eventually;
use program::{Folder, SOON};

/// Every payment is announced to a second consumer, which writes an e-mail.
const ANNOUNCED: &str = r#"
[[consumers.orders.on.Paid.publish]]
to = { queue = "mails" }
type = "OrderPaid"
key = ":order"
body = { order = ":order", amount = ":amount", note = "::none" }

[consumers.mails]
source = { queue = "mails" }
retry = { attempts = 2, first = "50ms", max = "50ms", jitter = false }

[consumers.mails.on.OrderPaid.params]
order = { json = "/order", type = "int" }
amount = { json = "/amount", type = "decimal" }

[[consumers.mails.on.OrderPaid.sql]]
run = "INSERT INTO ledger (id, order_id, amount) VALUES ('mail', :order, :amount)"
"#;

/// A broker that nobody can reach.
const AWAY: &str = r#"
[[consumers.orders.on.Paid.publish]]
to = { broker = "rabbit", exchange = "events", routing_key = "order.paid" }
type = "OrderPaid"
key = ":order"
body = { order = ":order" }

[brokers.rabbit]
kind = "rabbitmq"
url = "amqp://shop:hunter2@127.0.0.1:1"

[admin]
drain = "1s"
"#;

/// The shop with more configuration, and payments for these orders in its queue.
async fn shop_with(more: &str, orders: &[u32]) -> Folder {
    let shop = shop::folder(&[]);
    shop.write("hapax.toml", &(shop::changed(&[]) + more));
    let lines = orders.iter().map(|order| shop::paid(&format!("p-{order}"), *order));
    shop.write("lines.jsonl", &lines.collect::<String>());
    shop.run("migrate -c @hapax.toml").await.exit(0);
    shop.run("send @lines.jsonl --queue orders -c @hapax.toml --twice").await.exit(0);
    shop
}

async fn booked(shop: &Folder, id: &str) -> Vec<(i64, String)> {
    let rows = "SELECT order_id, amount FROM ledger WHERE id = $1 ORDER BY n";
    sqlx::query_as(rows).bind(id).fetch_all(&mut shop.database("shop.db").await).await.expect("the ledger")
}

#[tokio::test]
async fn what_a_handler_publishes_reaches_the_next_consumer_once() {
    let shop = shop_with(ANNOUNCED, &[1, 2, 3]).await;
    let summary = shop.run("run @hapax.toml --until-idle 1s --json").await.json(0).remove(0);
    assert_eq!((&summary["handled"], &summary["duplicates"]), (&6.into(), &3.into()), "{summary}");
    let mails = booked(&shop, "mail").await;
    assert_eq!(mails, [1, 2, 3].map(|order| (order, "12.50".to_owned())));
    assert_eq!(shop.run("outbox list -c @hapax.toml").await.exit(0), "");
    let ids = "SELECT id FROM hapax_inbox WHERE consumer = 'mails'";
    let ids: Vec<String> =
        sqlx::query_scalar(ids).fetch_all(&mut shop.database("shop.db").await).await.expect("ids");
    assert!(ids.len() == 3 && ids.iter().all(|id| id.len() == 36), "{ids:?}");
}

#[tokio::test]
async fn case_29_a_handler_that_runs_again_publishes_under_the_same_ids() {
    let shop = shop_with(AWAY, &[1]).await;
    shop.run("run @hapax.toml --until-idle 300ms").await.exit(0);
    let ids = async || {
        let rows = shop.run("outbox list -c @hapax.toml --json").await.json(0);
        rows.into_iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    let first = ids().await;
    // As if the first run had been forgotten: the record is gone, and the message comes again.
    sqlx::raw_sql("DELETE FROM hapax_inbox")
        .execute(&mut shop.database("shop.db").await)
        .await
        .expect("gone");
    shop.run("send @lines.jsonl --queue orders -c @hapax.toml").await.exit(0);
    shop.run("run @hapax.toml --until-idle 300ms").await.exit(0);
    assert_eq!(ids().await, [first.clone(), first].concat());
}

#[tokio::test]
async fn case_26_while_the_broker_is_away_messages_wait_and_the_reason_can_be_read() {
    let shop = shop_with(AWAY, &[1, 2]).await;
    let mut running = shop.hapax("run @hapax.toml").start().expect("it starts");
    eventually("a reason is noted", SOON, async || {
        let listed = shop.run("outbox list -c @hapax.toml").await.exit(0);
        listed.lines().count() == 2 && listed.contains("HX0015")
    })
    .await;
    let rows = shop.run("outbox list -c @hapax.toml --key 1 --json").await.json(0);
    assert_eq!(rows.len(), 1);
    assert_eq!((&rows[0]["state"], &rows[0]["attempts"]), (&"unsent".into(), &0.into()), "{}", rows[0]);
    assert_eq!((&rows[0]["broker"], &rows[0]["cause"]), (&"rabbit".into(), &"p-1".into()));
    assert_eq!(booked(&shop, "p-1").await.len(), 1, "handling does not wait for the broker");
    running.terminate().expect("it is told to end");
    running.wait_exit(SOON).await;

    let number = &rows[0]["number"];
    let shown = shop.run(&format!("outbox show {number} -c @hapax.toml")).await.exit(0);
    assert!(
        shown.contains("to        rabbit:events/order.paid") && shown.ends_with("{\"order\":1}\n"),
        "{shown}"
    );
    let refused = shop.run(&format!("outbox discard {number} -c @hapax.toml")).await;
    assert!(refused.exit(2).is_empty() && refused.stderr().contains("HX0062"), "{refused}");
    let discard = format!("outbox discard {number} -c @hapax.toml --yes --json");
    let discarded = shop.run(&discard).await.json(0).remove(0);
    assert_eq!((&discarded["discarded"], &discarded["lost"]), (&1.into(), &0.into()));
    let gone = shop.run(&discard).await;
    assert!(gone.exit(1).is_empty() && gone.stderr().contains("HX0060"), "{gone}");
}

#[tokio::test]
async fn case_27_a_message_that_cannot_be_sent_is_parked_and_unparked() {
    // Nobody but this configuration knows the broker: to the relay of the other its rows are a riddle.
    let shop = shop_with(AWAY, &[1]).await;
    shop.run("run @hapax.toml --until-idle 300ms").await.exit(0);
    let other = shop::changed(&[]) + "\n[relay]\npark_after = 1\n";
    shop.write("other.toml", &other);
    let summary = shop.run("relay @other.toml --until-idle 300ms --json").await.json(1).remove(0);
    let counts = ["published", "refused", "parked", "left"].map(|name| summary[name].as_i64());
    assert_eq!(counts, [0, 1, 1, 1].map(Some), "{summary}");
    let listed = shop.run("outbox list -c @other.toml --state parked").await.exit(0);
    assert!(listed.contains("HX0026") && listed.contains("no broker named `rabbit`"), "{listed}");

    shop.write("known.toml", &other.replace("[relay]", "[relay]\non_failure = \"skip\""));
    assert_eq!(shop.run("outbox unpark --parked -c @other.toml --yes").await.exit(0), "1 unparked\n");
    let unparked = shop.run("outbox list -c @other.toml --json").await.json(0);
    assert_eq!((&unparked[0]["state"], &unparked[0]["attempts"]), (&"unsent".into(), &0.into()));
}

#[tokio::test]
async fn a_copy_of_a_dead_letter_goes_to_the_queue_that_is_named() {
    let dead = "key = \"json:/order\"\ndead_letters = { to = \"orders.dead\" }";
    let shop = shop::folder(&[("key = \"json:/order\"", dead)]);
    shop.write("lines.jsonl", &shop::paid("p-9", 9));
    shop.run("migrate -c @hapax.toml").await.exit(0);
    shop.run("send @lines.jsonl --queue orders -c @hapax.toml").await.exit(0);
    assert_eq!(shop.run("run @hapax.toml --until-idle 300ms --json").await.json(0)[0]["dead"], 1);
    let copies = "SELECT label FROM hapax_queue WHERE queue = 'orders.dead'";
    let mut database = shop.database("shop.db").await;
    let copies: Vec<String> = sqlx::query_scalar(copies).fetch_all(&mut database).await.expect("the queue");
    assert_eq!(copies.len(), 1);
    assert!(copies[0].contains("hapax-dead-letter") && copies[0].contains("HX0054"), "{copies:?}");

    // Whoever moves it back wants it handled again, and there is such an order now.
    sqlx::raw_sql("INSERT INTO orders (id) VALUES (9); UPDATE hapax_queue SET queue = 'orders'")
        .execute(&mut database)
        .await
        .expect("it is moved");
    let summary = shop.run("run @hapax.toml --until-idle 300ms --json").await.json(0).remove(0);
    assert_eq!((&summary["handled"], &summary["duplicates"]), (&1.into(), &1.into()), "{summary}");
    assert_eq!(booked(&shop, "p-9").await.len(), 1);
    assert_eq!(shop.run("dead list -c @hapax.toml").await.exit(0), "");
}
