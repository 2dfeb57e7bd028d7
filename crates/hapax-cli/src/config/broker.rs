//! `[brokers.NAME]`: the message brokers that sources and publishes name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::problem::Placed;
use super::read::{Choice, Table, Value};
use super::secret::{Secret, SecretUrl};

/// The kinds of broker that a configuration can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    /// RabbitMQ, over AMQP 0-9-1.
    RabbitMq,
    /// Apache Kafka.
    Kafka,
    /// NATS JetStream.
    Nats,
    /// Amazon SQS.
    Sqs,
    /// Redis Streams.
    Redis,
}

impl Choice for BrokerKind {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("rabbitmq", Self::RabbitMq),
        ("kafka", Self::Kafka),
        ("nats", Self::Nats),
        ("sqs", Self::Sqs),
        ("redis", Self::Redis),
    ];
}

/// A broker and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broker {
    /// Where the file names the kind.
    pub kind: Placed<BrokerKind>,
    /// How to reach it.
    pub connection: Connection,
}

/// How to reach a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// RabbitMQ.
    RabbitMq(RabbitMq),
    /// Kafka.
    Kafka(Kafka),
    /// A kind whose keys this release does not read.
    Unread,
}

/// A RabbitMQ server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RabbitMq {
    /// `amqp://…` or `amqps://…`; the path is the virtual host.
    pub url: Placed<SecretUrl>,
    /// Instead of the URL's user: from `username` or the file `username_file`. Secret too, since the two
    /// files are easily mixed up.
    pub username: Option<Secret>,
    /// Instead of the URL's password: from `password` or the file `password_file`.
    pub password: Option<Secret>,
    /// Instead of the system's certificate authorities.
    pub tls: Option<Tls>,
}

/// How a server proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    /// The file with the certificate authorities that are trusted.
    pub ca: Placed<PathBuf>,
}

/// A Kafka cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kafka {
    /// The servers to ask first, each `host:port`.
    pub servers: Vec<String>,
    /// Settings for the client library, under its own names. Some hold passwords, hence all are secret.
    pub properties: BTreeMap<String, Secret>,
}

impl Broker {
    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        value.table(|table| {
            let cure = "Write `kind = \"rabbitmq\"`.";
            let kind = table.required("kind", cure, |value| value.placed(Value::choice));
            let Some(kind) = kind else {
                // Without the kind nothing can be said about the other keys.
                table.accept_everything();
                return None;
            };
            let connection = match kind.value {
                BrokerKind::RabbitMq => RabbitMq::read(table).map(Connection::RabbitMq),
                BrokerKind::Kafka => Kafka::read(table).map(Connection::Kafka),
                BrokerKind::Nats | BrokerKind::Sqs | BrokerKind::Redis => {
                    table.accept_everything();
                    Some(Connection::Unread)
                }
            };
            Some(Self { kind, connection: connection? })
        })
    }
}

impl RabbitMq {
    fn read(table: &mut Table<'_>) -> Option<Self> {
        let url =
            table.required("url", "Write `url = \"amqp://host/vhost\"`.", |value| value.placed(read_url));
        let username = exclusive(table, "username", "username_file");
        let password = exclusive(table, "password", "password_file");
        let tls = table.optional("tls", |value| value.table(Tls::read));
        Some(Self { url: url?, username, password, tls })
    }
}

fn read_url(value: &Value<'_>) -> Option<SecretUrl> {
    let url = SecretUrl::new(value.name()?);
    let fits = matches!(url.scheme(), "amqp" | "amqps");
    if !fits {
        value.wrong("is no RabbitMQ URL", "Begin it with `amqp://`, or `amqps://` for TLS.");
    }
    fits.then_some(url)
}

/// A value given directly or by a file that holds it; both at once would hide which one counts.
fn exclusive(table: &mut Table<'_>, direct: &'static str, by_file: &'static str) -> Option<Secret> {
    match (table.take(direct), table.take(by_file)) {
        (Some(value), None) => value.name().map(Secret::new),
        (None, Some(value)) => value.file().map(|(_, text)| Secret::new(text)),
        (Some(value), Some(_)) => {
            value.wrong(format!("is given twice: as `{direct}` and as `{by_file}`"), "Keep one of the two.");
            None
        }
        (None, None) => None,
    }
}

impl Tls {
    pub(super) fn read(table: &mut Table<'_>) -> Option<Self> {
        // Read here, so that a file that is not there is found before anything is connected.
        let path = |value: &Value<'_>| value.file().map(|(path, _)| path);
        let ca = table.required("ca", "Write `ca = \"/path/to/ca.pem\"`.", |value| value.placed(path))?;
        Some(Self { ca })
    }
}

impl Kafka {
    fn read(table: &mut Table<'_>) -> Option<Self> {
        let servers = table.required("servers", "Write `servers = [\"host:9092\"]`.", |value| {
            let servers = value.list(Value::name)?;
            if servers.is_empty() {
                value.wrong("is empty", "Name at least one server: `servers = [\"host:9092\"]`.");
            }
            Some(servers)
        });
        let properties = table.or("properties", BTreeMap::new(), |value| {
            value.entries(|_, value| value.text().map(|text| Secret::new(text.value)))
        });
        Some(Self { servers: servers?, properties })
    }
}
