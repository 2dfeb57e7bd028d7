//! What makes two requests the same one.

use hapax_core::Digest;
use http::{HeaderName, request::Parts};

/// The fingerprint of a request: of its method, its path with the query, the chosen headers and the exact
/// bytes of its body, each with its length before it, so that no two of them run together.
pub(crate) fn fingerprint(parts: &Parts, headers: &[HeaderName], body: &[u8]) -> Digest {
    let mut whole = Vec::with_capacity(body.len() + 256);
    add(&mut whole, parts.method.as_str().as_bytes());
    add(&mut whole, target(parts).as_bytes());
    for name in headers {
        add(&mut whole, name.as_str().as_bytes());
        let values = parts.headers.get_all(name);
        whole.extend(count(values.iter().count()));
        values.iter().for_each(|value| add(&mut whole, value.as_bytes()));
    }
    add(&mut whole, body);
    Digest::of(&whole)
}

fn add(whole: &mut Vec<u8>, part: &[u8]) {
    whole.extend(count(part.len()));
    whole.extend_from_slice(part);
}

fn count(number: usize) -> [u8; 8] {
    (number as u64).to_be_bytes()
}

/// The path and query as the client sent them: a nested router of axum's has cut the path, and two routes that
/// end alike must not be one.
fn target(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return text(&original.0);
    }
    text(&parts.uri)
}

fn text(uri: &http::Uri) -> &str {
    uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str)
}

#[cfg(test)]
mod tests {
    use http::{Request, header::CONTENT_TYPE};
    use proptest::prelude::*;

    use super::*;

    fn of(request: http::request::Builder, body: &[u8]) -> Digest {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        fingerprint(&parts, &[CONTENT_TYPE], body)
    }

    #[test]
    fn method_path_query_chosen_headers_and_body_make_a_request() {
        let first = || Request::post("/transfers?dry=1").header(CONTENT_TYPE, "application/json");
        let same = of(first().header("x-request-id", "1"), b"{}");
        assert_eq!(of(first(), b"{}"), same);
        assert_ne!(of(first(), b"{} "), same, "the exact bytes");
        assert_ne!(of(first().method("PATCH"), b"{}"), same);
        assert_ne!(of(first().uri("/transfers"), b"{}"), same);
        assert_ne!(of(first().uri("/Transfers?dry=1"), b"{}"), same);
        assert_ne!(of(first().header(CONTENT_TYPE, "text/plain"), b"{}"), same);
        assert_ne!(of(Request::post("/transfers?dry=1"), b"{}"), same);
    }

    /// Kept with every record: it must not change from release to release.
    #[test]
    fn the_fingerprint_of_a_request_is_the_same_in_every_release() {
        let request = Request::post("/transfers?dry=1").header(CONTENT_TYPE, "application/json");
        assert_eq!(of(request, b"{\"amount\":\"25.00\"}").to_string(), "d7e4be7c1d3e4eee");
    }

    proptest! {
        #[test]
        fn parts_do_not_run_together(a in "[a-c]{0,3}", b in "[a-c]{0,3}", c in "[a-c]{0,3}", d in "[a-c]{0,3}") {
            let request = |path: &str| Request::post(format!("/{path}"));
            let equal = of(request(&a), b.as_bytes()) == of(request(&c), d.as_bytes());
            prop_assert_eq!(equal, (a, b) == (c, d));
        }
    }
}
