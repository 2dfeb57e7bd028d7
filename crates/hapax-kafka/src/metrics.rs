//! Every metric of this crate. Labels name groups, never messages.

use metrics::{Counter, counter, describe_counter};

const DELIVERIES: &str = "hapax_kafka_deliveries_total";
const ACKS: &str = "hapax_kafka_acks_total";
const HAND_BACKS: &str = "hapax_kafka_hand_backs_total";
const STALE: &str = "hapax_kafka_stale_settlements_total";
const COMMITS: &str = "hapax_kafka_commits_total";
const COMMITS_FAILED: &str = "hapax_kafka_commits_failed_total";
const ASSIGNED: &str = "hapax_kafka_partitions_assigned_total";
const REVOKED: &str = "hapax_kafka_partitions_revoked_total";
const LOST: &str = "hapax_kafka_partitions_lost_total";
const CONNECTIONS_LOST: &str = "hapax_kafka_connections_lost_total";
const RECONNECTS: &str = "hapax_kafka_reconnects_total";
const PUBLISHED: &str = "hapax_kafka_published_total";
const NOT_PUBLISHED: &str = "hapax_kafka_not_published_total";

/// The counters of one group's source, looked up once.
pub(crate) struct SourceMetrics {
    pub(crate) deliveries: Counter,
    pub(crate) acks: Counter,
    pub(crate) hand_backs: Counter,
    pub(crate) stale: Counter,
    pub(crate) commits: Counter,
    pub(crate) commits_failed: Counter,
    pub(crate) assigned: Counter,
    pub(crate) revoked: Counter,
    pub(crate) lost: Counter,
    pub(crate) connections_lost: Counter,
    pub(crate) reconnects: Counter,
}

impl SourceMetrics {
    pub(crate) fn of(group: &str) -> Self {
        describe_counter!(DELIVERIES, "Records received from the broker");
        describe_counter!(ACKS, "Deliveries acked");
        describe_counter!(HAND_BACKS, "Deliveries handed back, to be delivered again");
        describe_counter!(STALE, "Settlements discarded because their partition is gone");
        describe_counter!(COMMITS, "Offset commits that the broker confirmed");
        describe_counter!(COMMITS_FAILED, "Offset commits that failed; they are repeated");
        describe_counter!(ASSIGNED, "Partitions assigned");
        describe_counter!(REVOKED, "Partitions given back in an orderly way");
        describe_counter!(LOST, "Partitions lost, or given back with deliveries in hand");
        describe_counter!(CONNECTIONS_LOST, "Times no broker could be reached any more");
        describe_counter!(RECONNECTS, "Times a broker answered again");
        let of = |name: &'static str| counter!(name, "group" => group.to_owned());
        Self {
            deliveries: of(DELIVERIES),
            acks: of(ACKS),
            hand_backs: of(HAND_BACKS),
            stale: of(STALE),
            commits: of(COMMITS),
            commits_failed: of(COMMITS_FAILED),
            assigned: of(ASSIGNED),
            revoked: of(REVOKED),
            lost: of(LOST),
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
        describe_counter!(NOT_PUBLISHED, "Messages refused or left unconfirmed");
        Self { published: counter!(PUBLISHED), not_published: counter!(NOT_PUBLISHED) }
    }
}
