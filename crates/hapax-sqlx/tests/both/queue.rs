//! The embedded queue.

use std::time::Duration;

use hapax_core::{
    Delivery, Envelope, ErrorKind, Fetched, Outgoing, Publisher, Settled, Settler, Source, Store, Transaction,
};
use hapax_sqlx::{Queue, QueueReceipt};

use super::{Fixture, Run};

const SOON: Duration = Duration::from_millis(5);

impl<D: Run> Fixture<D> {
    fn orders(&self) -> Queue<D> {
        self.store.queue("orders").poll_every(SOON, SOON)
    }

    async fn send(&self, bodies: &[&'static str]) {
        let messages: Vec<_> = bodies.iter().map(|body| Envelope::new(*body).with_id(*body)).collect();
        self.store.send("orders", &messages).await.unwrap();
    }
}

async fn next<D: Run>(queue: &mut Queue<D>) -> Vec<Delivery<QueueReceipt>> {
    match queue.next(10).await.unwrap() {
        Fetched::Batch(batch) => batch,
        other => panic!("{other:?}"),
    }
}

fn bodies(batch: &[Delivery<QueueReceipt>]) -> Vec<&[u8]> {
    batch.iter().map(|delivery| &delivery.envelope.body[..]).collect()
}

pub(crate) async fn messages_come_in_order_and_are_acked_in_the_transaction<D: Run>(db: Fixture<D>) {
    db.send(&["1", "2", "3"]).await;
    let published =
        Publisher::publish(&db.store, vec![Outgoing::to_queue("orders", Envelope::new("4"))]).await;
    assert!(published[0].is_ok());
    let mut queue = db.orders();
    let batch = next(&mut queue).await;
    assert_eq!(bodies(&batch), [b"1", b"2", b"3", b"4"]);
    assert!(batch.iter().all(|delivery| !delivery.redelivered));
    assert_eq!(batch[0].envelope.properties.message_id.as_deref(), Some("1"));

    let (mut tx, _) = db.begin(&[]).await;
    let receipts = batch[..2].iter().filter_map(|delivery| delivery.in_store);
    tx.meta().settled.extend(receipts.map(Settled::Queued));
    db.store.finish(tx).await.unwrap();
    assert_eq!(queue.depth().await.unwrap(), 2);

    let settler = queue.settler();
    let settled = batch.into_iter().skip(1).map(Delivery::ack).collect();
    let results = settler.settle(settled).await;
    assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::NotFound, "acked already");
    assert!(results[1].is_ok() && results[2].is_ok());
    assert_eq!(queue.depth().await.unwrap(), 0);
}

pub(crate) async fn a_lease_that_ended_is_not_ours<D: Run>(db: Fixture<D>) {
    db.send(&["1"]).await;
    let (mut slow, mut fast) = (db.orders().lease(Duration::ZERO), db.orders());
    let late = next(&mut slow).await.remove(0);
    let taken = next(&mut fast).await.remove(0);
    assert!(taken.redelivered);
    let extended = slow.settler().extend(vec![*late.receipt()]).await.remove(0);
    assert_eq!(extended.unwrap_err().kind(), ErrorKind::NotFound);

    // Neither its ack nor its transaction removes what somebody else has in hand.
    let (mut tx, _) = db.begin(&[]).await;
    tx.meta().settled.extend(late.in_store.map(Settled::Queued));
    db.store.finish(tx).await.unwrap();
    assert!(slow.settler().settle(vec![late.ack()]).await.remove(0).is_err());
    assert_eq!(fast.depth().await.unwrap(), 1);
    assert!(fast.settler().extend(vec![*taken.receipt()]).await.remove(0).is_ok());
    assert!(fast.settler().settle(vec![taken.ack()]).await.remove(0).is_ok());
}

pub(crate) async fn what_is_handed_back_comes_again<D: Run>(db: Fixture<D>) {
    db.send(&["1", "2"]).await;
    let mut queue = db.orders();
    let batch = next(&mut queue).await;
    let settler = queue.settler();
    let results = settler.settle(batch.into_iter().map(Delivery::hand_back).collect()).await;
    assert!(results.iter().all(Result::is_ok));
    let batch = next(&mut queue).await;
    assert_eq!(bodies(&batch), [b"1", b"2"]);
    assert!(batch[0].redelivered);
}

pub(crate) async fn a_cancelled_next_loses_nothing<D: Run>(db: Fixture<D>) {
    let mut queue = db.orders();
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for sent in 0..20 {
        if sent % 4 == 0 {
            db.send(&["x", "y"]).await;
        }
        let nap = Duration::from_micros(300 * sent);
        if let Ok(Ok(Fetched::Batch(batch))) = tokio::time::timeout(nap, queue.next(1)).await {
            bodies.extend(batch.iter().map(|delivery| delivery.envelope.body.to_vec()));
        }
    }
    while bodies.len() < 10 {
        bodies.extend(next(&mut queue).await.iter().map(|delivery| delivery.envelope.body.to_vec()));
    }
    assert_eq!(bodies.len(), 10);
}

pub(crate) async fn closing_hands_back_what_was_never_handed_over<D: Run>(db: Fixture<D>) {
    db.send(&["1"]).await;
    let mut queue = db.orders();
    // One poll starts the fetch, which goes on in its own task.
    assert!(futures::FutureExt::now_or_never(queue.next(1)).is_none());
    queue.close().await;
    let mut other = db.orders();
    assert_eq!(bodies(&next(&mut other).await), [b"1"]);
    drop(queue);

    db.send(&["2"]).await;
    let mut dropped = db.orders();
    assert!(futures::FutureExt::now_or_never(dropped.next(1)).is_none());
    drop(dropped);
    assert_eq!(bodies(&next(&mut other).await), [b"2"]);
}

pub(crate) async fn case_40_bodies_are_kept_byte_for_byte<D: Run>(db: Fixture<D>) {
    let body: Vec<u8> = (0..=255).chain(*br#"{"amount": 2500.10, "n": 9007199254740993}"#).collect();
    let sent = Envelope::new(body).with_header("X", "a\u{0}b\n").with_id("\u{0}");
    db.store.send("orders", std::slice::from_ref(&sent)).await.unwrap();
    let got = next(&mut db.orders()).await.remove(0).envelope;
    assert_eq!((got.body, got.headers, got.properties), (sent.body, sent.headers, sent.properties));
}

pub(crate) async fn sending_in_a_transaction_commits_with_it<D: Run>(db: Fixture<D>) {
    let queue = db.orders();
    let (mut tx, _) = db.begin(&[]).await;
    db.store.send_in(tx.conn(), "orders", &Envelope::new("1")).await.unwrap();
    db.store.roll_back(tx).await;
    assert_eq!(queue.depth().await.unwrap(), 0);
    let (mut tx, _) = db.begin(&[]).await;
    db.store.send_in(tx.conn(), "orders", &Envelope::new("1")).await.unwrap();
    db.store.finish(tx).await.unwrap();
    assert_eq!(queue.depth().await.unwrap(), 1);
}
