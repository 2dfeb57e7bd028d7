//! An answer as it is kept beside the record of its request.

use bytes::Bytes;
use hapax_core::Timestamp;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde::{Deserialize, Serialize};

use crate::body::Body;

/// The header on an answer that was given before.
pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The first byte of what is kept. A release that changes the form counts on and reads the older ones.
const VERSION: u8 = 1;

/// An answer that is kept.
///
/// In the store it is one version byte (1), the length of the head as 4 bytes (big-endian), the head as
/// JSON (`{"status":201,"at":…,"headers":[["content-type","application/json"]]}`, `at` in microseconds
/// since the epoch), and the body as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub(crate) status: StatusCode,
    /// When it was given, by the process's clock.
    pub(crate) at: Timestamp,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Serialize, Deserialize)]
struct Head {
    status: u16,
    at: Timestamp,
    headers: Vec<(String, String)>,
}

/// What is kept beside a record is no answer that this release can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is kept beside the record is no answer that this release can read")]
pub(crate) struct NotAnAnswer;

impl Kept {
    pub(crate) fn encode(&self) -> Bytes {
        // A header that is not UTF-8 has no place in the head; there are next to none.
        let text = |value: &HeaderValue| std::str::from_utf8(value.as_bytes()).ok().map(str::to_owned);
        let header = |(name, value): (&HeaderName, _)| Some((name.as_str().to_owned(), text(value)?));
        let headers = self.headers.iter().filter_map(header).collect();
        let head = Head { status: self.status.as_u16(), at: self.at, headers };
        let head = serde_json::to_vec(&head).unwrap_or_default(); // strings and integers only: cannot fail
        let length = u32::try_from(head.len()).unwrap_or(u32::MAX); // a server's headers are some KiB
        let mut kept = Vec::with_capacity(5 + head.len() + self.body.len());
        kept.push(VERSION);
        kept.extend(length.to_be_bytes());
        kept.extend(head);
        kept.extend_from_slice(&self.body);
        kept.into()
    }

    pub(crate) fn decode(kept: &Bytes) -> Result<Self, NotAnAnswer> {
        let (&VERSION, rest) = kept.split_first().ok_or(NotAnAnswer)? else { return Err(NotAnAnswer) };
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(NotAnAnswer)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| NotAnAnswer)?;
        let (head, body) = rest.split_at_checked(length).ok_or(NotAnAnswer)?;
        let head: Head = serde_json::from_slice(head).map_err(|_| NotAnAnswer)?;
        let mut headers = HeaderMap::with_capacity(head.headers.len());
        for (name, value) in &head.headers {
            let name: HeaderName = name.parse().map_err(|_| NotAnAnswer)?;
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).map_err(|_| NotAnAnswer)?);
        }
        let status = StatusCode::from_u16(head.status).map_err(|_| NotAnAnswer)?;
        Ok(Self { status, at: head.at, headers, body: kept.slice_ref(body) })
    }

    /// The answer, given again.
    pub(crate) fn replay(self) -> Response<Body> {
        let mut response = Response::new(Body::full(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
        response
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(body: &[u8]) -> Kept {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.append("link", HeaderValue::from_static("</a>"));
        headers.append("link", HeaderValue::from_static("</b>"));
        let at = Timestamp::from_micros(1_700_000_000_000_000);
        Kept { status: StatusCode::CREATED, at, headers, body: Bytes::copy_from_slice(body) }
    }

    /// What is in people's tables must be readable by every later release.
    #[test]
    fn the_form_of_a_kept_answer_is_the_same_in_every_release() {
        let head = concat!(
            r#"{"status":201,"at":1700000000000000,"headers":[["content-type","application/json"],"#,
            r#"["link","</a>"],["link","</b>"]]}"#
        );
        let mut golden = vec![1, 0, 0, 0, u8::try_from(head.len()).unwrap()];
        golden.extend(head.as_bytes());
        golden.extend(b"\x00body\xff");
        assert_eq!(kept(b"\x00body\xff").encode(), golden);
        assert_eq!(Kept::decode(&golden.into()).unwrap(), kept(b"\x00body\xff"));
    }

    #[test]
    fn a_replay_says_that_it_is_one() {
        let replay = kept(b"{}").replay();
        assert_eq!(replay.status(), 201);
        assert_eq!(replay.headers()[IDEMPOTENCY_REPLAYED], "true");
        assert_eq!(replay.headers().get_all("link").iter().count(), 2);
    }

    #[test]
    fn what_another_release_or_another_program_wrote_is_told_from_an_answer() {
        let whole = kept(b"").encode();
        for cut in 0..whole.len() {
            assert_eq!(Kept::decode(&whole.slice(..cut)), Err(NotAnAnswer), "cut at {cut}");
        }
        let mut newer = whole.to_vec();
        newer[0] = 2;
        assert_eq!(Kept::decode(&newer.into()), Err(NotAnAnswer));
    }

    proptest! {
        #[test]
        fn an_answer_survives_the_store(status in 100u16..600, body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let answer = Kept { status: StatusCode::from_u16(status).unwrap(), ..kept(&body) };
            prop_assert_eq!(Kept::decode(&answer.encode()).unwrap(), answer);
        }

        #[test]
        fn whatever_is_kept_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Kept::decode(&bytes.into());
        }
    }
}
