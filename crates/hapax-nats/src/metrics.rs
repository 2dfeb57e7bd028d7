//! Every metric of this crate. Labels name streams and consumers, never messages.

use metrics::{Counter, counter, describe_counter};

const DELIVERIES: &str = "hapax_nats_deliveries_total";
const ACKS: &str = "hapax_nats_acks_total";
const HAND_BACKS: &str = "hapax_nats_hand_backs_total";
const STALE: &str = "hapax_nats_stale_settlements_total";
const EXPIRED: &str = "hapax_nats_expired_total";
const CONNECTIONS_LOST: &str = "hapax_nats_connections_lost_total";
const RECONNECTS: &str = "hapax_nats_reconnects_total";
const PUBLISHED: &str = "hapax_nats_published_total";
const SWALLOWED: &str = "hapax_nats_swallowed_total";
const NOT_PUBLISHED: &str = "hapax_nats_not_published_total";

/// The counters of one consumer's source, looked up once.
pub(crate) struct SourceMetrics {
    pub(crate) deliveries: Counter,
    pub(crate) acks: Counter,
    pub(crate) hand_backs: Counter,
    pub(crate) stale: Counter,
    pub(crate) expired: Counter,
    pub(crate) connections_lost: Counter,
    pub(crate) reconnects: Counter,
}

impl SourceMetrics {
    pub(crate) fn of(stream: &str, consumer: &str) -> Self {
        describe_counter!(DELIVERIES, "Deliveries received from the broker");
        describe_counter!(ACKS, "Deliveries acked");
        describe_counter!(HAND_BACKS, "Deliveries handed back to the consumer");
        describe_counter!(STALE, "Settlements discarded because the ack wait of their delivery has passed");
        describe_counter!(EXPIRED, "Deliveries whose ack wait passed before they were settled");
        describe_counter!(CONNECTIONS_LOST, "Times the connection or the consumer was lost");
        describe_counter!(RECONNECTS, "Times consuming was resumed on a new connection");
        let of = |name: &'static str| counter!(name, "stream" => stream.to_owned(), "consumer" => consumer.to_owned());
        Self {
            deliveries: of(DELIVERIES),
            acks: of(ACKS),
            hand_backs: of(HAND_BACKS),
            stale: of(STALE),
            expired: of(EXPIRED),
            connections_lost: of(CONNECTIONS_LOST),
            reconnects: of(RECONNECTS),
        }
    }
}

/// The counters of a publisher.
pub(crate) struct PublisherMetrics {
    pub(crate) published: Counter,
    pub(crate) swallowed: Counter,
    pub(crate) not_published: Counter,
}

impl PublisherMetrics {
    pub(crate) fn new() -> Self {
        describe_counter!(PUBLISHED, "Messages a stream acknowledged");
        describe_counter!(SWALLOWED, "Of these, copies that the stream had stored already");
        describe_counter!(NOT_PUBLISHED, "Messages refused or left unacknowledged");
        Self {
            published: counter!(PUBLISHED),
            swallowed: counter!(SWALLOWED),
            not_published: counter!(NOT_PUBLISHED),
        }
    }
}
