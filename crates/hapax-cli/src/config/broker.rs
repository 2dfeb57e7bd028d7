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
    /// The kind, where the file names it: as a word, or by a URL's scheme.
    pub kind: Placed<BrokerKind>,
    /// Where the file says how to reach it.
    pub at: Placed<()>,
    /// How to reach it.
    pub connection: Connection,
}

/// How to reach a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// RabbitMQ.
    RabbitMq(Server),
    /// Kafka.
    Kafka(Kafka),
    /// NATS, and what only it has.
    Nats(Server, NatsLogin),
    /// SQS.
    Sqs(Sqs),
    /// Redis.
    Redis(Server),
}

/// A server with a URL and a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Its URL, such as `amqps://host/vhost`.
    pub url: SecretUrl,
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

/// The ways to log in that only NATS has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NatsLogin {
    /// From `token` or the file `token_file`.
    pub token: Option<Secret>,
    /// The file with a user's JWT and key, as `nsc` writes it.
    pub credentials: Option<PathBuf>,
}

/// Amazon's service, or a server that speaks as it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sqs {
    /// `sqs://host:port`: a server that speaks as Amazon's does, over plain HTTP.
    pub url: Option<SecretUrl>,
    /// The region; none leaves it to the environment.
    pub region: Option<String>,
    /// Another address than Amazon's.
    pub endpoint: Option<String>,
    /// From `access_key_id` and `secret_access_key` or their files; none leaves it to AWS's usual chain.
    pub keys: Option<SqsKeys>,
}

/// Static credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SqsKeys {
    /// The key's id.
    pub id: Secret,
    /// The key.
    pub secret: Secret,
    /// The token of a session.
    pub session: Option<Secret>,
}

impl BrokerKind {
    /// The kind whose URLs have this scheme.
    fn of(scheme: &str) -> Option<Self> {
        let kinds = [Self::RabbitMq, Self::Kafka, Self::Nats, Self::Sqs, Self::Redis];
        kinds.into_iter().find(|kind| kind.schemes().contains(&scheme))
    }

    const fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::RabbitMq => &["amqp", "amqps"],
            Self::Kafka => &["kafka"],
            Self::Nats => &["nats", "tls"],
            Self::Sqs => &["sqs"],
            Self::Redis => &["redis", "rediss"],
        }
    }

    /// Its name, as people write it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "RabbitMQ",
            Self::Kafka => "Kafka",
            Self::Nats => "NATS",
            Self::Sqs => "SQS",
            Self::Redis => "Redis",
        }
    }

    /// The cargo feature that has it.
    pub(crate) const fn feature(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::Sqs => "sqs",
            Self::Redis => "redis",
        }
    }
}

impl Broker {
    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        value.table(|table| {
            let read = Self::read_table(table, value);
            if read.is_none() {
                // Without the kind nothing can be said about the other keys.
                table.accept_everything();
            }
            read
        })
    }

    fn read_table(table: &mut Table<'_>, value: &Value<'_>) -> Option<Self> {
        let written = match table.take("kind") {
            Some(kind) => Some(kind.placed(Value::choice)?),
            None => None,
        };
        let address = match table.take("url") {
            Some(url) => Some((url.placed(Value::name)?, url)),
            None => None,
        };
        let kind = kind_of(table, written, address.as_ref())?;
        let at = Placed::new((), address.as_ref().map_or_else(|| value.place(), |(url, _)| url.place));
        let url = address.map(|(url, _)| SecretUrl::new(url.value));
        let connection = match kind.value {
            BrokerKind::RabbitMq => Connection::RabbitMq(Server::read(table, url?)),
            BrokerKind::Kafka => Connection::Kafka(Kafka::read(table, url.as_ref())),
            BrokerKind::Nats => Connection::Nats(Server::read(table, url?), NatsLogin::read(table)),
            BrokerKind::Sqs => Connection::Sqs(Sqs::read(table, url)),
            BrokerKind::Redis => Connection::Redis(Server::read(table, url?)),
        };
        Some(Self { kind, at, connection })
    }
}

/// The kind that the file names, which a URL's scheme tells as well.
fn kind_of(
    table: &Table<'_>,
    written: Option<Placed<BrokerKind>>,
    address: Option<&(Placed<String>, Value<'_>)>,
) -> Option<Placed<BrokerKind>> {
    let scheme =
        address.map(|(url, value)| (url.value.split_once("://").map_or("", |(scheme, _)| scheme), value));
    match (written, scheme) {
        (Some(kind), Some((scheme, value))) if !kind.schemes().contains(&scheme) => {
            let cure = kind.schemes().iter().map(|scheme| format!("`{scheme}://`")).collect::<Vec<_>>();
            value
                .wrong(format!("is no {} URL", kind.name()), format!("Begin it with {}.", cure.join(" or ")));
            None
        }
        (Some(kind), None) if !matches!(kind.value, BrokerKind::Kafka | BrokerKind::Sqs) => {
            let scheme = kind.schemes()[0];
            table.wrong("lacks `url`", format!("Write `url = \"{scheme}://host\"`."));
            None
        }
        (Some(kind), _) => Some(kind),
        (None, Some((scheme, value))) => {
            let kind = BrokerKind::of(scheme);
            if kind.is_none() {
                value.wrong(
                    "is no URL of a broker",
                    "Begin it with `amqp://`, `kafka://`, `nats://`, `sqs://` or `redis://`.",
                );
            }
            kind.map(|kind| Placed::new(kind, value.place()))
        }
        (None, None) => {
            table.wrong("lacks `kind`", "Write `kind = \"rabbitmq\"`, or a `url` that tells it.");
            None
        }
    }
}

impl Server {
    fn read(table: &mut Table<'_>, url: SecretUrl) -> Self {
        let username = exclusive(table, "username", "username_file");
        let password = exclusive(table, "password", "password_file");
        let tls = table.optional("tls", |value| value.table(Tls::read));
        Self { url, username, password, tls }
    }
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
    fn read(table: &mut Table<'_>, url: Option<&SecretUrl>) -> Self {
        let servers = match (url.map(SecretUrl::expose), table.take("servers")) {
            (None, Some(value)) => read_servers(&value),
            (Some(url), None) => of_url(url),
            (Some(_), Some(value)) => {
                value.wrong("is given twice: as `servers` and in `url`", "Keep one of the two.");
                Vec::new()
            }
            (None, None) => {
                table.wrong("lacks `servers`", "Write `servers = [\"host:9092\"]`.");
                Vec::new()
            }
        };
        let properties = table.or("properties", BTreeMap::new(), |value| {
            value.entries(|_, value| value.text().map(|text| Secret::new(text.value)))
        });
        Self { servers, properties }
    }
}

fn read_servers(value: &Value<'_>) -> Vec<String> {
    let servers = value.list(Value::name);
    if servers.as_ref().is_some_and(Vec::is_empty) {
        value.wrong("is empty", "Name at least one server: `servers = [\"host:9092\"]`.");
    }
    servers.unwrap_or_default()
}

/// `kafka://host:9092,host:9092`
fn of_url(url: &str) -> Vec<String> {
    let hosts = url.split_once("://").map_or("", |(_, hosts)| hosts).trim_end_matches('/');
    hosts.split(',').map(str::to_owned).collect()
}

impl NatsLogin {
    fn read(table: &mut Table<'_>) -> Self {
        let token = exclusive(table, "token", "token_file");
        let credentials = table.optional("credentials_file", |value| value.file().map(|(path, _)| path));
        Self { token, credentials }
    }
}

impl Sqs {
    fn read(table: &mut Table<'_>, url: Option<SecretUrl>) -> Self {
        let region = table.optional("region", Value::name);
        let endpoint = table.optional("endpoint", Value::name);
        let (id, secret) = (
            exclusive(table, "access_key_id", "access_key_id_file"),
            exclusive(table, "secret_access_key", "secret_access_key_file"),
        );
        let session = exclusive(table, "session_token", "session_token_file");
        let keys = match (id, secret) {
            (Some(id), Some(secret)) => Some(SqsKeys { id, secret, session }),
            (None, None) => None,
            _ => {
                table.wrong(
                    "has half of a key",
                    "Write both `access_key_id` and `secret_access_key`, or neither for AWS's usual chain.",
                );
                None
            }
        };
        Self { url, region, endpoint, keys }
    }
}
