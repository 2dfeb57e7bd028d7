//! The source.

use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy};
use hapax_core::{Code, Delivery, ErrorKind, Fetched, Settler, Source};
use hapax_testkit::servers::{Server, eventually, require};
use tokio::time::timeout;

use crate::broker::{ACK_WAIT, CONSUMER, SOON, Stream, config, kind_and_code, nats, proxy, publish, through};
use crate::by_hand::{acks, nothing_comes, numbers, settle, source, take};
use crate::log::Log;

#[tokio::test]
async fn the_buffer_bounds_what_is_unsettled() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("bounded").await;
    publish(&stream, 0..20).await;
    let mut source = source(&nats(), &stream, 7).await;
    let mut first = take(&mut source, 7).await;
    assert!(nothing_comes(&mut source).await);
    assert_eq!(stream.unacked_and_undelivered().await, (7, 13));
    settle(&source, acks(first.drain(..3).collect())).await;
    assert_eq!(numbers(&take(&mut source, 3).await), [7, 8, 9], "as many more as were acked");
    assert!(nothing_comes(&mut source).await);
    source.close().await;
}

#[tokio::test]
async fn what_was_acked_is_gone_and_the_rest_returns_when_closed() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("acked").await; // nobody waits for 30 s here
    publish(&stream, 0..10).await;
    let mut first = source(&nats(), &stream, 10).await;
    let mut in_hand = take(&mut first, 5).await;
    let kept = in_hand.pop();
    settle(&first, acks(in_hand)).await;
    timeout(SOON, first.close()).await.unwrap();
    assert!(matches!(first.next(1).await, Ok(Fetched::Ended)));
    drop(kept);

    let mut second = source(&nats(), &stream, 10).await;
    let rest = take(&mut second, 6).await;
    let mut came = numbers(&rest);
    came.sort_unstable();
    assert_eq!(came, [4, 5, 6, 7, 8, 9]);
    settle(&second, acks(rest)).await;
    assert!(stream.all_acked().await, "an ack that was answered was heard");
    second.close().await;
}

#[tokio::test]
async fn case_13_a_delivery_stays_in_hand_over_a_lost_connection() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("kept").await;
    publish(&stream, 0..6).await;
    let proxy = proxy();
    let mut source = source(&through(&proxy), &stream, 6).await;
    let in_hand = take(&mut source, 6).await;
    proxy.cut();
    eventually("the loss is noticed", SOON, async || !source.is_connected()).await;
    let settler = source.settler();
    let settling = tokio::spawn(async move { settler.settle(acks(in_hand)).await });
    proxy.heal();
    let settled = timeout(SOON, settling).await.unwrap().unwrap();
    assert!(settled.iter().all(Result::is_ok), "sent on the next connection: {settled:?}");
    assert!(stream.all_acked().await);
    publish(&stream, [7]).await;
    assert_eq!(numbers(&take(&mut source, 1).await), [7]);
    source.close().await;
}

#[tokio::test]
async fn what_lies_in_the_buffer_is_kept_for_as_long_as_it_takes() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::with_consumer("buffered", config(ACK_WAIT)).await;
    publish(&stream, 0..3).await;
    let mut source = source(&nats(), &stream, 3).await;
    eventually("all are delivered", SOON, async || stream.unacked_and_undelivered().await == (3, 0)).await;
    tokio::time::sleep(ACK_WAIT * 2).await; // a store that is away: nobody takes anything out
    let batch = take(&mut source, 3).await;
    assert!(batch.iter().all(|delivery| !delivery.redelivered), "none was taken away");
    settle(&source, acks(batch)).await;
    assert!(stream.all_acked().await);
    source.close().await;
}

#[tokio::test]
async fn a_late_ack_is_not_sent() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::with_consumer("late", config(ACK_WAIT)).await;
    publish(&stream, [1]).await;
    let mut source = source(&nats(), &stream, 5).await;
    let late = take(&mut source, 1).await;
    let again = take(&mut source, 1).await;
    assert!(again[0].redelivered);
    settle(&source, acks(late)).await;
    assert_eq!(stream.unacked_and_undelivered().await.0, 1, "the second delivery is in hand");
    let extended = source.settler().extend(vec![*again[0].receipt()]).await;
    assert!(extended.iter().all(Result::is_ok));
    settle(&source, again.into_iter().map(Delivery::hand_back).collect()).await;
    let delivery = take(&mut source, 1).await;
    settle(&source, acks(delivery)).await;
    assert!(stream.all_acked().await);
    source.close().await;
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("silent").await;
    let proxy = proxy();
    let broker =
        through(&proxy).heartbeat(Duration::from_millis(500)).connect_timeout(Duration::from_millis(500));
    let mut source = source(&broker, &stream, 1).await;
    proxy.stall();
    eventually("the silence is noticed", SOON, async || !source.is_connected()).await;
    proxy.sever();
    proxy.heal();
    publish(&stream, [7]).await;
    assert_eq!(numbers(&take(&mut source, 1).await), [7]);
    source.close().await;
}

#[tokio::test]
async fn a_consumer_that_cannot_be_consumed_from_is_refused() {
    if !require(Server::Nats) {
        return;
    }
    let no_acks = consumer::Config { ack_policy: AckPolicy::None, ..config(ACK_WAIT) };
    let push = consumer::Config { deliver_subject: Some("somewhere".into()), ..config(ACK_WAIT) };
    for (config, word) in [(no_acks, "explicit"), (push, "push")] {
        let stream = Stream::with_consumer("unfit", config).await;
        let unfit = nats().source(&stream.name, CONSUMER).prepare(1).await.unwrap_err();
        assert_eq!(kind_and_code(&unfit), (ErrorKind::Setup, Code::BrokerRefused));
        assert!(unfit.to_string().contains(word), "{unfit}");
    }
}

#[tokio::test]
async fn nothing_is_created_unless_asked_and_nothing_changed() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::named("declared").await;
    assert!(nats().source(&stream.name, CONSUMER).prepare(1).await.is_err());
    assert!(nats().source(&stream.name, CONSUMER).declare().check().await.is_ok(), "it would be created");
    assert!(!stream.exists().await);

    let declaring = || nats().source(&stream.name, CONSUMER).declare();
    let mut source = declaring().ack_wait(Duration::from_secs(3));
    source.prepare(1).await.unwrap();
    assert_eq!(source.capabilities().extend_every, Some(Duration::from_secs(1)));
    source.close().await;
    let mut other = declaring().ack_wait(Duration::from_mins(1));
    other.prepare(1).await.unwrap();
    assert_eq!(other.capabilities().extend_every, Some(Duration::from_secs(1)), "it was there");
    other.close().await;
}

#[tokio::test]
async fn a_consumer_that_is_deleted_and_created_again_is_consumed_again() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("deleted").await;
    let mut source = source(&nats(), &stream, 1).await;
    publish(&stream, [1]).await;
    let delivery = take(&mut source, 1).await;
    settle(&source, acks(delivery)).await;
    stream.delete_consumer().await;
    eventually("the loss is noticed", SOON, async || !source.is_connected()).await;
    stream.create_consumer(config(ACK_WAIT)).await;
    let delivery = take(&mut source, 1).await;
    assert_eq!(numbers(&delivery), [1], "a new consumer begins anew");
    settle(&source, acks(delivery)).await;
    source.close().await;
}

/// With a backlog, so that the request that stands is being answered all the time.
#[tokio::test]
async fn a_source_that_is_closed_under_load_leaves_nothing_to_an_ack_wait() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("closed").await; // 30 s
    publish(&stream, 0..2_000).await;
    let mut came = std::collections::BTreeSet::new();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let mut turns = 0;
    while came.len() < 2_000 {
        assert!(tokio::time::Instant::now() < deadline, "{} came", came.len());
        let mut source = source(&nats(), &stream, 64).await;
        // Closed with the request full, half full, or just made.
        for _ in 0..=turns % 4 {
            let Ok(fetched) = timeout(Duration::from_secs(1), source.next(50)).await else { break };
            let Ok(Fetched::Batch(batch)) = fetched else { panic!("a batch") };
            came.extend(numbers(&batch));
            settle(&source, acks(batch)).await;
        }
        source.close().await;
        turns += 1;
    }
    assert!(stream.all_acked().await);
}

#[tokio::test]
async fn a_stream_that_dropped_what_was_not_read_is_warned_of() {
    if !require(Server::Nats) {
        return;
    }
    let stream = Stream::declared("dropped").await;
    publish(&stream, 0..10).await;
    let mut first = source(&nats(), &stream, 3).await;
    let in_hand = take(&mut first, 3).await; // there is room for no more
    first.close().await;
    drop(in_hand);
    stream.keep(2).await;

    let log = Log::listen();
    let mut second = source(&nats(), &stream, 3).await;
    assert!(log.contains("before the consumer had read"), "{:?}", log.lines);
    assert_eq!(numbers(&take(&mut second, 2).await), [8, 9]);
    second.close().await;
    let log = Log::listen();
    second = source(&nats(), &stream, 3).await;
    assert!(!log.contains("before the consumer had read"), "all that is there was read: {:?}", log.lines);
    second.close().await;
}
