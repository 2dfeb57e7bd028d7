//! A broker one publishes to.

use std::future::Future;

use crate::{Envelope, Error};

/// A message and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The message; its properties carry the id and the type.
    pub envelope: Envelope,
    /// The exchange, topic, stream or queue. Empty: the broker's default.
    pub destination: String,
    /// The routing key or partition key.
    pub routing_key: String,
}

impl Outgoing {
    /// A message to a queue by its name.
    pub fn to_queue(queue: impl Into<String>, envelope: Envelope) -> Self {
        Self { envelope, destination: String::new(), routing_key: queue.into() }
    }
}

/// A broker one publishes to.
pub trait Publisher: Send + Sync + 'static {
    /// Publishes messages and waits until the broker has taken responsibility for each, with a result
    /// per entry in the same order. What the broker nacks or can route nowhere is an error
    /// ([`Code::NotPublished`](crate::Code::NotPublished)), and so is one whose answer was lost.
    fn publish(&self, messages: Vec<Outgoing>) -> impl Future<Output = Vec<Result<(), Error>>> + Send;

    /// The same where one failure is as good as many: the first error, after all were tried.
    fn publish_all(&self, messages: Vec<Outgoing>) -> impl Future<Output = Result<(), Error>> + Send {
        async { self.publish(messages).await.into_iter().collect() }
    }
}
