//! The messages: each adds an amount to a random one of 100,000 orders.

use hapax::{Envelope, SENT_AT_HEADER, Timestamp};
use serde::Deserialize;
use serde_json::json;

/// The orders that there are, numbered from 1.
pub(super) const ORDERS: i64 = 100_000;
/// The type of the messages.
pub(super) const KIND: &str = "PaymentReceived";

/// A message's payload as a handler reads it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Payment {
    pub(super) order_id: i64,
    pub(super) amount: i64,
}

/// The messages of one round, the same for every contender.
pub(super) struct Payments {
    envelopes: Vec<Envelope>,
    sum: i64,
}

impl Payments {
    /// The messages of a round; every round has its own.
    pub(super) fn new(count: u32, round: u32) -> Self {
        let mut random = fastrand::Rng::with_seed(u64::from(round));
        let mut sum = 0;
        let envelopes = (0..count).map(|_| {
            let payment = Payment { order_id: random.i64(1..=ORDERS), amount: random.i64(1..=1_000) };
            sum += payment.amount;
            envelope(payment, &mut random)
        });
        Self { envelopes: envelopes.collect(), sum }
    }

    /// What all amounts come to.
    pub(super) fn sum(&self) -> i64 {
        self.sum
    }

    /// The messages as if sent now: a consumer that keeps up sees messages that are seconds old.
    pub(super) fn deliveries(&self) -> Vec<Envelope> {
        let sent_at = Timestamp::now().to_string();
        let stamped = |envelope: &Envelope| envelope.clone().with_header(SENT_AT_HEADER, &sent_at);
        self.envelopes.iter().map(stamped).collect()
    }
}

fn envelope(Payment { order_id, amount }: Payment, random: &mut fastrand::Rng) -> Envelope {
    let mut id = || uuid::Builder::from_random_bytes(random.u128(..).to_be_bytes()).into_uuid().to_string();
    let body = json!({ "order_id": order_id, "payment_id": id(), "amount": amount, "currency": "EUR" });
    let mut envelope = Envelope::new(body.to_string()).with_id(id()).with_type(KIND);
    envelope.properties.key = Some(order_id.to_string());
    envelope
}
