//! A connection that is opened when it is needed, and again when it was lost.

use lapin::Channel;
use tokio::time::{Instant, timeout};

use hapax_core::Error;

use crate::RabbitMq;
use crate::backoff::Backoff;
use crate::error;
use crate::link::Link;

/// At most one connection, and what became of the last attempt to open one.
pub(crate) struct Line {
    broker: RabbitMq,
    link: Option<Link>,
    failed: Option<Failed>,
}

/// Attempts that failed in a row.
struct Failed {
    last: Error,
    backoff: Backoff,
    not_before: Instant,
}

/// A new channel, and the largest frame that it takes.
pub(crate) struct Opened {
    pub(crate) channel: Channel,
    pub(crate) frame_max: usize,
}

impl Line {
    pub(crate) fn new(broker: RabbitMq) -> Self {
        Self { broker, link: None, failed: None }
    }

    /// Opens a channel, connecting first if need be.
    pub(crate) async fn channel(&mut self) -> Result<Opened, Error> {
        let limit = self.broker.time_to_connect();
        let address = self.broker.address();
        let link = self.connected().await?;
        let frame_max = link.frame_max();
        match timeout(limit, link.channel()).await {
            Ok(Ok(channel)) => Ok(Opened { channel, frame_max }),
            Ok(Err(cause)) => Err(error::connecting(&address, cause)),
            Err(_) => Err(error::connect_timed_out(&address, limit)),
        }
    }

    /// Closes the connection, and channels of it with it.
    pub(crate) async fn close(&mut self, channels: Vec<Channel>) {
        self.keep(channels);
        if let Some(link) = self.link.take() {
            link.close().await;
        }
    }

    /// Has channels outlive the connection. Those of an earlier one may be among them.
    pub(crate) fn keep(&mut self, channels: Vec<Channel>) {
        if let Some(link) = &mut self.link {
            for channel in channels {
                link.keep(channel);
            }
        }
    }

    async fn connected(&mut self) -> Result<&Link, Error> {
        let link = match self.link.take() {
            Some(link) if link.is_connected() => link,
            _ => self.connect().await?,
        };
        Ok(self.link.insert(link))
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
