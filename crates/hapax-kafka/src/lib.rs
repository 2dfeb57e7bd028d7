//! Apache Kafka for [Hapax](https://docs.rs/hapax): topics as a source, and a publisher.
//!
//! ```no_run
//! # async fn example() -> Result<(), hapax_core::Error> {
//! use hapax_core::{Envelope, Fetched, Outgoing, Publisher, Settler, Source};
//! use hapax_kafka::Kafka;
//!
//! let kafka = Kafka::new(["kafka.internal:9093"])
//!     .property("security.protocol", "SASL_SSL")?
//!     .property("sasl.mechanism", "SCRAM-SHA-512")?
//!     .property("sasl.username", "orders")?
//!     .property("sasl.password", "…")?;
//!
//! let publisher = kafka.publisher();
//! let message = Envelope::new(r#"{"order_id":7}"#).with_id("payment-1").with_type("PaymentReceived");
//! for result in publisher.publish(vec![Outgoing::to_queue("payments", message)]).await {
//!     result?; // written by the leader and all replicas in sync
//! }
//!
//! let mut payments = kafka.source(["payments"], "orders");
//! payments.prepare(100).await?;
//! let settler = payments.settler();
//! if let Fetched::Batch(deliveries) = payments.next(50).await? {
//!     // … take effect, commit; then:
//!     settler.settle(deliveries.into_iter().map(|delivery| delivery.ack()).collect()).await;
//! }
//! payments.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! What it holds to:
//!
//! - An offset is committed when every record that was delivered before it has been acked, never earlier.
//! - When a partition is taken away in an orderly way, its records in hand are finished and committed first.
//!   When it was lost, nothing is committed for it any more.
//! - No group begins at the end of a topic: where it has no valid offset, it begins at the earliest record,
//!   or fails if so configured.
//! - Nothing is created on a broker unless asked ([`KafkaPublisher::create_topic`]).
//! - Passwords and all other properties are in no error, metric or `Debug` text.
//!
//! librdkafka, the client underneath, logs under the target `librdkafka`.

mod backoff;
mod broker;
mod commit;
mod context;
mod envelope;
mod error;
mod intake;
mod lane;
mod ledger;
mod metrics;
mod properties;
mod publisher;
mod rebalance;
mod settle;
mod source;
mod topics;

pub use broker::Kafka;
pub use ledger::Receipt;
pub use publisher::KafkaPublisher;
pub use settle::KafkaSettler;
pub use source::{KafkaSource, OffsetReset};
