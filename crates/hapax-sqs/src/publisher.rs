//! Publishing in batches, with a result for each message.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;
use futures::future::join_all;
use hapax_core::{Error, ErrorKind, Outgoing, Publisher};

use crate::Sqs;
use crate::error::{self, Meaning, Trouble};
use crate::line::{find_url, is_fifo};
use crate::metrics::PublisherMetrics;
use crate::parcel::{Parcel, queue_of};
use crate::send::{Results, Sender};

/// Publishes to queues, made by [`Sqs::publisher`]. Clones share connections and what they know of queues.
///
/// The queue is the destination, else the routing key; by its name or its URL. A message counts as published when SQS
/// has said so of that very message. A request takes up to ten of a queue; the requests of one queue go one after
/// another, those of different queues at once. What SQS fails by its own fault, or does not answer, is tried once more.
///
/// On a FIFO queue (`….fifo`) the routing key (where a destination is given, too), else the envelope's key, is the
/// message group; messages without one share one group. The deduplication id is made from the message id, so that SQS
/// drops copies for five minutes; a dead letter that is published again has one of its own. A request holds one message
/// of each group, and once one was not taken, those after it are not sent.
///
/// # Errors
///
/// Per message, with `Code::NotPublished` unless the credentials are at fault:
///
/// | `ErrorKind` | why |
/// |---|---|
/// | `NotFound` | there is no such queue |
/// | `Statement` | SQS refused it (too large for the queue), or cannot carry it (more than 1 MiB with its attributes) |
/// | `Unavailable` | SQS is away or did not answer: it may have been published, so publish it again under its id; or an earlier message of its group was not taken |
/// | `Setup` | `Code::BrokerRefused`: the credentials or a permission; `Code::ConfigMissingValue`: no region |
#[derive(Clone)]
pub struct SqsPublisher {
    shared: Arc<Shared>,
}

struct Shared {
    broker: Sqs,
    client: Client,
    /// The URLs of queues that were found.
    urls: Mutex<HashMap<String, String>>,
    metrics: PublisherMetrics,
}

impl SqsPublisher {
    pub(crate) fn new(broker: &Sqs) -> Self {
        let (client, metrics) = (broker.client(), PublisherMetrics::new());
        let shared = Shared { broker: broker.clone(), client, urls: Mutex::default(), metrics };
        Self { shared: Arc::new(shared) }
    }

    /// Whether SQS can be reached with these credentials. One request (`ListQueues`); that it is not permitted is no
    /// error, since whoever may only send is known all the same.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` or `Code::BrokerUnavailable`; `Code::ConfigMissingValue` without a region.
    pub async fn check(&self) -> Result<(), Error> {
        self.shared.broker.check_set_up()?;
        let asked = self.shared.client.list_queues().max_results(1).send().await;
        match asked.map_err(Trouble::from) {
            Err(trouble) if !trouble.is_a_permission() => Err(error::broker(trouble)),
            _ => Ok(()),
        }
    }

    /// Creates a queue with SQS's usual attributes, a FIFO queue if its name ends with `.fifo`; no change if it exists
    /// as one. One request.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` if it exists with other attributes, may not be created or has no name that SQS takes;
    /// `Code::BrokerUnavailable` if SQS cannot be reached.
    pub async fn declare_queue(&self, name: &str) -> Result<(), Error> {
        self.shared.broker.check_set_up()?;
        let mut create = self.shared.client.create_queue().queue_name(name);
        if is_fifo(name) {
            create = create.attributes(QueueAttributeName::FifoQueue, "true");
        }
        create.send().await.map(drop).map_err(|cause| error::queue(name, cause.into()))
    }

    /// Deletes a queue with what is in it, which is no change if there is none. Two requests. SQS wants a minute to pass
    /// before one of the same name is created.
    ///
    /// # Errors
    ///
    /// `Code::BrokerRefused` if it may not be deleted, `Code::BrokerUnavailable` if SQS cannot be reached.
    pub async fn delete_queue(&self, name: &str) -> Result<(), Error> {
        self.shared.broker.check_set_up()?;
        self.urls().remove(name);
        let deleted = async {
            let url = find_url(&self.shared.client, name).await?;
            self.shared.client.delete_queue().queue_url(url).send().await?;
            Ok(())
        };
        match deleted.await {
            Err(Trouble { meaning: Meaning::Missing, .. }) | Ok(()) => Ok(()),
            Err(trouble) => Err(error::queue(name, trouble)),
        }
    }

    /// A queue's URL, which is asked for once.
    async fn url(&self, queue: &str) -> Result<String, Error> {
        self.shared.broker.check_set_up()?;
        if queue.is_empty() {
            return Err(error::unsendable("it names no queue"));
        }
        if let Some(url) = self.urls().get(queue) {
            return Ok(url.clone());
        }
        let url = find_url(&self.shared.client, queue).await;
        let url = url.map_err(|trouble| error::not_published(queue, &trouble).error)?;
        self.urls().insert(queue.to_owned(), url.clone());
        Ok(url)
    }

    fn urls(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.shared.urls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the messages at these places, all of one queue.
    async fn publish_to(&self, queue: &str, places: Vec<usize>, messages: &[Outgoing]) -> Results {
        let url = match self.url(queue).await {
            Ok(url) => url,
            Err(cause) => {
                return places.into_iter().map(|place| (place, Err(error::again(&cause)))).collect();
            }
        };
        let mut results = Vec::with_capacity(places.len());
        let mut parcels = Vec::with_capacity(places.len());
        for place in places {
            match Parcel::wrap(place, &messages[place]) {
                Ok(parcel) => parcels.push(parcel),
                Err(cause) => results.push((place, Err(cause))),
            }
        }
        let sender = Sender { client: &self.shared.client, queue, url: &url };
        results.extend(sender.send(parcels).await);
        if results.iter().any(|(_, result)| is_missing(result)) {
            self.urls().remove(queue);
        }
        results
    }

    fn count(&self, results: &[Result<(), Error>]) {
        let published = results.iter().filter(|result| result.is_ok()).count();
        self.shared.metrics.published.increment(published as u64);
        self.shared.metrics.not_published.increment((results.len() - published) as u64);
    }
}

fn is_missing(result: &Result<(), Error>) -> bool {
    matches!(result, Err(cause) if cause.kind() == ErrorKind::NotFound)
}

/// The places of each queue's messages, in order.
fn by_queue(messages: &[Outgoing]) -> Vec<(&str, Vec<usize>)> {
    let mut queues: Vec<(&str, Vec<usize>)> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (place, message) in messages.iter().enumerate() {
        let queue = queue_of(message);
        let number = *known.entry(queue).or_insert_with(|| {
            queues.push((queue, Vec::new()));
            queues.len() - 1
        });
        queues[number].1.push(place);
    }
    queues
}

impl fmt::Debug for SqsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsPublisher").field("broker", &self.shared.broker).finish_non_exhaustive()
    }
}

impl Publisher for SqsPublisher {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        let sending =
            by_queue(&messages).into_iter().map(|(queue, places)| self.publish_to(queue, places, &messages));
        let mut results: Results = join_all(sending).await.into_iter().flatten().collect();
        results.sort_unstable_by_key(|(place, _)| *place);
        let results: Vec<_> = results.into_iter().map(|(_, result)| result).collect();
        self.count(&results);
        results
    }
}
