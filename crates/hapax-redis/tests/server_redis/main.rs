//! What the source and the publisher do on a real server, and on one that comes and goes.

#![allow(clippy::unwrap_used)] // helpers of tests are tests, too

mod broker;
mod by_hand;
mod log;
mod server;
