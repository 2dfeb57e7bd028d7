//! Case 05 on PostgreSQL and MongoDB: killed at every step of a delivery, from the embedded queue, a file, and
//! RabbitMQ.

mod crash;

mod server {
    use std::path::Path;

    use super::crash::{
        self, ASIDE, OUTSIDE, STEPS, dead, eager, effects, envelopes, kill_and_run_again, messages, subject,
        verdict, verdict_on_calls,
    };
    use hapax::{Broker, BrokerPublisher, MongoStore, MySqlStore, PgStore};
    use hapax_core::{Envelope, Outgoing, Publisher as _};
    use hapax_testkit::process::Subject;
    use hapax_testkit::servers::{
        MariaDbDatabase, MongoDatabase, PrivateKafka, Server, TestDatabase, nats_url, rabbitmq_url,
        redis_url, require, sqs_url, unique,
    };

    async fn database() -> TestDatabase {
        TestDatabase::create().await.expect("a database of its own")
    }

    async fn assert_sound(url: &str, context: &str) {
        let wrong = verdict(&effects(url).await);
        assert!(wrong.is_empty(), "{context}: {wrong:?}");
        assert_eq!(set_aside(url).await, [("m11".to_owned(), "HX0040".to_owned())], "{context}");
    }

    async fn set_aside(url: &str) -> Vec<(String, String)> {
        if url.starts_with("mongodb:") {
            dead(&MongoStore::connect(url).await.expect("the store opens")).await
        } else if url.starts_with("mysql:") {
            dead(&MySqlStore::connect(url).await.expect("the store opens")).await
        } else {
            dead(&PgStore::connect(url).await.expect("the store opens")).await
        }
    }

    async fn from_queue(database: &TestDatabase) -> Subject {
        let store = PgStore::connect(database.url()).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        store.send("messages", &envelopes()).await.expect("messages are sent");
        subject(database.url(), "queue:messages")
    }

    /// A queue of its own on a broker, with the messages in it.
    struct Queue {
        url: String,
        name: String,
        publisher: BrokerPublisher,
    }

    impl Queue {
        async fn filled(url: &str, with: Vec<Envelope>) -> Self {
            let (publisher, name) = (Broker::open(url).await.expect("a URL").publisher(), unique("crash"));
            publisher.declare(&name).await.expect("a queue of its own");
            let outgoing = with.into_iter().map(|envelope| Outgoing::to_queue(&name, envelope)).collect();
            publisher.publish_all(outgoing).await.expect("published");
            Self { url: url.to_owned(), name, publisher }
        }

        fn source(&self) -> String {
            format!("{}#{}", self.url, self.name)
        }

        async fn delete(self) {
            self.publisher.delete(&self.name).await.expect("the queue goes");
        }
    }

    #[tokio::test]
    async fn case_05_killed_at_every_step_of_the_embedded_queue_on_postgres() {
        if !require(Server::Postgres) {
            return;
        }
        for step in STEPS.into_iter().chain(ASIDE) {
            let database = database().await;
            kill_and_run_again(&from_queue(&database).await, step, 1).await;
            assert_sound(database.url(), step).await;
        }
    }

    async fn killed_at_a_step_of(broker: &str, store: &str, step: &str) {
        let queue = Queue::filled(broker, envelopes()).await;
        kill_and_run_again(&subject(store, &queue.source()), step, 1).await;
        assert_sound(store, step).await;
        queue.delete().await;
    }

    #[tokio::test]
    async fn case_05_killed_at_every_step_of_rabbitmq_on_postgres() {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return;
        }
        for step in STEPS.into_iter().chain(ASIDE).chain(["rabbit-before-ack", "rabbit-after-ack"]) {
            killed_at_a_step_of(&rabbitmq_url(), database().await.url(), step).await;
        }
    }

    #[tokio::test]
    async fn case_05_killed_at_every_step_of_rabbitmq_on_mariadb() {
        if !require(Server::MariaDb) || !require(Server::RabbitMq) {
            return;
        }
        for step in STEPS.into_iter().chain(ASIDE) {
            let database = MariaDbDatabase::create().await.expect("a database of its own");
            killed_at_a_step_of(&rabbitmq_url(), database.url(), step).await;
        }
    }

    #[tokio::test]
    async fn case_05_killed_at_every_step_of_rabbitmq_on_mongodb() {
        if !require(Server::MongoDb) || !require(Server::RabbitMq) {
            return;
        }
        for step in STEPS.into_iter().chain(ASIDE).chain(["rabbit-before-ack", "rabbit-after-ack"]) {
            let database = MongoDatabase::create().expect("a database of its own");
            killed_at_a_step_of(&rabbitmq_url(), database.url(), step).await;
        }
    }

    #[tokio::test]
    async fn case_05_killed_at_every_step_of_a_file_on_mongodb() {
        if !require(Server::MongoDb) {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("messages.jsonl");
        std::fs::write(&path, messages().join("\n")).expect("the file is written");
        for step in STEPS {
            let database = MongoDatabase::create().expect("a database of its own");
            let subject = subject(database.url(), &format!("file:{}", path.display()));
            kill_and_run_again(&subject, step, 1).await;
            assert_sound(database.url(), step).await;
        }
    }

    async fn killed_at_a_step_of_a_call(url: &str, subject: Subject, folder: &Path, step: &str) {
        let (subject, calls) = eager(subject, folder);
        kill_and_run_again(&subject, step, 1).await;
        assert_sound(url, step).await;
        let wrong = verdict_on_calls(&calls);
        assert!(wrong.is_empty(), "{step}: {wrong:?}");
    }

    #[tokio::test]
    async fn case_20_case_35_killed_at_every_step_of_a_call_on_postgres() {
        if !require(Server::Postgres) {
            return;
        }
        for step in OUTSIDE {
            let (database, folder) = (database().await, tempfile::tempdir().expect("a folder"));
            let subject = from_queue(&database).await;
            killed_at_a_step_of_a_call(database.url(), subject, folder.path(), step).await;
        }
    }

    #[tokio::test]
    async fn case_20_case_35_killed_at_every_step_of_a_call_on_mariadb() {
        if !require(Server::MariaDb) {
            return;
        }
        for step in OUTSIDE {
            let folder = tempfile::tempdir().expect("a folder");
            let database = MariaDbDatabase::create().await.expect("a database of its own");
            let store = MySqlStore::connect(database.url()).await.expect("the store opens");
            store.migrate().await.expect("the schema is made");
            store.send("messages", &envelopes()).await.expect("messages are sent");
            let subject = subject(database.url(), "queue:messages");
            killed_at_a_step_of_a_call(database.url(), subject, folder.path(), step).await;
        }
    }

    #[tokio::test]
    async fn case_20_case_35_killed_at_every_step_of_a_call_on_mongodb() {
        if !require(Server::MongoDb) {
            return;
        }
        for step in OUTSIDE {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("messages.jsonl");
            std::fs::write(&path, messages().join("\n")).expect("the file is written");
            let database = MongoDatabase::create().expect("a database of its own");
            let subject = subject(database.url(), &format!("file:{}", path.display()));
            killed_at_a_step_of_a_call(database.url(), subject, folder.path(), step).await;
        }
    }

    async fn a_killer_is_set_aside_alone(broker: &str, url: &str) {
        let killer = Envelope::new(r#"{"id":"killer","key":"x","do":"kill"}"#);
        let queue = Queue::filled(broker, envelopes().into_iter().chain([killer]).collect()).await;
        let subject = subject(url, &queue.source());
        for lives in 0.. {
            let mut running = subject.start().expect("the subject starts");
            if running.wait_exit(crash::PATIENCE).await.success() {
                break;
            }
            assert!(lives < 12, "it goes on dying: {running}");
        }
        let wrong = verdict(&effects(url).await);
        assert!(wrong.is_empty(), "{wrong:?}");
        let dead = set_aside(url).await;
        assert!(dead.contains(&("killer".into(), "HX0042".into())), "{dead:?}");
        queue.delete().await;
    }

    #[tokio::test]
    async fn case_15_a_message_from_rabbitmq_that_kills_the_process_is_set_aside_alone_on_postgres() {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return;
        }
        a_killer_is_set_aside_alone(&rabbitmq_url(), database().await.url()).await;
    }

    #[tokio::test]
    async fn case_15_a_message_from_rabbitmq_that_kills_the_process_is_set_aside_alone_on_mariadb() {
        if !require(Server::MariaDb) || !require(Server::RabbitMq) {
            return;
        }
        let database = MariaDbDatabase::create().await.expect("a database of its own");
        a_killer_is_set_aside_alone(&rabbitmq_url(), database.url()).await;
    }

    #[tokio::test]
    async fn case_15_a_message_from_rabbitmq_that_kills_the_process_is_set_aside_alone_on_mongodb() {
        if !require(Server::MongoDb) || !require(Server::RabbitMq) {
            return;
        }
        let database = MongoDatabase::create().expect("a database of its own");
        a_killer_is_set_aside_alone(&rabbitmq_url(), database.url()).await;
    }

    /// The steps that lie between a broker and the store; all others are the store's, and tried with `RabbitMQ`.
    const BETWEEN: [&str; 5] = ["after-receive", "after-claim", "after-commit", "before-ack", "after-ack"];

    /// Both tests of each broker, with PostgreSQL.
    macro_rules! brokers {
        ($($killed:ident, $killer:ident: $server:ident, $url:ident, $steps:expr;)*) => {
            $(
                #[tokio::test]
                async fn $killed() {
                    if !require(Server::Postgres) || !require(Server::$server) {
                        return;
                    }
                    for step in BETWEEN.into_iter().chain($steps) {
                        killed_at_a_step_of(&$url(), database().await.url(), step).await;
                    }
                }

                #[tokio::test]
                async fn $killer() {
                    if require(Server::Postgres) && require(Server::$server) {
                        a_killer_is_set_aside_alone(&$url(), database().await.url()).await;
                    }
                }
            )*
        };
    }

    brokers! {
        case_05_killed_at_every_step_of_nats, case_15_a_message_from_nats_that_kills_is_set_aside_alone:
            Nats, nats_url, ["nats-before-ack", "nats-after-ack"];
        case_05_killed_at_every_step_of_sqs, case_15_a_message_from_sqs_that_kills_is_set_aside_alone:
            Sqs, sqs_url, ["sqs-before-ack", "sqs-after-ack"];
        case_05_killed_at_every_step_of_redis, case_15_a_message_from_redis_that_kills_is_set_aside_alone:
            Redis, redis_url, ["redis-before-ack", "redis-after-ack"];
    }

    /// Of two groups that gather at once on this broker, one waits for the other: hence a broker for each test.
    #[tokio::test]
    async fn case_05_case_19_killed_at_every_step_of_kafka() {
        if !require(Server::Postgres) || !require(Server::PrivateKafka) {
            return;
        }
        let broker = PrivateKafka::start().await.expect("a broker of its own");
        for step in BETWEEN.into_iter().chain(["kafka-before-ack", "kafka-after-ack"]) {
            killed_at_a_step_of(&broker.url(), database().await.url(), step).await;
        }
    }

    #[tokio::test]
    async fn case_15_a_message_from_kafka_that_kills_is_set_aside_alone() {
        if require(Server::Postgres) && require(Server::PrivateKafka) {
            let broker = PrivateKafka::start().await.expect("a broker of its own");
            a_killer_is_set_aside_alone(&broker.url(), database().await.url()).await;
        }
    }

    #[tokio::test]
    async fn the_suite_finds_an_inbox_row_written_in_a_transaction_of_its_own() {
        if !require(Server::Postgres) {
            return;
        }
        let database = database().await;
        let subject = from_queue(&database).await.arg("split");
        kill_and_run_again(&subject, "after-claim", 1).await;
        let wrong = verdict(&effects(database.url()).await);
        assert!(!wrong.is_empty(), "the suite did not notice that claims outlived their effects");
    }
}
