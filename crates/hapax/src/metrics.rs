//! Every metric of this crate. Ids never stand in labels.

use std::time::Duration;

use hapax_core::ConsumerName;

const MESSAGES: &str = "hapax_messages_total";
const RETRIES: &str = "hapax_retries_total";
const PAYLOAD_DIFFERS: &str = "hapax_payload_differs_total";
const TAKEN_OVER: &str = "hapax_taken_over_total";
const PREPARE: &str = "hapax_prepare_seconds";
const WITHOUT_SENT_AT: &str = "hapax_without_sent_at_total";
const ROLLBACKS: &str = "hapax_rollbacks_total";
const EXPIRED: &str = "hapax_expired_deliveries_total";
const BATCH_SIZE: &str = "hapax_batch_size";
const CLAIM: &str = "hapax_claim_seconds";
const HANDLE: &str = "hapax_handle_seconds";
const COMMIT: &str = "hapax_commit_seconds";
const DELIVERY: &str = "hapax_delivery_seconds";
const PURGED: &str = "hapax_purged_rows_total";
const WAITING: &str = "hapax_waiting_messages";
const DEAD: &str = "hapax_dead_letters";
const PUBLISHED: &str = "hapax_outbox_published_total";
const NOT_PUBLISHED: &str = "hapax_outbox_not_published_total";
const PARKED: &str = "hapax_outbox_parked_total";
const OUTBOX: &str = "hapax_outbox_rows";

/// Tells the recorder what each metric means. Call it once after installing a recorder.
pub fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_counter!(MESSAGES, "Messages that ended, by consumer and outcome (handled, duplicate, dead)");
    describe_counter!(RETRIES, "Attempts after the first, by consumer");
    describe_counter!(PAYLOAD_DIFFERS, "Copies under a known id whose payload differs, by consumer");
    describe_counter!(TAKEN_OVER, "Messages in progress whose lease had ended, by consumer");
    describe_counter!(
        WITHOUT_SENT_AT,
        "New messages without sent_at: after a purge nothing tells them from late copies"
    );
    describe_counter!(ROLLBACKS, "Transactions that were rolled back, by consumer and cause");
    describe_counter!(EXPIRED, "Deliveries not started because their time with the broker had passed");
    describe_histogram!(BATCH_SIZE, Unit::Count, "Messages in one transaction");
    describe_histogram!(CLAIM, Unit::Seconds, "Beginning a transaction and claiming its messages");
    describe_histogram!(PREPARE, Unit::Seconds, "One prepare step: what is called outside");
    describe_histogram!(HANDLE, Unit::Seconds, "One call of a handler");
    describe_histogram!(COMMIT, Unit::Seconds, "Checking and committing a transaction");
    describe_histogram!(DELIVERY, Unit::Seconds, "From receiving a message to settling it");
    describe_gauge!(WAITING, "Messages in the waiting room, by consumer; refreshed every 10 s");
    describe_gauge!(
        DEAD,
        "Dead letters that nobody has redriven or discarded, by consumer; refreshed every 10 s"
    );
    describe_counter!(PUBLISHED, "Rows of the outbox that a broker took");
    describe_counter!(NOT_PUBLISHED, "Attempts to publish a row of the outbox that failed, by code");
    describe_counter!(PARKED, "Rows of the outbox that failed as often as is allowed");
    describe_gauge!(OUTBOX, "Rows of the outbox, by state (unsent, parked); refreshed every 10 s");
    describe_counter!(PURGED, "Inbox rows removed by the janitor, by consumer");
}

fn label(consumer: &ConsumerName) -> String {
    consumer.as_str().to_owned()
}

pub(crate) fn ended(consumer: &ConsumerName, outcome: &'static str, count: u64) {
    metrics::counter!(MESSAGES, "consumer" => label(consumer), "outcome" => outcome).increment(count);
}

pub(crate) fn retried(consumer: &ConsumerName) {
    metrics::counter!(RETRIES, "consumer" => label(consumer)).increment(1);
}

pub(crate) fn payload_differs(consumer: &ConsumerName) {
    metrics::counter!(PAYLOAD_DIFFERS, "consumer" => label(consumer)).increment(1);
}

pub(crate) fn taken_over(consumer: &ConsumerName) {
    metrics::counter!(TAKEN_OVER, "consumer" => label(consumer)).increment(1);
}

pub(crate) fn prepared(consumer: &ConsumerName, took: Duration) {
    metrics::histogram!(PREPARE, "consumer" => label(consumer)).record(took);
}

pub(crate) fn without_sent_at(consumer: &ConsumerName, count: u64) {
    metrics::counter!(WITHOUT_SENT_AT, "consumer" => label(consumer)).increment(count);
}

pub(crate) fn rolled_back(consumer: &ConsumerName, cause: &'static str) {
    metrics::counter!(ROLLBACKS, "consumer" => label(consumer), "cause" => cause).increment(1);
}

pub(crate) fn expired(consumer: &ConsumerName, deliveries: usize) {
    metrics::counter!(EXPIRED, "consumer" => label(consumer)).increment(deliveries as u64);
}

pub(crate) fn claimed(consumer: &ConsumerName, messages: usize, took: Duration) {
    // A batch has a few thousand messages at most: exact in an f64.
    metrics::histogram!(BATCH_SIZE, "consumer" => label(consumer))
        .record(u32::try_from(messages).unwrap_or(u32::MAX));
    metrics::histogram!(CLAIM, "consumer" => label(consumer)).record(took);
}

pub(crate) fn handled(consumer: &ConsumerName, took: Duration) {
    metrics::histogram!(HANDLE, "consumer" => label(consumer)).record(took);
}

pub(crate) fn committed(consumer: &ConsumerName, took: Duration) {
    metrics::histogram!(COMMIT, "consumer" => label(consumer)).record(took);
}

pub(crate) fn delivered(consumer: &ConsumerName, took: Duration) {
    metrics::histogram!(DELIVERY, "consumer" => label(consumer)).record(took);
}

pub(crate) fn kept(consumer: &ConsumerName, waiting: u64, dead: u64) {
    // Exact up to 4 thousand million, which no operator will let it come to.
    let count = |number: u64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    metrics::gauge!(WAITING, "consumer" => label(consumer)).set(count(waiting));
    metrics::gauge!(DEAD, "consumer" => label(consumer)).set(count(dead));
}

pub(crate) fn purged(consumer: &ConsumerName, rows: u64) {
    metrics::counter!(PURGED, "consumer" => label(consumer)).increment(rows);
}

pub(crate) fn published(rows: usize) {
    metrics::counter!(PUBLISHED).increment(rows as u64);
}

pub(crate) fn not_published(code: &'static str) {
    metrics::counter!(NOT_PUBLISHED, "code" => code).increment(1);
}

pub(crate) fn parked() {
    metrics::counter!(PARKED).increment(1);
}

pub(crate) fn outbox(state: &'static str, rows: u64) {
    metrics::gauge!(OUTBOX, "state" => state).set(f64::from(u32::try_from(rows).unwrap_or(u32::MAX)));
}
