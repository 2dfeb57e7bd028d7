//! Makes a broker of what the configuration says.

use hapax::{BoxSource, Broker, Code, Error, ErrorKind};

use crate::config::Config;
use crate::config::broker::{Broker as Settings, BrokerKind, Connection};
use crate::config::consumer::Consumer;
use crate::config::problem::Placed;
use crate::config::source::Source;
use crate::open::placed;
use crate::trouble::Trouble;

/// A broker of the configuration; errors name its place in the file.
pub(crate) async fn configured(config: &Config, name: &Placed<String>) -> Result<Broker, Trouble> {
    let Some(settings) = config.brokers.get(&name.value) else {
        return Err(placed(config, name, not_here(&name.value)));
    };
    of(settings).await.map_err(|error| placed(config, &settings.at, error))
}

/// The broker that these settings describe. Connects to nothing.
#[allow(clippy::unused_async, reason = "some brokers read their settings from outside")]
pub(crate) async fn of(settings: &Settings) -> Result<Broker, Error> {
    match &settings.connection {
        #[cfg(feature = "rabbitmq")]
        Connection::RabbitMq(server) => Ok(rabbit_of(server)?.into()),
        #[cfg(feature = "kafka")]
        Connection::Kafka(kafka) => Ok(kafka_of(kafka)?.into()),
        #[cfg(feature = "redis")]
        Connection::Redis(server) => Ok(redis_of(server)?.into()),
        #[cfg(feature = "nats")]
        Connection::Nats(server, login) => Ok(nats_of(server, login)?.into()),
        #[cfg(feature = "sqs")]
        Connection::Sqs(settings) => Ok(sqs_of(settings).await?.into()),
        #[allow(unreachable_patterns, reason = "in a build that has them all")]
        _ => Err(left_out(settings.kind.value)),
    }
}

/// A consumer's source, if it is on a broker. With `declare` it makes what it reads where that is missing.
pub(crate) async fn source(
    config: &Config,
    consumer: &Consumer,
    declare: bool,
) -> Result<Option<BoxSource>, Trouble> {
    let Some(name) = consumer.source.broker() else { return Ok(None) };
    if let Some(special) = special(config, consumer, declare)? {
        return Ok(Some(special));
    }
    let mut broker = configured(config, name).await?;
    if declare {
        broker = broker.declare();
    }
    let Some(queue) = consumer.source.queue() else {
        return Err(placed(config, name, not_here(&name.value)));
    };
    Ok(Some(broker.source(&queue.value, reader(consumer))))
}

/// The name under which a broker remembers how far a consumer has read.
fn reader(consumer: &Consumer) -> &str {
    &consumer.source.group().unwrap_or(&consumer.name).value
}

/// What only one kind of broker has: a prefetch, several topics.
fn special(config: &Config, consumer: &Consumer, declare: bool) -> Result<Option<BoxSource>, Trouble> {
    let settings = consumer.source.broker().and_then(|name| config.brokers.get(&name.value));
    match (settings.map(|settings| (settings, &settings.connection)), &consumer.source) {
        #[cfg(feature = "rabbitmq")]
        (
            Some((settings, Connection::RabbitMq(server))),
            Source::Queue { queue, prefetch: Some(prefetch), .. },
        ) => {
            let rabbit = rabbit_of(server).map_err(|error| placed(config, &settings.at, error))?;
            let source = rabbit.source(&queue.value).prefetch(prefetch.value);
            Ok(Some(BoxSource::new(if declare { source.declare() } else { source })))
        }
        #[cfg(feature = "kafka")]
        (Some((settings, Connection::Kafka(kafka))), Source::Topics { topics, .. }) => {
            let kafka = kafka_of(kafka).map_err(|error| placed(config, &settings.at, error))?;
            let source = kafka.source(&topics.value, reader(consumer));
            Ok(Some(BoxSource::new(if declare { source.declare() } else { source })))
        }
        _ => Ok(None),
    }
}

#[cfg(feature = "rabbitmq")]
fn rabbit_of(server: &crate::config::broker::Server) -> Result<hapax::rabbitmq::RabbitMq, Error> {
    let mut connection = hapax::rabbitmq::RabbitMq::new(server.url.expose())?;
    if let Some(username) = &server.username {
        connection = connection.username(username.expose());
    }
    if let Some(password) = &server.password {
        connection = connection.password(password.expose());
    }
    if let Some(tls) = &server.tls {
        connection = connection.ca_file(&tls.ca.value)?;
    }
    Ok(connection)
}

#[cfg(feature = "kafka")]
fn kafka_of(settings: &crate::config::broker::Kafka) -> Result<hapax::kafka::Kafka, Error> {
    let kafka = hapax::kafka::Kafka::new(&settings.servers);
    let mut properties = settings.properties.iter();
    properties.try_fold(kafka, |kafka, (name, value)| kafka.property(name, value.expose()))
}

#[cfg(feature = "redis")]
fn redis_of(server: &crate::config::broker::Server) -> Result<hapax::redis::Redis, Error> {
    let mut connection = hapax::redis::Redis::new(server.url.expose())?;
    if let Some(username) = &server.username {
        connection = connection.username(username.expose());
    }
    if let Some(password) = &server.password {
        connection = connection.password(password.expose());
    }
    if let Some(tls) = &server.tls {
        connection = connection.ca_file(&tls.ca.value)?;
    }
    Ok(connection)
}

#[cfg(feature = "nats")]
fn nats_of(
    server: &crate::config::broker::Server,
    login: &crate::config::broker::NatsLogin,
) -> Result<hapax::nats::Nats, Error> {
    let mut connection = hapax::nats::Nats::new(server.url.expose())?;
    if let Some(username) = &server.username {
        connection = connection.username(username.expose());
    }
    if let Some(password) = &server.password {
        connection = connection.password(password.expose());
    }
    if let Some(token) = &login.token {
        connection = connection.token(token.expose());
    }
    if let Some(file) = &login.credentials {
        connection = connection.credentials_file(file)?;
    }
    if let Some(tls) = &server.tls {
        connection = connection.ca_file(&tls.ca.value)?;
    }
    Ok(connection)
}

#[cfg(feature = "sqs")]
async fn sqs_of(settings: &crate::config::broker::Sqs) -> Result<hapax::sqs::Sqs, Error> {
    let mut connection = match settings.url.as_ref().map(crate::config::secret::SecretUrl::expose) {
        None | Some("sqs://") => hapax::sqs::Sqs::from_env().await,
        Some(url) => hapax::sqs::Sqs::from_url(url)?,
    };
    if let Some(region) = &settings.region {
        connection = connection.region(region);
    }
    if let Some(endpoint) = &settings.endpoint {
        connection = connection.endpoint_url(endpoint);
    }
    if let Some(keys) = &settings.keys {
        let session = keys.session.as_ref().map(|session| session.expose().to_owned());
        connection = connection.credentials(keys.id.expose(), keys.secret.expose(), session);
    }
    Ok(connection)
}

fn left_out(kind: BrokerKind) -> Error {
    let feature = kind.feature();
    let context = format!("this build was made without `{feature}`: build it with `--features {feature}`");
    Error::new(ErrorKind::Setup, Code::NotAvailable, context)
}

fn not_here(name: &str) -> Error {
    let context = format!("this build cannot consume from broker `{name}`");
    Error::new(ErrorKind::Setup, Code::NotAvailable, context)
}
