//! The outbox where it is PostgreSQL's alone: transactions side by side, and news between processes.

#![cfg(feature = "postgres")]

mod server {
    use std::time::Duration;

    use hapax_core::{InstanceId, OnFailure, Outbox as _, OutboxNumber, Publication, Take};
    use hapax_sqlx::{PgStore, SqlOutbox};
    use hapax_testkit::servers::{Server, TestDatabase, require};
    use sqlx::{Connection as _, PgConnection, Postgres};

    const LEASE: Duration = Duration::from_mins(10);
    const SOON: Duration = Duration::from_secs(20);

    struct Ground {
        database: TestDatabase,
        store: PgStore,
        outbox: SqlOutbox<Postgres>,
        relay: InstanceId,
    }

    impl Ground {
        async fn new() -> Option<Self> {
            if !require(Server::Postgres) {
                return None;
            }
            let database = TestDatabase::create().await.expect("a database of its own");
            let store = PgStore::connect(database.url()).await.expect("the store opens");
            store.migrate().await.expect("the schema is made");
            let outbox = store.outbox_of("checkout").expect("a plain name");
            let relay = InstanceId("relay".to_owned());
            store.share_buckets(&relay, LEASE).await.expect("all buckets");
            Some(Self { database, store, outbox, relay })
        }

        async fn connect(&self) -> PgConnection {
            PgConnection::connect(self.database.url()).await.expect("a connection of the user's own")
        }

        async fn unsent(&self) -> Vec<(OutboxNumber, String)> {
            let take = Take { relay: &self.relay, max: 100, on_failure: OnFailure::Block, away: &[] };
            let rows = self.store.unsent(&take).await.expect("the outbox is read");
            rows.into_iter()
                .map(|row| (row.number, String::from_utf8_lossy(&row.envelope.body).into()))
                .collect()
        }

        async fn end(self) {
            drop((self.store, self.outbox));
            self.database.remove().await.expect("the database goes");
        }
    }

    fn placed(body: &'static str) -> Publication {
        Publication::bytes("OrderPlaced", body).key(body)
    }

    #[tokio::test]
    async fn case_24_a_lower_number_committed_later_is_published_too_on_postgres() {
        let Some(ground) = Ground::new().await else { return };
        let (mut slow, mut quick) = (ground.connect().await, ground.connect().await);
        let mut slow = slow.begin().await.expect("a transaction");
        ground.outbox.publish(&mut slow, placed("slow")).await.expect("it is written");
        let mut quick = quick.begin().await.expect("a transaction");
        ground.outbox.publish(&mut quick, placed("quick")).await.expect("it is written");
        quick.commit().await.expect("it commits");

        let (later, body) = ground.unsent().await.pop().expect("one is there");
        assert_eq!(body, "quick");
        ground.store.sent(&[later], false).await.expect("it is published");
        slow.commit().await.expect("it commits");
        let (earlier, body) = ground.unsent().await.pop().expect("the other is there");
        assert_eq!(body, "slow");
        assert!(earlier < later);
        ground.end().await;
    }

    #[tokio::test]
    async fn a_producers_message_commits_with_its_own_transaction() {
        let Some(ground) = Ground::new().await else { return };
        let mut conn = ground.connect().await;
        for (body, commits) in [("kept", true), ("undone", false)] {
            let mut tx = conn.begin().await.expect("a transaction");
            ground.outbox.publish_all(&mut tx, [placed(body), placed(body)]).await.expect("it is written");
            if commits {
                tx.commit().await.expect("it commits");
            }
        }
        let bodies: Vec<_> = ground.unsent().await.into_iter().map(|(_, body)| body).collect();
        assert_eq!(bodies, ["kept", "kept"]);
        ground.end().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_in_another_process_wakes_this_one() {
        let Some(ground) = Ground::new().await else { return };
        let elsewhere = PgStore::connect(ground.database.url()).await.expect("the store opens");
        let outbox = elsewhere.outbox_of("checkout").expect("a plain name");
        let mut seen = 0;
        ground.store.outbox_changed(&mut seen).await; // now it listens, and has taken note of what there was
        for _ in 0..3 {
            let mut conn = ground.connect().await;
            let mut tx = conn.begin().await.expect("a transaction");
            outbox.publish(&mut tx, placed("x")).await.expect("it is written");
            tx.commit().await.expect("it commits");
            outbox.wake();
            let woken = tokio::time::timeout(SOON, ground.store.outbox_changed(&mut seen)).await;
            assert!(woken.is_ok(), "nobody was told");
        }
        drop((elsewhere, outbox));
        ground.end().await;
    }
}
