//! Makes a relay of what the configuration says.

use hapax::sql::{Dialect, SqlStore};
use hapax::{OnFailure, Relay, Retry};

use crate::broker;
use crate::config::Config;
use crate::config::relay::OnFailure as Policy;
use crate::open::placed;
use crate::trouble::Trouble;

/// Asks every broker that is published to whether it can be reached.
pub(crate) async fn check_brokers(config: &Config) -> Result<(), Trouble> {
    for (_, settings) in config.brokers.iter().filter(|(name, _)| config.publishes_to(name)) {
        let in_file = |error| placed(config, &settings.at, error);
        let publisher = broker::of(settings).await.map_err(in_file)?.publisher();
        let checked = publisher.check().await;
        publisher.close().await;
        checked.map_err(in_file)?;
    }
    Ok(())
}

/// A relay to every broker of the file; the one without a name is the store's own queues.
pub(crate) async fn relay_of<D: Dialect>(
    config: &Config,
    store: &SqlStore<D>,
) -> Result<Relay<SqlStore<D>>, Trouble> {
    let settings = &config.relay;
    let mut relay = Relay::new(store.clone(), store.queues())
        .batch(usize::try_from(settings.batch).unwrap_or(usize::MAX))
        .lease(settings.lease)
        .retry(Retry::exponential().attempts(settings.park_after))
        .on_failure(match settings.on_failure {
            Policy::Block => OnFailure::Block,
            Policy::Skip => OnFailure::Skip,
        });
    if let Some(keep) = settings.keep_sent {
        relay = relay.keep_sent(keep);
    }
    for (name, settings) in &config.brokers {
        let broker = broker::of(settings).await.map_err(|error| placed(config, &settings.at, error))?;
        relay = relay.broker(name, broker.publisher());
    }
    Ok(relay)
}
