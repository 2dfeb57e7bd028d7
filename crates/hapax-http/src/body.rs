//! Bodies: read within a limit, or passed on as they come.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hapax_core::BoxError;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};

/// The body of a request that is passed to the handler, and of a response: whole, or a stream.
pub struct Body(UnsyncBoxBody<Bytes, BoxError>);

impl Body {
    /// Any body.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }

    /// One that is there already.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        Self::new(Full::new(bytes.into()))
    }

    /// None.
    pub fn empty() -> Self {
        Self::full(Bytes::new())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

/// Whether a body says how long it is.
pub(crate) fn has_length(body: &impl HttpBody) -> bool {
    body.size_hint().exact().is_some()
}

/// What became of reading a body.
#[derive(Debug)]
pub(crate) enum Read {
    /// All of it.
    Whole(Bytes),
    /// It is larger than the limit: no more than that, and what came at once with it, was read. This is the
    /// body as it was, from its beginning.
    TooLarge(Body),
    /// It broke off.
    Broken(BoxError),
}

/// Reads a body, unless it is larger than `limit` bytes. A body that says so is not begun. Trailers are
/// dropped.
pub(crate) async fn read<B>(mut body: B, limit: usize) -> Read
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let says = body.size_hint();
    if says.lower() > limit as u64 {
        return Read::TooLarge(Body::new(body));
    }
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) if read.len() + data.len() > limit => {
                read.extend_from_slice(&data);
                return Read::TooLarge(Body::new(Resumed {
                    read: Some(read.freeze()),
                    rest: Body::new(body),
                }));
            }
            // The usual case of one frame is not copied.
            Ok(Ok(data)) if read.is_empty() && body.is_end_stream() => return Read::Whole(data),
            Ok(Ok(data)) => read.extend_from_slice(&data),
            Ok(Err(_trailers)) => {}
            Err(error) => return Read::Broken(error.into()),
        }
    }
    Read::Whole(read.freeze())
}

/// A body of which a part was read already.
struct Resumed {
    read: Option<Bytes>,
    rest: Body,
}

impl HttpBody for Resumed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(read) = self.read.take() {
            return Poll::Ready(Some(Ok(Frame::data(read))));
        }
        Poll::Ready(ready!(Pin::new(&mut self.rest).poll_frame(cx)))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none() && self.rest.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::StreamBody;

    use super::*;

    fn chunks(chunks: &[&'static str]) -> Body {
        let frames =
            chunks.iter().map(|chunk| Ok::<_, BoxError>(Frame::data(Bytes::from_static(chunk.as_bytes()))));
        Body::new(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())))
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_the_limit_and_no_further() {
        assert!(matches!(read(chunks(&["ab", "cd"]), 4).await, Read::Whole(body) if body == "abcd"));
        assert!(matches!(read(Body::full("abcd"), 4).await, Read::Whole(body) if body == "abcd"));
        assert!(matches!(read(Body::empty(), 0).await, Read::Whole(body) if body.is_empty()));
        assert!(matches!(read(Body::full("abcde"), 4).await, Read::TooLarge(_)));
    }

    #[tokio::test]
    async fn a_body_that_was_too_large_can_be_passed_on_whole() {
        let Read::TooLarge(body) = read(chunks(&["ab", "cd", "ef"]), 3).await else { panic!("too large") };
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abcdef");
    }
}
