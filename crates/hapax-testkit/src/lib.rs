//! The test kit of Hapax.
//!
//! - [`memory`]: a store and a broker in memory, with a clock and faults that a test controls.
//! - [`conformance`]: what every store and every source must do, written once; an adapter's test folder is
//!   ten lines that call it.
//! - [`harness`]: what a user's handlers do when their messages come twice, in disorder, or around a crash.
//! - [`servers`], [`proxy`], [`process`]: private servers, a network that fails on request, and processes that
//!   die at a chosen point.

pub mod conformance;
mod delegate;
pub mod harness;
mod local;
pub mod memory;
pub mod process;
pub mod proxy;
pub mod servers;

#[doc(hidden)]
pub use hapax_core;
