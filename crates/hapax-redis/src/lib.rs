//! Redis Streams for [Hapax](https://docs.rs/hapax): a consumer group as a source, and a publisher.
//!
//! ```no_run
//! # async fn example() -> Result<(), hapax_core::Error> {
//! use hapax_core::{Envelope, Fetched, Outgoing, Publisher, Settler, Source};
//! use hapax_redis::Redis;
//!
//! let broker = Redis::new("redis://redis.internal/0")?.username("orders").password("…");
//!
//! let publisher = broker.publisher();
//! let message = Envelope::new(r#"{"order_id":7}"#).with_id("payment-1").with_type("PaymentReceived");
//! for result in publisher.publish(vec![Outgoing::to_queue("orders", message)]).await {
//!     result?; // added to the stream
//! }
//!
//! let mut orders = broker.source("orders", "orders");
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
//! - Nothing is created on a server unless asked ([`RedisSource::declare`], [`RedisPublisher::declare_group`]).
//! - It reconnects by itself. An ack reaches the delivery it was meant for and no later one: the server compares, in
//!   one step with the ack, who has the entry and how often it was delivered.
//! - A message counts as published when the server has added it to a stream that was there.
//! - Ids, user names and passwords are in no metric, error or `Debug` text.

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
mod reply;
mod script;
mod settler;
mod source;
mod trimming;

pub use connection::Redis;
pub use ledger::Receipt;
pub use publisher::RedisPublisher;
pub use settler::RedisSettler;
pub use source::RedisSource;
