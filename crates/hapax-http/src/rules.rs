//! What a layer was told: where it acts, what it keeps, and how long it waits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{ConsumerName, Timestamp};
use http::header::{
    ALLOW, CONNECTION, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
    CONTENT_LOCATION, CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK, LOCATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, VARY,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use crate::problem::Docs;
use crate::scope::Scope;

/// The header that says until when an answer is kept: an HTTP date, as in `Expires`.
pub const IDEMPOTENCY_KEY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-key-expires");

const MIB: usize = 1024 * 1024;

/// What is done with a body that does not say how long it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownLength {
    /// It is read as far as the limit allows, and is too large if it goes on. The default.
    #[default]
    Read,
    /// It is refused: a request with 411, an answer as one that is too large.
    Refuse,
    /// It passes. A request reaches the handler *without protection*; of an answer, only the record is kept.
    Pass,
}

/// What is done with an answer that is larger than may be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LargeAnswer {
    /// The client gets a problem (500). In the mode *transactional* all is rolled back (`HX0095`); in the mode
    /// *recorded* the record stays without the answer (`HX0088`). The default.
    #[default]
    Refuse,
    /// The first client gets it; the request stays on record without it, so that a retry has no effect, and
    /// gets a problem (500, `HX0088`).
    Pass,
}

/// What is done, in the mode *recorded*, with a request whose first run died with its outcome unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takeover {
    /// The handler runs again, and is told so by [`Run::taken_over`](crate::Run::taken_over): *at least
    /// once* after a crash. The default, since a retry after a crash is what a key is for, and the handler
    /// can hand the key on to whoever it calls.
    #[default]
    RunAgain,
    /// It does not run again: this retry and all others get a problem (500, `HX0089`) until somebody looks
    /// into it.
    Refuse,
}

type Choose<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;

/// Everything a layer was told.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) consumer: ConsumerName,
    pub(crate) scope: Scope,
    pub(crate) docs: Docs,
    pub(crate) methods: Vec<Method>,
    pub(crate) routes: Option<Choose<Parts>>,
    pub(crate) optional: bool,
    pub(crate) bare: bool,
    pub(crate) fingerprint: Vec<HeaderName>,
    pub(crate) body_limit: usize,
    pub(crate) request_streams: UnknownLength,
    pub(crate) answer_limit: usize,
    pub(crate) answer_streams: UnknownLength,
    pub(crate) large_answers: LargeAnswer,
    pub(crate) keep_headers: Vec<HeaderName>,
    pub(crate) keep_if: Option<Choose<StatusCode>>,
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
    pub(crate) takeover: Takeover,
    pub(crate) expires_after: Option<Duration>,
}

impl Rules {
    pub(crate) fn new(consumer: ConsumerName, scope: Scope) -> Self {
        Self {
            consumer,
            scope,
            docs: Docs::default(),
            methods: vec![Method::POST, Method::PATCH],
            routes: None,
            optional: false,
            bare: true,
            fingerprint: vec![CONTENT_TYPE],
            body_limit: MIB,
            request_streams: UnknownLength::default(),
            answer_limit: MIB,
            answer_streams: UnknownLength::default(),
            large_answers: LargeAnswer::default(),
            keep_headers: KEEP.to_vec(),
            keep_if: None,
            wait: Duration::ZERO,
            lease: Duration::from_secs(30),
            takeover: Takeover::default(),
            expires_after: None,
        }
    }

    /// Whether a request is any concern of the layer's.
    pub(crate) fn act_on(&self, parts: &Parts) -> bool {
        self.methods.contains(&parts.method) && self.routes.as_ref().is_none_or(|chosen| chosen(parts))
    }

    /// Whether an answer of this status is the request's last word, and is given again.
    pub(crate) fn keeps(&self, status: StatusCode) -> bool {
        match &self.keep_if {
            Some(keep) => keep(&status),
            None => is_last_word(status),
        }
    }

    /// The headers of an answer that are kept with it.
    pub(crate) fn kept_of(&self, headers: &HeaderMap) -> HeaderMap {
        let mut kept = HeaderMap::new();
        for name in self.keep_headers.iter().filter(|name| !is_of_the_connection(name)) {
            headers.get_all(name).iter().for_each(|value| {
                kept.append(name, value.clone());
            });
        }
        kept
    }

    /// Says until when an answer is kept, if the layer was told.
    pub(crate) fn publish_expiry<B>(&self, response: &mut Response<B>, given_at: Timestamp) {
        let Some(keep) = self.expires_after else { return };
        if let Some(date) = http_date(given_at.plus(keep)) {
            response.headers_mut().insert(IDEMPOTENCY_KEY_EXPIRES, date);
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("consumer", &self.consumer)
            .field("scope", &self.scope)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

/// What describes the body, and what the answer points to.
const KEEP: [HeaderName; 11] = [
    CONTENT_TYPE,
    CONTENT_LANGUAGE,
    CONTENT_ENCODING,
    CONTENT_DISPOSITION,
    CONTENT_LOCATION,
    LOCATION,
    LINK,
    ETAG,
    LAST_MODIFIED,
    VARY,
    ALLOW,
];

/// 2xx to 4xx, but for those that say "not now": they would turn a moment's refusal into one for good.
fn is_last_word(status: StatusCode) -> bool {
    const NOT_NOW: [StatusCode; 5] = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::CONFLICT,
        StatusCode::LOCKED,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    (200..500).contains(&status.as_u16()) && !NOT_NOW.contains(&status)
}

/// Headers that belong to one connection (RFC 9110, 7.6.1), or to one way of writing a body.
fn is_of_the_connection(name: &HeaderName) -> bool {
    [CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE].contains(name)
        || ["keep-alive", "proxy-connection"].contains(&name.as_str())
}

fn http_date(at: Timestamp) -> Option<HeaderValue> {
    let at = jiff::Timestamp::from_microsecond(at.as_micros()).ok()?;
    let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()?;
    HeaderValue::from_str(&date).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules::new(ConsumerName::new("http.test").unwrap(), Scope::One)
    }

    #[test]
    fn successes_and_refusals_are_kept_and_not_now_is_not() {
        let kept = |status| rules().keeps(StatusCode::from_u16(status).unwrap());
        assert!([200, 201, 202, 204, 303, 400, 401, 402, 403, 404, 410, 422].into_iter().all(kept));
        assert!(![100, 408, 409, 423, 425, 429, 500, 502, 503, 504, 599].into_iter().any(kept));
    }

    #[test]
    fn headers_of_the_connection_cookies_and_the_date_are_not_kept() {
        let mut headers = HeaderMap::new();
        for name in ["location", "set-cookie", "date", "connection", "transfer-encoding", "content-length"] {
            headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static("1"));
        }
        let mut rules = rules();
        assert_eq!(rules.kept_of(&headers).keys().collect::<Vec<_>>(), ["location"]);
        rules.keep_headers.extend(headers.keys().filter(|name| *name != LOCATION).cloned());
        let kept = rules.kept_of(&headers);
        assert!(["location", "set-cookie", "date"].iter().all(|name| kept.contains_key(*name)));
        assert_eq!(kept.len(), 3, "those of the connection never, also if they are asked for");
    }

    #[test]
    fn the_expiry_is_published_as_an_http_date() {
        let mut rules = rules();
        let mut response = Response::new(());
        rules.publish_expiry(&mut response, Timestamp::from_micros(0));
        assert!(response.headers().is_empty());
        rules.expires_after = Some(Duration::from_hours(24));
        rules.publish_expiry(&mut response, Timestamp::from_micros(0));
        assert_eq!(response.headers()[IDEMPOTENCY_KEY_EXPIRES], "Fri, 02 Jan 1970 00:00:00 GMT");
    }
}
