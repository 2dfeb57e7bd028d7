//! A small HTTP client: a connection for each request, so that a server that was killed is none of the next one's.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Whoever does not answer in this time is given up.
const PATIENCE: Duration = Duration::from_secs(10);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    #[allow(dead_code, reason = "the tests look at it")]
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
}

/// Asks, and reads the whole answer.
pub(crate) async fn send(server: SocketAddr, request: Request<Full<Bytes>>) -> Result<Answer, BoxError> {
    tokio::time::timeout(PATIENCE, ask(server, request)).await?
}

async fn ask(server: SocketAddr, mut request: Request<Full<Bytes>>) -> Result<Answer, BoxError> {
    request.headers_mut().insert("host", server.to_string().parse()?);
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let content_type = answer.headers().get("content-type").and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_owned();
    let body = answer.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok(Answer { status, content_type, body })
}

/// A `GET`.
pub(crate) fn get(path: &str) -> Result<Request<Full<Bytes>>, BoxError> {
    Ok(Request::get(path).body(Full::default())?)
}

/// A `PUT` of JSON.
pub(crate) fn put(path: &str, body: &serde_json::Value) -> Result<Request<Full<Bytes>>, BoxError> {
    Ok(Request::put(path).body(Full::from(body.to_string()))?)
}

/// A `POST` of a body as it is, under a key.
pub(crate) fn post(path: &str, key: Option<&str>, body: String) -> Result<Request<Full<Bytes>>, BoxError> {
    let request = Request::post(path).header("content-type", "application/json");
    let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
    Ok(request.body(Full::from(body))?)
}
