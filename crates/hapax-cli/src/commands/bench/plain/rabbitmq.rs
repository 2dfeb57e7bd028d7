//! On lapin: a connection, and a channel for each worker.

use futures::StreamExt as _;
use hapax::BoxError;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use tokio::task::JoinSet;

use super::Handle;
use crate::commands::bench::consume::Tally;

/// Deliveries that the broker sends ahead to a worker.
const PREFETCH: u16 = 50;

pub(super) async fn run(
    url: &str,
    queue: &str,
    workers: u32,
    handle: impl Handle,
    tally: &Tally,
) -> Result<(), BoxError> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let channel = connection.create_channel().await?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut deliveries =
            channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
        let (handle, tally) = (handle.clone(), tally.clone());
        running.spawn(async move {
            while let Some(delivery) = deliveries.next().await {
                let delivery = delivery?;
                tally.begin();
                handle.handle(delivery.data.clone()).await?;
                delivery.ack(BasicAckOptions::default()).await?;
                tally.count();
            }
            Ok::<_, BoxError>(())
        });
    }
    super::until_done(running, tally).await?;
    let _ = connection.close(200, "".into()).await; // its channels may be closing themselves
    Ok(())
}
