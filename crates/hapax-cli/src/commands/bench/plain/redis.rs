//! On redis-rs: each worker a consumer of one group, with a connection of its own.

use hapax::BoxError;
use redis::AsyncCommands as _;
use redis::streams::{StreamReadOptions, StreamReadReply};
use tokio::task::JoinSet;

use super::Handle;
use crate::commands::bench::consume::{READER, Tally};

/// Entries that are read at once.
const COUNT: usize = 50;

pub(super) async fn run(
    url: &str,
    queue: &str,
    workers: u32,
    handle: impl Handle,
    tally: &Tally,
) -> Result<(), BoxError> {
    let client = redis::Client::open(url)?;
    let mut first = client.get_multiplexed_async_connection().await?;
    let _: () = first.xgroup_create_mkstream(queue, READER, "0").await?;
    let mut running = JoinSet::new();
    for worker in 0..workers {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let (handle, tally, queue) = (handle.clone(), tally.clone(), queue.to_owned());
        running.spawn(async move {
            let options =
                StreamReadOptions::default().group(READER, worker.to_string()).count(COUNT).block(100);
            loop {
                let read: Option<StreamReadReply> =
                    connection.xread_options(&[&queue], &[">"], &options).await?;
                for entry in read.into_iter().flat_map(|read| read.keys).flat_map(|stream| stream.ids) {
                    tally.begin();
                    handle.handle(entry.get("body").unwrap_or_default()).await?;
                    let _: usize = connection.xack(&queue, READER, &[&entry.id]).await?;
                    tally.count();
                }
            }
        });
    }
    super::until_done(running, tally).await
}
