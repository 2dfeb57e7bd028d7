//! What a cluster says about a topic.

use std::time::Duration;

use hapax_core::Error;
use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::error::RDKafkaErrorCode;

use crate::error;

/// How many partitions a topic has. Creates nothing. Blocks the thread, at most so long.
pub(crate) fn partitions<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    limit: Duration,
) -> Result<i32, Error> {
    let unreachable = RDKafkaErrorCode::BrokerTransportFailure;
    let metadata = client
        .fetch_metadata(Some(topic), limit)
        .map_err(|cause| error::topic(topic, cause.rdkafka_error_code().unwrap_or(unreachable)))?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Err(error::topic(topic, RDKafkaErrorCode::UnknownTopicOrPartition));
    };
    match found.error() {
        Some(code) => Err(error::topic(topic, code.into())),
        None if found.partitions().is_empty() => {
            Err(error::topic(topic, RDKafkaErrorCode::LeaderNotAvailable))
        }
        // A topic has far fewer partitions than an i32 can count.
        None => Ok(i32::try_from(found.partitions().len()).unwrap_or(i32::MAX)),
    }
}
