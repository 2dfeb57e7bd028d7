//! Where the subject's messages come from.

use std::error::Error;
use std::time::Duration;

use hapax::kafka::Kafka;
use hapax::nats::Nats;
use hapax::redis::Redis;
use hapax::sqs::Sqs;
use hapax::{BoxSource, Broker, Lines};

use crate::Form;
use crate::ledger::Ledger;

/// `file:PATH`, `queue:NAME` (in the store itself) or `BROKER-URL#NAME`.
pub(crate) async fn open<S: Ledger>(
    store: &S,
    source: &str,
    form: Form,
) -> Result<BoxSource, Box<dyn Error>> {
    if let Some((url, queue)) = source.split_once('#') {
        return on_broker(url, queue, form).await;
    }
    match source.split_once(':') {
        Some(("file", path)) => Ok(BoxSource::new(Lines::file(path))),
        Some(("queue", queue)) => {
            let lease = (!form.forever).then(|| form.lease());
            Ok(store.queue(queue, lease).ok_or("this store has no queues")?)
        }
        _ => Err(format!("`{source}` is no source").into()),
    }
}

/// The reader is called like the queue, so that no two tests are members of one group. With leases so short that what a killed run had in hand comes back soon.
async fn on_broker(url: &str, queue: &str, form: Form) -> Result<BoxSource, Box<dyn Error>> {
    let lease = form.lease();
    Ok(match url.split(':').next() {
        Some("nats") => {
            let source = Nats::new(url)?.source(queue.replace('.', "_"), queue).subjects([queue]);
            BoxSource::new(source.declare().ack_wait(lease))
        }
        Some("sqs") => BoxSource::new(Sqs::from_url(url)?.source(queue).declare().visibility(lease)),
        Some("redis") => BoxSource::new(Redis::new(url)?.source(queue, queue).declare().lease(lease)),
        Some("kafka") => {
            let kafka = Kafka::from_url(url)?.property("session.timeout.ms", "6000")?;
            BoxSource::new(kafka.source([queue], queue).declare())
        }
        _ => Broker::open(url).await?.declare().source(queue, queue),
    })
}

impl Form {
    /// How long a delivery is a dead process's.
    fn lease(self) -> Duration {
        Duration::from_secs(if self.forever { 5 } else { 1 })
    }

    /// How long nothing must have come before a run ends. Longer than a lease: what a killed run had in hand must come
    /// back before this one ends.
    pub(crate) fn patience(source: &str) -> Duration {
        Duration::from_secs(if source.starts_with("kafka:") { 5 } else { 3 })
    }
}
