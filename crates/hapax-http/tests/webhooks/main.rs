//! Webhooks: what is verified, what is refused, and what becomes of an event.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod queue;
mod sent;
mod verify;
