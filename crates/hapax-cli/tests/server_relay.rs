//! The relay of the program, killed where it hurts.

mod program;
mod shop;

mod server {
    use hapax::rabbitmq::RabbitMq;
    use hapax_testkit::servers::{Server, rabbitmq_url, require, unique};

    use super::program::{Ended, Folder, SOON};
    use super::shop;

    /// Every payment is announced on RabbitMQ, to a consumer in the same file.
    fn announced(queue: &str) -> String {
        shop::changed(&[])
            + &r#"
[[consumers.orders.on.Paid.publish]]
to = { broker = "rabbit", queue = "{queue}" }
type = "OrderPaid"
key = ":order"
body = { order = ":order", amount = ":amount" }

[brokers.rabbit]
kind = "rabbitmq"
url = "{url}"

[relay]
lease = "2s"

[consumers.mails]
source = { broker = "rabbit", queue = "{queue}" }

[consumers.mails.on.OrderPaid.params]
order = { json = "/order", type = "int" }
amount = { json = "/amount", type = "decimal" }

[[consumers.mails.on.OrderPaid.sql]]
run = "INSERT INTO ledger (id, order_id, amount) VALUES ('mail', :order, :amount)"
"#
            .replace("{queue}", queue)
            .replace("{url}", &rabbitmq_url())
    }

    async fn mails(shop: &Folder) -> i64 {
        let mails = "SELECT count(*) FROM ledger WHERE id = 'mail'";
        sqlx::query_scalar(mails).fetch_one(&mut shop.database("shop.db").await).await.unwrap_or(-1)
    }

    #[tokio::test]
    async fn case_25_a_relay_killed_between_publishing_to_rabbitmq_and_marking_publishes_again_under_the_same_id()
     {
        if !require(Server::RabbitMq) {
            return;
        }
        for (step, duplicates) in [("relay-before-publish", 0), ("relay-after-publish", 3)] {
            let queue = unique("killed");
            let publisher = RabbitMq::new(&rabbitmq_url()).expect("a URL").publisher();
            publisher.declare_queue(&queue).await.expect("a queue of its own");
            let shop = shop::folder(&[]);
            shop.write("hapax.toml", &announced(&queue));
            shop.write(
                "lines.jsonl",
                &[1, 2, 3].map(|order| shop::paid(&format!("p-{order}"), order)).concat(),
            );
            shop.run("migrate -c @hapax.toml").await.exit(0);
            shop.run("send @lines.jsonl --queue orders -c @hapax.toml").await.exit(0);
            // All three wait in the outbox before a relay sees the first: that of the run is killed at once.
            let first = shop.hapax("run @hapax.toml").crash_at("relay-before-publish", 1);
            first.start().expect("it starts").wait_killed(SOON).await;
            let only = shop.hapax("relay @hapax.toml").crash_at(step, 1);
            let mut killed = only.start().expect("it starts");
            killed.wait_killed(SOON).await;

            let ended =
                Ended::of(shop.hapax("run @hapax.toml --until-idle 4s --json").start().expect("it starts"))
                    .await;
            let summary = ended.json(0).remove(0);
            assert_eq!(mails(&shop).await, 3, "{step}: {summary}\n{}", ended.stderr());
            assert!(summary["duplicates"].as_i64() >= Some(duplicates.min(1)), "{step}: {summary}");
            assert_eq!(shop.run("outbox list -c @hapax.toml").await.exit(0), "", "{step}");
            publisher.delete_queue(&queue).await.expect("the queue goes");
            publisher.close().await;
        }
    }
}
