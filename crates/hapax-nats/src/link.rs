//! One open connection, and what the broker says on it unasked.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{
    Client, ClientError, Event, HeaderMap, Message, Request, RequestError, RequestErrorKind, ServerError,
};
use bytes::Bytes;
use hapax_core::BoxError;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Refusals that are remembered; whoever is refused more subjects than this has other worries.
const MOST_REFUSALS: usize = 1_000;
/// Under this key stands a refusal that takes all answers away: that of our own inbox.
const EVERYTHING: &str = "";

/// An open connection. It is never mended: once lost, it is replaced by another one.
///
/// The client underneath would send on a later connection what it was given in between, however late that
/// is. It closes the connection in the background when it is dropped.
pub(crate) struct Link {
    pub(crate) client: Client,
    signals: Signals,
}

/// What the broker says unasked.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    lost: CancellationToken,
    refusals: Arc<Refusals>,
}

/// When publishing to a subject was last refused, and in which words. The broker leaves such a request
/// unanswered, but says so on the connection.
struct Refusals(watch::Sender<HashMap<String, (Instant, String)>>);

impl Default for Refusals {
    fn default() -> Self {
        Self(watch::Sender::new(HashMap::new()))
    }
}

/// Why a request got no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Nobody listens to the subject.
    NoResponders,
    /// The user may not publish to the subject, or not hear the answer.
    Refused(String),
    /// It cannot be sent at all: too large, or no subject.
    Unsendable(String),
    /// The time was up.
    TimedOut(Duration),
    /// The connection was lost, and the request or its answer with it.
    Lost(BoxError),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoResponders => f.write_str("nobody listens"),
            Self::Refused(words) | Self::Unsendable(words) => f.write_str(words),
            Self::TimedOut(limit) => write!(f, "no answer within {limit:?}"),
            Self::Lost(cause) => write!(f, "the connection was lost: {cause}"),
        }
    }
}

impl std::error::Error for Unanswered {}

impl Link {
    pub(crate) fn new(client: Client, signals: Signals) -> Self {
        Self { client, signals }
    }

    /// Waits until the connection is lost.
    pub(crate) async fn lost(&self) {
        self.signals.lost.cancelled().await;
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.signals.lost.is_cancelled()
    }

    /// Waits until publishing to a subject is refused, from `since` on.
    pub(crate) async fn refusal(&self, subject: &str, since: Instant) -> String {
        self.signals.refusal(subject, since).await
    }

    /// Sends a request and waits for its answer. The first poll queues it, so that requests leave in the order
    /// in which they are first polled.
    pub(crate) async fn ask(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Bytes,
        limit: Duration,
    ) -> Result<Message, Unanswered> {
        let since = Instant::now();
        let mut request = Request::new().payload(payload).timeout(Some(limit));
        if !headers.is_empty() {
            request = request.headers(headers);
        }
        tokio::select! {
            biased;
            answer = self.client.send_request(subject.to_owned(), request) => {
                answer.map_err(|cause| unanswered(cause, limit))
            }
            words = self.signals.refusal(subject, since) => Err(Unanswered::Refused(words)),
            () = self.lost() => Err(Unanswered::Lost("the server closed it or fell silent".into())),
        }
    }
}

fn unanswered(cause: RequestError, limit: Duration) -> Unanswered {
    match cause.kind() {
        RequestErrorKind::NoResponders => Unanswered::NoResponders,
        RequestErrorKind::TimedOut => Unanswered::TimedOut(limit),
        RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
            Unanswered::Unsendable(cause.to_string())
        }
        RequestErrorKind::Other => Unanswered::Lost(cause.into()),
    }
}

impl Signals {
    pub(crate) fn note(&self, event: Event) {
        match event {
            Event::Disconnected | Event::Closed | Event::ClientError(ClientError::MaxReconnects) => {
                self.lost.cancel();
            }
            Event::ServerError(ServerError::Other(words)) => self.refused(words),
            _ => {}
        }
    }

    fn refused(&self, words: String) {
        let Some(subject) = refused_subject(&words) else {
            return tracing::debug!(error = %words, "the server reports an error");
        };
        self.refusals.0.send_modify(|refusals| {
            if refusals.len() >= MOST_REFUSALS {
                refusals.clear();
            }
            refusals.insert(subject, (Instant::now(), words));
        });
    }

    /// Waits until publishing to a subject is refused, from `since` on.
    async fn refusal(&self, subject: &str, since: Instant) -> String {
        let mut refusals = self.refusals.0.subscribe();
        let find = |refusals: &HashMap<String, (Instant, String)>| {
            let of = |key: &str| refusals.get(key).filter(|(at, _)| key == EVERYTHING || *at >= since);
            of(subject).or_else(|| of(EVERYTHING)).map(|(_, words)| words.clone())
        };
        let refused = refusals.wait_for(|refusals| find(refusals).is_some()).await;
        match refused.map(|refusals| find(&refusals)) {
            Ok(Some(words)) => words,
            _ => std::future::pending().await, // never: we hold the sender, and it was just found
        }
    }
}

/// `Permissions Violation for Publish to "orders"`; what may not be heard concerns every answer.
fn refused_subject(words: &str) -> Option<String> {
    let lower = words.to_ascii_lowercase();
    if !lower.contains("permissions violation") {
        return None;
    }
    let subject = words.split('"').nth(1)?;
    let hearing = lower.contains("subscription to");
    Some(if hearing { EVERYTHING.to_owned() } else { subject.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_subject() {
        let publish = r#"Permissions Violation for Publish to "orders.paid""#;
        assert_eq!(refused_subject(publish).as_deref(), Some("orders.paid"));
        let hear = r#"Permissions Violation for Subscription to "_INBOX.x.*""#;
        assert_eq!(refused_subject(hear).as_deref(), Some(EVERYTHING));
        assert_eq!(refused_subject("Stale Connection"), None);
    }

    #[tokio::test]
    async fn an_old_refusal_says_nothing_about_a_new_request() {
        let signals = Signals::default();
        signals.refused(r#"Permissions Violation for Publish to "a""#.into());
        let later = Instant::now() + Duration::from_millis(1);
        let waited = tokio::time::timeout(Duration::from_millis(20), signals.refusal("a", later)).await;
        assert!(waited.is_err());
        signals.refused(r#"Permissions Violation for Publish to "a""#.into());
        assert!(signals.refusal("a", later).await.contains("Publish"));
    }
}
