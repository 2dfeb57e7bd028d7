//! On rdkafka: each worker a member of one group, which commits the offset of each message.

use hapax::BoxError;
use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::{ClientConfig, Message as _};
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
    let servers = url.trim_start_matches("kafka://").trim_end_matches('/');
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let consumer: StreamConsumer = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("group.id", READER)
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .create()?;
        consumer.subscribe(&[queue])?;
        let (handle, tally) = (handle.clone(), tally.clone());
        running.spawn(async move {
            loop {
                let record = consumer.recv().await?;
                tally.begin();
                handle.handle(record.payload().unwrap_or_default().to_vec()).await?;
                consumer.commit_message(&record, CommitMode::Async)?;
                tally.count();
            }
        });
    }
    super::until_done(running, tally).await
}
