//! Every metric of this crate. Labels name queues, never messages.

use metrics::{Counter, counter, describe_counter};

const DELIVERIES: &str = "hapax_sqs_deliveries_total";
const ACKS: &str = "hapax_sqs_acks_total";
const HAND_BACKS: &str = "hapax_sqs_hand_backs_total";
const STALE: &str = "hapax_sqs_stale_settlements_total";
const EXTENSIONS: &str = "hapax_sqs_extensions_total";
const NOT_EXTENDED: &str = "hapax_sqs_not_extended_total";
const EXPIRED: &str = "hapax_sqs_expired_total";
const REQUESTS_FAILED: &str = "hapax_sqs_receives_failed_total";
const PUBLISHED: &str = "hapax_sqs_published_total";
const NOT_PUBLISHED: &str = "hapax_sqs_not_published_total";

/// The counters of one queue's source, looked up once.
pub(crate) struct SourceMetrics {
    pub(crate) deliveries: Counter,
    pub(crate) acks: Counter,
    pub(crate) hand_backs: Counter,
    pub(crate) stale: Counter,
    pub(crate) extensions: Counter,
    pub(crate) not_extended: Counter,
    pub(crate) expired: Counter,
    pub(crate) receives_failed: Counter,
}

impl SourceMetrics {
    pub(crate) fn of(queue: &str) -> Self {
        describe_counter!(DELIVERIES, "Deliveries received from the queue");
        describe_counter!(ACKS, "Messages deleted from the queue");
        describe_counter!(HAND_BACKS, "Deliveries handed back to the queue");
        describe_counter!(STALE, "Settlements discarded because the delivery's visibility had passed");
        describe_counter!(EXTENSIONS, "Deliveries whose visibility was extended");
        describe_counter!(NOT_EXTENDED, "Deliveries whose visibility could not be extended");
        describe_counter!(
            EXPIRED,
            "Deliveries received and not handed over before their visibility had passed"
        );
        describe_counter!(REQUESTS_FAILED, "Requests for messages that failed");
        let of = |name: &'static str| counter!(name, "queue" => queue.to_owned());
        Self {
            deliveries: of(DELIVERIES),
            acks: of(ACKS),
            hand_backs: of(HAND_BACKS),
            stale: of(STALE),
            extensions: of(EXTENSIONS),
            not_extended: of(NOT_EXTENDED),
            expired: of(EXPIRED),
            receives_failed: of(REQUESTS_FAILED),
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
        describe_counter!(PUBLISHED, "Messages that SQS took");
        describe_counter!(
            NOT_PUBLISHED,
            "Messages that SQS refused, or of which it did not say that it took them"
        );
        Self { published: counter!(PUBLISHED), not_published: counter!(NOT_PUBLISHED) }
    }
}
