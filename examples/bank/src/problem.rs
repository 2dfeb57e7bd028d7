//! Refusals over HTTP, as problem documents (RFC 9457).

use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hapax::{Error, ErrorKind, Failure};
use serde::de::DeserializeOwned;
use serde_json::json;

/// Why a request is refused.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    kind: &'static str,
    detail: String,
}

impl Problem {
    /// The request cannot be understood.
    pub(crate) fn malformed(kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind, detail: detail.into() }
    }

    /// The request is understood, and asks for what cannot be done.
    pub(crate) fn unprocessable(kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, kind, detail: detail.into() }
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, kind: "not-found", detail: detail.into() }
    }

    /// The address is right, and the method is not.
    pub(crate) fn wrong_method() -> Self {
        let detail = "this address does not take that method";
        Self { status: StatusCode::METHOD_NOT_ALLOWED, kind: "wrong-method", detail: detail.to_owned() }
    }

    /// The same request is being handled already.
    pub(crate) fn in_progress() -> Self {
        let detail = "a request with this Idempotency-Key is being handled; ask again in a moment";
        Self { status: StatusCode::CONFLICT, kind: "in-progress", detail: detail.to_owned() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = json!({
            "type": format!("urn:bank:{}", self.kind),
            "title": self.kind.replace('-', " "),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        (self.status, content_type, document.to_string()).into_response()
    }
}

/// The store could not do it now. It may have been done all the same, if it was the commit whose answer was lost:
/// whoever asks again under the same key finds out.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        if error.kind() == ErrorKind::Busy {
            return Self::in_progress();
        }
        tracing::warn!(%error, "a request could not be handled");
        let detail = "the request could not be handled now; ask again under the same Idempotency-Key";
        Self { status: StatusCode::SERVICE_UNAVAILABLE, kind: "unavailable", detail: detail.to_owned() }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        tracing::warn!(?failure, "a request could not be handled");
        let detail = "the request could not be handled now; ask again under the same Idempotency-Key";
        Self { status: StatusCode::SERVICE_UNAVAILABLE, kind: "unavailable", detail: detail.to_owned() }
    }
}

/// Reads a JSON body.
pub(crate) fn read<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Problem> {
    let body = body.map_err(|refused| Problem {
        status: refused.status(),
        kind: "unreadable-body",
        detail: refused.body_text(),
    })?;
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
pub(crate) fn json(status: StatusCode, value: &impl serde::Serialize) -> Result<Response, Problem> {
    let body = serde_json::to_string(value).map_err(Failure::retry)?;
    Ok((status, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}
