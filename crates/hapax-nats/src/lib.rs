//! NATS JetStream for [Hapax](https://docs.rs/hapax): a source and a publisher.
