//! `RabbitMQ` for [Hapax](https://docs.rs/hapax): a queue as a source, and a publisher.
//!
//! ```no_run
//! # async fn example() -> Result<(), hapax_core::Error> {
//! use hapax_core::{Envelope, Fetched, Outgoing, Publisher, Settler, Source};
//! use hapax_rabbitmq::RabbitMq;
//!
//! let broker = RabbitMq::new("amqp://mq.internal/shop")?.username("orders").password("…");
//!
//! let publisher = broker.publisher();
//! let message = Envelope::new(r#"{"order_id":7}"#).with_id("payment-1").with_type("PaymentReceived");
//! for result in publisher.publish(vec![Outgoing::to_queue("orders", message)]).await {
//!     result?; // confirmed by the broker, and routed to a queue
//! }
//!
//! let mut orders = broker.source("orders");
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
//! - Nothing is declared on a broker unless asked ([`RabbitSource::declare`]).
//! - It reconnects by itself, and an ack never reaches another connection than the one its delivery
//!   came from: after a reconnect it is discarded, and the message comes again as a duplicate.
//! - A message counts as published when it is confirmed and not returned.
//! - Ids, user names and passwords are in no metric, error or `Debug` text.
//!
//! lapin, the client underneath, logs under its own target. At level `warn` it prints returned
//! messages whole, at `trace` the login: keep `lapin=error` in the log filter.

mod backoff;
mod confirms;
mod connection;
mod envelope;
mod error;
mod intake;
mod ledger;
mod line;
mod link;
mod metrics;
mod publisher;
mod settle;
mod socket;
mod source;

pub use connection::RabbitMq;
pub use ledger::{RabbitSettler, Receipt};
pub use publisher::RabbitPublisher;
pub use source::{Argument, RabbitSource};
