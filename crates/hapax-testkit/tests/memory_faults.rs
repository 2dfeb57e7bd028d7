//! What goes wrong on request in the memory store and broker, and what must hold then.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::time::Duration;

use hapax_core::{
    Claim, ClaimRequest, Code, ConsumerName, Digest, Envelope, ErrorKind, Fetched, Inbox as _, Key, Lane,
    MessageId, Outgoing, Settle, Settlement, Settler as _, Source as _, Store as _,
};
use hapax_testkit::memory::{MemoryBroker, MemoryStore, MemoryTx, Op};

mod store {
    use super::*;

    fn consumer() -> ConsumerName {
        ConsumerName::new("orders").unwrap()
    }

    fn id() -> MessageId {
        MessageId::new("a").unwrap()
    }

    async fn claim(store: &MemoryStore) -> Result<(MemoryTx, Claim), hapax_core::Error> {
        let (consumer, keys) = (consumer(), [Key::new(id(), Digest::of(b""))]);
        let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(&consumer) };
        store.begin_claim(&request).await.map(|(tx, claims)| (tx, claims[0]))
    }

    /// Claims the message, which is new, and has an effect.
    async fn begin(store: &MemoryStore) -> MemoryTx {
        let (mut tx, claim) = claim(store).await.unwrap();
        assert_eq!(claim, Claim::New);
        tx.add("effects", 1).unwrap();
        tx
    }

    #[tokio::test]
    async fn an_operation_fails_as_often_as_it_was_asked_to() {
        let store = MemoryStore::new();
        store.fail_next(Op::BeginClaim, ErrorKind::Busy);
        store.fail_next(Op::BeginClaim, ErrorKind::Unavailable);
        assert_eq!(claim(&store).await.unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(claim(&store).await.unwrap_err().code(), Code::StoreUnavailable);
        let tx = begin(&store).await;
        store.fail_next(Op::Finish, ErrorKind::Conflict);
        assert_eq!(store.finish(tx).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(store.number("effects"), 0);
        store.finish(begin(&store).await).await.unwrap();
        assert_eq!(store.number("effects"), 1);
    }

    #[tokio::test]
    async fn an_outage_ends_what_is_open_and_keeps_what_is_committed() {
        let store = MemoryStore::new();
        store.finish(begin(&store).await).await.unwrap();
        let (mut open, _) = claim(&store).await.unwrap();
        store.go_away();
        assert_eq!(open.add("effects", 1).unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(store.ping().await.unwrap_err().kind(), ErrorKind::Unavailable);
        store.come_back();
        store.ping().await.unwrap();
        assert_eq!(store.finish(open).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(store.number("effects"), 1);
        assert_eq!(claim(&store).await.unwrap().1, Claim::Duplicate { other_payload: false });
    }

    #[tokio::test]
    async fn a_commit_whose_answer_is_lost_was_applied_or_was_not() {
        for applied in [false, true] {
            let store = MemoryStore::new();
            let tx = begin(&store).await;
            store.unknown_next_commit(applied);
            assert_eq!(store.finish(tx).await.unwrap_err().kind(), ErrorKind::Unknown);
            assert_eq!(store.number("effects"), i64::from(applied));
            assert_eq!(claim(&store).await.unwrap().1 == Claim::New, !applied);
        }
    }

    #[tokio::test]
    async fn case_03_a_swallowed_statement_error_is_found_at_commit() {
        let store = MemoryStore::new();
        let mut tx = begin(&store).await;
        store.fail_next(Op::Statement, ErrorKind::Statement);
        assert!(tx.put("swallowed", "error").is_err());
        assert_eq!(store.finish(tx).await.unwrap_err().kind(), ErrorKind::Broken);
        assert_eq!(store.look(&consumer(), &[id()]).await.unwrap(), [None]);
    }

    #[tokio::test]
    async fn case_46_a_transaction_that_was_ended_by_its_handler_is_found_at_commit() {
        let store = MemoryStore::new();
        let mut tx = begin(&store).await;
        tx.break_transaction();
        assert_eq!(store.finish(tx).await.unwrap_err().code(), Code::TransactionBroken);
        assert_eq!((store.number("effects"), claim(&store).await.unwrap().1), (0, Claim::New));
    }

    #[tokio::test]
    async fn its_own_errors_are_recognised_however_they_are_wrapped() {
        let store = MemoryStore::new();
        let mut tx = begin(&store).await;
        store.fail_next(Op::Statement, ErrorKind::Conflict);
        let ours = tx.put("a", 1).unwrap_err();
        let expected = Some((ErrorKind::Conflict, Code::StoreConflict));
        assert_eq!(store.kind_of(&ours), expected);
        let wrapped =
            hapax_core::Error::new(ErrorKind::Statement, Code::StoreFailed, "wrapped").because(ours);
        assert_eq!(store.kind_of(&std::io::Error::other(wrapped)), expected);
        assert_eq!(store.kind_of(&std::io::Error::other("not ours")), None);
    }

    #[tokio::test]
    async fn a_transaction_reads_its_own_changes_and_others_what_is_committed() {
        let store = MemoryStore::new();
        let mut tx = begin(&store).await;
        tx.put("status", "paid").unwrap();
        tx.delete("effects").unwrap();
        tx.add("effects", 3).unwrap();
        assert_eq!(tx.get("status").unwrap(), Some("paid".into()));
        assert_eq!(tx.get("effects").unwrap(), Some(3.into()));
        assert_eq!(tx.get("nothing").unwrap(), None);
        assert_eq!(store.rows().len(), 0);
        store.finish(tx).await.unwrap();
        assert_eq!(store.get("status"), Some("paid".into()));
        assert_eq!(store.number("effects"), 3);
    }

    #[tokio::test]
    async fn a_transaction_beyond_the_capacity_waits_for_its_turn() {
        let store = MemoryStore::with_capacity(1);
        let first = begin(&store).await;
        let mut second = tokio::spawn({
            let store = store.clone();
            async move { claim(&store).await.unwrap().1 }
        });
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut second).await.is_err());
        store.finish(first).await.unwrap();
        assert_eq!(second.await.unwrap(), Claim::Duplicate { other_payload: false });
    }

    #[tokio::test]
    async fn its_clock_can_be_set_ahead() {
        let store = MemoryStore::new();
        let keep = Duration::from_hours(24);
        store.finish(begin(&store).await).await.unwrap();
        let purge = async || hapax_core::Retention::purge(&store, &consumer(), keep, 10).await.unwrap().rows;
        assert_eq!(purge().await, 0);
        store.advance(keep);
        assert_eq!(purge().await, 1);
    }
}

mod broker {
    use super::*;

    const QUEUE: &str = "payments";

    fn message(id: &str, key: &str) -> Envelope {
        let mut envelope = Envelope::new("{}").with_id(id);
        envelope.properties.key = Some(key.to_owned());
        envelope
    }

    fn ids(fetched: Fetched<hapax_testkit::memory::MemoryReceipt>) -> Vec<(String, bool)> {
        let Fetched::Batch(batch) = fetched else { panic!("deliveries, not {fetched:?}") };
        let id = |envelope: &Envelope| envelope.properties.message_id.clone().unwrap();
        batch.iter().map(|delivery| (id(&delivery.envelope), delivery.redelivered)).collect()
    }

    #[tokio::test]
    async fn case_18_a_lost_lane_goes_to_somebody_else() {
        let broker = MemoryBroker::new();
        broker.publish(QUEUE, message("1", "ada"));
        broker.publish(QUEUE, message("2", "bob"));
        let mut former = broker.source(QUEUE).with_lanes();
        let Ok(Fetched::Batch(batch)) = former.next(1).await else { panic!("a delivery") };
        assert_eq!(batch[0].lane, Some(Lane("ada".into())));

        broker.lose_lane(QUEUE, "ada");
        let mut owner = broker.source(QUEUE).with_lanes();
        let lost = former.next(10).await.unwrap();
        assert!(matches!(&lost, Fetched::Lost(lanes) if *lanes == [Lane("ada".into())]), "{lost:?}");
        assert_eq!(ids(former.next(10).await.unwrap()), [("2".into(), false)]);
        let late = Settlement { receipt: *batch[0].receipt(), verdict: Settle::Ack };
        assert!(former.settler().settle(vec![late]).await[0].is_err());
        assert_eq!(ids(owner.next(10).await.unwrap()), [("1".into(), true)]);

        broker.publish(QUEUE, message("3", "ada"));
        broker.give_lane(QUEUE, "ada");
        assert_eq!(ids(former.next(10).await.unwrap()), [("3".into(), false)]);
    }

    #[tokio::test]
    async fn a_broker_that_is_away_keeps_its_messages() {
        let broker = MemoryBroker::new();
        broker.publish(QUEUE, message("1", "ada"));
        let mut source = broker.source(QUEUE);
        let Ok(Fetched::Batch(mut batch)) = source.next(1).await else { panic!("a delivery") };
        broker.go_away();
        assert!(!source.is_connected());
        let refused = broker_publish(&broker, QUEUE).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(source.settler().settle(vec![batch.remove(0).ack()]).await[0].is_err());
        assert!(tokio::time::timeout(Duration::from_millis(50), source.next(1)).await.is_err());
        broker.come_back();
        assert_eq!(ids(source.next(1).await.unwrap()), [("1".into(), true)]);
    }

    async fn broker_publish(broker: &MemoryBroker, queue: &str) -> Result<(), hapax_core::Error> {
        let messages = vec![Outgoing::to_queue(queue, Envelope::new("{}"))];
        hapax_core::Publisher::publish(broker, messages).await.remove(0)
    }

    #[tokio::test]
    async fn case_26_a_message_that_is_routed_nowhere_is_an_error() {
        let broker = MemoryBroker::new();
        broker.declare(QUEUE);
        broker_publish(&broker, QUEUE).await.unwrap();
        let refused = broker_publish(&broker, "nowhere").await.unwrap_err();
        assert_eq!(refused.code(), Code::NotPublished);
        assert_eq!((broker.ready(QUEUE).len(), broker.ready("nowhere").len()), (1, 0));
    }

    #[tokio::test]
    async fn a_source_that_ends_waits_for_what_is_in_flight() {
        let broker = MemoryBroker::new();
        broker.publish(QUEUE, message("1", "ada"));
        let mut source = broker.source(QUEUE).ending();
        let Ok(Fetched::Batch(batch)) = source.next(1).await else { panic!("a delivery") };
        let settler = source.settler();
        let handed_back = async {
            settler.settle(batch.into_iter().map(hapax_core::Delivery::hand_back).collect()).await;
        };
        let (again, ()) = tokio::join!(source.next(1), handed_back);
        let Ok(Fetched::Batch(batch)) = again else { panic!("the delivery that was handed back") };
        settler.settle(batch.into_iter().map(hapax_core::Delivery::ack).collect()).await;
        assert!(matches!(source.next(1).await, Ok(Fetched::Ended)));
    }

    #[tokio::test]
    async fn what_became_of_a_queue_is_counted() {
        let broker = MemoryBroker::new();
        for id in ["1", "2"] {
            broker.publish(QUEUE, message(id, "ada"));
        }
        let mut source = broker.source(QUEUE);
        let Ok(Fetched::Batch(mut batch)) = source.next(10).await else { panic!("deliveries") };
        let (second, first) = (batch.pop().unwrap(), batch.pop().unwrap());
        source.settler().settle(vec![first.ack(), second.hand_back()]).await;
        let stats = broker.stats(QUEUE);
        assert_eq!((stats.published, stats.delivered, stats.acked, stats.handed_back), (2, 2, 1, 1));
        assert_eq!((stats.ready, stats.in_flight), (1, 0));

        let consuming = async {
            let Ok(Fetched::Batch(batch)) = source.next(10).await else { panic!("a delivery") };
            source.settler().settle(batch.into_iter().map(hapax_core::Delivery::ack).collect()).await;
        };
        let (stats, ()) = tokio::join!(broker.drained(QUEUE), consuming);
        assert_eq!((stats.delivered, stats.redelivered, stats.acked), (3, 1, 2));
    }
}
