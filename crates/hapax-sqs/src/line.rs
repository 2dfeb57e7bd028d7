//! A queue as SQS describes it, and the clients that speak to it.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;
use hapax_core::Error;

use crate::error::{self, Meaning, Trouble};

/// The group of the messages that have no key, on a FIFO queue.
pub(crate) const NO_KEY: &str = "hapax-no-key";
/// What an AWS queue's visibility is unless somebody says otherwise.
pub(crate) const USUAL_VISIBILITY: Duration = Duration::from_secs(30);
const LONGEST_VISIBILITY: Duration = Duration::from_hours(12);
/// Deliveries that were handed back, or waited in a process that went, count towards it.
const SMALL_RECEIVE_COUNT: u64 = 10;

/// Whether a name or URL is that of a FIFO queue: SQS wants the ending of these and of no others.
pub(crate) fn is_fifo(queue: &str) -> bool {
    queue.strip_suffix(".fifo").is_some()
}

/// A queue that was found.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) url: String,
    pub(crate) visibility: Duration,
    /// As it was configured: a name or a URL.
    pub(crate) name: String,
    arn: Option<String>,
}

impl Queue {
    /// How it is called in logs and dead letters.
    pub(crate) fn source_name(&self) -> String {
        source_name(&self.name)
    }

    /// What sets apart ids that SQS made: account, region and name.
    pub(crate) fn identity(&self) -> &str {
        self.arn.as_deref().unwrap_or(&self.url)
    }

    pub(crate) fn is_fifo(&self) -> bool {
        is_fifo(&self.name)
    }

    /// Whether a group is a key: not that of the messages without one, nor a mark on a standard queue.
    pub(crate) fn is_key(&self, group: &str) -> bool {
        self.is_fifo() && group != NO_KEY
    }

    #[cfg(test)]
    pub(crate) fn named(name: &str) -> Self {
        Self { url: name.into(), visibility: USUAL_VISIBILITY, name: name.into(), arn: None }
    }
}

/// A queue's name, also where its URL was given.
pub(crate) fn name_of(queue: &str) -> &str {
    queue.rsplit('/').next().unwrap_or(queue)
}

/// How a queue is called in logs and dead letters: `sqs:orders`.
pub(crate) fn source_name(queue: &str) -> String {
    format!("sqs:{}", name_of(queue))
}

/// The clients of one source, and its queue once that was found.
pub(crate) struct Line {
    pub(crate) client: Client,
    pub(crate) name: String,
    /// As configured; else the queue's own.
    pub(crate) visibility: Option<Duration>,
    found: OnceLock<Queue>,
}

impl Line {
    pub(crate) fn new(client: Client, name: String, visibility: Option<Duration>) -> Self {
        Self { client, name, visibility, found: OnceLock::new() }
    }

    /// The queue, if it was found by now.
    pub(crate) fn queue(&self) -> Option<&Queue> {
        self.found.get()
    }

    /// Keeps what was found first.
    pub(crate) fn keep(&self, queue: Queue) -> Queue {
        self.found.get_or_init(|| queue).clone()
    }

    /// Looks the queue up: its URL and its attributes. Two requests, or one if it is named by its URL.
    pub(crate) async fn find(&self) -> Result<Queue, Error> {
        let url =
            find_url(&self.client, &self.name).await.map_err(|cause| error::queue(&self.name, cause))?;
        let attributes = self.attributes(&url).await?;
        self.warn_of_a_small_receive_count(&attributes);
        let visibility = self.visibility_of(&attributes)?;
        let arn = attributes.get(&QueueAttributeName::QueueArn).cloned();
        Ok(Queue { url, visibility, name: self.name.clone(), arn })
    }

    /// Somebody who may receive need not be allowed to look; then there is only what was configured.
    async fn attributes(&self, url: &str) -> Result<HashMap<QueueAttributeName, String>, Error> {
        let asked = self
            .client
            .get_queue_attributes()
            .queue_url(url)
            .attribute_names(QueueAttributeName::VisibilityTimeout)
            .attribute_names(QueueAttributeName::RedrivePolicy)
            .attribute_names(QueueAttributeName::QueueArn)
            .send()
            .await;
        match asked.map_err(Trouble::from) {
            Ok(answer) => Ok(answer.attributes.unwrap_or_default()),
            Err(trouble) if trouble.meaning == Meaning::Refused && self.visibility.is_some() => {
                tracing::debug!(queue = %self.name, "the queue's attributes may not be read");
                Ok(HashMap::new())
            }
            Err(trouble) => Err(error::queue(&self.name, trouble)),
        }
    }

    fn visibility_of(&self, attributes: &HashMap<QueueAttributeName, String>) -> Result<Duration, Error> {
        let seconds = || attributes.get(&QueueAttributeName::VisibilityTimeout)?.parse().ok();
        let visibility = match self.visibility {
            Some(wanted) => Duration::from_secs(wanted.as_secs()),
            None => seconds().map_or(USUAL_VISIBILITY, Duration::from_secs),
        };
        if visibility.is_zero() || visibility > LONGEST_VISIBILITY {
            return Err(error::misconfigured(format!(
                "a visibility of {visibility:?} for queue \"{}\": it has to be between 1 second and 12 hours, and longer \
                 than a pause of the process",
                self.name
            )));
        }
        Ok(visibility)
    }

    fn warn_of_a_small_receive_count(&self, attributes: &HashMap<QueueAttributeName, String>) {
        let policy = attributes.get(&QueueAttributeName::RedrivePolicy);
        let Some(limit) = policy.and_then(|policy| max_receive_count(policy)) else { return };
        if limit < SMALL_RECEIVE_COUNT {
            tracing::warn!(
                queue = %self.name, limit,
                "a small maxReceiveCount: deliveries that were only handed back may make SQS set messages aside; \
                 Hapax counts failures itself"
            );
        }
    }
}

/// Some write the number as a string.
fn max_receive_count(policy: &str) -> Option<u64> {
    let policy: serde_json::Value = serde_json::from_str(policy).ok()?;
    let count = policy.get("maxReceiveCount")?;
    count.as_u64().or_else(|| count.as_str()?.parse().ok())
}

/// A queue's URL; one that is given needs no asking.
pub(crate) async fn find_url(client: &Client, queue: &str) -> Result<String, Trouble> {
    if queue.starts_with("https://") || queue.starts_with("http://") {
        return Ok(queue.to_owned());
    }
    let found = client.get_queue_url().queue_name(queue).send().await?;
    Ok(found.queue_url.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_called_by_its_name() {
        assert_eq!(source_name("https://sqs.eu-central-1.amazonaws.com/123/orders.fifo"), "sqs:orders.fifo");
        assert_eq!(source_name("orders"), "sqs:orders");
        assert!(is_fifo("https://sqs.eu-central-1.amazonaws.com/123/orders.fifo") && !is_fifo("orders"));
    }

    #[test]
    fn a_receive_count_is_found_in_either_form() {
        assert_eq!(max_receive_count(r#"{"deadLetterTargetArn":"a","maxReceiveCount":3}"#), Some(3));
        assert_eq!(max_receive_count(r#"{"maxReceiveCount":"5"}"#), Some(5));
        assert_eq!(max_receive_count(""), None);
    }
}
