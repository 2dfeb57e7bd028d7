//! Thousands of messages and their copies, while the consumer is killed and its servers are taken away: each broker
//! with PostgreSQL, and each store with RabbitMQ.
//!
//! `cargo xtask soak` runs it in full (with `HAPAX_SOAK` set) and keeps the table whose rows it prints; every other run
//! of the tests runs it in short. `HAPAX_SOAK_SEED` repeats a run's choices.

#[path = "../outage/mod.rs"]
mod outage;
mod server;
