//! On async-nats: each worker a connection of its own to one durable consumer.

use async_nats::jetstream::{self, consumer::pull};
use futures::StreamExt as _;
use hapax::BoxError;
use tokio::task::JoinSet;

use super::Handle;
use crate::commands::bench::consume::{READER, Tally};

pub(super) async fn run(
    url: &str,
    queue: &str,
    workers: u32,
    handle: impl Handle,
    tally: &Tally,
) -> Result<(), BoxError> {
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let stream = jetstream::new(async_nats::connect(url).await?).get_stream(queue).await?;
        let durable = pull::Config { durable_name: Some(READER.into()), ..pull::Config::default() };
        let mut messages = stream.get_or_create_consumer(READER, durable).await?.messages().await?;
        let (handle, tally) = (handle.clone(), tally.clone());
        running.spawn(async move {
            while let Some(message) = messages.next().await {
                let message = message?;
                tally.begin();
                handle.handle(message.payload.to_vec()).await?;
                message.ack().await?;
                tally.count();
            }
            Ok::<_, BoxError>(())
        });
    }
    super::until_done(running, tally).await
}
