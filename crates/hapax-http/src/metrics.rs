//! Every metric of this crate. Keys, tenants and ids never stand in labels.

use hapax_core::ConsumerName;

const REQUESTS: &str = "hapax_http_requests_total";
const BARE_KEYS: &str = "hapax_http_bare_keys_total";
const TAKEN_OVER: &str = "hapax_http_taken_over_total";
const NOT_RECORDED: &str = "hapax_http_not_recorded_total";
const WEBHOOKS: &str = "hapax_http_webhooks_total";

/// Tells the recorder what each metric means. Call it once after installing a recorder.
pub fn describe() {
    use metrics::describe_counter;
    describe_counter!(
        REQUESTS,
        "Requests under the layer, by consumer and outcome (first, not_kept, replayed, running, reused, passed, refused, \
         failed)"
    );
    describe_counter!(BARE_KEYS, "Keys that came without quotes, by consumer");
    describe_counter!(TAKEN_OVER, "Requests whose earlier run died with its outcome unknown, by consumer");
    describe_counter!(NOT_RECORDED, "Answers that were given and could not be recorded, by consumer");
    describe_counter!(
        WEBHOOKS,
        "Webhooks, by kind and outcome (published, failed, or the code of the refusal)"
    );
}

fn label(consumer: &ConsumerName) -> String {
    consumer.as_str().to_owned()
}

pub(crate) fn request(consumer: &ConsumerName, outcome: &'static str) {
    metrics::counter!(REQUESTS, "consumer" => label(consumer), "outcome" => outcome).increment(1);
}

pub(crate) fn bare_key(consumer: &ConsumerName) {
    metrics::counter!(BARE_KEYS, "consumer" => label(consumer)).increment(1);
}

pub(crate) fn taken_over(consumer: &ConsumerName) {
    metrics::counter!(TAKEN_OVER, "consumer" => label(consumer)).increment(1);
}

pub(crate) fn not_recorded(consumer: &ConsumerName) {
    metrics::counter!(NOT_RECORDED, "consumer" => label(consumer)).increment(1);
}

pub(crate) fn webhook(kind: &'static str, outcome: &'static str) {
    metrics::counter!(WEBHOOKS, "kind" => kind, "outcome" => outcome).increment(1);
}
