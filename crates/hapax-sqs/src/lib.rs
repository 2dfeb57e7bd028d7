//! Amazon SQS for [Hapax](https://docs.rs/hapax): a queue as a source, and a publisher.
//!
//! ```no_run
//! # async fn example() -> Result<(), hapax_core::Error> {
//! use hapax_core::{Envelope, Fetched, Outgoing, Publisher, Settler, Source};
//! use hapax_sqs::Sqs;
//!
//! let broker = Sqs::from_env().await.region("eu-central-1");
//!
//! let publisher = broker.publisher();
//! let message = Envelope::new(r#"{"order_id":7}"#).with_id("payment-1").with_type("PaymentReceived");
//! for result in publisher.publish(vec![Outgoing::to_queue("orders", message)]).await {
//!     result?; // taken by the queue
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
//! - Nothing is declared on a broker unless asked ([`SqsPublisher::declare_queue`]).
//! - A delivery whose visibility has passed is not handed out, not started and not settled: it belongs to whoever
//!   receives it next. The time is counted from before the request that began it was sent.
//! - Deletes and extensions are checked entry by entry, and what SQS failed by its own fault is tried once more.
//! - On a FIFO queue a message is not overtaken by a later one of its group, neither when it is published nor when
//!   its visibility has passed.
//! - Keys, receipt handles and bodies are in no metric, error or `Debug` text.
//!
//! The AWS SDK underneath logs under its own targets. At level `trace` it prints requests whole: keep
//! `aws_smithy_runtime=warn` in the log filter.

mod backoff;
mod batch;
mod body;
mod connection;
mod endpoint;
mod envelope;
mod error;
mod intake;
mod line;
mod metrics;
mod parcel;
mod publisher;
mod receipt;
mod send;
mod settle;
mod shelf;
mod source;

pub use connection::Sqs;
pub use publisher::SqsPublisher;
pub use receipt::Receipt;
pub use settle::SqsSettler;
pub use source::SqsSource;
