//! Calls to the outside, on record.
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{CallRecords as _, CallRequest, CallState, Fence, Inbox as _, MessageId, Retention as _};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::StoreFixture;
use super::by_hand::{ByHand, LONG, id, message, name};
use crate::conformance::{SHORT_LEASE, SOON};

/// A call is on record before it is made, and made by one.
pub async fn a_call_is_begun_once<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let id = id("a");
    let state = begin(&orders, &call(&orders, &id)).await;
    assert!(matches!(state, CallState::Ours { begun_before: false, .. }), "{state:?}");
    match begin(&elsewhere, &call(&elsewhere, &id)).await {
        CallState::Running { ends_in } => assert!(ends_in > Duration::ZERO && ends_in <= LONG),
        state => panic!("{state:?}"),
    }
    let refund = CallRequest { label: "refund", ..call(&orders, &id) };
    assert!(matches!(begin(&orders, &refund).await, CallState::Ours { .. }), "another label is another call");
    let mails = ByHand::named(fixture, "mails");
    assert!(matches!(begin(&mails, &call(&mails, &id)).await, CallState::Ours { .. }));
}

/// Fifty begin one call at once.
pub async fn of_fifty_calls_at_once_one_is_made<F: StoreFixture>(fixture: &F) {
    let start = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let (orders, start) = (ByHand::new(fixture), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            matches!(begin(&orders, &call(&orders, &id("a"))).await, CallState::Ours { .. })
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().filter(|ours| *ours).count(), 1);
}

/// A result is kept byte for byte, and answers every later attempt.
pub async fn a_finished_call_answers_with_its_result<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let (id, result) = (id("a"), (0..=255).cycle().take(100_000).collect::<Vec<u8>>());
    let fence = ours(&orders, &call(&orders, &id)).await;
    assert!(end(&orders, &call(&orders, &id), fence, &result).await);
    assert_eq!(begin(&elsewhere, &call(&elsewhere, &id)).await, CallState::Finished(result.into()));
    assert!(!end(&orders, &call(&orders, &id), fence, b"another").await, "it stands");
}

/// The process ends while the call is under way: whoever comes next makes it again, and knows it.
pub async fn case_35_an_unfinished_call_is_made_again<F: StoreFixture>(fixture: &F) {
    let (orders, elsewhere) = (ByHand::new(fixture), ByHand::elsewhere(fixture).await);
    let id = id("a");
    let late = CallRequest { lease: SHORT_LEASE, ..call(&orders, &id) };
    let first = ours(&orders, &late).await;
    let second = made_again(&elsewhere, &call(&elsewhere, &id)).await;
    assert!(second > first);
    assert!(!end(&orders, &late, first, b"late").await);
    assert!(!orders.store.renew_call(&late, first).await.expect("an answer"));
    orders.store.release_call(&late, first).await.expect("an answer");
    assert!(
        matches!(begin(&orders, &late).await, CallState::Running { .. }),
        "the late one released nothing"
    );
    assert!(end(&elsewhere, &call(&elsewhere, &id), second, b"winner").await);
    assert_eq!(begin(&orders, &late).await, CallState::Finished("winner".into()));
}

/// A call that is renewed belongs to whoever makes it.
pub async fn a_renewed_call_is_not_made_again<F: StoreFixture>(fixture: &F) {
    let (orders, id) = (ByHand::new(fixture), id("a"));
    let call = CallRequest { lease: SHORT_LEASE * 4, ..call(&orders, &id) };
    let fence = ours(&orders, &call).await;
    for _ in 0..8 {
        tokio::time::sleep(SHORT_LEASE).await;
        assert!(orders.store.renew_call(&call, fence).await.expect("an answer"));
        assert!(matches!(begin(&orders, &call).await, CallState::Running { .. }));
    }
}

/// An attempt that failed lets go, and the next one need not wait for the lease.
pub async fn a_released_call_is_made_again_at_once<F: StoreFixture>(fixture: &F) {
    let (orders, id) = (ByHand::new(fixture), id("a"));
    let call = call(&orders, &id);
    let first = ours(&orders, &call).await;
    orders.store.release_call(&call, first).await.expect("it is released");
    assert!(made_again(&orders, &call).await > first);
}

/// Under one label there is one request, whatever became of it.
pub async fn another_request_under_the_label_is_refused<F: StoreFixture>(fixture: &F) {
    let (orders, id) = (ByHand::new(fixture), id("a"));
    let first = call(&orders, &id);
    let other = CallRequest { request: b"another amount", ..first };
    let fence = ours(&orders, &first).await;
    assert_eq!(begin(&orders, &other).await, CallState::OtherRequest, "in progress");
    orders.store.release_call(&first, fence).await.expect("it is released");
    assert_eq!(begin(&orders, &other).await, CallState::OtherRequest, "released");
    let fence = made_again(&orders, &first).await;
    end(&orders, &first, fence, b"result").await;
    assert_eq!(begin(&orders, &other).await, CallState::OtherRequest, "finished");
    assert_eq!(begin(&orders, &first).await, CallState::Finished("result".into()));
}

/// Once the other side may have forgotten the key, a call whose end is unknown is not repeated.
pub async fn an_unfinished_call_is_not_repeated_under_a_stale_key<F: StoreFixture>(fixture: &F) {
    let (orders, id) = (ByHand::new(fixture), id("a"));
    let stale = CallRequest { lease: Duration::ZERO, key_valid_for: Duration::ZERO, ..call(&orders, &id) };
    let fence = ours(&orders, &stale).await;
    let expired = async {
        while begin(&orders, &call(&orders, &id)).await != CallState::Expired {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, expired).await.expect("a later attempt's own limit does not count");
    assert!(end(&orders, &stale, fence, b"late").await, "its own answer may still come");
    assert_eq!(begin(&orders, &stale).await, CallState::Finished("late".into()));
}

/// An operator sees what was asked and what came back.
pub async fn the_calls_of_a_message_are_listed<F: StoreFixture>(fixture: &F) {
    let (orders, id) = (ByHand::new(fixture), id("a"));
    let charge = call(&orders, &id);
    let fence = ours(&orders, &charge).await;
    end(&orders, &charge, fence, b"charged").await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    ours(&orders, &CallRequest { label: "a mail", ..charge }).await;
    let rows = orders.store.calls(&orders.consumer, &id).await.expect("the calls");
    let labels: Vec<&str> = rows.iter().map(|row| row.label.as_str()).collect();
    assert_eq!(labels, ["charge", "a mail"]);
    assert_eq!((&rows[0].request[..], rows[0].result.as_deref()), (charge.request, Some(&b"charged"[..])));
    assert!(rows[0].finished_at.is_some() && rows[0].lease_until.is_none());
    assert!(rows[1].finished_at.is_none() && rows[1].result.is_none());
    assert!(rows[1].lease_until.is_some() && rows[1].lease_until <= Some(rows[1].key_valid_until));
    assert_eq!(orders.store.calls(&name("mails"), &id).await.expect("the calls"), []);
}

/// Calls are kept as long as the record of their message.
pub async fn calls_go_with_the_record_of_their_message<F: StoreFixture>(fixture: &F) {
    let orders = ByHand::new(fixture);
    for text in ["done", "unknown"] {
        ours(&orders, &call(&orders, &id(text))).await;
    }
    orders.deliver(&message("done")).await;
    let purged = async {
        while orders.store.purge(&orders.consumer, Duration::ZERO, 10).await.expect("a purge").rows == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, purged).await.expect("the row is purged");
    let count = async |text| orders.store.calls(&orders.consumer, &id(text)).await.expect("the calls").len();
    assert_eq!((count("done").await, count("unknown").await), (0, 1));

    let renamed = name("renamed");
    orders.deliver(&message("moves")).await;
    orders.store.rename(&orders.consumer, &renamed).await.expect("a rename");
    let moved = orders.store.calls(&renamed, &id("unknown")).await.expect("the calls");
    let unknown = id("unknown");
    let before = call(&orders, &unknown);
    assert_eq!(moved[0].key, before.idempotency_key(), "the other side knows it by this key");
    orders
        .store
        .release_call(&CallRequest { consumer: &renamed, ..before }, Fence(0))
        .await
        .expect("an answer");
    let again = made_again_as(&orders, &CallRequest { consumer: &renamed, ..before }).await;
    assert_eq!(again.1, before.idempotency_key());
}

fn call<'c, F: StoreFixture>(orders: &'c ByHand<F>, id: &'c MessageId) -> CallRequest<'c> {
    CallRequest {
        consumer: &orders.consumer,
        id,
        label: "charge",
        request: b"{\"amount\":\"25.00\"}\0\xff",
        lease: LONG,
        key_valid_for: LONG * 10,
    }
}

async fn begin<F: StoreFixture>(orders: &ByHand<F>, call: &CallRequest<'_>) -> CallState {
    orders.store.begin_call(call).await.expect("beginning a call is answered")
}

async fn ours<F: StoreFixture>(orders: &ByHand<F>, call: &CallRequest<'_>) -> Fence {
    match begin(orders, call).await {
        CallState::Ours { fence, begun_before: false, .. } => fence,
        state => panic!("the call should be new, but: {state:?}"),
    }
}

/// Begins a call again and again until its lease has ended.
async fn made_again<F: StoreFixture>(orders: &ByHand<F>, call: &CallRequest<'_>) -> Fence {
    made_again_as(orders, call).await.0
}

async fn made_again_as<F: StoreFixture>(orders: &ByHand<F>, call: &CallRequest<'_>) -> (Fence, String) {
    let again = async {
        loop {
            match begin(orders, call).await {
                CallState::Ours { fence, begun_before: true, key } => return (fence, key),
                CallState::Running { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                state => panic!("{state:?}"),
            }
        }
    };
    tokio::time::timeout(SOON, again).await.expect("the lease ends")
}

async fn end<F: StoreFixture>(
    orders: &ByHand<F>,
    call: &CallRequest<'_>,
    fence: Fence,
    result: &[u8],
) -> bool {
    orders.store.end_call(call, fence, result).await.expect("ending a call is answered")
}
