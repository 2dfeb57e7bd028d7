//! Everything that needs the server, under the path by which such tests are chosen.

mod conformance;
mod login;
mod outage;
mod publisher;
mod source;
