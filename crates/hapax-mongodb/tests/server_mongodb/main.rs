//! What is special to MongoDB: write conflicts, errors that end a transaction, commits without an answer, and servers
//! that are not fit for it.

mod server;
