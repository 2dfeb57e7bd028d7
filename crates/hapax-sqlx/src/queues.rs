//! The embedded queues as something to publish to.

use std::fmt;

use hapax_core::{Error, Outgoing, Publisher};

use crate::dialect::Dialect;
use crate::error::Result;
use crate::store::SqlStore;

/// All embedded queues of a store as a [`Publisher`], made by [`SqlStore::queues`].
///
/// A message goes to the queue that its destination names, or else its routing key. Messages that are
/// published together are one transaction: all of them are taken, or none. A queue exists as long as there are
/// messages in it, so that no message can be unroutable.
pub struct Queues<D: Dialect> {
    store: SqlStore<D>,
}

impl<D: Dialect> SqlStore<D> {
    /// The queues of this store, to publish to.
    pub fn queues(&self) -> Queues<D> {
        Queues { store: self.clone() }
    }

    async fn send_out(&self, messages: &[Outgoing]) -> Result<()> {
        let queue = |message: &Outgoing| match message.destination.as_str() {
            "" => message.routing_key.clone(),
            name => name.to_owned(),
        };
        self.send_each(messages.iter().map(|message| (queue(message), &message.envelope))).await
    }
}

impl<D: Dialect> Publisher for Queues<D> {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        let Err(error) = self.store.send_out(&messages).await else {
            return messages.iter().map(|_| Ok(())).collect();
        };
        if let [_] = messages.as_slice() {
            return vec![Err(error)];
        }
        // One of them may be at fault.
        let mut results = Vec::with_capacity(messages.len());
        for message in &messages {
            results.push(self.store.send_out(std::slice::from_ref(message)).await);
        }
        results
    }
}

impl<D: Dialect> Clone for Queues<D> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone() }
    }
}

impl<D: Dialect> fmt::Debug for Queues<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").field("store", &self.store).finish()
    }
}
