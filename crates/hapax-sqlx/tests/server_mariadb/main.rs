//! The MariaDB store, in databases of their own on a running server, and on servers of its own.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics
#![cfg(feature = "mysql")]

#[path = "../both/mod.rs"]
mod both;
mod server;
