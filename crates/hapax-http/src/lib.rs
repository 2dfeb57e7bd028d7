#![doc = include_str!("../docs/overview.md")]

mod body;
mod fingerprint;
mod idempotency;
mod in_process;
mod kept;
mod key;
pub mod metrics;
mod mode;
mod problem;
mod recorded;
mod rules;
mod run;
mod scope;
mod service;
mod transactional;
mod tx;
pub mod webhook;

pub use body::Body;
pub use idempotency::{Idempotency, Unscoped};
pub use kept::IDEMPOTENCY_REPLAYED;
pub use key::IDEMPOTENCY_KEY;
pub use problem::Problem;
pub use recorded::Recorded;
pub use rules::{IDEMPOTENCY_KEY_EXPIRES, LargeAnswer, Takeover, UnknownLength};
pub use run::{Run, RunAgain};
pub use service::IdempotencyService;
pub use transactional::Transactional;
pub use tx::Tx;

/// The guide's programs compile.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../docs/http.md")]
mod guide {}
