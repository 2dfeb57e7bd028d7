//! The source.

use std::time::Duration;

use hapax_core::{Delivery, Fetched, Settler, Source};
use hapax_testkit::servers::{Server, eventually, require};
use redis::cmd;
use tokio::time::timeout;

use crate::broker::{GROUP, LEASE, SOON, Stream, proxy, publish, redis, source_of, through};
use crate::by_hand::{acks, nothing_comes, numbers, settle, source, take};
use crate::log::Log;

#[tokio::test]
async fn the_buffer_bounds_what_is_unsettled() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("bounded");
    publish(&stream, 0..20).await;
    let mut source = source(&redis(), &stream, 7).await;
    let mut first = take(&mut source, 7).await;
    assert!(nothing_comes(&mut source).await);
    assert_eq!(stream.unacked(), 7);
    settle(&source, acks(first.drain(..3).collect())).await;
    assert_eq!(numbers(&take(&mut source, 3).await), [7, 8, 9], "as many more as were acked");
    assert!(nothing_comes(&mut source).await);
    source.close().await;
}

#[tokio::test]
async fn what_was_acked_is_gone_and_the_rest_returns_when_closed() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("acked"); // nobody waits for 30 s here
    publish(&stream, 0..10).await;
    let mut first = source(&redis(), &stream, 10).await;
    let mut in_hand = take(&mut first, 5).await;
    let kept = in_hand.pop();
    settle(&first, acks(in_hand)).await;
    timeout(SOON, first.close()).await.unwrap();
    assert!(matches!(first.next(1).await, Ok(Fetched::Ended)));
    drop(kept);

    let mut second = source(&redis(), &stream, 10).await;
    let rest = take(&mut second, 6).await;
    let mut came = numbers(&rest);
    came.sort_unstable();
    assert_eq!(came, [4, 5, 6, 7, 8, 9]);
    settle(&second, acks(rest)).await;
    assert_eq!(stream.unacked(), 0);
    second.close().await;
}

#[tokio::test]
async fn an_instance_that_ends_leaves_no_name_behind() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("names");
    publish(&stream, 0..3).await;
    let mut source = source(&redis(), &stream, 10).await;
    let batch = take(&mut source, 3).await;
    assert_eq!(stream.consumers(), 1);
    settle(&source, acks(batch)).await;
    source.close().await;
    assert_eq!(stream.consumers(), 0);
}

#[tokio::test]
async fn what_a_killed_instance_had_is_taken_over_when_its_lease_ends() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("taken_over");
    publish(&stream, 0..3).await;
    let _: redis::Value = stream.ask(
        cmd("XREADGROUP")
            .arg("GROUP")
            .arg(GROUP)
            .arg("hapax-killed")
            .arg("STREAMS")
            .arg(&stream.name)
            .arg(">"),
    );
    let mut source = source_of(&redis(), &stream).lease(LEASE);
    source.prepare(10).await.unwrap();
    assert!(nothing_comes(&mut source).await, "it could be alive");
    let batch = take(&mut source, 3).await;
    assert_eq!(numbers(&batch), [0, 1, 2]);
    assert!(batch.iter().all(|delivery| delivery.redelivered));
    settle(&source, acks(batch)).await;
    assert_eq!(stream.unacked(), 0);
    source.close().await;
}

/// A pause of the process, as a debugger or a full disk makes one: the instance believes that it has the entry.
#[tokio::test]
async fn a_late_word_does_not_touch_what_another_instance_has() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("late");
    publish(&stream, [1, 2]).await;
    let mut paused = source(&redis(), &stream, 5).await;
    let mut late = take(&mut paused, 2).await;
    let entry = late[0].envelope.origin.position.clone().unwrap();
    let _: redis::Value =
        stream.ask(cmd("XCLAIM").arg(&stream.name).arg(GROUP).arg("another").arg(0).arg(&entry));
    let extended = paused.settler().extend(late.iter().map(|late| *late.receipt()).collect()).await;
    assert!(extended[0].is_err() && extended[1].is_ok(), "{extended:?}");
    let kept = late.pop();
    settle(&paused, acks(late)).await;
    settle(&paused, kept.into_iter().map(Delivery::ack).collect()).await;
    assert_eq!(stream.unacked(), 1, "the other one's is with it still");
    paused.close().await;
}

#[tokio::test]
async fn case_13_a_delivery_stays_in_hand_over_a_lost_connection() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("kept");
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
    assert_eq!(stream.unacked(), 0);
    publish(&stream, [7]).await;
    assert_eq!(numbers(&take(&mut source, 1).await), [7]);
    source.close().await;
}

#[tokio::test]
async fn what_lies_in_the_buffer_is_kept_for_as_long_as_it_takes() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("buffered");
    publish(&stream, 0..3).await;
    let mut source = source_of(&redis(), &stream).lease(LEASE);
    source.prepare(3).await.unwrap();
    eventually("all are delivered", SOON, async || stream.unacked() == 3).await;
    tokio::time::sleep(LEASE * 2).await; // a store that is away: nobody takes anything out
    let batch = take(&mut source, 3).await;
    assert!(batch.iter().all(|delivery| !delivery.redelivered), "none was taken away");
    settle(&source, acks(batch)).await;
    assert_eq!(stream.unacked(), 0);
    source.close().await;
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("silent");
    let proxy = proxy();
    let broker = through(&proxy)
        .answer_timeout(Duration::from_millis(500))
        .connect_timeout(Duration::from_millis(500));
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
async fn nothing_is_created_unless_asked() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::named("declared");
    assert!(redis().source(&stream.name, GROUP).prepare(1).await.is_err());
    assert!(redis().source(&stream.name, GROUP).declare().check().await.is_ok(), "it would be created");
    assert!(!stream.exists());
    let mut source = redis().source(&stream.name, GROUP).declare();
    source.prepare(1).await.unwrap();
    publish(&stream, [1]).await;
    assert_eq!(numbers(&take(&mut source, 1).await), [1]);
    source.close().await;
}

#[tokio::test]
async fn a_stream_that_is_deleted_and_created_again_is_consumed_again() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("deleted");
    let mut source = source(&redis(), &stream, 1).await;
    publish(&stream, [1]).await;
    let delivery = take(&mut source, 1).await;
    settle(&source, acks(delivery)).await;
    stream.delete();
    eventually("the loss is noticed", SOON, async || !source.is_connected()).await;
    stream.create();
    publish(&stream, [2]).await;
    assert_eq!(numbers(&take(&mut source, 1).await), [2]);
    source.close().await;
}

#[tokio::test]
async fn entries_that_were_trimmed_do_not_stop_the_rest() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("trimmed");
    publish(&stream, 0..10).await;
    let mut killed = source_of(&redis(), &stream).lease(LEASE);
    killed.prepare(3).await.unwrap();
    let in_hand = take(&mut killed, 3).await;
    stream.trim_to(5); // 0 to 2 while they are handled, 3 and 4 before anybody read them
    settle(&killed, in_hand.into_iter().map(Delivery::hand_back).collect()).await;
    killed.close().await;

    let mut source = source_of(&redis(), &stream).lease(LEASE);
    source.prepare(10).await.unwrap();
    let rest = take(&mut source, 5).await;
    let mut came = numbers(&rest);
    came.sort_unstable();
    assert_eq!(came, [5, 6, 7, 8, 9]);
    settle(&source, acks(rest)).await;
    assert_eq!(stream.unacked(), 0, "what the stream has no more is out of the group, too");
    source.close().await;
}

#[tokio::test]
async fn the_warning_of_trimmed_entries_counts_them() {
    if !require(Server::Redis) {
        return;
    }
    let stream = Stream::declared("warned");
    publish(&stream, 0..10).await;
    let read = |count| {
        let mut command = cmd("XREADGROUP");
        command
            .arg("GROUP")
            .arg(GROUP)
            .arg("c")
            .arg("COUNT")
            .arg(count)
            .arg("STREAMS")
            .arg(&stream.name)
            .arg(">");
        command
    };
    let _: redis::Value = stream.ask(&read(3));
    stream.trim_to(5);
    let log = Log::listen();
    let mut source = source(&redis(), &stream, 1).await;
    eventually("the warning", SOON, async || log.contains("trimmed before the group had read it")).await;
    assert!(log.contains("entries=2"), "{:?}", log.lines);
    source.close().await;
}
