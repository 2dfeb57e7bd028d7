//! The PostgreSQL store, in schemas of their own on a running server.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics
#![cfg(feature = "postgres")]

#[path = "../both/mod.rs"]
mod both;
mod server;
