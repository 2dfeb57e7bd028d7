//! Webhooks: what is verified, what is refused, and what becomes of an event.

mod queue;
mod sent;
mod verify;
