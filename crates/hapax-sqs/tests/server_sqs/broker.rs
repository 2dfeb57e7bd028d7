//! The tests' own hand on SQS, and the ways to it.

use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Builder, Credentials, Region};
use aws_sdk_sqs::types::QueueAttributeName;
use hapax_core::{Code, Envelope, Error, ErrorKind, Outgoing, Publisher as _};
use hapax_sqs::Sqs;
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{address, sqs_url, unique};

/// Longer than anything here takes, so that a test fails instead of hanging.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The largest body of a queue of small messages, in bytes: the smallest limit that SQS takes.
pub(crate) const SMALL: usize = 1024;

/// A queue of this test's own.
pub(crate) struct Queue {
    pub(crate) name: String,
    pub(crate) url: String,
    client: Client,
}

impl Queue {
    /// A queue whose deliveries are kept from others for `visibility` seconds.
    pub(crate) async fn standard(prefix: &str, visibility: u32) -> Self {
        Self::create(unique(prefix), visibility, &[]).await
    }

    pub(crate) async fn fifo(prefix: &str, visibility: u32) -> Self {
        Self::create(
            format!("{}.fifo", unique(prefix)),
            visibility,
            &[(QueueAttributeName::FifoQueue, "true")],
        )
        .await
    }

    /// A queue that takes no message larger than [`SMALL`].
    pub(crate) async fn of_small_messages(prefix: &str) -> Self {
        Self::create(unique(prefix), 30, &[small()]).await
    }

    /// The same in order.
    pub(crate) async fn fifo_of_small_messages(prefix: &str) -> Self {
        let name = format!("{}.fifo", unique(prefix));
        Self::create(name, 30, &[(QueueAttributeName::FifoQueue, "true"), small()]).await
    }

    async fn create(name: String, visibility: u32, attributes: &[(QueueAttributeName, &str)]) -> Self {
        let client = client();
        let mut create = client.create_queue().queue_name(&name);
        create = create.attributes(QueueAttributeName::VisibilityTimeout, visibility.to_string());
        for (attribute, value) in attributes {
            create = create.attributes(attribute.clone(), *value);
        }
        let url = create.send().await.unwrap().queue_url.unwrap();
        Self { name, url, client }
    }

    /// Messages that are in it, received or not.
    pub(crate) async fn messages(&self) -> u32 {
        use QueueAttributeName::{ApproximateNumberOfMessages, ApproximateNumberOfMessagesNotVisible};
        let asked =
            self.client.get_queue_attributes().queue_url(&self.url).attribute_names(QueueAttributeName::All);
        let attributes = asked.send().await.unwrap().attributes.unwrap();
        let number = |name| attributes[&name].parse::<u32>().unwrap();
        number(ApproximateNumberOfMessages) + number(ApproximateNumberOfMessagesNotVisible)
    }

    pub(crate) async fn delete(&self) {
        self.client.delete_queue().queue_url(&self.url).send().await.unwrap();
    }
}

fn small() -> (QueueAttributeName, &'static str) {
    (QueueAttributeName::MaximumMessageSize, "1024")
}

/// A client of the test's own, past everything that is tested.
fn client() -> Client {
    let http = aws_smithy_http_client::Builder::new().build_http();
    let config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .http_client(http)
        .endpoint_url(sqs_url().replace("sqs://", "http://"))
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"));
    Client::from_conf(config.build())
}

pub(crate) fn sqs() -> Sqs {
    Sqs::from_url(&sqs_url()).unwrap()
}

pub(crate) fn through(proxy: &Proxy) -> Sqs {
    Sqs::from_url(&proxy.route(&sqs_url()).unwrap()).unwrap()
}

pub(crate) fn proxy() -> Proxy {
    Proxy::start(address(&sqs_url()).unwrap()).unwrap()
}

/// Publishes messages whose bodies and ids are these numbers.
pub(crate) async fn publish(queue: &Queue, numbers: impl IntoIterator<Item = u32>) {
    let messages = numbers.into_iter().map(|number| message(&queue.name, number)).collect();
    for result in sqs().publisher().publish(messages).await {
        result.unwrap();
    }
}

pub(crate) fn message(queue: &str, number: u32) -> Outgoing {
    Outgoing::to_queue(queue, Envelope::new(number.to_string()).with_id(number.to_string()))
}

/// The same with a key, which on a FIFO queue is its group.
pub(crate) fn keyed(queue: &str, number: u32, key: &str) -> Outgoing {
    let mut message = message(queue, number);
    message.envelope.properties.key = Some(key.to_owned());
    message
}

pub(crate) fn kind_and_code(error: &Error) -> (ErrorKind, Code) {
    (error.kind(), error.code())
}
