//! What the source and the publisher do on a server that speaks SQS's protocol, and over a network that fails.

#![allow(clippy::unwrap_used)] // helpers of tests are tests, too

mod broker;
mod by_hand;
mod server;
