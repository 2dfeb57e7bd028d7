//! Where a broker is and how to connect to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use hapax_core::{Code, Error, ErrorKind};
use tokio::time::timeout;

use crate::api::Api;
use crate::error;
use crate::link::{Link, Signals};
use crate::{NatsPublisher, NatsSource};

const HEARTBEAT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The oldest server that this crate was tried on.
const OLDEST: (i64, i64, i64) = (2, 9, 0);

/// A NATS server or cluster with `JetStream`: its addresses, the credentials and the manners of connecting.
///
/// Making one connects to nothing. Each source and publisher opens a connection of its own.
///
/// Neither `Debug` nor any error prints a user name, a password, a token or a key.
#[derive(Clone)]
pub struct Nats {
    servers: Vec<ServerAddr>,
    login: Login,
    ca: Option<PathBuf>,
    api: Api,
    name: String,
    heartbeat: Duration,
    connect_timeout: Duration,
}

/// What is shown to the server. Later calls replace the part that they set.
#[derive(Clone, Default)]
struct Login {
    username: Option<String>,
    password: Option<String>,
    token: Option<String>,
    /// The text of a credentials file.
    credentials: Option<String>,
    /// The seed of an nkey.
    seed: Option<String>,
}

impl Nats {
    /// A broker by its URL: `nats://user:password@host:4222`, or `tls` for a connection that must be encrypted.
    /// Several servers of one cluster are separated by commas.
    ///
    /// A user without a password is a token, as everywhere with NATS. The port defaults to 4222.
    ///
    /// # Errors
    ///
    /// `ErrorKind::Setup` if it is no such URL; the error does not repeat the URL.
    pub fn new(url: &str) -> Result<Self, Error> {
        let mut login = Login::default();
        let mut servers = Vec::new();
        for part in url.split(',') {
            let address: ServerAddr = part.trim().parse().map_err(|_| not_a_url())?;
            if !matches!(address.scheme(), "nats" | "tls") || address.host().is_empty() {
                return Err(not_a_url());
            }
            login.take_from(&address)?;
            servers.push(without_login(address)?);
        }
        Ok(Self {
            servers,
            login,
            ca: None,
            api: Api::default(),
            name: "hapax".into(),
            heartbeat: HEARTBEAT,
            connect_timeout: CONNECT_TIMEOUT,
        })
    }

    /// Overrides the URL's user name.
    #[must_use]
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.login.username = Some(username.into());
        self
    }

    /// Overrides the URL's password.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(password.into());
        self
    }

    /// Logs in with a token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.login.token = Some(token.into());
        self
    }

    /// Logs in with the seed of an nkey (`SU…`).
    #[must_use]
    pub fn nkey(mut self, seed: impl Into<String>) -> Self {
        self.login.seed = Some(seed.into());
        self
    }

    /// Logs in with a credentials file (`.creds`): a user's JWT and the seed that proves it. Read once, now.
    ///
    /// # Errors
    ///
    /// `ErrorKind::Setup` if the file cannot be read or is none.
    pub fn credentials_file(mut self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let unreadable = |cause: std::io::Error| {
            let context = format!("cannot read the credentials file {}", path.display());
            Error::new(ErrorKind::Setup, Code::ConfigMissingValue, context).because(cause)
        };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        // What is wrong with it is not passed on: the cause could quote it.
        ConnectOptions::new().credentials(&text).map_err(|_| {
            error::misconfigured(format!("{} is not a credentials file of NATS", path.display()))
        })?;
        self.login.credentials = Some(text);
        Ok(self)
    }

    /// Trusts the certificate authorities in a PEM file, besides the system's, and insists on TLS.
    ///
    /// # Errors
    ///
    /// `ErrorKind::Setup` if the file cannot be read.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        std::fs::read(path).map_err(|cause| {
            let context = format!("cannot read the certificate authority file {}", path.display());
            Error::new(ErrorKind::Setup, Code::ConfigMissingValue, context).because(cause)
        })?;
        self.ca = Some(path.to_owned());
        Ok(self)
    }

    /// The `JetStream` domain, for a stream on the other side of a leaf node. Default: the server's own.
    #[must_use]
    pub fn domain(mut self, domain: &str) -> Self {
        self.api = Api::of_domain(domain);
        self
    }

    /// The name under which the broker lists the connections. Default: `hapax`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How often the client asks a silent server whether it is there; after the third time without an answer
    /// the connection is given up. Default: 10 s.
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

    /// A durable pull consumer of a stream as a source.
    pub fn source(&self, stream: impl Into<String>, consumer: impl Into<String>) -> NatsSource {
        NatsSource::new(self.clone(), stream.into(), consumer.into())
    }

    /// A publisher. It connects when it is first used.
    pub fn publisher(&self) -> NatsPublisher {
        NatsPublisher::new(self.clone())
    }

    /// The servers, without the credentials.
    pub(crate) fn address(&self) -> String {
        let show = |server: &ServerAddr| {
            let host = server.host();
            let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
            format!("{}://{host}:{}", server.scheme(), server.port())
        };
        self.servers.iter().map(show).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    pub(crate) fn time_to_connect(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn heartbeat_period(&self) -> Duration {
        self.heartbeat
    }

    /// One attempt to connect.
    pub(crate) async fn open(&self) -> Result<Link, Error> {
        let signals = Signals::default();
        let options = self.options(&signals)?;
        let limit = self.connect_timeout;
        let client = match timeout(limit, options.connect(self.servers.clone())).await {
            Ok(Ok(client)) => client,
            Ok(Err(cause)) => return Err(error::connecting(&self.address(), cause)),
            Err(_) => return Err(error::connect_timed_out(&self.address(), limit)),
        };
        let (major, minor, patch) = OLDEST;
        if !client.is_server_compatible(major, minor, patch) {
            return Err(error::too_old(&self.address(), &client.server_info().version));
        }
        Ok(Link::new(client, signals))
    }

    fn options(&self, signals: &Signals) -> Result<ConnectOptions, Error> {
        let Login { username, password, token, credentials, seed } = &self.login;
        let mut options = ConnectOptions::new()
            .name(&self.name)
            .connection_timeout(self.connect_timeout)
            .ping_interval(self.heartbeat)
            .request_timeout(None) // each request has a limit of its own
            // Reconnecting is ours: the client tries each server once more, and then tells us.
            .max_reconnects(self.servers.len());
        if username.is_some() || password.is_some() {
            let (username, password) = (username.clone(), password.clone());
            options = options.user_and_password(username.unwrap_or_default(), password.unwrap_or_default());
        }
        if let Some(token) = token {
            options = options.token(token.clone());
        }
        if let Some(seed) = seed {
            options = options.nkey(seed.clone());
        }
        if let Some(text) = credentials {
            options = options
                .credentials(text)
                .map_err(|_| error::misconfigured("the credentials file is not one of NATS"))?;
        }
        if let Some(ca) = &self.ca {
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        let signals = signals.clone();
        Ok(options.event_callback(move |event| {
            signals.note(event);
            std::future::ready(())
        }))
    }
}

impl Login {
    fn take_from(&mut self, address: &ServerAddr) -> Result<(), Error> {
        let (user, password) = (address.username(), address.password());
        match (user.map(decoded).transpose()?, password.map(decoded).transpose()?) {
            (user, Some(password)) => (self.username, self.password) = (user, Some(password)),
            (Some(token), None) => self.token = Some(token),
            (None, None) => {}
        }
        Ok(())
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("address", &self.address())
            .field("name", &self.name)
            .field("heartbeat", &self.heartbeat)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

fn not_a_url() -> Error {
    error::misconfigured("the NATS URL is not of the form nats://user:password@host:port")
}

/// The client library logs addresses, and so must not see the login in them.
fn without_login(address: ServerAddr) -> Result<ServerAddr, Error> {
    let mut url = address.into_inner();
    let cleared = url.set_username("").and_then(|()| url.set_password(None));
    cleared.map_err(|()| not_a_url())?;
    ServerAddr::from_url(url).map_err(|_| not_a_url())
}

/// `p%40ss` is `p@ss`.
fn decoded(text: &str) -> Result<String, Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let (byte, after) = match (first, tail) {
            (b'%', [high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => return Err(not_a_url()),
            },
            (b'%', _) => return Err(not_a_url()),
            _ => (*first, tail),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| not_a_url())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_prints_the_credentials() {
        let broker =
            Nats::new("tls://someone:hunter2@mq.internal").unwrap().password("hunter3").token("hunter4");
        let shown = format!("{broker:?}");
        assert!(shown.contains("tls://mq.internal:4222"), "{shown}");
        assert!(!shown.contains("someone") && !shown.contains("hunter"), "{shown}");
        for url in
            ["nats:hunter2", "http://someone:hunter2@mq", "nats://someone:hunter2@mq:no", "nats://a:%zz@mq"]
        {
            let error = Nats::new(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Setup, "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn the_url_says_where_and_how() {
        let broker = Nats::new("nats://u:p%40ss@[::1]:7777,nats://b").unwrap();
        assert_eq!(broker.address(), "nats://[::1]:7777,nats://b:4222");
        assert_eq!(broker.login.username.as_deref(), Some("u"));
        assert_eq!(broker.login.password.as_deref(), Some("p@ss"));
        assert!(broker.servers.iter().all(|server| !server.as_url_str().contains('@')));
        assert_eq!(Nats::new("nats://s3cr3t@mq").unwrap().login.token.as_deref(), Some("s3cr3t"));
    }

    #[test]
    fn a_file_that_is_missing_or_another_is_named() {
        let broker = Nats::new("nats://mq").unwrap();
        let error = broker.clone().ca_file("/nowhere/ca.pem").unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::ConfigMissingValue));
        assert!(error.to_string().contains("/nowhere/ca.pem"));
        let error = broker.clone().credentials_file("/nowhere/user.creds").unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::ConfigMissingValue));
        let error = broker.credentials_file(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Setup, Code::ConfigWrongValue));
    }
}
