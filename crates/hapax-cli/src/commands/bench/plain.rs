//! The plainest correct consumer of each broker, on its own client library: as many workers, each of which takes a
//! message, handles it in a transaction, and acks it. It is not protected: a copy takes effect again.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;

use std::future::Future;

use hapax::{BoxError, Code, Error, ErrorKind};
use tokio::task::JoinSet;

use super::consume::Tally;

/// What handles a message's body, in a transaction of its own.
pub(super) trait Handle: Clone + Send + Sync + 'static {
    fn handle(&self, body: Vec<u8>) -> impl Future<Output = Result<(), Error>> + Send;
}

impl<F, Fut> Handle for F
where
    F: Fn(Vec<u8>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Error>> + Send,
{
    fn handle(&self, body: Vec<u8>) -> impl Future<Output = Result<(), Error>> + Send {
        self(body)
    }
}

/// Consumes a queue until everything is counted.
pub(super) async fn run(
    url: &str,
    queue: &str,
    workers: u32,
    handle: impl Handle,
    tally: &Tally,
) -> Result<(), Error> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let ran = match scheme {
        #[cfg(feature = "rabbitmq")]
        "amqp" | "amqps" => rabbitmq::run(url, queue, workers, handle, tally).await,
        #[cfg(feature = "kafka")]
        "kafka" => kafka::run(url, queue, workers, handle, tally).await,
        #[cfg(feature = "redis")]
        "redis" | "rediss" => redis::run(url, queue, workers, handle, tally).await,
        #[cfg(feature = "nats")]
        "nats" | "tls" => nats::run(url, queue, workers, handle, tally).await,
        _ => {
            let context = format!("there is no plain consumer of `{scheme}:` to compare with");
            return Err(Error::new(ErrorKind::Setup, Code::NotAvailable, context));
        }
    };
    ran.map_err(|error: BoxError| {
        Error::new(ErrorKind::Broken, Code::StoreFailed, "the plain consumer failed").because(error)
    })
}

/// Waits until everything is counted, and ends the workers. One that ends before is an error.
async fn until_done(mut workers: JoinSet<Result<(), BoxError>>, tally: &Tally) -> Result<(), BoxError> {
    tokio::select! {
        () = tally.done().cancelled() => {}
        Some(ended) = workers.join_next() => {
            ended??;
            return Err("a worker came to an end before everything was handled".into());
        }
    }
    workers.shutdown().await;
    Ok(())
}
