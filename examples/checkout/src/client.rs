//! A small HTTP client: a connection for each request, so that a server that was killed is none of the next one's.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Whoever does not answer in this time is given up.
const PATIENCE: Duration = Duration::from_secs(10);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request.
pub(crate) type Body = Full<Bytes>;

/// Where a server is: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    address: String,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let refused = || format!("`{url}` is no http://HOST:PORT");
        let uri: Uri = url.parse().map_err(|_| refused())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(refused)?;
        if !matches!(uri.path(), "" | "/") {
            return Err(refused());
        }
        Ok(Self { address: format!("{host}:{}", uri.port_u16().unwrap_or(80)) })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.address)
    }
}

/// What was answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// A header's text; empty if it is not there.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Asks, and reads the whole answer.
pub(crate) async fn send(server: &Server, request: Request<Body>) -> Result<Answer, BoxError> {
    tokio::time::timeout(PATIENCE, ask(server, request)).await?
}

async fn ask(server: &Server, mut request: Request<Body>) -> Result<Answer, BoxError> {
    request.headers_mut().insert("host", server.address.parse()?);
    let stream = TcpStream::connect(&server.address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let body = answer.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok(Answer { status, headers, body })
}

/// A `GET`.
pub(crate) fn get(path: &str) -> Result<Request<Body>, BoxError> {
    Ok(Request::get(path).body(Body::default())?)
}
