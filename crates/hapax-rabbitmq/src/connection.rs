//! Where a broker is and how to connect to it.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use async_compat::Compat;
use hapax_core::{Code, Error, ErrorKind};
use lapin::tcp::{AsyncTcpStream, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error;
use crate::link::Link;
use crate::socket::{Socket, SocketSlot};
use crate::{RabbitPublisher, RabbitSource};

const HEARTBEAT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A `RabbitMQ` broker: its address, the credentials and the manners of connecting.
///
/// Making one connects to nothing. Each source and publisher opens a connection of its own, so that
/// a broker that holds back publishers (memory or disk alarm) does not hold back acks.
///
/// Neither `Debug` nor any error prints the user name or the password.
#[derive(Clone)]
pub struct RabbitMq {
    uri: AMQPUri,
    tls: OwnedTLSConfig,
    name: String,
    heartbeat: Duration,
    connect_timeout: Duration,
}

impl RabbitMq {
    /// A broker by its URL: `amqp://user:password@host:5672/vhost`, or `amqps` for TLS.
    ///
    /// User and password default to `guest`, the virtual host to `/` (write it as `%2f` or leave it
    /// out), the port to 5672 or 5671. The query may set `heartbeat` (seconds),
    /// `connection_timeout` (milliseconds) and what else the
    /// [URI specification](https://www.rabbitmq.com/docs/uri-query-parameters) names.
    ///
    /// # Errors
    ///
    /// `ErrorKind::Setup` if it is no such URL; the error does not repeat the URL.
    pub fn new(url: &str) -> Result<Self, Error> {
        let mut uri: AMQPUri = url.parse().map_err(|reason| not_a_url(url, reason))?;
        if let Some(host) = bracketed_host(url) {
            host.clone_into(&mut uri.authority.host); // lapin's parser would silently put `localhost`
        }
        if uri.vhost.is_empty() {
            "/".clone_into(&mut uri.vhost);
        }
        let heartbeat = uri.query.heartbeat.map_or(HEARTBEAT, |seconds| Duration::from_secs(seconds.into()));
        let connect_timeout = uri.query.connection_timeout.map_or(CONNECT_TIMEOUT, Duration::from_millis);
        Ok(Self { uri, tls: OwnedTLSConfig::default(), name: "hapax".into(), heartbeat, connect_timeout })
    }

    /// Overrides the URL's user name.
    #[must_use]
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.uri.authority.userinfo.username = username.into();
        self
    }

    /// Overrides the URL's password.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.uri.authority.userinfo.password = password.into();
        self
    }

    /// Trusts the certificate authorities in a PEM file, besides the system's. For `amqps` only.
    ///
    /// # Errors
    ///
    /// `ErrorKind::Setup` if the file cannot be read.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let pem = std::fs::read_to_string(path).map_err(|cause| {
            let context = format!("cannot read the certificate authority file {}", path.display());
            Error::new(ErrorKind::Setup, Code::ConfigMissingValue, context).because(cause)
        })?;
        self.tls.cert_chain = Some(pem);
        Ok(self)
    }

    /// The name under which the broker lists the connections. Default: `hapax`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How often each side shows that it is alive; in whole seconds, at least one. A broker that has
    /// been silent for two periods is given up. Default: 10 s, or less if the broker asks for less.
    #[must_use]
    pub fn heartbeat(mut self, period: Duration) -> Self {
        self.heartbeat = period;
        self
    }

    /// How long one attempt to connect may take, TLS and login included, and how long a source waits
    /// for its first connection. Default: 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// A queue as a source.
    pub fn source(&self, queue: impl Into<String>) -> RabbitSource {
        RabbitSource::new(self.clone(), queue.into())
    }

    /// A publisher. It connects when it is first used.
    pub fn publisher(&self) -> RabbitPublisher {
        RabbitPublisher::new(self.clone())
    }

    /// Scheme, host, port and virtual host, without the credentials.
    pub(crate) fn address(&self) -> String {
        let AMQPUri { scheme, authority, vhost, .. } = &self.uri;
        format!("{scheme}://{}:{}/{}", authority.host, authority.port, vhost.trim_start_matches('/'))
    }

    pub(crate) fn time_to_connect(&self) -> Duration {
        self.connect_timeout
    }

    /// One attempt to connect.
    pub(crate) async fn open(&self) -> Result<Link, Error> {
        let socket = Socket::default();
        let runtime =
            lapin::runtime::default_runtime().map_err(|cause| error::connecting(&self.address(), cause))?;
        let (slot, tls, limit) = (socket.slot(), self.tls.clone(), self.connect_timeout);
        let connecting = Connection::connector(
            self.negotiated_uri(),
            runtime,
            // lapin dials on a thread of its own, which outlives this future: hence a second limit.
            async move |uri, _| match timeout(limit, dial(&uri, &tls, &slot)).await {
                Ok(dialled) => Ok(dialled?),
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            },
            ConnectionProperties::default().with_connection_name(self.name.clone().into()),
        );
        match timeout(limit, connecting).await {
            Ok(Ok(connection)) => Ok(Link::new(connection, socket)),
            Ok(Err(cause)) => Err(error::connecting(&self.address(), cause)),
            Err(_) => Err(error::connect_timed_out(&self.address(), limit)),
        }
    }

    fn negotiated_uri(&self) -> AMQPUri {
        let mut uri = self.uri.clone();
        let seconds = self.heartbeat.as_secs().clamp(1, u16::MAX.into());
        uri.query.heartbeat = u16::try_from(seconds).ok(); // clamped above
        uri
    }
}

impl fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMq")
            .field("address", &self.address())
            .field("name", &self.name)
            .field("heartbeat", &self.heartbeat)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

async fn dial(
    uri: &AMQPUri,
    tls: &OwnedTLSConfig,
    slot: &SocketSlot,
) -> io::Result<AsyncTcpStream<Compat<TcpStream>>> {
    let AMQPUri { scheme, authority, .. } = uri;
    let socket = TcpStream::connect((authority.host.as_str(), authority.port)).await?;
    socket.set_nodelay(true)?;
    let socket = socket.into_std()?;
    slot.hold(&socket)?;
    let plain = AsyncTcpStream::Plain(Compat::new(TcpStream::from_std(socket)?));
    match scheme {
        AMQPScheme::AMQP => Ok(plain),
        AMQPScheme::AMQPS => plain.into_tls(&authority.host, tls.as_ref()).await,
    }
}

/// The parser's reason, unless it repeats the URL, which may hold a password.
fn not_a_url(url: &str, reason: String) -> Error {
    let reason = if reason.contains(url) { "not a URL with a host".into() } else { reason };
    error::misconfigured(format!(
        "the RabbitMQ URL is not of the form amqp://user:password@host:port/vhost: {reason}"
    ))
}

/// The host of `amqp://user@[::1]:5672/…`.
fn bracketed_host(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_prints_the_credentials() {
        let broker = RabbitMq::new("amqps://someone:hunter2@mq.internal/shop").unwrap().password("hunter3");
        let shown = format!("{broker:?}");
        assert!(shown.contains("amqps://mq.internal:5671/shop"), "{shown}");
        assert!(!shown.contains("someone") && !shown.contains("hunter"), "{shown}");
        for url in [
            "someone:hunter2@mq",
            "amqp:hunter2",
            "http://someone:hunter2@mq",
            "amqp://someone:hunter2@mq:no",
        ] {
            let error = RabbitMq::new(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Setup);
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn the_url_says_where_and_how() {
        let broker = RabbitMq::new("amqp://u:p%40ss@[::1]:7777/?heartbeat=3&connection_timeout=250").unwrap();
        assert_eq!(broker.uri.authority.host, "::1");
        assert_eq!(broker.uri.authority.userinfo.password, "p@ss");
        assert_eq!(broker.uri.vhost, "/");
        assert_eq!(broker.heartbeat, Duration::from_secs(3));
        assert_eq!(broker.connect_timeout, Duration::from_millis(250));
        assert_eq!(RabbitMq::new("amqp://mq").unwrap().address(), "amqp://mq:5672/");
    }

    #[test]
    fn a_missing_ca_file_is_named() {
        let error = RabbitMq::new("amqps://mq").unwrap().ca_file("/nowhere/ca.pem").unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::ConfigMissingValue));
        assert!(error.to_string().contains("/nowhere/ca.pem"));
    }
}
