//! A consumer's steps, taken one at a time.

use std::time::Duration;

use hapax_core::{
    Burial, Claim, ClaimRequest, Code, ConsumerName, DeadFilter, DeadLetter, DeadLetters as _, DeadNumber,
    Digest, Envelope, ErrorKind, Inbox as _, InboxState, Key, MessageId, Parking, Place, RawMessage, Redrive,
    Settled, Store, Transaction as _, Waiting, WaitingRoom as _,
};

use super::StoreFixture;
use crate::conformance::SOON;

/// A lease that does not run out during a case.
pub(super) const LONG: Duration = Duration::from_mins(10);

/// A transaction of the store under test.
pub(super) type Tx<F> = <<F as StoreFixture>::Store as Store>::Tx;

/// A consumer whose every step the case takes itself. The effect of a message is one more in the account of
/// its id.
pub(super) struct ByHand<F: StoreFixture> {
    pub(super) store: F::Store,
    pub(super) consumer: ConsumerName,
}

impl<F: StoreFixture> Clone for ByHand<F> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), consumer: self.consumer.clone() }
    }
}

impl<F: StoreFixture> ByHand<F> {
    pub(super) fn new(fixture: &F) -> Self {
        Self::named(fixture, "orders")
    }

    pub(super) fn named(fixture: &F, consumer: &str) -> Self {
        Self { store: fixture.store(), consumer: name(consumer) }
    }

    /// The same consumer in another process.
    pub(super) async fn elsewhere(fixture: &F) -> Self {
        Self { store: fixture.reopened().await, consumer: name("orders") }
    }

    pub(super) async fn claim(&self, keys: &[Key]) -> (Tx<F>, Vec<Claim>) {
        self.claim_with_slack(keys, Duration::ZERO).await
    }

    pub(super) async fn claim_with_slack(&self, keys: &[Key], slack: Duration) -> (Tx<F>, Vec<Claim>) {
        let request = ClaimRequest { keys, slack, ..ClaimRequest::none(&self.consumer) };
        self.store.begin_claim(&request).await.expect("a claim is answered")
    }

    /// Begins a plain transaction.
    pub(super) async fn begin(&self) -> Tx<F> {
        self.claim(&[]).await.0
    }

    /// Claims one message that is to be ours.
    pub(super) async fn take(&self, key: Key) -> Tx<F> {
        let (tx, claims) = self.claim(&[key]).await;
        assert!(claims[0].is_ours(), "the message should be free, but: {claims:?}");
        tx
    }

    /// Claims again until nobody else is in the way.
    pub(super) async fn claim_when_free(&self, key: Key) -> (Tx<F>, Claim) {
        let free = async {
            loop {
                let keys = [key.clone()];
                let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(&self.consumer) };
                match self.store.begin_claim(&request).await {
                    Ok((tx, claims)) if claims == [Claim::Busy] => self.store.roll_back(tx).await,
                    Ok((tx, claims)) => return (tx, claims[0]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, free).await.expect("the message becomes free")
    }

    /// What a claim is answered, without taking anything.
    pub(super) async fn answer(&self, key: Key) -> Claim {
        self.answers(&[key]).await[0]
    }

    /// What a claim of several is answered, without taking anything.
    pub(super) async fn answers(&self, keys: &[Key]) -> Vec<Claim> {
        let (tx, claims) = self.claim(keys).await;
        self.store.roll_back(tx).await;
        claims
    }

    /// What a claim is answered as soon as whatever was interrupted has been undone.
    pub(super) async fn answer_when_free(&self, key: Key) -> Claim {
        let (tx, claim) = self.claim_when_free(key).await;
        self.store.roll_back(tx).await;
        claim
    }

    pub(super) async fn add(tx: &mut Tx<F>, account: &str, n: i64) {
        F::add(tx, account, n).await.expect("the handler's statement runs");
    }

    pub(super) async fn finish(&self, tx: Tx<F>) {
        self.store.finish(tx).await.expect("the transaction commits");
    }

    pub(super) async fn roll_back(&self, tx: Tx<F>) {
        self.store.roll_back(tx).await;
    }

    /// A delivery from a source: claimed, handled if it is new, committed.
    pub(super) async fn deliver(&self, message: &RawMessage) -> Claim {
        let (mut tx, claims) = self.claim(&[key_of(message)]).await;
        if claims == [Claim::New] {
            Self::add(&mut tx, message.id.as_str(), 1).await;
            self.finish(tx).await;
        } else {
            self.roll_back(tx).await;
        }
        claims[0]
    }

    /// A message out of the waiting room: claimed with its place, handled if it is new, its row settled,
    /// committed.
    pub(super) async fn deliver_waiting(&self, waiting: &Waiting) -> Claim {
        let (mut tx, claims) = self.claim(&[key_at(waiting)]).await;
        if claims == [Claim::New] {
            Self::add(&mut tx, waiting.id.as_str(), 1).await;
        }
        tx.meta().settled.push(Settled::Waiting(waiting.place));
        self.finish(tx).await;
        claims[0]
    }

    /// A message that comes from a source and goes to the waiting room.
    pub(super) async fn park(&self, parking: &Parking<'_>) {
        self.park_as(key_of(parking.message), parking).await;
    }

    /// A message that comes out of the waiting room and goes back to it.
    pub(super) async fn park_again(&self, waiting: &Waiting, parking: &Parking<'_>) {
        self.park_as(key_at(waiting), parking).await;
    }

    async fn park_as(&self, key: Key, parking: &Parking<'_>) {
        let mut tx = self.take(key).await;
        self.store.park(&mut tx, &self.consumer, parking).await.expect("the message is parked");
        self.finish(tx).await;
    }

    /// Leases what is due, sorted by place: a store may answer in any order.
    pub(super) async fn lease(&self, max: usize, lease: Duration) -> Vec<Waiting> {
        let leased = self.store.lease(&self.consumer, max, lease).await;
        let mut leased = leased.expect("the waiting room answers");
        leased.sort_by_key(|waiting| waiting.place);
        leased
    }

    /// Leases the one message that is due.
    pub(super) async fn lease_only(&self, id: &str) -> Waiting {
        let mut leased = self.lease(10, LONG).await;
        assert_eq!(ids(&leased), [id], "exactly this message is due");
        leased.remove(0)
    }

    /// Leases again and again until something is due.
    pub(super) async fn lease_when_due(&self, lease: Duration) -> Vec<Waiting> {
        let due = async {
            loop {
                let leased = self.lease(10, lease).await;
                if !leased.is_empty() {
                    return leased;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, due).await.expect("a message falls due")
    }

    /// A message that comes from a source and is set aside.
    pub(super) async fn bury(&self, message: &RawMessage) -> DeadNumber {
        self.bury_as(key_of(message), &rejected(message)).await
    }

    /// A message that comes out of the waiting room and is set aside.
    pub(super) async fn bury_waiting(&self, waiting: &Waiting, message: &RawMessage) -> DeadNumber {
        let burial = Burial { place: Some(waiting.place), ..rejected(message) };
        self.bury_as(key_at(waiting), &burial).await
    }

    async fn bury_as(&self, key: Key, burial: &Burial<'_>) -> DeadNumber {
        let tx = self.take(key).await;
        self.bury_in(tx, burial).await
    }

    /// A message without a usable id that is set aside.
    pub(super) async fn bury_nameless(&self, envelope: &Envelope) -> DeadNumber {
        self.bury_in(self.begin().await, &nameless(envelope)).await
    }

    async fn bury_in(&self, mut tx: Tx<F>, burial: &Burial<'_>) -> DeadNumber {
        let number =
            self.store.bury(&mut tx, &self.consumer, burial).await.expect("the message is set aside");
        self.finish(tx).await;
        number
    }

    pub(super) async fn redrive(&self, number: DeadNumber) -> Result<(), hapax_core::Error> {
        self.store.redrive(&Redrive { number, id: None, by: "ada" }).await
    }

    pub(super) async fn dead(&self) -> Vec<DeadLetter> {
        let filter = DeadFilter { consumer: Some(self.consumer.clone()), ..everything() };
        self.store.dead(&filter).await.expect("dead letters are listed")
    }

    pub(super) async fn state(&self, message: &str) -> Option<InboxState> {
        let rows = self.store.look(&self.consumer, &[id(message)]).await.expect("the inbox answers");
        rows[0].as_ref().map(|row| row.state)
    }
}

pub(super) fn name(text: &str) -> ConsumerName {
    ConsumerName::new(text).expect("a consumer name")
}

pub(super) fn id(text: &str) -> MessageId {
    MessageId::new(text).expect("a message id")
}

/// The ids of messages, in their order.
pub(super) fn ids(waiting: &[Waiting]) -> Vec<&str> {
    waiting.iter().map(|waiting| waiting.id.as_str()).collect()
}

pub(super) fn message(text: &str) -> RawMessage {
    let envelope = Envelope::new(format!("payload of {text}")).with_id(text).with_type("Paid");
    RawMessage {
        id: id(text),
        kind: "Paid".into(),
        key: None,
        sent_at: None,
        digest: Digest::of(&envelope.body),
        payload: envelope.body.clone(),
        envelope,
    }
}

/// A message whose order among those of its key is kept.
pub(super) fn in_order(text: &str, key: &str) -> RawMessage {
    RawMessage { key: Some(key.into()), ..message(text) }
}

/// The key of a message that comes from a source.
pub(super) fn key_of(message: &RawMessage) -> Key {
    Key { order: message.key.clone(), ..Key::of(message) }
}

pub(super) fn key(text: &str) -> Key {
    key_of(&message(text))
}

/// The key of a message under whose id another payload came.
pub(super) fn other_payload(text: &str) -> Key {
    Key { digest: Digest::of(b"another payload"), ..key(text) }
}

/// The key of a message that comes out of the waiting room.
pub(super) fn key_at(waiting: &Waiting) -> Key {
    Key {
        digest: Digest::of(&waiting.envelope.body),
        place: Some(waiting.place),
        order: waiting.order.clone(),
        ..Key::new(waiting.id.clone(), Digest::of(b""))
    }
}

/// A place that no message has.
pub(super) const NOWHERE: Place = Place(i64::MAX);

/// A first failure, due again at once.
pub(super) fn failed(message: &RawMessage) -> Parking<'_> {
    Parking {
        message,
        failures: 1,
        error: "no such order",
        code: Some(Code::HandlerFailed),
        wait: Duration::ZERO,
        order: message.key.as_deref(),
    }
}

/// A first failure, due again after a while.
pub(super) fn failed_for(message: &RawMessage, wait: Duration) -> Parking<'_> {
    Parking { wait, ..failed(message) }
}

/// Put behind others of its key: due as soon as they are through, and no failure.
pub(super) fn queued(message: &RawMessage) -> Parking<'_> {
    Parking { failures: 0, error: "", code: None, ..failed(message) }
}

pub(super) fn rejected(message: &RawMessage) -> Burial<'_> {
    Burial {
        envelope: &message.envelope,
        id: Some(&message.id),
        kind: &message.kind,
        order: message.key.as_deref(),
        place: None,
        reason: Code::Rejected,
        error: "no such order",
        failures: 1,
        crashes: 0,
    }
}

pub(super) fn nameless(envelope: &Envelope) -> Burial<'_> {
    Burial {
        envelope,
        id: None,
        kind: "Paid",
        order: None,
        place: None,
        reason: Code::IdMissing,
        error: "the id is missing, empty or null",
        failures: 0,
        crashes: 0,
    }
}

/// A filter that lets every dead letter through.
pub(super) fn everything() -> DeadFilter {
    DeadFilter { limit: 1_000, ..DeadFilter::default() }
}
