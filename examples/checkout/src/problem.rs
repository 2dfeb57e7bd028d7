//! Refusals over HTTP, as problem documents (RFC 9457).

use axum::Extension;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hapax::http::RunAgain;
use hapax::{Error, ErrorKind, Failure, Store};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// Why a request is refused.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    kind: &'static str,
    detail: String,
    /// The database undid the transaction, and the layer may run the handler once more.
    is_undone: bool,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, detail: detail.into(), is_undone: false }
    }

    /// The request is understood, and asks for what cannot be done.
    pub(crate) fn unprocessable(kind: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, kind, detail)
    }

    pub(crate) fn malformed(kind: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, kind, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// The address is right, and the method is not.
    pub(crate) fn wrong_method() -> Self {
        let detail = "this address does not take that method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "wrong-method", detail)
    }

    /// The store could not do it now. Nothing of it is kept, so that the client can ask again under its key.
    pub(crate) fn of_failure<S: Store>(store: &S, failure: &Failure) -> Self {
        tracing::warn!(?failure, "a request could not be handled");
        let error = match failure {
            Failure::Retry(fault) | Failure::Reject(fault) => Some(fault.error()),
            _ => None,
        };
        let kind = error.and_then(|error| store.kind_of(error.as_ref())).map(|(kind, _)| kind);
        Self { is_undone: kind == Some(ErrorKind::Conflict), ..Self::unavailable() }
    }

    fn unavailable() -> Self {
        let detail = "the request could not be handled now; ask again under the same Idempotency-Key";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        tracing::warn!(%error, "a request could not be handled");
        Self::unavailable()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = json!({
            "type": format!("urn:checkout:{}", self.kind),
            "title": self.kind.replace('-', " "),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let headers = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, headers, document.to_string()).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, 1.into());
        }
        if self.is_undone { (Extension(RunAgain), response).into_response() } else { response }
    }
}

/// Reads a JSON object.
pub(crate) fn read<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Problem> {
    let body =
        body.map_err(|refused| Problem::new(refused.status(), "unreadable-body", refused.body_text()))?;
    // Serde would take a list for the fields in their order.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::unprocessable("invalid-field", "the body is a list, not an object"));
    }
    serde_json::from_slice(&body).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => Problem::unprocessable("invalid-field", error.to_string()),
        _ => Problem::malformed("not-json", format!("the body is not JSON: {error}")),
    })
}

/// Answers with JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    // What is answered has string keys and no floats: it can always be written.
    let body = serde_json::to_string(value).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
