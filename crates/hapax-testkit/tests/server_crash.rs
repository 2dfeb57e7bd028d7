//! Case 05 on PostgreSQL: killed at every step of a delivery, from the embedded queue and from RabbitMQ.

mod crash;

mod server {
    use super::crash::{self, ASIDE, STEPS, dead, effects, envelopes, kill_and_run_again, subject, verdict};
    use hapax::PgStore;
    use hapax::rabbitmq::{RabbitMq, RabbitPublisher};
    use hapax_core::{Outgoing, Publisher as _};
    use hapax_testkit::process::Subject;
    use hapax_testkit::servers::{Server, TestDatabase, rabbitmq_url, require, unique};

    async fn database() -> TestDatabase {
        TestDatabase::create().await.expect("a database of its own")
    }

    async fn assert_sound(database: &TestDatabase, context: &str) {
        let wrong = verdict(&effects(database.url()).await);
        assert!(wrong.is_empty(), "{context}: {wrong:?}");
        let store = PgStore::connect(database.url()).await.expect("the store opens");
        assert_eq!(dead(&store).await, [("m11".to_owned(), "HX0040".to_owned())], "{context}");
    }

    async fn from_queue(database: &TestDatabase) -> Subject {
        let store = PgStore::connect(database.url()).await.expect("the store opens");
        store.migrate().await.expect("the schema is made");
        store.send("messages", &envelopes()).await.expect("messages are sent");
        subject(database.url(), "queue:messages")
    }

    async fn publisher(queue: &str) -> RabbitPublisher {
        let publisher = RabbitMq::new(&rabbitmq_url()).expect("a URL").publisher();
        publisher.declare_queue(queue).await.expect("a queue of its own");
        let outgoing = envelopes().into_iter().map(|envelope| Outgoing::to_queue(queue, envelope)).collect();
        publisher.publish(outgoing).await.into_iter().for_each(|sent| sent.expect("published"));
        publisher
    }

    #[tokio::test]
    async fn case_05_killed_at_every_step_of_the_embedded_queue() {
        if !require(Server::Postgres) {
            return;
        }
        for step in STEPS.into_iter().chain(ASIDE) {
            let database = database().await;
            kill_and_run_again(&from_queue(&database).await, step, 1).await;
            assert_sound(&database, step).await;
        }
    }

    #[tokio::test]
    async fn case_05_killed_at_every_step_of_rabbitmq() {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return;
        }
        for step in STEPS.into_iter().chain(ASIDE).chain(["rabbit-before-ack", "rabbit-after-ack"]) {
            let (database, queue) = (database().await, unique("crash"));
            let publisher = publisher(&queue).await;
            kill_and_run_again(&subject(database.url(), &format!("rabbit:{queue}")), step, 1).await;
            assert_sound(&database, step).await;
            publisher.delete_queue(&queue).await.expect("the queue goes");
        }
    }

    #[tokio::test]
    async fn case_15_a_message_that_kills_the_process_is_set_aside_alone() {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return;
        }
        let (database, queue) = (database().await, unique("killer"));
        let publisher = publisher(&queue).await;
        let killer = hapax_core::Envelope::new(r#"{"id":"killer","key":"x","do":"kill"}"#);
        publisher.publish(vec![Outgoing::to_queue(&queue, killer)]).await.remove(0).expect("published");
        let subject = subject(database.url(), &format!("rabbit:{queue}"));
        for lives in 0.. {
            let mut running = subject.start().expect("the subject starts");
            if running.wait_exit(crash::PATIENCE).await.success() {
                break;
            }
            assert!(lives < 12, "it goes on dying: {running}");
        }
        let wrong = verdict(&effects(database.url()).await);
        assert!(wrong.is_empty(), "{wrong:?}");
        let store = PgStore::connect(database.url()).await.expect("the store opens");
        assert!(dead(&store).await.contains(&("killer".into(), "HX0042".into())), "{:?}", dead(&store).await);
        publisher.delete_queue(&queue).await.expect("the queue goes");
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
