//! The relay between PostgreSQL and RabbitMQ: what a broker refuses, holds up, or does not answer for.

mod server {
    use std::collections::HashMap;
    use std::time::Duration;

    use hapax::rabbitmq::{RabbitMq, RabbitPublisher};
    use hapax::sqlx::{Connection as _, PgConnection};
    use hapax::{
        Code, Fetched, OnFailure, Outbox as _, OutboxFilter, OutboxRow, OutboxState, PgStore, Publication,
        Relay, RelayHealth, RelaySummary, Retry, Settler as _, Source as _,
    };
    use hapax_testkit::servers::{
        PrivateRabbit, Server, TestDatabase, eventually, rabbitmq_url, require, unique,
    };
    use tokio::task::JoinHandle;
    use tokio_util::sync::CancellationToken;

    const SOON: Duration = Duration::from_mins(1);

    struct Ground {
        database: TestDatabase,
        store: PgStore,
        broker: RabbitMq,
        queue: String,
    }

    impl Ground {
        /// On a broker at that URL, with a queue.
        async fn at(url: &str) -> Self {
            let database = TestDatabase::create().await.expect("a database of its own");
            let store = PgStore::connect(database.url()).await.expect("the store opens");
            store.migrate().await.expect("the schema is made");
            let (broker, queue) = (RabbitMq::new(url).expect("a URL"), unique("relay"));
            broker.publisher().declare_queue(&queue).await.expect("a queue of its own");
            Self { database, store, broker, queue }
        }

        fn paid(&self, key: &str, body: impl Into<String>) -> Publication {
            Publication::bytes("Paid", body.into()).key(key).to_queue(&self.queue)
        }

        async fn publish(&self, publications: impl IntoIterator<Item = Publication>) {
            let mut conn = PgConnection::connect(self.database.url()).await.expect("a connection");
            let outbox = self.store.outbox_of("checkout").expect("a plain name");
            let mut tx = conn.begin().await.expect("a transaction");
            outbox.publish_all(&mut tx, publications).await.expect("they are written");
            tx.commit().await.expect("it commits");
            outbox.wake();
        }

        async fn rows(&self) -> Vec<OutboxRow> {
            self.store.outbox(&OutboxFilter::default()).await.expect("the outbox is listed")
        }

        fn relay(&self) -> Relay<PgStore> {
            let retry = Retry::exponential()
                .attempts(4)
                .first(Duration::from_millis(50))
                .max(Duration::from_millis(50));
            let publisher = self.broker.publisher().confirm_timeout(Duration::from_secs(2));
            Relay::new(self.store.clone(), publisher).retry(retry).poll_every(Duration::from_millis(50))
        }

        /// Reads so many messages of a queue.
        async fn read(&self, queue: &str, count: usize) -> Vec<String> {
            let mut source = self.broker.source(queue);
            source.prepare(1_000).await.expect("the queue is there");
            let settler = source.settler();
            let mut bodies = Vec::new();
            while bodies.len() < count {
                let fetched = tokio::time::timeout(SOON, source.next(1_000)).await.expect("messages come");
                let Ok(Fetched::Batch(deliveries)) = fetched else { panic!("a batch") };
                bodies.extend(
                    deliveries
                        .iter()
                        .map(|delivery| String::from_utf8_lossy(&delivery.envelope.body).into_owned()),
                );
                settler.settle(deliveries.into_iter().map(hapax::Delivery::ack).collect()).await;
            }
            source.close().await;
            bodies
        }

        async fn end(self) {
            let publisher = self.broker.publisher();
            publisher.delete_queue(&self.queue).await.expect("the queue goes");
            publisher.close().await;
            drop(self.store);
            self.database.remove().await.expect("the database goes");
        }
    }

    struct Running {
        stop: CancellationToken,
        ended: JoinHandle<Result<RelaySummary, hapax::Error>>,
        health: RelayHealth,
    }

    impl Running {
        fn start(relay: Relay<PgStore>) -> Self {
            let (stop, health) = (CancellationToken::new(), relay.health());
            let ended = tokio::spawn(relay.run_until(stop.clone().cancelled_owned()));
            Self { stop, ended, health }
        }

        async fn stop(self) -> RelaySummary {
            self.stop.cancel();
            self.ended.await.expect("it ends in order").expect("it could run")
        }
    }

    async fn shared() -> Option<Ground> {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return None;
        }
        Some(Ground::at(&rabbitmq_url()).await)
    }

    /// Declares a queue with arguments, which the publisher itself has no need of.
    async fn declare(url: &str, queue: &str, arguments: &[(&str, lapin::types::AMQPValue)]) {
        let broker = lapin::Connection::connect(url, lapin::ConnectionProperties::default()).await;
        let channel = broker.expect("the broker").create_channel().await.expect("a channel");
        let mut table = lapin::types::FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let options = lapin::options::QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(queue.into(), options, table).await.expect("the queue is declared");
    }

    /// Waits until a row is parked, and answers with it.
    async fn parked(ground: &Ground) -> OutboxRow {
        let filter = OutboxFilter { state: Some(OutboxState::Parked), ..OutboxFilter::default() };
        eventually("a row is parked", SOON, async || {
            ground.store.count_outbox(&filter).await.expect("a count") > 0
        })
        .await;
        ground.store.outbox(&filter).await.expect("the outbox is listed").remove(0)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn case_26_what_rabbitmq_routes_nowhere_stays_and_others_flow() {
        let Some(ground) = shared().await else { return };
        let nowhere = unique("nowhere");
        let lost = |to: Publication| to.key("bad");
        ground
            .publish([
                lost(Publication::bytes("Paid", "no queue").to_queue(&nowhere)),
                ground.paid("bad", "behind"),
                lost(Publication::bytes("Paid", "no exchange").key("worse").to_exchange(&nowhere, "x"))
                    .key("worse"),
                ground.paid("good", "1"),
                ground.paid("good", "2"),
            ])
            .await;
        let running = Running::start(ground.relay());
        assert_eq!(ground.read(&ground.queue, 2).await, ["1", "2"]);
        eventually("both are parked", SOON, async || {
            ground.rows().await.iter().filter(|row| row.state == OutboxState::Parked).count() == 2
        })
        .await;
        let rows = ground.rows().await;
        assert_eq!(rows.len(), 3, "{rows:?}");
        for row in rows.iter().filter(|row| row.state == OutboxState::Parked) {
            assert_eq!(
                (row.attempts, row.code.as_deref()),
                (4, Some(Code::NotPublished.as_str())),
                "{row:?}"
            );
            assert!(row.error.as_deref().is_some_and(|error| !error.is_empty()), "{row:?}");
        }
        let publisher = ground.broker.publisher();
        publisher.declare_queue(&nowhere).await.expect("now it is there");
        ground.store.unpark(rows[0].number).await.expect("it is parked");
        assert_eq!(ground.read(&nowhere, 1).await, ["no queue"]);
        assert_eq!(ground.read(&ground.queue, 1).await, ["behind"]);
        publisher.delete_queue(&nowhere).await.expect("the queue goes");
        running.stop().await;
        ground.end().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn case_26_what_rabbitmq_nacks_stays_and_is_published_later() {
        let Some(ground) = shared().await else { return };
        let full = unique("full");
        let reject = lapin::types::AMQPValue::LongString("reject-publish".into());
        let limit = [("x-max-length", lapin::types::AMQPValue::LongInt(1)), ("x-overflow", reject)];
        declare(&rabbitmq_url(), &full, &limit).await;
        ground
            .publish(["1", "2"].map(|body| Publication::bytes("Paid", body).key("k").to_queue(&full)))
            .await;
        let running = Running::start(ground.relay());
        let row = parked(&ground).await;
        assert_eq!(row.code.as_deref(), Some(Code::NotPublished.as_str()));
        assert_eq!(ground.read(&full, 1).await, ["1"], "there was room for one");
        ground.store.unpark(row.number).await.expect("it is parked");
        assert_eq!(ground.read(&full, 1).await, ["2"]);
        running.stop().await;
        ground.broker.publisher().delete_queue(&full).await.expect("the queue goes");
        ground.end().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn case_27_the_limit_of_a_private_rabbitmq_parks_what_is_too_large_and_nothing_else() {
        if !require(Server::Postgres) || !require(Server::PrivateRabbit) {
            return;
        }
        let private = PrivateRabbit::start_with(&[("max_message_size", "10000")]).await.expect("a node");
        let ground = Ground::at(&private.url()).await;
        ground
            .publish([
                ground.paid("a", "x".repeat(20_000)),
                ground.paid("a", "behind"),
                ground.paid("b", "1"),
            ])
            .await;
        let running = Running::start(ground.relay());
        assert_eq!(ground.read(&ground.queue, 1).await, ["1"]);
        let row = parked(&ground).await;
        assert_eq!((row.attempts, row.code.as_deref()), (4, Some(Code::NotPublished.as_str())), "{row:?}");
        ground.store.discard_unsent(row.number).await.expect("an operator gives it up");
        assert_eq!(ground.read(&ground.queue, 1).await, ["behind"]);
        running.stop().await;
        ground.end().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn case_26_a_private_rabbitmq_that_blocks_or_goes_away_loses_nothing() {
        if !require(Server::Postgres) || !require(Server::PrivateRabbit) {
            return;
        }
        // A watermark of nothing: from the start it takes no message.
        let alarm = [("vm_memory_high_watermark", "0.0")];
        let mut private = PrivateRabbit::start_with(&alarm).await.expect("a node");
        let ground = Ground::at(&private.url()).await;
        let running = Running::start(ground.relay());
        ground.publish((0..50).map(|number| ground.paid(&number.to_string(), number.to_string()))).await;
        eventually("the reason can be read", SOON, async || {
            ground.rows().await.iter().any(|row| row.error.is_some())
        })
        .await;
        assert!(running.health.impediments().iter().any(|text| text.contains("broker")));
        private.stop().await.expect("it is killed");
        tokio::time::sleep(Duration::from_secs(2)).await; // the outage is what is tested
        assert!(ground.rows().await.iter().all(|row| row.attempts == 0), "an outage is nobody's failure");
        drop(private);
        assert_eq!(ground.rows().await.len(), 50);
        let summary = running.stop().await;
        assert_eq!((summary.published, summary.refused), (0, 0));
        drop(ground.store);
        ground.database.remove().await.expect("the database goes");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn case_17_a_private_rabbitmq_stopped_under_load_gets_everything_in_order() {
        if !require(Server::Postgres) || !require(Server::PrivateRabbit) {
            return;
        }
        let mut private = PrivateRabbit::start().await.expect("a node");
        let ground = Ground::at(&private.url()).await;
        let running = Running::start(ground.relay());
        let publish = async {
            for round in 0..40 {
                let of_round = (0..25).map(|key| ground.paid(&key.to_string(), format!("{key} {round}")));
                ground.publish(of_round).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let outage = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            private.stop().await.expect("it is killed");
            tokio::time::sleep(Duration::from_secs(2)).await;
            private.start_again().await.expect("it comes back");
        };
        tokio::join!(publish, outage);
        eventually("the outbox is empty", SOON, async || ground.rows().await.is_empty()).await;
        assert_eq!(running.stop().await.refused, 0);
        // Copies may have come; the first of each, in the order of its key, is what counts.
        let mut next: HashMap<String, u32> = HashMap::new();
        let mut read = 0;
        while read < 1_000 {
            for body in ground.read(&ground.queue, 1).await {
                let (key, round) = body.split_once(' ').expect("two words");
                let (round, next) =
                    (round.parse::<u32>().expect("a number"), next.entry(key.to_owned()).or_default());
                assert!(round <= *next, "key {key}: round {round} came before {next}");
                read += usize::from(round == *next);
                *next += u32::from(round == *next);
            }
        }
        ground.end().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn case_28_block_keeps_the_order_and_skip_goes_on_with_rabbitmq() {
        for (policy, expected) in [(OnFailure::Block, 1), (OnFailure::Skip, 3)] {
            let Some(ground) = shared().await else { return };
            let nowhere = unique("nowhere");
            ground
                .publish([
                    Publication::bytes("Paid", "1").key("k").to_queue(&nowhere),
                    ground.paid("k", "2"),
                    ground.paid("k", "3"),
                    ground.paid("other", "4"),
                ])
                .await;
            let running = Running::start(ground.relay().on_failure(policy));
            parked(&ground).await;
            eventually("what may flow has flowed", SOON, async || ground.rows().await.len() == 4 - expected)
                .await;
            assert_eq!(running.stop().await.published, expected as u64, "{policy:?}");
            ground.end().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn case_30_four_relays_keep_the_order_of_each_key_while_one_dies_with_rabbitmq() {
        let Some(ground) = shared().await else { return };
        let publishers: Vec<RabbitPublisher> = (0..4).map(|_| ground.broker.publisher()).collect();
        let mut relays: Vec<Running> = Vec::new();
        for publisher in &publishers {
            let store = PgStore::connect(ground.database.url()).await.expect("as another process has it");
            let relay = Relay::new(store, publisher.clone()).lease(Duration::from_secs(1)).batch(10);
            relays.push(Running::start(relay));
        }
        let (keys, each) = (64, 30);
        for round in 0..each {
            ground
                .publish((0..keys).map(|key| ground.paid(&key.to_string(), format!("{key} {round}"))))
                .await;
            if round == each / 2 {
                relays.pop().expect("there are four").ended.abort(); // without a goodbye
            }
        }
        eventually("the outbox is empty", SOON, async || ground.rows().await.is_empty()).await;
        let mut next = vec![0; keys];
        while next.iter().any(|next| *next < each) {
            for body in ground.read(&ground.queue, 1).await {
                let (key, round) = body.split_once(' ').expect("two words");
                let (key, round): (usize, usize) =
                    (key.parse().expect("a key"), round.parse().expect("a round"));
                assert!(round <= next[key], "key {key}: round {round} came before {}", next[key]);
                next[key] += usize::from(round == next[key]);
            }
        }
        for relay in relays {
            assert_eq!(relay.stop().await.refused, 0);
        }
        ground.end().await;
    }
}
