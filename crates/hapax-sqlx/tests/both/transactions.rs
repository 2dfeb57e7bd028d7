//! The sentinel, nested transactions, cancellation, migrations.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use hapax_core::{
    Claim, Code, Envelope, Error, ErrorKind, Inbox, Instances, Retention, Settle, Settled, Source, Store,
    Transaction, WaitingRoom,
};
use hapax_sqlx::SqlTx;
use sqlx::Connection;

use super::{Fixture, Run, consumer, id, is, key, message, parking};

pub(crate) async fn case_46_a_handler_that_ends_the_transaction_is_found_out<D: Run>(db: Fixture<D>) {
    for (n, breaker) in D::breakers(&db.effects).into_iter().enumerate() {
        let (mut tx, claims) = db.begin(&[key(&n.to_string())]).await;
        assert_eq!(claims, [Claim::New]);
        for sql in &breaker {
            let _ = D::execute_sql(tx.conn(), sql.clone()).await; // swallowed, as a handler would
        }
        let error = db.store.finish(tx).await.unwrap_err();
        assert!(is(&error, ErrorKind::Broken, Code::TransactionBroken), "{breaker:?}: {error}");
        let (tx, _) = db.begin(&[key("next")]).await;
        db.store.roll_back(tx).await;
    }
}

pub(crate) async fn a_broken_transaction_settles_nothing<D: Run>(db: Fixture<D>) {
    let mut queue = db.store.queue("q");
    for breaker in D::breakers(&db.effects) {
        queue.send(&[Envelope::new("x")]).await.unwrap();
        let hapax_core::Fetched::Batch(batch) = queue.next(1).await.unwrap() else { panic!() };
        let (mut tx, _) = db.begin(&[]).await;
        tx.meta().settled.extend(batch[0].in_store.map(Settled::Queued));
        for sql in &breaker {
            let _ = D::execute_sql(tx.conn(), sql.clone()).await;
        }
        db.store.finish(tx).await.unwrap_err();
        assert_eq!(queue.depth().await.unwrap(), 1, "{breaker:?}");
        let delivery = batch.into_iter().next().unwrap();
        assert_eq!(delivery.receipt(), delivery.receipt());
        let settlement = delivery.ack();
        assert_eq!(settlement.verdict, Settle::Ack);
        hapax_core::Settler::settle(&queue.settler(), vec![settlement]).await.remove(0).unwrap();
    }
}

pub(crate) async fn nested_transactions_are_savepoints<D: Run>(db: Fixture<D>) {
    let insert = format!("INSERT INTO {} (n) VALUES (1)", db.effects);
    for round in ["a", "b"] {
        let (mut tx, _) = db.begin(&[key(round)]).await;
        let mut nested = tx.conn().begin().await.unwrap();
        D::execute_sql(&mut nested, insert.clone()).await.unwrap();
        nested.commit().await.unwrap();
        let mut nested = tx.conn().begin().await.unwrap();
        D::execute_sql(&mut nested, insert.clone()).await.unwrap();
        drop(nested); // queues a roll-back to the savepoint
        let mut nested = tx.conn().begin().await.unwrap();
        D::execute_sql(&mut nested, insert.clone()).await.unwrap();
        nested.rollback().await.unwrap();
        db.store.finish(tx).await.unwrap();
    }
    assert_eq!(db.effects().await, 2);

    // Dropped last, so that its roll-back is queued when the store commits.
    let (mut tx, _) = db.begin(&[key("c")]).await;
    let mut nested = tx.conn().begin().await.unwrap();
    D::execute_sql(&mut nested, insert.clone()).await.unwrap();
    drop(nested);
    db.store.finish(tx).await.unwrap();
    assert_eq!(db.effects().await, 2);
    assert_eq!(db.ask(key("c")).await, Claim::Duplicate { other_payload: false });

    // One left open is part of the whole.
    let (mut tx, _) = db.begin(&[key("d")]).await;
    let nested = tx.conn().begin().await.unwrap();
    std::mem::forget(nested);
    D::execute_sql(tx.conn(), insert).await.unwrap();
    db.store.finish(tx).await.unwrap();
    assert_eq!(db.effects().await, 3);
}

pub(crate) async fn a_transaction_that_is_dropped_is_rolled_back<D: Run>(db: Fixture<D>) {
    let (mut tx, _) = db.begin(&[key("a")]).await;
    db.effect(&mut tx).await;
    drop(tx);
    // Busy until the server has noticed.
    while db.ask(key("a")).await != Claim::New {
        tokio::task::yield_now().await;
    }
    assert_eq!(db.effects().await, 0);
}

/// Polls a future `polls` times and drops it, waiting for its wake-ups in between.
async fn cancel_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left <= 1 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

async fn delivery<D: Run>(db: &Fixture<D>, text: &str) -> Result<(), Error> {
    let key = key(text);
    let (mut tx, claims) =
        db.store.begin_claim(&super::request(&consumer(), std::slice::from_ref(&key))).await?;
    if !claims[0].is_ours() {
        db.store.roll_back(tx).await;
        return Ok(());
    }
    handler(db, &mut tx).await?;
    db.store.finish(tx).await
}

async fn handler<D: Run>(db: &Fixture<D>, tx: &mut SqlTx<D>) -> Result<(), Error> {
    let insert = || format!("INSERT INTO {} (n) VALUES (1)", db.effects);
    let failed = |error| Error::new(ErrorKind::Statement, Code::StoreFailed, "handler").because(error);
    D::execute_sql(tx.conn(), insert()).await.map_err(failed)?;
    let mut nested = tx.conn().begin().await.map_err(failed)?;
    D::execute_sql(&mut nested, insert()).await.map_err(failed)?;
    nested.commit().await.map_err(failed)
}

pub(crate) async fn case_43_a_call_cancelled_anywhere_leaves_nothing_open<D: Run>(db: Fixture<D>) {
    let mut cancelled = 0;
    for round in 0..5 {
        cancelled += cancel_a_delivery_everywhere(&db, round).await;
    }
    // Not in each round: on a busy machine every answer may be there when it is first asked for.
    assert!(cancelled > 0, "a delivery was cancelled at some awaits");
    for polls in 1..12 {
        cancel_after(polls, side_work(&db)).await;
    }
    side_work(&db).await;
    assert_eq!(db.ask(key("round 0, 1 polls")).await, Claim::Duplicate { other_payload: false });
}

/// Answers with the number of places.
async fn cancel_a_delivery_everywhere<D: Run>(db: &Fixture<D>, round: u32) -> usize {
    for polls in 1.. {
        let text = format!("round {round}, {polls} polls");
        let finished = cancel_after(polls, delivery(db, &text)).await;
        // The next delivery of it is never blocked for good, and has its effect once.
        let again = tokio::time::timeout(Duration::from_secs(20), async {
            while db.handle(key(&text)).await.unwrap() == Claim::Busy {
                tokio::task::yield_now().await;
            }
        });
        again.await.expect("the message is free again");
        if let Some(finished) = finished {
            finished.unwrap();
            return polls - 1;
        }
    }
    unreachable!("a delivery ends")
}

async fn side_work<D: Run>(db: &Fixture<D>) {
    db.store.look(&consumer(), &[id("m1")]).await.unwrap();
    db.store.lease(&consumer(), 1, Duration::from_secs(1)).await.unwrap();
    db.store.purge(&consumer(), Duration::from_hours(1), 10).await.unwrap();
    db.store.beat(&consumer(), &hapax_core::InstanceId("i".into()), Duration::from_secs(9)).await.unwrap();
}

pub(crate) async fn migrations_apply_once<D: Run>(db: Fixture<D>) {
    assert!(db.store.check().await.is_ok());
    assert_eq!(db.store.migrate().await.unwrap(), Vec::<u32>::new());
    db.execute(&format!("UPDATE {} SET version = 99", db.table("schema_version"))).await;
    let error = db.store.check().await.unwrap_err();
    assert!(is(&error, ErrorKind::Setup, Code::SchemaTooNew), "{error}");
    assert!(db.store.migrate().await.is_err());
}

pub(crate) async fn errors_of_handlers_are_recognised<D: Run>(db: Fixture<D>) {
    let (mut tx, _) = db.begin(&[]).await;
    let error = D::execute_sql(tx.conn(), "SELECT nothing FROM nowhere".into()).await.unwrap_err();
    assert_eq!(db.store.kind_of(&error), Some((ErrorKind::Statement, Code::StoreFailed)));
    assert_eq!(db.store.kind_of(&std::io::Error::other("theirs")), None);
    db.store.roll_back(tx).await;

    // An error of the store's own, met inside a handler.
    let (mut tx, _) = db.begin(&[key("a")]).await;
    let error = db.store.park(&mut tx, &consumer(), &parking(&message("not ours"), None)).await.unwrap_err();
    assert_eq!(db.store.kind_of(&error), Some((ErrorKind::Statement, Code::StoreFailed)));
    db.store.roll_back(tx).await;
}
