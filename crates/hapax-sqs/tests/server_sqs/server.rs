//! Everything that needs the server, under the path by which such tests are chosen.

mod conformance;
mod fifo;
mod publisher;
mod source;
mod visibility;
