//! The shop on PostgreSQL and RabbitMQ.

mod program;

mod server {
    use std::env::temp_dir;

    use hapax::sqlx::{Connection as _, PgConnection, query_as};
    use hapax_testkit::servers::{Server, TestDatabase, rabbitmq_url, require, unique};
    use lapin::ConnectionProperties;
    use lapin::options::QueueDeleteOptions;

    use super::program::{ORDERS, Order, paid, run};

    /// Runs the shop on a database and a queue of its own, and reads the orders.
    async fn orders(args: &[&str]) -> std::io::Result<(String, Vec<Order>)> {
        let (database, queue) = (TestDatabase::create().await?, unique("shop"));
        let args = [args, &["--queue", &queue]].concat();
        let servers = [("HAPAX_STORE", database.url()), ("HAPAX_BROKER", &rabbitmq_url())];
        let printed = run(&temp_dir(), &args, &servers);

        let mut connection = PgConnection::connect(database.url()).await.map_err(std::io::Error::other)?;
        let orders = query_as(ORDERS).fetch_all(&mut connection).await.map_err(std::io::Error::other)?;
        database.remove().await?;
        for name in ["payments", "mails", "accounting"] {
            delete(&format!("{queue}.{name}")).await.map_err(std::io::Error::other)?;
        }
        Ok((printed, orders))
    }

    async fn delete(queue: &str) -> Result<(), lapin::Error> {
        let broker = lapin::Connection::connect(&rabbitmq_url(), ConnectionProperties::default()).await?;
        let channel = broker.create_channel().await?;
        channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        broker.close(200, "".into()).await
    }

    #[tokio::test]
    async fn a_payment_that_comes_twice_takes_effect_once() -> std::io::Result<()> {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return Ok(());
        }
        let (printed, orders) = orders(&[]).await?;
        assert!(printed.ends_with("accounting: 3 handled, 3 duplicates\n"), "{printed}");
        assert_eq!(orders, paid(1));
        Ok(())
    }

    #[tokio::test]
    async fn without_the_inbox_it_takes_effect_twice() -> std::io::Result<()> {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return Ok(());
        }
        let (printed, orders) = orders(&["--unprotected"]).await?;
        assert!(printed.ends_with("accounting: 6 handled, 0 duplicates\n"), "{printed}");
        assert_eq!(orders, paid(2));
        Ok(())
    }
}
