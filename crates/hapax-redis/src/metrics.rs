//! Every metric of this crate. Labels name streams and groups, never messages.

use metrics::{Counter, counter, describe_counter};

const DELIVERIES: &str = "hapax_redis_deliveries_total";
const RECLAIMED: &str = "hapax_redis_reclaimed_total";
const ACKS: &str = "hapax_redis_acks_total";
const HAND_BACKS: &str = "hapax_redis_hand_backs_total";
const STALE: &str = "hapax_redis_stale_settlements_total";
const EXPIRED: &str = "hapax_redis_expired_total";
const TRIMMED: &str = "hapax_redis_trimmed_total";
const CONNECTIONS_LOST: &str = "hapax_redis_connections_lost_total";
const RECONNECTS: &str = "hapax_redis_reconnects_total";
const PUBLISHED: &str = "hapax_redis_published_total";
const NOT_PUBLISHED: &str = "hapax_redis_not_published_total";

/// The counters of one group's source, looked up once.
pub(crate) struct SourceMetrics {
    pub(crate) deliveries: Counter,
    pub(crate) reclaimed: Counter,
    pub(crate) acks: Counter,
    pub(crate) hand_backs: Counter,
    pub(crate) stale: Counter,
    pub(crate) expired: Counter,
    pub(crate) trimmed: Counter,
    pub(crate) connections_lost: Counter,
    pub(crate) reconnects: Counter,
}

impl SourceMetrics {
    pub(crate) fn of(stream: &str, group: &str) -> Self {
        describe_counter!(DELIVERIES, "Deliveries received from the server");
        describe_counter!(RECLAIMED, "Of these, entries whose lease had ended or that were handed back");
        describe_counter!(ACKS, "Deliveries acked");
        describe_counter!(HAND_BACKS, "Deliveries handed back to the group");
        describe_counter!(STALE, "Settlements of deliveries that were no longer ours");
        describe_counter!(EXPIRED, "Deliveries whose lease ended before they were settled");
        describe_counter!(TRIMMED, "Entries that were trimmed or deleted before they were handled");
        describe_counter!(CONNECTIONS_LOST, "Times the connection, the stream or the group was lost");
        describe_counter!(RECONNECTS, "Times consuming was resumed on a new connection");
        let of =
            |name: &'static str| counter!(name, "stream" => stream.to_owned(), "group" => group.to_owned());
        Self {
            deliveries: of(DELIVERIES),
            reclaimed: of(RECLAIMED),
            acks: of(ACKS),
            hand_backs: of(HAND_BACKS),
            stale: of(STALE),
            expired: of(EXPIRED),
            trimmed: of(TRIMMED),
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
        describe_counter!(PUBLISHED, "Messages the server added to a stream");
        describe_counter!(NOT_PUBLISHED, "Messages refused or left unconfirmed");
        Self { published: counter!(PUBLISHED), not_published: counter!(NOT_PUBLISHED) }
    }
}
