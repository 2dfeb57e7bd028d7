//! Errors as documents that a client can read (RFC 9457).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{Code, Error, ErrorKind};
use http::header::{CONTENT_LANGUAGE, CONTENT_TYPE, LINK, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::body::Body;

/// How long a client is told to wait where nobody knows better.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// An error as the client is told of it: `application/problem+json` with `type`, `title`, `status`,
/// `detail` and `code`.
///
/// It never holds what a store or a broker said: that is for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    code: Code,
    detail: String,
    retry_after: Option<Duration>,
}

#[derive(Serialize)]
struct Document<'p> {
    r#type: &'p str,
    title: &'static str,
    status: u16,
    detail: &'p str,
    code: &'static str,
}

impl Problem {
    /// A problem under a code; `detail` says what stood in the way of this very request.
    pub fn new(status: StatusCode, code: Code, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), retry_after: None }
    }

    /// Tells the client when to ask again, in whole seconds, at least one.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// What an error of a store or of a publisher means to a client: 503 with `Retry-After` for what may
    /// pass by itself, 500 for what will not.
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Conflict | ErrorKind::Unknown => {
                let detail = "it is not known whether the request took effect: ask again, with the same key";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, error.code(), detail).retry_after(SOON)
            }
            _ => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                error.code(),
                "the service could not do its work",
            ),
        }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The code to look up under `docs/errors/`.
    pub fn code(&self) -> Code {
        self.code
    }

    /// As a response, with links made by `docs`.
    pub(crate) fn response(&self, docs: &Docs) -> Response<Body> {
        let link = docs.link(self.code);
        let mut response = Response::new(Body::full(self.body(docs)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CONTENT_LANGUAGE, HeaderValue::from_static("en"));
        if let Ok(link) = HeaderValue::from_str(&format!("<{link}>; rel=\"describedby\"")) {
            headers.insert(LINK, link);
        }
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, whole_seconds(wait).into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Webhook-Signature"));
        }
        response
    }
}

impl Problem {
    /// The document.
    pub(crate) fn body(&self, docs: &Docs) -> Bytes {
        let document = Document {
            r#type: &docs.link(self.code),
            title: self.code.summary(),
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code.as_str(),
        };
        serde_json::to_vec(&document).unwrap_or_default().into() // strings and a number: cannot fail
    }
}

fn whole_seconds(wait: Duration) -> u64 {
    let rounded = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    rounded.max(1)
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        self.response(&Docs::default()).map(axum::body::Body::new)
    }
}

/// Where the pages of the codes are.
#[derive(Clone, Debug)]
pub(crate) struct Docs {
    base: Arc<str>,
    ending: &'static str,
}

impl Default for Docs {
    fn default() -> Self {
        Self { base: "https://github.com/hapax-rs/hapax/blob/main/docs/errors/".into(), ending: ".md" }
    }
}

impl Docs {
    /// Pages of one's own: the code is put behind `base`.
    pub(crate) fn at(base: &str) -> Self {
        Self { base: base.into(), ending: "" }
    }

    fn link(&self, code: Code) -> String {
        format!("{}{code}{}", self.base, self.ending)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn document(response: Response<Body>) -> serde_json::Value {
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }

    #[tokio::test]
    async fn a_problem_has_type_title_status_detail_and_code_and_links_to_its_page() {
        let problem = Problem::new(StatusCode::CONFLICT, Code::RequestRunning, "wait");
        let response = problem.retry_after(Duration::from_millis(1_200)).response(&Docs::default());
        assert_eq!(response.status(), 409);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        let page = "https://github.com/hapax-rs/hapax/blob/main/docs/errors/HX0083.md";
        assert_eq!(response.headers()[LINK], format!("<{page}>; rel=\"describedby\""));
        let document = document(response).await;
        let title = Code::RequestRunning.summary();
        let expected = serde_json::json!(
            {"type": page, "title": title, "status": 409, "detail": "wait", "code": "HX0083"}
        );
        assert_eq!(document, expected);
    }

    #[tokio::test]
    async fn the_links_can_lead_to_the_services_own_pages() {
        let problem = Problem::new(StatusCode::BAD_REQUEST, Code::RequestKeyMissing, "");
        let document = document(problem.response(&Docs::at("https://example.com/errors/"))).await;
        assert_eq!(document["type"], "https://example.com/errors/HX0080");
    }

    #[tokio::test]
    async fn what_a_store_says_is_not_told_to_a_client() {
        let error = Error::new(ErrorKind::Unavailable, Code::StoreUnavailable, "db.internal refused");
        let response = Problem::of(&error).response(&Docs::default());
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert!(!document(response).await.to_string().contains("internal"));
    }
}
