//! HTTP handlers of a configuration file: one call for each message, made before its transaction begins.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use hapax::{
    Body, BoxError, Code, ConsumerName, Error, ErrorKind, Failure, Fault, Handler, Message, MessageId, Store,
    idempotency_key,
};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Certificate, Client, Method, Response, Url, redirect, retry};

use crate::config::handler::{self, Http, KeyOf, RetryOn, UnknownOutcome};

/// What the other side tells copies by.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The message's type.
const MESSAGE_TYPE: HeaderName = HeaderName::from_static("hapax-message-type");
/// How much of an answer a dead letter keeps.
const FIRST_BYTES: usize = 512;
/// What is shorter is a word that stands in many an answer, and no secret.
const SECRET: usize = 6;
/// The longest `Retry-After` that is honoured.
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// A call as it is configured.
#[derive(Debug)]
pub(crate) struct HttpCall {
    client: Client,
    consumer: ConsumerName,
    method: Method,
    url: Url,
    headers: HeaderMap,
    retry_on: Vec<RetryOn>,
    unknown_outcome: UnknownOutcome,
    key_of: KeyOf,
    /// What must not be told, if the service repeats it in its answer.
    secrets: Vec<String>,
}

impl HttpCall {
    /// A call in a consumer's name. Redirects are not followed, so that the origin is the configured one.
    pub(crate) fn new(consumer: &ConsumerName, http: &Http) -> Result<Self, Error> {
        // Only the first call installs it; whichever is installed serves.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = Client::builder()
            .user_agent(concat!("hapax/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .no_proxy()
            .connect_timeout(*http.timeout)
            .timeout(*http.timeout);
        if let Some(tls) = &http.tls {
            client = client.tls_certs_only(authorities(&tls.ca.value)?);
        }
        let client = client.build().map_err(|error| unusable("an HTTP client cannot be made", error))?;
        let url = Url::parse(http.url.expose()).map_err(|error| unusable("the URL cannot be read", error))?;
        Ok(Self {
            client,
            consumer: consumer.clone(),
            method: method(http.method),
            url,
            headers: headers(http)?,
            retry_on: http.retry_on.clone(),
            unknown_outcome: http.unknown_outcome,
            key_of: http.idempotency_key,
            secrets: secrets(http),
        })
    }

    /// Makes the call for a message, and says what its answer means for it.
    pub(crate) async fn make(&self, message: Message<Body>) -> hapax::Result {
        if message.is_taken_over() && self.unknown_outcome == UnknownOutcome::DeadLetter {
            return Err(unknown("whoever called ended before it had the answer"));
        }
        let headers = self.headers_of(&message);
        let (kind, id) = (message.kind().to_owned(), message.id().clone());
        let body = message.into_payload();
        let request =
            self.client.request(self.method.clone(), self.url.clone()).headers(headers).body(body.0);
        tracing::debug!(consumer = %self.consumer, message_id = %id, kind, "calls");
        match request.send().await {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(self.refused(response).await),
            Err(error) => Err(self.unanswered(&error.without_url())),
        }
    }

    fn headers_of<T>(&self, message: &Message<T>) -> HeaderMap {
        let mut headers = self.headers.clone();
        let key = key(&self.consumer, message.id(), self.key_of);
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(&key).unwrap_or(HeaderValue::from_static("")));
        if let Ok(kind) = HeaderValue::from_str(message.kind()) {
            headers.insert(MESSAGE_TYPE, kind);
        }
        for name in ["traceparent", "tracestate", "baggage"] {
            let value = message.headers().get(name).and_then(|value| HeaderValue::from_str(value).ok());
            headers.extend(value.map(|value| (HeaderName::from_static(name), value)));
        }
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        headers
    }

    /// The service answered, and not with a success.
    async fn refused(&self, response: Response) -> Failure {
        let (status, wait) = (response.status().as_u16(), retry_after(response.headers()));
        let mut text = format!("the service answered {}", response.status());
        let said = self.without_secrets(first_bytes(response).await);
        if !said.is_empty() {
            let _ = write!(text, ": {said}");
        }
        if self.is_retried(status) {
            return Failure::Retry(Fault::new(Code::CallFailed, text).not_before(wait));
        }
        Failure::Reject(Fault::new(Code::CallRefused, text))
    }

    /// An answer that repeats what was asked, as some do, must not tell what is in the configuration.
    fn without_secrets(&self, said: String) -> String {
        self.secrets.iter().fold(said, |said, secret| said.replace(secret, "***"))
    }

    fn is_retried(&self, status: u16) -> bool {
        self.retry_on.iter().any(|outcome| match outcome {
            RetryOn::Status(retried) => *retried == status,
            RetryOn::Class(class) => *class == status / 100,
            RetryOn::Timeout | RetryOn::Connect => false,
        })
    }

    /// There was no answer. Without a connection nothing can have happened; otherwise nobody knows.
    fn unanswered(&self, error: &reqwest::Error) -> Failure {
        let text = described(error);
        if !error.is_connect() && self.unknown_outcome == UnknownOutcome::DeadLetter {
            return unknown(&text);
        }
        let outcome = if error.is_connect() { RetryOn::Connect } else { RetryOn::Timeout };
        let fault = Fault::new(Code::CallFailed, text);
        if self.retry_on.contains(&outcome) { Failure::Retry(fault) } else { Failure::Reject(fault) }
    }
}

/// All that is left to do in the transaction of a message whose call was made: to record it.
#[derive(Debug)]
pub(crate) struct Called;

impl<S: Store> Handler<S, Body> for Called {
    async fn handle(&self, _tx: &mut S::Tx, _message: Message<Body>) -> hapax::Result {
        Ok(())
    }
}

fn unknown(why: &str) -> Failure {
    let text = format!("it is unknown whether the call took effect: {why}");
    Failure::Reject(Fault::new(Code::CallUnknown, text))
}

/// The message's id as a string of a structured header field, behind the consumer's name if so configured. What such
/// a string cannot hold, or what is too long for a key, is stood for by a hash.
fn key(consumer: &ConsumerName, id: &MessageId, of: KeyOf) -> String {
    let key = match of {
        KeyOf::Id => id.as_str().to_owned(),
        KeyOf::ConsumerId => format!("{consumer}:{id}"),
    };
    let fits = key.len() <= 255 && key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if fits {
        return format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
    }
    format!("\"{}\"", idempotency_key(consumer, id, "http"))
}

/// What is secret of a call, or may be: the values of its headers, each word of them, and of its URL all but the origin.
fn secrets(http: &Http) -> Vec<String> {
    let values = http.headers.values().flat_map(|value| {
        let value = value.expose();
        std::iter::once(value).chain(value.split_whitespace())
    });
    let url = http.url.expose().split_once("://").map_or("", |(_, rest)| rest);
    let (authority, path) = url.split_at(url.find(['/', '?']).unwrap_or(url.len()));
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let of_query = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(_, value)| value);
    let of_url = user.split(':').chain(path.split('/')).chain(of_query);
    let mut secrets: Vec<String> = values.chain([path, query]).chain(of_url).map(str::to_owned).collect();
    secrets.retain(|secret| secret.len() >= SECRET);
    // The longest first, so that none is left in part.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.dedup();
    secrets
}

fn method(method: handler::Method) -> Method {
    match method {
        handler::Method::Post => Method::POST,
        handler::Method::Put => Method::PUT,
        handler::Method::Patch => Method::PATCH,
        handler::Method::Delete => Method::DELETE,
    }
}

/// The configured headers, none of which is ever shown.
fn headers(http: &Http) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::with_capacity(http.headers.len() + 4);
    for (name, value) in &http.headers {
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|error| unusable("a header has no usable name", error))?;
        let mut value = HeaderValue::from_str(value.expose()).map_err(|_| {
            unusable("a header cannot be sent", format!("`{name}` holds what a header cannot"))
        })?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

fn authorities(path: &std::path::Path) -> Result<Vec<Certificate>, Error> {
    let text =
        std::fs::read(path).map_err(|error| unusable("the certificate authorities cannot be read", error))?;
    let authorities = Certificate::from_pem_bundle(&text)
        .map_err(|error| unusable("the certificate authorities cannot be read", error))?;
    if authorities.is_empty() {
        return Err(unusable(
            "the certificate authorities cannot be read",
            "the file holds no certificate in PEM",
        ));
    }
    Ok(authorities)
}

fn unusable(what: &'static str, why: impl Into<BoxError>) -> Error {
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, what).because(why)
}

/// What an error says, with its causes and without the URL, which may hold a password.
fn described(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() { "no answer in time".to_owned() } else { error.to_string() };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// The beginning of an answer, in one line.
async fn first_bytes(mut response: Response) -> String {
    let mut bytes = Vec::with_capacity(FIRST_BYTES);
    while bytes.len() < FIRST_BYTES
        && let Ok(Some(chunk)) = response.chunk().await
    {
        bytes.extend_from_slice(&chunk[..chunk.len().min(FIRST_BYTES - bytes.len())]);
    }
    let text = String::from_utf8_lossy(&bytes);
    text.split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// How long the service asks to be left alone: seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Duration {
    let Some(value) = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()) else {
        return Duration::ZERO;
    };
    let wait = match value.trim().parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // Digits that are no number are more seconds than anybody waits.
        Err(_) if is_number(value.trim()) => LONGEST_WAIT,
        Err(_) => httpdate::parse_http_date(value.trim())
            .ok()
            .and_then(|date| date.duration_since(SystemTime::now()).ok())
            .unwrap_or_default(),
    };
    wait.min(LONGEST_WAIT)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(id: &str) -> String {
        key(&ConsumerName::new("mails").unwrap(), &MessageId::new(id).unwrap(), KeyOf::Id)
    }

    #[test]
    fn a_key_is_the_id_as_a_structured_string() {
        assert_eq!(key_of("m1"), r#""m1""#);
        assert_eq!(key_of(r#"a "b" \c"#), r#""a \"b\" \\c""#);
        assert_eq!(key_of(&"x".repeat(255)).len(), 257);
    }

    #[test]
    fn what_a_header_cannot_hold_is_hashed_and_told_apart() {
        let (one, other) = (key_of("abć"), key_of("abč"));
        assert_eq!(one.len(), 38);
        assert_ne!(one, other);
        assert_eq!(one, key_of("abć"));
        assert_ne!(one, key(&ConsumerName::new("sms").unwrap(), &MessageId::new("abć").unwrap(), KeyOf::Id));
    }

    #[test]
    fn two_consumers_can_have_keys_of_their_own() {
        let key_for = |consumer: &str, id: &str| {
            key(&ConsumerName::new(consumer).unwrap(), &MessageId::new(id).unwrap(), KeyOf::ConsumerId)
        };
        assert_eq!(key_for("mails", "m1"), r#""mails:m1""#);
        assert_eq!(key_for("mails", &"x".repeat(255)).len(), 38, "too long for a key");
        assert_ne!(key_for("mails", &"x".repeat(255)), key_for("bills", &"x".repeat(255)));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_has_a_limit() {
        let wait = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(value).unwrap());
            retry_after(&headers)
        };
        assert_eq!(wait("90"), Duration::from_secs(90));
        assert_eq!(wait("99999999999"), LONGEST_WAIT);
        assert_eq!(wait("99999999999999999999999"), LONGEST_WAIT);
        for nothing in ["", "soon", "-5", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(wait(nothing), Duration::ZERO, "{nothing}");
        }
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!((Duration::from_secs(90)..=Duration::from_secs(100)).contains(&wait(&date)));
        assert_eq!(retry_after(&HeaderMap::new()), Duration::ZERO);
    }
}
