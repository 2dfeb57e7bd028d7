//! A store and a broker in memory, with the semantics of the real ones and every fault at hand.
//!
//! [`MemoryStore`] has real transactions over a table of the handler's own ([`MemoryTx::put`],
//! [`MemoryTx::add`]), a clock that a test can [advance](MemoryStore::advance), and
//! [faults](MemoryStore::fail_next) on request. [`MemoryBroker`] has queues whose deliveries are in flight,
//! come back, and go stale. Both pass the conformance suites that the real adapters pass, so what a test
//! learns here holds there too.
//!
//! ```
//! use hapax_core::{Claim, ClaimRequest, ConsumerName, Digest, Key, MessageId, Store as _};
//! use hapax_testkit::memory::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let orders = ConsumerName::new("orders")?;
//! let key = Key::new(MessageId::new("payment-1")?, Digest::of(b"{}"));
//! let request = ClaimRequest { keys: &[key], ..ClaimRequest::none(&orders) };
//!
//! let (mut tx, claims) = store.begin_claim(&request).await?;
//! assert_eq!(claims, [Claim::New]);
//! tx.add("paid", 1)?;
//! store.finish(tx).await?;
//! assert_eq!(store.number("paid"), 1);
//! # Ok(())
//! # }
//! ```

mod broker;
mod calls;
mod claim;
mod database;
mod dead_letters;
mod faults;
mod inbox;
mod instances;
mod outbox;
mod queue;
mod retention;
mod running;
mod source;
mod store;
mod transaction;
mod versions;
mod waiting_room;

pub use broker::MemoryBroker;
pub use faults::{MemoryError, Op};
pub use queue::QueueStats;
pub use source::{MemoryReceipt, MemorySettler, MemorySource};
pub use store::MemoryStore;
pub use transaction::MemoryTx;
