//! The outbox: what is written with a transaction, and who may publish it.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::time::Duration;

use hapax_core::{
    BUCKETS, Cause, Code, Destination, ErrorKind, InstanceId, MessageId, NotSent, OnFailure, Outbox as _,
    OutboxFilter, OutboxNumber, OutboxRow, OutboxState, Publication, Take, Then, Transaction as _, Unsent,
};

use super::StoreFixture;
use super::by_hand::{ByHand, LONG, Tx};
use crate::conformance::{SHORT_LEASE, SOON};

/// A relay by its name.
struct Relay<F: StoreFixture> {
    orders: ByHand<F>,
    id: InstanceId,
}

impl<F: StoreFixture> Relay<F> {
    fn named(fixture: &F, name: &str) -> Self {
        Self { orders: ByHand::new(fixture), id: InstanceId(name.to_owned()) }
    }

    /// One that holds every bucket.
    async fn alone(fixture: &F) -> Self {
        let relay = Self::named(fixture, "relay 1");
        assert_eq!(relay.share(LONG).await.len(), usize::from(BUCKETS));
        relay
    }

    async fn share(&self, lease: Duration) -> Vec<u16> {
        self.orders.store.share_buckets(&self.id, lease).await.expect("buckets are shared")
    }

    async fn unsent_with(&self, on_failure: OnFailure, away: &[String]) -> Vec<Unsent> {
        let take = Take { relay: &self.id, max: 100, on_failure, away };
        self.orders.store.unsent(&take).await.expect("the outbox is read")
    }

    async fn unsent(&self) -> Vec<Unsent> {
        self.unsent_with(OnFailure::Block, &[]).await
    }

    /// The bodies of what it may publish, in the order in which it gets them.
    async fn bodies(&self) -> Vec<String> {
        bodies(&self.unsent().await)
    }

    async fn not_sent(&self, number: OutboxNumber, then: Then) {
        let rows = [NotSent { number, code: Code::NotPublished, error: "routed nowhere", then }];
        self.orders.store.not_sent(&rows).await.expect("the reason is noted");
    }
}

fn bodies(rows: &[Unsent]) -> Vec<String> {
    rows.iter().map(|row| String::from_utf8_lossy(&row.envelope.body).into_owned()).collect()
}

/// Publishes in a transaction of its own, caused by the message of that id.
async fn publish<F: StoreFixture>(orders: &ByHand<F>, cause: &str, publication: Publication) {
    let mut tx: Tx<F> = orders.begin().await;
    tx.meta().outbox.caused_by(Some(Cause::new(MessageId::new(cause).expect("a plain id"))));
    tx.publish(publication).expect("it can be published");
    orders.finish(tx).await;
}

/// Publishes messages of one key, each in a transaction of its own.
async fn publish_keyed<F: StoreFixture>(orders: &ByHand<F>, key: &str, bodies: &[&'static str]) {
    for body in bodies {
        publish(orders, body, Publication::bytes("Paid", *body).key(key)).await;
    }
}

async fn rows<F: StoreFixture>(orders: &ByHand<F>, filter: &OutboxFilter) -> Vec<OutboxRow> {
    orders.store.outbox(filter).await.expect("the outbox is listed")
}

async fn all<F: StoreFixture>(orders: &ByHand<F>) -> Vec<OutboxRow> {
    rows(orders, &OutboxFilter::default()).await
}

/// A message is there with the transaction that published it, and not before.
pub async fn what_a_transaction_publishes_commits_with_it<F: StoreFixture>(fixture: &F) {
    let relay = Relay::alone(fixture).await;
    let orders = &relay.orders;
    let mut tx: Tx<F> = orders.begin().await;
    tx.meta().outbox.caused_by(Some(Cause::new(MessageId::new("m1").expect("a plain id"))));
    ByHand::<F>::add(&mut tx, "a", 1).await;
    tx.publish(Publication::bytes("Paid", "1")).expect("it can be published");
    tx.publish(Publication::bytes("Paid", "2")).expect("it can be published");
    assert!(all(orders).await.is_empty());
    orders.finish(tx).await;
    assert_eq!(relay.bodies().await, ["1", "2"]);
    assert_eq!(fixture.total("a").await, 1);
}

/// What is rolled back was never said.
pub async fn a_rolled_back_transaction_publishes_nothing<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let mut tx: Tx<F> = orders.begin().await;
    tx.publish(Publication::bytes("Paid", "1").id(MessageId::new("own").expect("a plain id")))
        .expect("it can be published");
    orders.roll_back(tx).await;
    assert!(all(&orders).await.is_empty());
}

/// Every part of a message survives the store.
pub async fn a_published_message_is_kept_whole<F: StoreFixture>(fixture: &F) {
    let relay = Relay::alone(fixture).await;
    let orders = &relay.orders;
    let body: Vec<u8> = (0..=255).collect();
    let destination = Destination::exchange("events'\\", "order.päid").on("rabbit");
    let publication = Publication::bytes("Paid \"1\"", body.clone())
        .to(destination.clone())
        .key("k'\\ ü")
        .header("Tenant", "nörth\n\0\u{1f980}")
        .content_type("application/octet-stream");
    publish(orders, "m' 1", publication).await;

    let row = all(orders).await.pop().expect("there is one");
    assert_eq!((row.producer.as_str(), row.kind.as_str()), ("orders", "Paid \"1\""));
    assert_eq!((row.key.as_deref(), &row.destination), (Some("k'\\ ü"), &destination));
    assert_eq!(row.cause, Some(MessageId::new("m' 1").expect("a plain id")));
    assert_eq!((row.state, row.attempts, row.error), (OutboxState::Unsent, 0, None));
    assert!(row.created_at.until(row.due_at) < Duration::from_secs(1), "it is due at once");
    let unsent = relay.unsent().await.pop().expect("there is one");
    assert_eq!((unsent.number, unsent.key, unsent.destination), (row.number, row.key, destination));
    assert_eq!(unsent.envelope, row.envelope);
    assert_eq!(&unsent.envelope.body[..], body);
    assert_eq!(unsent.envelope.headers.get("tenant"), Some("nörth\n\0\u{1f980}"));
    let properties = &unsent.envelope.properties;
    assert_eq!(properties.message_id.as_deref(), Some(row.id.as_str()));
    assert_eq!(properties.content_type.as_deref(), Some("application/octet-stream"));
    assert_eq!(properties.correlation_id.as_deref(), Some("m' 1"));
}

/// A handler that runs again publishes under the same ids.
pub async fn case_29_a_second_run_publishes_the_same_ids<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for _ in 0..2 {
        publish(&orders, "m1", Publication::bytes("Paid", "1").key("k")).await;
    }
    let ids: Vec<MessageId> = all(&orders).await.into_iter().map(|row| row.id).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(ids[0], ids[1]);
}

/// Messages of a key come in the order of the transactions that published them.
pub async fn messages_of_a_key_come_in_order<F: StoreFixture>(fixture: &F) {
    let relay = Relay::alone(fixture).await;
    publish_keyed(&relay.orders, "k", &["1", "2", "3", "4"]).await;
    assert_eq!(relay.bodies().await, ["1", "2", "3", "4"]);
}

/// A delayed message is not due, and holds up nobody.
pub async fn a_delayed_message_comes_later<F: StoreFixture>(fixture: &F) {
    let relay = Relay::alone(fixture).await;
    publish(&relay.orders, "m1", Publication::bytes("Paid", "1").key("k").delay(SHORT_LEASE)).await;
    publish_keyed(&relay.orders, "k", &["2"]).await;
    assert_eq!(relay.bodies().await, ["2"]);
    tokio::time::sleep(SHORT_LEASE + SHORT_LEASE / 4).await; // the delay is what is tested
    assert_eq!(relay.bodies().await, ["1", "2"]);
}

/// What is published is gone, or kept as sent; what is kept goes when it is old.
pub async fn a_sent_message_is_not_sent_again<F: StoreFixture>(fixture: &F) {
    let relay = Relay::alone(fixture).await;
    let store = &relay.orders.store;
    publish_keyed(&relay.orders, "k", &["1", "2"]).await;
    let unsent = relay.unsent().await;
    store.sent(&[unsent[0].number], false).await.expect("the row goes");
    store.sent(&[unsent[1].number], true).await.expect("the row is kept");
    assert!(relay.unsent().await.is_empty());

    let kept = all(&relay.orders).await;
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].state, OutboxState::Sent);
    assert!(kept[0].sent_at.is_some());
    assert_eq!(store.purge_sent(LONG, 100).await.expect("a purge"), 0);
    tokio::time::sleep(Duration::from_millis(20)).await; // it has to grow old
    assert_eq!(store.purge_sent(Duration::from_millis(10), 100).await.expect("a purge"), 1);
    assert!(all(&relay.orders).await.is_empty());
}

/// A relay reads its own buckets only, and two share them evenly.
pub async fn two_relays_share_the_buckets<F: StoreFixture>(fixture: &F) {
    let (one, two) = (Relay::named(fixture, "relay 1"), Relay::named(fixture, "relay 2"));
    for number in 0..40 {
        publish(&one.orders, &number.to_string(), Publication::bytes("Paid", number.to_string())).await;
    }
    assert_eq!(one.share(LONG).await.len(), usize::from(BUCKETS));
    assert!(two.share(LONG).await.is_empty(), "nothing is free yet");
    let half = usize::from(BUCKETS / 2);
    let first = one.share(LONG).await;
    let second = two.share(LONG).await;
    assert_eq!((first.len(), second.len()), (half, half));
    assert!(first.iter().all(|bucket| !second.contains(bucket)));

    let (mut ours, theirs) = (one.unsent().await, two.unsent().await);
    assert!(ours.iter().all(|row| first.contains(&row.bucket)));
    assert!(theirs.iter().all(|row| second.contains(&row.bucket)));
    ours.extend(theirs);
    assert_eq!(ours.len(), 40);
}

/// Messages of one key are one relay's at a time.
pub async fn a_key_belongs_to_one_relay<F: StoreFixture>(fixture: &F) {
    let (one, two) = (Relay::named(fixture, "relay 1"), Relay::named(fixture, "relay 2"));
    for relay in [&one, &two, &one, &two] {
        relay.share(LONG).await;
    }
    publish_keyed(&one.orders, "k", &["1", "2", "3"]).await;
    let lengths = (one.unsent().await.len(), two.unsent().await.len());
    assert!(lengths == (3, 0) || lengths == (0, 3), "{lengths:?}");
}

/// The buckets of a relay that died are free when its lease has ended; those of one that left, at once.
pub async fn a_dead_relays_buckets_are_taken<F: StoreFixture>(fixture: &F) {
    let (one, two) = (Relay::named(fixture, "relay 1"), Relay::named(fixture, "relay 2"));
    publish_keyed(&one.orders, "k", &["1"]).await;
    one.share(SHORT_LEASE).await;
    assert!(two.share(LONG).await.is_empty());
    tokio::time::sleep(SHORT_LEASE + SHORT_LEASE / 4).await; // the lease has to end
    assert!(one.unsent().await.is_empty(), "whoever lost its lease reads nothing");
    let takes = async {
        while two.share(SHORT_LEASE).await.len() < usize::from(BUCKETS) {
            tokio::time::sleep(SHORT_LEASE / 4).await;
        }
    };
    tokio::time::timeout(SOON, takes).await.expect("everything is taken over");
    assert_eq!(two.bodies().await, ["1"]);

    two.orders.store.leave_buckets(&two.id).await.expect("a clean end");
    assert_eq!(one.share(LONG).await.len(), usize::from(BUCKETS));
}

/// A relay that shows itself keeps its buckets.
pub async fn a_relay_that_lives_keeps_its_buckets<F: StoreFixture>(fixture: &F) {
    let (one, two) = (Relay::named(fixture, "relay 1"), Relay::named(fixture, "relay 2"));
    one.share(SHORT_LEASE).await;
    one.orders.store.keep_buckets(&one.id, LONG).await.expect("the lease is renewed");
    tokio::time::sleep(SHORT_LEASE + SHORT_LEASE / 4).await; // the first lease has to end
    assert!(two.share(LONG).await.is_empty());
}

/// A message that cannot be published holds up those of its key that come behind it, if order is kept.
pub async fn case_28_a_failing_message_blocks_its_key_or_is_skipped<F: StoreFixture>(fixture: &F) {
    let relay = Relay::alone(fixture).await;
    publish_keyed(&relay.orders, "k", &["1", "2", "3"]).await;
    publish_keyed(&relay.orders, "other", &["4"]).await;
    let first = relay.unsent().await[0].number;
    relay.not_sent(first, Then::Retry(LONG)).await;
    assert_eq!(relay.bodies().await, ["4"]);
    assert_eq!(bodies(&relay.unsent_with(OnFailure::Skip, &[]).await), ["2", "3", "4"]);

    relay.not_sent(first, Then::Park).await;
    assert_eq!(relay.bodies().await, ["4"], "a parked row still holds its place");
    assert_eq!(bodies(&relay.unsent_with(OnFailure::Skip, &[]).await), ["2", "3", "4"]);
}

/// Failures are counted, and their reason is there to be read.
pub async fn case_27_a_failing_message_is_parked_and_visible<F: StoreFixture>(fixture: &F) {
    let relay = Relay::alone(fixture).await;
    let (orders, store) = (&relay.orders, &relay.orders.store);
    publish_keyed(orders, "k", &["1", "2"]).await;
    let number = relay.unsent().await[0].number;
    relay.not_sent(number, Then::Wait).await;
    let row = &all(orders).await[0];
    assert_eq!((row.attempts, row.error.as_deref()), (0, Some("routed nowhere")));
    assert_eq!(relay.bodies().await, ["1", "2"], "what waits for its broker is charged nothing");

    relay.not_sent(number, Then::Retry(Duration::ZERO)).await;
    assert_eq!(relay.bodies().await, ["1"]);
    relay.not_sent(number, Then::Park).await;
    let failing = OutboxFilter { failing: true, ..OutboxFilter::default() };
    let row = rows(orders, &failing).await.pop().expect("it is found");
    assert_eq!((row.number, row.state, row.attempts), (number, OutboxState::Parked, 2));
    assert_eq!(row.code.as_deref(), Some(Code::NotPublished.as_str()));
    assert!(row.parked_at.is_some());
    assert!(relay.unsent().await.is_empty());

    store.unpark(number).await.expect("it is parked");
    let row = &all(orders).await[0];
    assert_eq!((row.state, row.attempts, &row.error), (OutboxState::Unsent, 0, &None));
    assert_eq!(relay.bodies().await, ["1", "2"]);
}

/// Who discards a message lets those of its key go on.
pub async fn a_discarded_message_holds_up_nobody<F: StoreFixture>(fixture: &F) {
    let relay = Relay::alone(fixture).await;
    let store = &relay.orders.store;
    publish_keyed(&relay.orders, "k", &["1", "2"]).await;
    let number = relay.unsent().await[0].number;
    relay.not_sent(number, Then::Park).await;
    store.discard_unsent(number).await.expect("it is parked");
    assert_eq!(relay.bodies().await, ["2"]);
    for gone in [number, OutboxNumber(1_000_000)] {
        let refused = store.discard_unsent(gone).await.expect_err("there is none");
        assert_eq!((refused.kind(), refused.code()), (ErrorKind::NotFound, Code::NotFound));
        assert_eq!(store.unpark(gone).await.expect_err("there is none").kind(), ErrorKind::NotFound);
    }
}

/// A broker that is away does not hold up messages for others.
pub async fn messages_for_a_broker_that_is_away_are_left_alone<F: StoreFixture>(fixture: &F) {
    let relay = Relay::alone(fixture).await;
    for (body, broker) in [("1", "away"), ("2", "here"), ("3", "")] {
        let publication = Publication::bytes("Paid", body).to(Destination::queue("q").on(broker));
        publish(&relay.orders, body, publication).await;
    }
    let away = ["away".to_owned()];
    assert_eq!(bodies(&relay.unsent_with(OnFailure::Block, &away).await), ["2", "3"]);
}

/// An operator finds what he asks for.
pub async fn rows_are_found_by_what_is_asked<F: StoreFixture>(fixture: &F) {
    let (orders, mails) = (ByHand::new(fixture), ByHand::named(fixture, "mails"));
    publish_keyed(&orders, "k", &["1", "2"]).await;
    publish_keyed(&mails, "other", &["3"]).await;
    let everything = all(&orders).await;
    let count = async |filter: OutboxFilter| {
        let listed = rows(&orders, &filter).await.len();
        assert_eq!(orders.store.count_outbox(&filter).await.expect("a count"), listed as u64, "{filter:?}");
        listed
    };
    let filter = OutboxFilter::default;
    assert_eq!(count(filter()).await, 3);
    assert_eq!(count(OutboxFilter { key: Some("k".into()), ..filter() }).await, 2);
    assert_eq!(count(OutboxFilter { producer: Some(mails.consumer.clone()), ..filter() }).await, 1);
    assert_eq!(count(OutboxFilter { id: Some(everything[1].id.clone()), ..filter() }).await, 1);
    assert_eq!(count(OutboxFilter { state: Some(OutboxState::Parked), ..filter() }).await, 0);
    assert_eq!(count(OutboxFilter { state: Some(OutboxState::Unsent), ..filter() }).await, 3);
    let page = OutboxFilter { after: Some(everything[0].number), limit: 1, ..filter() };
    assert_eq!(rows(&orders, &page).await, everything[1..2]);
}

/// A commit with messages in it wakes whoever waits for them.
pub async fn a_commit_wakes_relays<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    let mut seen = 0;
    let early = tokio::time::timeout(Duration::from_millis(100), orders.store.outbox_changed(&mut seen));
    let _ = early.await; // it may begin by saying that something may be there
    let store = orders.store.clone();
    let woken = tokio::spawn(async move { store.outbox_changed(&mut seen).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    publish_keyed(&orders, "k", &["1"]).await;
    tokio::time::timeout(SOON, woken).await.expect("it is woken").expect("the wait ends in order");
}
