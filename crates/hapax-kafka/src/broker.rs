//! Where a cluster is and how to connect to it.

use std::fmt;
use std::time::Duration;

use hapax_core::Error;
use rdkafka::ClientConfig;

use crate::{KafkaPublisher, KafkaSource, error, properties};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A Kafka cluster: its servers, the credentials and the manners of connecting.
///
/// Making one connects to nothing. Each source and publisher has connections of its own.
///
/// Neither `Debug` nor any error shows the value of a property.
#[derive(Clone)]
pub struct Kafka {
    servers: Vec<String>,
    properties: Vec<(String, String)>,
    name: String,
    connect_timeout: Duration,
}

impl Kafka {
    /// A cluster by some of its servers, each `host:port`; the others are learnt from these.
    pub fn new<I>(servers: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let servers = servers.into_iter().map(Into::into).collect();
        Self { servers, properties: Vec::new(), name: "hapax".into(), connect_timeout: CONNECT_TIMEOUT }
    }

    /// A cluster by a URL, `kafka://host:9092` or `kafka://host:9092,other:9092`. Credentials are
    /// [properties](Self::property).
    ///
    /// # Errors
    ///
    /// `ErrorKind::Setup` if it is no such URL; the error does not repeat it.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let servers = url.strip_prefix("kafka://").map(|rest| rest.trim_end_matches('/'));
        match servers {
            Some(servers) if !servers.is_empty() && !servers.contains(['@', '/', '?', ' ']) => {
                Ok(Self::new(servers.split(',').map(str::to_owned)))
            }
            _ => Err(error::misconfigured(
                "a Kafka URL has the form kafka://host:9092 (several servers are separated by commas, and \
                 credentials are properties such as sasl.username)",
            )),
        }
    }

    /// Sets a [property of librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md),
    /// such as `security.protocol` or `sasl.password`, for sources and publishers alike. A later value
    /// replaces an earlier one. Values are secret.
    ///
    /// # Errors
    ///
    /// `Code::ConfigWrongValue` if librdkafka knows no such property or value, and for those that the
    /// promises rest on: `enable.auto.commit`, `enable.auto.offset.store`, `auto.offset.reset`,
    /// `isolation.level`, `acks`, `enable.idempotence`, `transactional.id`, `allow.auto.create.topics`, and
    /// what is set elsewhere, such as `group.id`.
    pub fn property(mut self, name: &str, value: impl Into<String>) -> Result<Self, Error> {
        let value = value.into();
        properties::check(name, &value)?;
        self.properties.push((name.to_owned(), value));
        Ok(self)
    }

    /// The name under which brokers list the connections (`client.id`). Default: `hapax`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How long a source waits for the first answer of the cluster, and a publisher for what it must know of
    /// a topic. Default: 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Topics as a source, read by a consumer group. Every instance of one consumer uses the same group,
    /// and no other consumer does.
    pub fn source<I>(&self, topics: I, group: impl Into<String>) -> KafkaSource
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        KafkaSource::new(self.clone(), topics.into_iter().map(Into::into).collect(), group.into())
    }

    /// A publisher. It connects when it is first used.
    pub fn publisher(&self) -> KafkaPublisher {
        KafkaPublisher::new(self.clone())
    }

    /// The servers, which hold no secret.
    pub(crate) fn address(&self) -> String {
        self.servers.join(",")
    }

    pub(crate) fn time_to_connect(&self) -> Duration {
        self.connect_timeout
    }

    /// What all clients of the cluster have in common. The user's choices come last.
    pub(crate) fn config(&self, ours: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", self.address())
            .set("client.id", &self.name)
            .set("allow.auto.create.topics", "false")
            .set("reconnect.backoff.ms", "100")
            .set("reconnect.backoff.max.ms", "5000");
        for (name, value) in ours {
            config.set(*name, *value);
        }
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config
    }

    /// What a user chose for a property in milliseconds.
    pub(crate) fn chosen_millis(&self, property: &str) -> Option<Duration> {
        let (_, value) = self.properties.iter().rfind(|(name, _)| name == property)?;
        value.parse().ok().map(Duration::from_millis)
    }
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties: Vec<&str> = self.properties.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Kafka")
            .field("servers", &self.servers)
            .field("properties", &properties)
            .field("name", &self.name)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_prints_the_credentials() {
        let kafka = Kafka::new(["k1:9092", "k2:9092"]);
        let kafka = kafka.property("sasl.username", "someone").unwrap();
        let kafka = kafka.property("sasl.password", "hunter2").unwrap();
        let source = kafka.source(["orders"], "orders");
        let shown = format!("{kafka:?} {source:?} {:?}", kafka.publisher());
        assert!(shown.contains("k1:9092") && shown.contains("sasl.password"), "{shown}");
        assert!(!shown.contains("someone") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_url_names_servers_and_nothing_else() {
        assert_eq!(Kafka::from_url("kafka://a:1,b:2/").unwrap().address(), "a:1,b:2");
        for url in ["kafka://", "amqp://a", "a:9092", "kafka://someone:hunter2@a:1", "kafka://a/orders"] {
            let error = Kafka::from_url(url).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
