//! NATS `JetStream` for [Hapax](https://docs.rs/hapax): a durable consumer of a stream as a source, and a publisher.
//!
//! ```no_run
//! # async fn example() -> Result<(), hapax_core::Error> {
//! use hapax_core::{Envelope, Fetched, Outgoing, Publisher, Settler, Source};
//! use hapax_nats::Nats;
//!
//! let broker = Nats::new("nats://nats.internal:4222")?.username("orders").password("…");
//!
//! let publisher = broker.publisher();
//! let message = Envelope::new(r#"{"order_id":7}"#).with_id("payment-1").with_type("PaymentReceived");
//! for result in publisher.publish(vec![Outgoing::to_queue("orders.paid", message)]).await {
//!     result?; // acknowledged by the stream that has this subject
//! }
//!
//! let mut orders = broker.source("ORDERS", "orders");
//! orders.prepare(100).await?;
//! let settler = orders.settler();
//! if let Fetched::Batch(deliveries) = orders.next(50).await? {
//!     // … take effect, commit; then:
//!     settler.settle(deliveries.into_iter().map(|delivery| delivery.ack()).collect()).await;
//! }
//! orders.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! What it holds to:
//!
//! - Nothing is created on a broker unless asked ([`NatsSource::declare`], [`NatsPublisher::declare_stream`]).
//! - It reconnects by itself. An ack is confirmed by the server, and none is sent for a delivery whose ack
//!   wait has passed: the message is somebody else's by then, and comes again as a duplicate.
//! - A message counts as published when a stream has acknowledged it.
//! - Ids, user names, passwords, tokens and keys are in no metric, error or `Debug` text.
//!
//! async-nats, the client underneath, logs under its own target: every event at level `info`, whole messages at `trace`.
//! Keep `async_nats=warn` in the log filter.

mod ack_subject;
mod api;
mod backoff;
mod connection;
mod envelope;
mod error;
mod intake;
mod ledger;
mod line;
mod link;
mod metrics;
mod publisher;
mod settler;
mod source;

pub use connection::Nats;
pub use ledger::Receipt;
pub use publisher::NatsPublisher;
pub use settler::NatsSettler;
pub use source::NatsSource;
