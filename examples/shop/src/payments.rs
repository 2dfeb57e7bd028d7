//! The payment service, which announces payments: more than once if it is unsure.

use hapax::{BoxError, Envelope, Event, Outgoing, Publisher};
use serde::{Deserialize, Serialize};

/// A customer has paid.
#[derive(Serialize, Deserialize)]
pub(crate) struct PaymentReceived {
    pub(crate) payment_id: String,
    pub(crate) order_id: i64,
    pub(crate) cents: i64,
}

impl Event for PaymentReceived {
    const TYPE: &'static str = "PaymentReceived";
}

impl PaymentReceived {
    pub(crate) fn new(order_id: i64, cents: i64) -> Self {
        Self { payment_id: uuid::Uuid::now_v7().to_string(), order_id, cents }
    }

    /// The producer assigns the id, so that all copies of a payment share it.
    fn message(&self) -> Result<Envelope, BoxError> {
        Ok(Envelope::new(serde_json::to_vec(self)?).with_id(&self.payment_id).with_type(Self::TYPE))
    }
}

/// Publishes every payment twice, like a producer whose broker did not confirm in time.
pub(crate) async fn publish_twice(
    payments: &[PaymentReceived],
    publisher: &impl Publisher,
    queue: &str,
) -> Result<(), BoxError> {
    let copies = payments.iter().chain(payments);
    let outgoing = copies.map(|payment| Ok(Outgoing::to_queue(queue, payment.message()?)));
    for published in publisher.publish(outgoing.collect::<Result<_, BoxError>>()?).await {
        published?;
    }
    Ok(())
}
