//! The shop on every store with every broker, by changing two URLs.

mod program;

mod server {
    use hapax::{BoxError, Broker};
    use hapax_testkit::servers::{
        MariaDbDatabase, MongoDatabase, PrivateKafka, Server, TestDatabase, mongodb_url, nats_url,
        rabbitmq_url, redis_url, require, sqs_url, unique,
    };
    use tempfile::TempDir;

    use super::program::run;

    /// A database of its own.
    enum Store {
        Sqlite(TempDir),
        Postgres(TestDatabase),
        MariaDb(MariaDbDatabase),
        MongoDb(MongoDatabase),
    }

    impl Store {
        fn sqlite() -> Self {
            Self::Sqlite(tempfile::tempdir().expect("a folder"))
        }

        async fn postgres() -> Option<Self> {
            if !require(Server::Postgres) {
                return None;
            }
            Some(Self::Postgres(TestDatabase::create().await.expect("a database")))
        }

        async fn mariadb() -> Option<Self> {
            if !require(Server::MariaDb) {
                return None;
            }
            Some(Self::MariaDb(MariaDbDatabase::create().await.expect("a database")))
        }

        fn mongodb() -> Option<Self> {
            if !require(Server::MongoDb) {
                return None;
            }
            Some(Self::MongoDb(MongoDatabase::create_on(&mongodb_url()).expect("a database")))
        }

        fn url(&self) -> String {
            match self {
                Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("shop.db").display()),
                Self::Postgres(database) => database.url().to_owned(),
                Self::MariaDb(database) => database.url().to_owned(),
                Self::MongoDb(database) => database.url().to_owned(),
            }
        }
    }

    fn rabbitmq() -> Option<String> {
        require(Server::RabbitMq).then(rabbitmq_url)
    }

    fn nats() -> Option<String> {
        require(Server::Nats).then(nats_url)
    }

    /// Of groups that gather at once on this broker, one waits for the other: hence a broker for each test.
    async fn kafka() -> Option<PrivateKafka> {
        if !require(Server::PrivateKafka) {
            return None;
        }
        Some(PrivateKafka::start().await.expect("a broker"))
    }

    fn redis() -> Option<String> {
        require(Server::Redis).then(redis_url)
    }

    fn sqs() -> Option<String> {
        require(Server::Sqs).then(sqs_url)
    }

    /// What the shop prints on a store and a broker, with queues of its own.
    async fn printed(store: Option<Store>, broker: Option<String>, args: &[&str]) -> Option<String> {
        let (store, broker) = (store?, broker?);
        let (queue, folder) = (unique("shop"), tempfile::tempdir().expect("a folder"));
        let args = [args, &["--queue", &queue]].concat();
        let servers = [("HAPAX_STORE", store.url()), ("HAPAX_BROKER", broker.clone())];
        let servers = servers.each_ref().map(|(name, url)| (*name, url.as_str()));
        let printed = run(folder.path(), &args, &servers);
        clear(&broker, &queue).await.expect("the queues go");
        Some(printed)
    }

    async fn clear(broker: &str, queue: &str) -> Result<(), BoxError> {
        let publisher = Broker::open(broker).await?.publisher();
        for name in ["payments", "mails", "accounting"] {
            publisher.delete(&format!("{queue}-{name}")).await?;
        }
        publisher.close().await;
        Ok(())
    }

    /// Every payment came twice, and took effect so many times.
    fn assert_paid(printed: &str, times: usize) {
        let amounts = [[25.00, 50.00], [9.90, 19.80], [1299.00, 2598.00]];
        for (n, amounts) in (1..).zip(amounts) {
            let (paid, mails) = (format!("{:.2}", amounts[times - 1]), times);
            let line = format!("{n:>6}  paid    {paid:>9}  {mails:>7}  {paid:>9}");
            assert!(printed.contains(&line), "{line} is missing:\n{printed}");
        }
    }

    macro_rules! pairs {
        ($($test:ident: $store:expr, $broker:expr;)*) => {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    if let Some(printed) = printed($store, $broker, &[]).await {
                        assert_paid(&printed, 1);
                        // A broker may have recognised the copies itself.
                        assert!(printed.contains("accounting: 3 handled"), "{printed}");
                    }
                }
            )*
        };
    }

    pairs! {
        twice_is_once_on_sqlite_and_rabbitmq: Some(Store::sqlite()), rabbitmq();
        twice_is_once_on_postgres_and_rabbitmq: Store::postgres().await, rabbitmq();
        twice_is_once_on_mariadb_and_rabbitmq: Store::mariadb().await, rabbitmq();
        twice_is_once_on_mongodb_and_rabbitmq: Store::mongodb(), rabbitmq();
        twice_is_once_on_sqlite_and_nats: Some(Store::sqlite()), nats();
        twice_is_once_on_postgres_and_nats: Store::postgres().await, nats();
        twice_is_once_on_mariadb_and_nats: Store::mariadb().await, nats();
        twice_is_once_on_mongodb_and_nats: Store::mongodb(), nats();
        twice_is_once_on_sqlite_and_kafka: Some(Store::sqlite()), kafka().await.as_ref().map(PrivateKafka::url);
        twice_is_once_on_postgres_and_kafka: Store::postgres().await, kafka().await.as_ref().map(PrivateKafka::url);
        twice_is_once_on_mariadb_and_kafka: Store::mariadb().await, kafka().await.as_ref().map(PrivateKafka::url);
        twice_is_once_on_mongodb_and_kafka: Store::mongodb(), kafka().await.as_ref().map(PrivateKafka::url);
        twice_is_once_on_sqlite_and_redis: Some(Store::sqlite()), redis();
        twice_is_once_on_postgres_and_redis: Store::postgres().await, redis();
        twice_is_once_on_mariadb_and_redis: Store::mariadb().await, redis();
        twice_is_once_on_mongodb_and_redis: Store::mongodb(), redis();
        twice_is_once_on_sqlite_and_sqs: Some(Store::sqlite()), sqs();
        twice_is_once_on_postgres_and_sqs: Store::postgres().await, sqs();
        twice_is_once_on_mariadb_and_sqs: Store::mariadb().await, sqs();
        twice_is_once_on_mongodb_and_sqs: Store::mongodb(), sqs();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_the_inbox_it_takes_effect_twice() {
        if let Some(printed) = printed(Store::postgres().await, rabbitmq(), &["--unprotected"]).await {
            assert_paid(&printed, 2);
            assert!(printed.ends_with("accounting: 6 handled, 0 duplicates\n"), "{printed}");
        }
    }
}
