//! Everything that needs the broker, under the path by which such tests are chosen.

mod conformance;
mod consumer;
mod outage;
mod publisher;
mod source;
