//! What the source and the publisher do on a broker, on one that comes and goes, and in a group that changes.

#![allow(clippy::unwrap_used)] // helpers of tests are tests, too

mod broker;
mod by_hand;
mod groups;
mod handover;
mod server;
