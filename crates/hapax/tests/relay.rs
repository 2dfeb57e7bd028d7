//! The relay over the memory store and broker.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::time::Duration;

use hapax::{
    Cause, ClaimRequest, Code, ConsumerName, Destination, ErrorKind, MessageId, OnFailure, Outbox,
    OutboxFilter, OutboxRow, OutboxState, Publication, Relay, RelayHealth, RelaySummary, Retry, Store,
    Transaction,
};
use hapax_testkit::memory::{MemoryBroker, MemoryStore, Op};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_secs(20);
const IDLE: Duration = Duration::from_millis(50);

/// Publishes each in a transaction of its own.
async fn publish(store: &MemoryStore, publications: impl IntoIterator<Item = Publication>) {
    let consumer = ConsumerName::new("orders").unwrap();
    for (number, publication) in publications.into_iter().enumerate() {
        let (mut tx, _) = store.begin_claim(&ClaimRequest::none(&consumer)).await.unwrap();
        tx.meta().outbox.caused_by(Some(Cause::new(MessageId::new(format!("m{number}")).unwrap())));
        tx.publish(publication).unwrap();
        store.finish(tx).await.unwrap();
    }
}

fn paid(key: &str, body: &str) -> Publication {
    Publication::bytes("Paid", body.to_owned()).key(key).to_queue("paid")
}

fn bodies(broker: &MemoryBroker, queue: &str) -> Vec<String> {
    broker.ready(queue).iter().map(|envelope| String::from_utf8_lossy(&envelope.body).into_owned()).collect()
}

async fn rows(store: &MemoryStore) -> Vec<OutboxRow> {
    store.outbox(&OutboxFilter::default()).await.unwrap()
}

fn ground(queues: &[&str]) -> (MemoryStore, MemoryBroker) {
    let broker = MemoryBroker::new();
    for queue in queues {
        broker.declare(queue);
    }
    (MemoryStore::new(), broker)
}

/// A relay that runs until it is told to stop.
struct Running {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<RelaySummary, hapax::Error>>,
    health: RelayHealth,
}

impl Running {
    fn start(relay: Relay<MemoryStore>) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let health = relay.health();
        let ended = tokio::spawn(relay.run_until(async {
            let _ = stopped.await;
        }));
        Self { stop, ended, health }
    }

    async fn stop(self) -> RelaySummary {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap().unwrap()
    }
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(SOON, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

#[tokio::test]
async fn what_is_in_the_outbox_is_published_in_order_and_removed() {
    let (store, broker) = ground(&["paid"]);
    publish(&store, ["1", "2", "3"].map(|body| paid("k", body))).await;
    let summary = Relay::new(store.clone(), broker.clone()).until_idle(IDLE).run().await.unwrap();
    assert_eq!((summary.published, summary.refused), (3, 0));
    assert_eq!(bodies(&broker, "paid"), ["1", "2", "3"]);
    assert!(rows(&store).await.is_empty());
}

#[tokio::test]
async fn rows_are_kept_for_the_record_if_asked() {
    let (store, broker) = ground(&["paid"]);
    publish(&store, [paid("k", "1")]).await;
    let relay =
        || Relay::new(store.clone(), broker.clone()).keep_sent(Duration::from_hours(1)).until_idle(IDLE);
    relay().run().await.unwrap();
    assert_eq!(rows(&store).await[0].state, OutboxState::Sent);
    store.advance(Duration::from_hours(2));
    relay().run().await.unwrap();
    assert!(rows(&store).await.is_empty());
    assert_eq!(broker.stats("paid").published, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_wakes_the_relay_without_polling() {
    let (store, broker) = ground(&["paid"]);
    let relay = Relay::new(store.clone(), broker.clone()).poll_every(Duration::from_hours(1));
    let running = Running::start(relay);
    for count in 1..=5 {
        publish(&store, [paid("k", "x")]).await;
        eventually("it is published", async || broker.stats("paid").published == count).await;
    }
    assert_eq!(running.stop().await.published, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_26_while_the_broker_is_away_rows_wait_and_are_charged_nothing() {
    let (store, broker) = ground(&["paid"]);
    broker.go_away();
    let running = Running::start(Relay::new(store.clone(), broker.clone()));
    publish(&store, (0..20).map(|number| paid(&number.to_string(), "x"))).await;
    eventually("the reason can be read", async || rows(&store).await.iter().any(|row| row.error.is_some()))
        .await;
    eventually("it says so", async || running.health.impediments() == ["the broker is away"]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(rows(&store).await.iter().all(|row| row.attempts == 0));
    broker.come_back();
    eventually("all are published", async || rows(&store).await.is_empty()).await;
    eventually("it says so", async || running.health.impediments().is_empty()).await;
    let summary = running.stop().await;
    assert_eq!((summary.published, summary.refused), (20, 0));
    assert_eq!(broker.stats("paid").published, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_27_what_can_never_be_sent_is_parked_and_others_flow() {
    let (store, broker) = ground(&["paid"]);
    publish(
        &store,
        [
            Publication::bytes("Paid", "lost").key("bad").to_queue("nowhere"),
            paid("bad", "behind"),
            paid("good", "1"),
        ],
    )
    .await;
    let retry =
        Retry::exponential().attempts(3).first(Duration::from_millis(10)).max(Duration::from_millis(10));
    let running = Running::start(
        Relay::new(store.clone(), broker.clone()).retry(retry).poll_every(Duration::from_millis(10)),
    );
    eventually("others flow", async || bodies(&broker, "paid") == ["1"]).await;
    let parked = async || rows(&store).await.iter().any(|row| row.state == OutboxState::Parked);
    eventually("it is parked", parked).await;
    let row = rows(&store).await.remove(0);
    assert_eq!((row.attempts, row.code.as_deref()), (3, Some(Code::NotPublished.as_str())));
    assert!(row.error.as_deref().unwrap().contains("no queue `nowhere`"), "{row:?}");
    assert_eq!(bodies(&broker, "paid"), ["1"], "the one behind it keeps its order");

    broker.declare("nowhere");
    store.unpark(row.number).await.unwrap();
    eventually("both are published", async || rows(&store).await.is_empty()).await;
    assert_eq!(bodies(&broker, "nowhere"), ["lost"]);
    assert_eq!(bodies(&broker, "paid"), ["1", "behind"]);
    let summary = running.stop().await;
    assert_eq!((summary.published, summary.refused, summary.parked), (3, 3, 1));
}

#[tokio::test]
async fn case_28_block_keeps_the_order_and_skip_goes_on() {
    for (policy, expected) in [(OnFailure::Block, vec![]), (OnFailure::Skip, vec!["2", "3"])] {
        let (store, broker) = ground(&["paid"]);
        publish(
            &store,
            [Publication::bytes("Paid", "1").key("k").to_queue("nowhere"), paid("k", "2"), paid("k", "3")],
        )
        .await;
        Relay::new(store.clone(), broker.clone()).on_failure(policy).until_idle(IDLE).run().await.unwrap();
        assert_eq!(bodies(&broker, "paid"), expected, "{policy:?}");
        assert_eq!(rows(&store).await.len(), 3 - expected.len());
    }
}

#[tokio::test]
async fn a_broker_that_nobody_knows_is_a_reason_to_be_read() {
    let (store, broker) = ground(&["paid"]);
    let elsewhere = Publication::bytes("Paid", "1").to(Destination::queue("paid").on("other"));
    publish(&store, [elsewhere, paid("k", "2")]).await;
    Relay::new(store.clone(), broker.clone()).until_idle(IDLE).run().await.unwrap();
    assert_eq!(bodies(&broker, "paid"), ["2"]);
    assert_eq!(rows(&store).await[0].code.as_deref(), Some(Code::PublisherMissing.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_holds_up_no_other() {
    let (store, near) = ground(&["paid"]);
    let far = MemoryBroker::new();
    far.declare("paid");
    far.go_away();
    let relay = Relay::new(store.clone(), near.clone()).broker("far", far.clone());
    let running = Running::start(relay);
    for number in 0..10 {
        let publication = |broker: &str| {
            Publication::bytes("Paid", number.to_string()).to(Destination::queue("paid").on(broker))
        };
        publish(&store, [publication("far"), publication("")]).await;
    }
    eventually("the near one has all", async || near.stats("paid").published == 10).await;
    assert_eq!(running.health.impediments(), ["the broker `far` is away"]);
    far.come_back();
    eventually("the far one has all", async || far.stats("paid").published == 10).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_may_go_away_and_come_back() {
    let (store, broker) = ground(&["paid"]);
    let running = Running::start(Relay::new(store.clone(), broker.clone()));
    publish(&store, [paid("k", "1")]).await;
    eventually("it is published", async || broker.stats("paid").published == 1).await;
    store.go_away();
    eventually("it says so", async || running.health.impediments() == ["the store is away"]).await;
    store.come_back();
    publish(&store, [paid("k", "2")]).await;
    eventually("it goes on", async || bodies(&broker, "paid") == ["1", "2"]).await;
    running.stop().await;
}

#[tokio::test]
async fn what_was_published_and_could_not_be_marked_is_marked_later_and_not_published_again() {
    let (store, broker) = ground(&["paid"]);
    publish(&store, ["1", "2", "3"].map(|body| paid("k", body))).await;
    for _ in 0..3 {
        store.fail_next(Op::Sent, ErrorKind::Unavailable);
    }
    let summary = Relay::new(store.clone(), broker.clone()).until_idle(IDLE).run().await.unwrap();
    assert_eq!(bodies(&broker, "paid"), ["1", "2", "3"]);
    assert_eq!(summary.published, 3);
    assert!(rows(&store).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_30_several_relays_keep_the_order_of_each_key() {
    let (store, broker) = ground(&["paid"]);
    let relays: Vec<_> = (0..4)
        .map(|_| {
            Running::start(Relay::new(store.reopen(), broker.clone()).lease(Duration::from_secs(1)).batch(7))
        })
        .collect();
    let keys = 16;
    publish(&store, (0..2_000).map(|number| paid(&(number % keys).to_string(), &number.to_string()))).await;
    eventually("all are published", async || broker.stats("paid").published >= 2_000).await;
    let mut published = 0;
    for relay in relays {
        published += relay.stop().await.published;
    }
    assert_eq!(published, 2_000, "nobody else publishes what one has");
    let mut last = [-1; 16];
    for body in bodies(&broker, "paid") {
        let number: i32 = body.parse().unwrap();
        let key = usize::try_from(number % keys).unwrap();
        assert!(last[key] < number, "key {key}: {number} after {}", last[key]);
        last[key] = number;
    }
}
