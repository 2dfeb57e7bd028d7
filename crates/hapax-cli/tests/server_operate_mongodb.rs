//! The operators' commands on MongoDB, in a build that has the feature.
#![cfg(feature = "mongodb")]

#[expect(dead_code, reason = "what it has for SQLite is not needed here")]
mod program;

mod server {
    use std::time::Duration;

    use hapax::{
        BUCKETS, Burial, Claim, ClaimRequest, Code, ConsumerName, DeadLetters as _, Digest, Envelope,
        Inbox as _, InstanceId, Key, MessageId, MongoStore, NotSent, OnFailure, Outbox as _, Publication,
        Store as _, Take, Then,
    };
    use hapax_testkit::servers::{MongoDatabase, Server, require};

    use super::program::Folder;

    fn key(id: &str) -> Key {
        Key::new(MessageId::new(id).expect("an id"), Digest::of(b"1"))
    }

    /// A store with a message that was handled and published two others, of which one is parked, and with a dead
    /// letter.
    async fn filled(url: &str) -> MongoStore {
        let store = MongoStore::connect(url).await.expect("the database answers");
        store.migrate().await.expect("the schema is made");
        let orders = ConsumerName::new("orders").expect("a name");
        let keys = [key("handled"), key("dead")];
        let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(&orders) };
        let (mut tx, claims) = store.begin_claim(&request).await.expect("a claim");
        assert_eq!(claims, [Claim::New, Claim::New]);
        for (id, body) in [("o-1", "first"), ("o-2", "second")] {
            tx.publish(Publication::bytes("Paid", body).id(key(id).id)).expect("it can be published");
        }
        let burial = Burial {
            envelope: &Envelope::new("1"),
            id: Some(&key("dead").id),
            kind: "Paid",
            order: None,
            place: None,
            reason: Code::HandlerFailed,
            error: "no",
            failures: 1,
            crashes: 0,
        };
        store.bury(&mut tx, &orders, &burial).await.expect("it is set aside");
        store.finish(tx).await.expect("it commits");
        park_first(&store).await;
        store
    }

    async fn park_first(store: &MongoStore) {
        let relay = InstanceId("relay".into());
        let buckets = store.share_buckets(&relay, Duration::from_mins(1)).await.expect("buckets are shared");
        assert_eq!(buckets.len(), usize::from(BUCKETS));
        let take = Take { relay: &relay, max: 1, on_failure: OnFailure::Block, away: &[] };
        let first = store.unsent(&take).await.expect("the outbox is read").remove(0);
        assert_eq!(&first.envelope.body[..], b"first");
        let (code, then) = (Code::NotPublished, Then::Park);
        let rows = [NotSent { number: first.number, code, error: "routed nowhere", then }];
        store.not_sent(&rows).await.expect("it is parked");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_outbox_the_dead_letters_and_the_records_of_a_mongodb_store_are_an_operators() {
        if !require(Server::MongoDb) {
            return;
        }
        let database = MongoDatabase::create().expect("a database of its own");
        let store = filled(database.url()).await;
        let folder = Folder::with(&[]);
        let run = async |command: &str| folder.run(&format!("{command} --store {}", database.url())).await;

        let rows = run("outbox list --json").await.json(0);
        assert_eq!(rows.len(), 2);
        assert_eq!((&rows[0]["id"], &rows[0]["state"]), (&"o-1".into(), &"parked".into()));
        let shown = run(&format!("outbox show {}", rows[1]["number"])).await.exit(0);
        assert!(shown.ends_with("second\n"), "{shown}");
        assert_eq!(run("outbox unpark --parked --yes --json").await.json(0)[0]["unparked"], 1);
        let discarded = run(&format!("outbox discard {} --yes --json", rows[1]["number"])).await;
        assert_eq!(discarded.json(0)[0]["discarded"], 1);
        assert_eq!(run("outbox list --state unsent --json").await.json(0)[0]["id"], "o-1");

        let letter = run("dead list --json").await.json(0).remove(0);
        assert_eq!(
            (&letter["id"], &letter["reason"]),
            (&"dead".into(), &Code::HandlerFailed.as_str().into())
        );
        let redriven = run(&format!("dead redrive {} --yes --json", letter["number"])).await;
        assert_eq!(redriven.json(0)[0]["redriven"], 1);
        assert_eq!(run("inbox get dead --consumer orders --json").await.json(0)[0]["state"], "waiting");
        let why = run("inbox why dead --consumer orders").await.exit(0);
        assert!(why.contains("waiting without a failure"), "{why}");
        assert_eq!(
            run("inbox purge --consumer orders --yes --json").await.json(0)[0]["purged"],
            0,
            "nothing is old"
        );
        assert_eq!(run("inbox rename orders sales --yes --json").await.json(0)[0]["renamed"], 2);
        let sales = ConsumerName::new("sales").expect("a name");
        let moved = store.look(&sales, &[key("handled").id]).await.expect("an answer");
        assert!(moved[0].is_some());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_needs_sql_is_refused_on_a_mongodb_store() {
        if !require(Server::MongoDb) {
            return;
        }
        let database = MongoDatabase::create().expect("a database of its own");
        let folder = Folder::with(&[]);
        for command in ["migrate", "bench"] {
            let refused = folder.run(&format!("{command} --store {}", database.url())).await;
            assert!(refused.exit(2).is_empty() && refused.stderr().contains("HX0007"), "{refused}");
        }
        let unmade = folder.run(&format!("outbox list --store {}", database.url())).await;
        assert!(unmade.exit(2).is_empty() && unmade.stderr().contains("HX0012"), "{unmade}");
    }
}
