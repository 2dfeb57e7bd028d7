//! The consumer that one builds by hand, whole or with one of its defences missing: for `bank break` only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hapax::{
    BoxError, BoxPublisher, Cause, ClaimRequest, ConsumerName, Envelope, Failure, Fetched, Format, Message,
    OrReject as _, OutboxBuffer, OutboxEntry, Payload as _, Publisher as _, Relay, Settler as _, Source as _,
    Transaction as _,
};

use super::mark::Marks;
use super::peril::Peril;
use super::{AccountArgs, AccountStore, Accounts, CONSUMER, counter, teller};
use crate::events::{self, Movement};
use crate::service::{Counts, Service, Tally, Wire};

/// What the consumer does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Without {
    /// Hapax, and nothing else: mark, change and outbox are written in one transaction.
    Hapax,
    /// The mark is set in a step of its own, after the change.
    OneTransaction,
    /// The mark is set outside the database, before the change.
    SameDatabase,
    /// What is to be said is published after the commit.
    Outbox,
}

/// Runs the service around the hand-built consumer.
pub(super) async fn serve<S: AccountStore>(
    args: &AccountArgs,
    without: Without,
    store: S,
    wire: Wire,
    peril: Arc<Peril>,
) -> Result<(), BoxError> {
    let seen = Arc::new(Seen::default());
    let marks = match &args.marks {
        Some(url) => Some(Marks::open(url, &args.service.store).await?),
        None => None,
    };
    let consumer = HandBuilt {
        without,
        store: store.clone(),
        name: ConsumerName::new(CONSUMER)?,
        format: events::format("json:/payload/account")?,
        marks,
        publisher: wire.publisher.clone(),
        peril,
        seen: Arc::clone(&seen),
    };
    let tally = Tally::new(store.clone(), CONSUMER, move || seen.counts())?;
    let service = Service::start(args.service.listen, tally, counter::routes(store.clone())?).await?;
    let consuming = consumer.run_until(wire.source, service.stopped());
    service.run(consuming, Relay::new(store, wire.publisher)).await
}

#[derive(Debug, Default)]
struct Seen {
    handled: AtomicU64,
    duplicates: AtomicU64,
}

impl Seen {
    fn counts(&self) -> Counts {
        let [handled, duplicates] =
            [&self.handled, &self.duplicates].map(|count| count.load(Ordering::SeqCst));
        Counts { handled, duplicates }
    }
}

struct HandBuilt<S> {
    without: Without,
    store: S,
    name: ConsumerName,
    format: Format,
    /// Only where they are kept outside the database.
    marks: Option<Marks>,
    publisher: BoxPublisher,
    peril: Arc<Peril>,
    seen: Arc<Seen>,
}

impl<S: AccountStore> HandBuilt<S> {
    /// One message after the other, each acked after its commit.
    async fn run_until(
        mut self,
        mut source: hapax::BoxSource,
        stopped: impl Future<Output = ()>,
    ) -> Result<(), BoxError> {
        source.prepare(1).await?;
        let settler = source.settler();
        tokio::pin!(stopped);
        loop {
            let fetched = tokio::select! {
                fetched = source.next(1) => fetched?,
                () = &mut stopped => return Ok(()),
            };
            let Fetched::Batch(deliveries) = fetched else { continue };
            for delivery in deliveries {
                let settlement = match self.handle(delivery.envelope.clone()).await {
                    Ok(()) => delivery.ack(),
                    Err(Failure::Reject(fault)) => {
                        tracing::warn!(%fault, "a message is given up");
                        delivery.ack()
                    }
                    Err(failure) => {
                        tracing::warn!(?failure, "a message is handed back");
                        delivery.hand_back()
                    }
                };
                settler.settle(vec![settlement]).await;
            }
        }
    }

    async fn handle(&mut self, envelope: Envelope) -> hapax::Result {
        let raw = self.format.read(envelope).or_reject()?;
        let order = Message::new(&raw, Movement::decode(&raw.payload).or_reject()?, 1, None);
        let is_new = !self.is_marked(order.id().as_str()).await? && self.change(order).await?;
        let count = if is_new { &self.seen.handled } else { &self.seen.duplicates };
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Whether the message was marked before, where that is a step of its own.
    async fn is_marked(&mut self, id: &str) -> hapax::Result<bool> {
        match self.without {
            Without::Hapax | Without::Outbox => Ok(false),
            Without::OneTransaction => {
                let mut tx = self.begin().await?;
                let noted = tx.noted(id).await;
                self.store.roll_back(tx).await;
                noted
            }
            Without::SameDatabase => {
                let marks = self.marks.as_mut().ok_or("nobody said where the marks are kept")?;
                let is_new = marks.set(id).await?;
                self.peril.pass(); // whoever dies here has lost the message
                Ok(!is_new)
            }
        }
    }

    /// Makes the change and says so; false if it was made before.
    async fn change(&self, order: Message<Movement>) -> hapax::Result<bool> {
        let id = order.id().clone();
        let mut tx = self.begin().await?;
        tx.meta().outbox.caused_by(Some(Cause::of(&order)));
        match self.change_in(&mut tx, order).await {
            Ok(true) => {}
            Ok(false) => {
                self.store.roll_back(tx).await;
                return Ok(false);
            }
            Err(failure) => {
                self.store.roll_back(tx).await;
                return Err(failure);
            }
        }
        let unsaid = self.leave_unsaid(&mut tx);
        self.store.finish(tx).await?;
        if self.without != Without::SameDatabase {
            self.peril.pass(); // whoever dies here has not marked, not published, or at best not acked
        }
        self.publisher.publish_all(unsaid.into_iter().map(OutboxEntry::into_outgoing).collect()).await?;
        if self.without == Without::OneTransaction {
            let mut tx = self.begin().await?;
            tx.note(id.as_str()).await?;
            self.store.finish(tx).await?;
        }
        Ok(true)
    }

    async fn change_in(&self, tx: &mut S::Tx, order: Message<Movement>) -> hapax::Result<bool> {
        let marks_inside = matches!(self.without, Without::Hapax | Without::Outbox);
        if marks_inside && !tx.note(order.id().as_str()).await? {
            return Ok(false);
        }
        teller::carry_out(tx, order).await?;
        Ok(true)
    }

    /// Without the outbox, takes out of it what is to be published later.
    fn leave_unsaid(&self, tx: &mut S::Tx) -> Vec<OutboxEntry> {
        if self.without != Without::Outbox {
            return Vec::new();
        }
        let outbox = &mut tx.meta().outbox;
        let unsaid = outbox.entries().to_vec();
        *outbox = OutboxBuffer::new(self.name.clone());
        unsaid
    }

    async fn begin(&self) -> hapax::Result<S::Tx> {
        Ok(self.store.begin_claim(&ClaimRequest::none(&self.name)).await?.0)
    }
}
