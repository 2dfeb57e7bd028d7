//! What becomes of messages while servers and connections come and go.

#[path = "../outage/mod.rs"]
mod outage;
mod server;
