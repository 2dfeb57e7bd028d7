//! A connection that is opened when it is needed, and again when it was lost.

use std::sync::Arc;

use hapax_core::Error;
use tokio::time::Instant;

use crate::Redis;
use crate::backoff::Backoff;
use crate::error;
use crate::link::Link;

/// At most one connection, and what became of the last attempt to open one.
pub(crate) struct Line {
    broker: Redis,
    link: Option<Arc<Link>>,
    failed: Option<Failed>,
}

/// Attempts that failed in a row.
struct Failed {
    last: Error,
    backoff: Backoff,
    not_before: Instant,
}

impl Line {
    pub(crate) fn new(broker: Redis) -> Self {
        Self { broker, link: None, failed: None }
    }

    pub(crate) fn broker(&self) -> &Redis {
        &self.broker
    }

    /// The connection, opened first if need be.
    pub(crate) async fn link(&mut self) -> Result<Arc<Link>, Error> {
        let link = match self.link.take() {
            Some(link) if !link.is_lost() => link,
            _ => Arc::new(self.connect().await?),
        };
        Ok(Arc::clone(self.link.insert(link)))
    }

    /// Closes the connection once nothing is under way on it.
    pub(crate) fn close(&mut self) {
        self.link = None;
    }

    /// One attempt, unless the last one failed just now: then its error again, at once.
    async fn connect(&mut self) -> Result<Link, Error> {
        if let Some(Failed { last, not_before, .. }) = &self.failed
            && Instant::now() < *not_before
        {
            return Err(error::again(last));
        }
        match self.broker.open().await {
            Ok(link) => {
                self.failed = None;
                Ok(link)
            }
            Err(cause) => {
                let mut backoff = self.failed.take().map_or(Backoff::new(), |failed| failed.backoff);
                let not_before = Instant::now() + backoff.wait();
                self.failed = Some(Failed { last: error::again(&cause), backoff, not_before });
                Err(cause)
            }
        }
    }
}
