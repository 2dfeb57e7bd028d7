//! Where a server is and how to connect to it.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use hapax_core::{Code, Error, ErrorKind};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates,
};
use tokio::time::timeout;

use crate::error;
use crate::link::{Link, Reading};
use crate::{RedisPublisher, RedisSource};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may take to answer a command that does not wait.
const ANSWER: Duration = Duration::from_secs(5);

/// A Redis server: its address, the credentials and the manners of connecting.
///
/// Making one connects to nothing. Each source opens two connections of its own, one of which waits for
/// messages while acks travel on the other; each publisher opens one.
///
/// Neither `Debug` nor any error prints the user name or the password.
#[derive(Clone)]
pub struct Redis {
    info: ConnectionInfo,
    ca: Option<Vec<u8>>,
    name: String,
    connect_timeout: Duration,
    answer_timeout: Duration,
}

impl Redis {
    /// A server by its URL: `redis://user:password@host:6379/0`, or `rediss` for TLS. The number is the
    /// database, 0 by default.
    ///
    /// # Errors
    ///
    /// `ErrorKind::Setup` if it is no such URL; the error does not repeat the URL.
    pub fn new(url: &str) -> Result<Self, Error> {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        let Some("redis" | "rediss") = scheme else { return Err(not_a_url()) };
        // The parser's reason is not passed on: it could quote a password.
        let info = url.into_connection_info().map_err(|_| not_a_url())?;
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        Ok(Self {
            info: info.set_redis_settings(settings),
            ca: None,
            name: "hapax".into(),
            connect_timeout: CONNECT_TIMEOUT,
            answer_timeout: ANSWER,
        })
    }

    /// Overrides the URL's user name (ACL).
    #[must_use]
    pub fn username(mut self, username: impl AsRef<str>) -> Self {
        let settings = self.info.redis_settings().clone().set_username(username);
        self.info = self.info.set_redis_settings(settings);
        self
    }

    /// Overrides the URL's password.
    #[must_use]
    pub fn password(mut self, password: impl AsRef<str>) -> Self {
        let settings = self.info.redis_settings().clone().set_password(password);
        self.info = self.info.set_redis_settings(settings);
        self
    }

    /// Trusts the certificate authorities in a PEM file, instead of the system's. For `rediss` only.
    ///
    /// # Errors
    ///
    /// `ErrorKind::Setup` if the file cannot be read.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let pem = std::fs::read(path).map_err(|cause| {
            let context = format!("cannot read the certificate authority file {}", path.display());
            Error::new(ErrorKind::Setup, Code::ConfigMissingValue, context).because(cause)
        })?;
        self.ca = Some(pem);
        Ok(self)
    }

    /// The name under which the server lists the connections. Default: `hapax`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How long one attempt to connect may take, TLS and login included, and how long a source waits
    /// for its first connection. Default: 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long the server may take to answer a command, beyond the time that the command is to wait. After
    /// that the connection is given up. Default: 5 s.
    #[must_use]
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit;
        self
    }

    /// A stream as a source, for a consumer group.
    pub fn source(&self, stream: impl Into<String>, group: impl Into<String>) -> RedisSource {
        RedisSource::new(self.clone(), stream.into(), group.into())
    }

    /// A publisher. It connects when it is first used.
    pub fn publisher(&self) -> RedisPublisher {
        RedisPublisher::new(self.clone())
    }

    /// Scheme, host, port and database, without the credentials.
    pub(crate) fn address(&self) -> String {
        let database = self.database();
        match self.info.addr() {
            ConnectionAddr::TcpTls { host, port, .. } => {
                format!("rediss://{}:{port}/{database}", shown(host))
            }
            ConnectionAddr::Tcp(host, port) => format!("redis://{}:{port}/{database}", shown(host)),
            other => format!("{other}/{database}"),
        }
    }

    pub(crate) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    pub(crate) fn time_to_connect(&self) -> Duration {
        self.connect_timeout
    }

    /// One attempt to connect.
    pub(crate) async fn open(&self) -> Result<Link, Error> {
        let client = self.client()?;
        let connection = self.connect(&client, self.answer_timeout).await?;
        Ok(Link::new(connection, self.answer_timeout))
    }

    /// One attempt to open a connection for commands that wait, `longest` at most.
    pub(crate) async fn open_reading(&self, longest: Duration) -> Result<Reading, Error> {
        let client = self.client()?;
        let connection = self.connect(&client, self.answer_timeout + longest).await?;
        Reading::new(connection).await.map_err(|cause| error::connecting(&self.address(), cause))
    }

    fn client(&self) -> Result<Client, Error> {
        let opened = if let ConnectionAddr::TcpTls { .. } = self.info.addr() {
            // Fails if the program has chosen another provider, which serves as well.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let certificates = TlsCertificates { client_tls: None, root_cert: self.ca.clone() };
            Client::build_with_tls(self.info.clone(), certificates)
        } else if self.ca.is_some() {
            return Err(error::misconfigured("a CA file needs a URL that begins with rediss://"));
        } else {
            Client::open(self.info.clone())
        };
        opened.map_err(|cause| error::connecting(&self.address(), cause))
    }

    async fn connect(
        &self,
        client: &Client,
        answer: Duration,
    ) -> Result<redis::aio::MultiplexedConnection, Error> {
        let limit = self.connect_timeout;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(limit))
            .set_response_timeout(Some(answer));
        let connecting = async {
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            // Whoever may not name its connection works without a name.
            let named: redis::RedisResult<()> =
                redis::cmd("CLIENT").arg("SETNAME").arg(&self.name).query_async(&mut connection).await;
            match named {
                Err(cause) if error::is_loss(&cause) || cause.code() == Some("NOAUTH") => Err(cause),
                _ => Ok(connection),
            }
        };
        match timeout(limit, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(cause)) => Err(error::connecting(&self.address(), cause)),
            Err(_) => Err(error::connect_timed_out(&self.address(), limit)),
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("address", &self.address())
            .field("name", &self.name)
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .finish_non_exhaustive()
    }
}

fn shown(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn not_a_url() -> Error {
    error::misconfigured("the Redis URL is not of the form redis://user:password@host:port/database")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_prints_the_credentials() {
        let broker = Redis::new("rediss://someone:hunter2@redis.internal/3").unwrap().password("hunter3");
        let shown = format!("{broker:?}");
        assert!(shown.contains("rediss://redis.internal:6379/3"), "{shown}");
        assert!(!shown.contains("someone") && !shown.contains("hunter"), "{shown}");
        for url in [
            "redis:hunter2",
            "http://someone:hunter2@r",
            "redis://someone:hunter2@r:no",
            "redis://:hunter2@r/x",
        ] {
            let error = Redis::new(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Setup, "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn the_url_says_where_and_how() {
        let broker = Redis::new("redis://u:p%40ss@[::1]:7777").unwrap();
        assert_eq!(broker.address(), "redis://[::1]:7777/0");
        assert_eq!(broker.info.redis_settings().username(), Some("u"));
        assert_eq!(broker.info.redis_settings().password(), Some("p@ss"));
    }

    #[test]
    fn a_missing_ca_file_is_named() {
        let error = Redis::new("rediss://r").unwrap().ca_file("/nowhere/ca.pem").unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::ConfigMissingValue));
        assert!(error.to_string().contains("/nowhere/ca.pem"));
    }
}
