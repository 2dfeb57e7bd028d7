//! The bank on MongoDB, PostgreSQL and RabbitMQ.

mod program;

mod server {
    use hapax::BoxError;
    use hapax::sqlx::{self, Connection as _, PgConnection};
    use hapax_testkit::servers::{
        MongoDatabase, Server, TestDatabase, eventually, mongodb_url, postgres_url, rabbitmq_url, require,
        unique,
    };
    use lapin::options::{BasicGetOptions, BasicPublishOptions, ExchangeDeleteOptions, QueueDeleteOptions};
    use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
    use serde_json::Value;

    use super::program::{SOON, Service, clean, movement, pasted};

    fn all_servers() -> bool {
        require(Server::Postgres) && require(Server::RabbitMq) && require(Server::MongoDb)
    }

    #[test]
    fn every_cent_is_where_it_belongs() {
        if !all_servers() {
            return;
        }
        let servers =
            ["--postgres", &postgres_url(), "--mongodb", &mongodb_url(), "--rabbitmq", &rabbitmq_url()];
        let found =
            clean(&[&["--transfers", "500", "--duplicates", "0.3", "--kills", "6"], &servers[..]].concat());
        assert_eq!((&found["transfers"], &found["kills"]), (&500.into(), &6.into()), "{found}");
        assert!(found["duplicates_seen"].as_u64() > Some(100), "{found}");
    }

    /// Both services, with databases and an exchange of their own, gone when it is closed.
    struct Bank {
        transfers: Service,
        accounts: Service,
        exchange: String,
        connection: Connection,
        channel: Channel,
        postgres: TestDatabase,
        _mongodb: MongoDatabase,
    }

    impl Bank {
        async fn open(account_args: &[&str]) -> Result<Self, BoxError> {
            let (postgres, mongodb, exchange) =
                (TestDatabase::create().await?, MongoDatabase::create()?, unique("bank"));
            let broker = rabbitmq_url();
            let wire = ["--broker", &broker, "--exchange", &exchange];
            let own = ["account-service", "--store", postgres.url()];
            let accounts = Service::start(&[&own[..], &wire, account_args].concat()).await?;
            let own = ["transfer-service", "--store", mongodb.url()];
            let transfers = Service::start(&[&own[..], &wire].concat()).await?;
            for account in ["ada", "bob"] {
                accounts.open(account, "100.00").await?;
            }
            transfers.until_known(2).await;
            let connection = Connection::connect(&broker, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            Ok(Self { transfers, accounts, exchange, connection, channel, postgres, _mongodb: mongodb })
        }

        /// Publishes to the exchange, as one does by hand.
        async fn publish(
            &self,
            route: &str,
            body: &[u8],
            properties: BasicProperties,
        ) -> Result<(), BoxError> {
            let (exchange, options) = (self.exchange.as_str().into(), BasicPublishOptions::default());
            self.channel.basic_publish(exchange, route.into(), options, body, properties).await?.await?;
            Ok(())
        }

        /// Takes what the log has, by routing key.
        async fn logged(&self) -> Result<Vec<(String, Vec<u8>, BasicProperties)>, BoxError> {
            let (log, mut logged) = (format!("{}.log", self.exchange), Vec::new());
            let take = BasicGetOptions { no_ack: true };
            while let Some(message) = self.channel.basic_get(log.as_str().into(), take).await? {
                let route = message.routing_key.as_str().to_owned();
                logged.push((route, message.data.clone(), message.properties.clone()));
            }
            Ok(logged)
        }

        async fn close(self) -> Result<(), BoxError> {
            drop((self.transfers, self.accounts));
            self.channel
                .exchange_delete(self.exchange.as_str().into(), ExchangeDeleteOptions::default())
                .await?;
            for queue in ["account-service", "transfer-service", "log"] {
                let queue = format!("{}.{queue}", self.exchange);
                self.channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await?;
            }
            self.connection.close(200, "".into()).await?;
            self.postgres.remove().await?;
            Ok(())
        }
    }

    #[tokio::test]
    async fn two_identical_deliveries_of_a_request_lead_to_one_credit_request() -> Result<(), BoxError> {
        if !all_servers() {
            return Ok(());
        }
        let bank = Bank::open(&[]).await?;
        let asked = bank.transfers.ask(Some("k1"), r#"{"from":"ada","to":"bob","amount":"25.00"}"#).await?;
        let transfer: Value = serde_json::from_slice(&asked.body)?;
        let id = transfer["id"].as_str().ok_or("it has an id")?;
        bank.transfers.until_state(id, "completed").await;

        let logged = bank.logged().await?;
        let requested = logged
            .iter()
            .find(|(route, ..)| route == "transfers.transfer.requested")
            .ok_or("it is logged")?;
        let (route, body, properties) = requested;
        let envelope: Value = serde_json::from_slice(body)?;
        let message_id = properties.message_id().as_ref().map(|id| id.as_str().to_owned());
        assert_eq!(
            envelope["messageId"].as_str(),
            message_id.as_deref(),
            "the envelope's id is the property's"
        );
        let before = bank.accounts.get("/health").await?["duplicates"].as_u64().unwrap_or_default();
        bank.publish(route, body, properties.clone()).await?;
        bank.accounts.until_health("duplicates", before + 1).await;

        let later = bank.logged().await?;
        let credits = |logged: &[(String, Vec<u8>, BasicProperties)]| {
            logged.iter().filter(|(route, ..)| route == "transfers.transfer.credit-requested").count()
        };
        assert_eq!((credits(&logged), credits(&later)), (1, 0));
        assert_eq!(bank.accounts.balance("ada").await?, "75.00");
        assert_eq!(bank.accounts.balance("bob").await?, "125.00");
        bank.close().await
    }

    #[tokio::test]
    async fn case_44_a_body_published_twice_by_hand_moves_the_balance_once() -> Result<(), BoxError> {
        if !all_servers() {
            return Ok(());
        }
        let bank = Bank::open(&[]).await?;
        let before = bank.accounts.get("/health").await?["handled"].as_u64().unwrap_or_default();
        let order = pasted("m1", "Transfer.Requested", &movement("t1", "debit", "ada", "25.00"));
        for _ in 0..2 {
            bank.publish("transfers.transfer.requested", &order, BasicProperties::default()).await?;
        }
        bank.accounts.until_health("handled", before + 1).await;
        bank.accounts.until_health("duplicates", 1).await;
        assert_eq!(bank.accounts.balance("ada").await?, "75.00");
        bank.close().await
    }

    #[tokio::test]
    async fn case_44_without_both_indexes_it_moves_twice_and_once_they_are_back_once() -> Result<(), BoxError>
    {
        if !all_servers() {
            return Ok(());
        }
        let bank = Bank::open(&["--without", "hapax"]).await?;
        let mut database = PgConnection::connect(bank.postgres.url()).await?;
        let seen = async |messages: u64| {
            let seen = async || {
                bank.accounts.get("/health").await.is_ok_and(|health| {
                    let count = |name: &str| health[name].as_u64().unwrap_or_default();
                    count("handled") + count("duplicates") == messages
                })
            };
            eventually("the messages are seen", SOON, seen).await;
        };
        sqlx::raw_sql("DROP INDEX processed_once; DROP INDEX ledger_once").execute(&mut database).await?;
        let order = pasted("m1", "Transfer.Requested", &movement("t1", "debit", "ada", "25.00"));
        for _ in 0..2 {
            bank.publish("transfers.transfer.requested", &order, BasicProperties::default()).await?;
        }
        seen(2).await;
        assert_eq!(bank.accounts.balance("ada").await?, "50.00");

        let restore = "DELETE FROM processed_messages; DELETE FROM ledger;
                       CREATE UNIQUE INDEX processed_once ON processed_messages (message_id);
                       CREATE UNIQUE INDEX ledger_once ON ledger (transfer_id, kind)";
        sqlx::raw_sql(restore).execute(&mut database).await?;
        let order = pasted("m2", "Transfer.Requested", &movement("t2", "debit", "bob", "25.00"));
        for _ in 0..2 {
            bank.publish("transfers.transfer.requested", &order, BasicProperties::default()).await?;
        }
        seen(4).await;
        assert_eq!(bank.accounts.balance("bob").await?, "75.00");
        database.close().await?;
        bank.close().await
    }
}
