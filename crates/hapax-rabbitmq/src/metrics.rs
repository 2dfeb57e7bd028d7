//! Every metric of this crate. Labels name queues, never messages.

use metrics::{Counter, counter, describe_counter};

const DELIVERIES: &str = "hapax_rabbitmq_deliveries_total";
const ACKS: &str = "hapax_rabbitmq_acks_total";
const HAND_BACKS: &str = "hapax_rabbitmq_hand_backs_total";
const STALE: &str = "hapax_rabbitmq_stale_settlements_total";
const CONNECTIONS_LOST: &str = "hapax_rabbitmq_connections_lost_total";
const RECONNECTS: &str = "hapax_rabbitmq_reconnects_total";
const PUBLISHED: &str = "hapax_rabbitmq_published_total";
const NOT_PUBLISHED: &str = "hapax_rabbitmq_not_published_total";

/// The counters of one queue's source, looked up once.
pub(crate) struct SourceMetrics {
    pub(crate) deliveries: Counter,
    pub(crate) acks: Counter,
    pub(crate) hand_backs: Counter,
    pub(crate) stale: Counter,
    pub(crate) connections_lost: Counter,
    pub(crate) reconnects: Counter,
}

impl SourceMetrics {
    pub(crate) fn of(queue: &str) -> Self {
        describe_counter!(DELIVERIES, "Deliveries received from the broker");
        describe_counter!(ACKS, "Deliveries acked");
        describe_counter!(HAND_BACKS, "Deliveries handed back to the queue");
        describe_counter!(STALE, "Settlements discarded because their channel is gone");
        describe_counter!(CONNECTIONS_LOST, "Times the connection, channel or queue was lost");
        describe_counter!(RECONNECTS, "Times consuming was resumed on a new connection");
        let of = |name: &'static str| counter!(name, "queue" => queue.to_owned());
        Self {
            deliveries: of(DELIVERIES),
            acks: of(ACKS),
            hand_backs: of(HAND_BACKS),
            stale: of(STALE),
            connections_lost: of(CONNECTIONS_LOST),
            reconnects: of(RECONNECTS),
        }
    }
}

/// The counters of a publisher.
pub(crate) struct PublisherMetrics {
    pub(crate) published: Counter,
    pub(crate) not_published: Counter,
}

impl PublisherMetrics {
    pub(crate) fn new() -> Self {
        describe_counter!(PUBLISHED, "Messages the broker confirmed");
        describe_counter!(NOT_PUBLISHED, "Messages returned, refused or left unconfirmed");
        Self { published: counter!(PUBLISHED), not_published: counter!(NOT_PUBLISHED) }
    }
}
