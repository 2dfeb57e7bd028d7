//! Bodies as SQS takes them: text of certain characters, and never none.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hapax_core::Envelope;

/// The attribute that says how a body was written where it is not as it was.
pub(crate) const ENCODING: &str = "hapax-body";
const BASE64: &str = "base64";
const EMPTY: &str = "empty";
/// Stands for an empty body, which SQS refuses.
const NOTHING: &str = "-";

/// Whether SQS takes a text: tab, line feed, carriage return and what XML 1.0 allows besides.
pub(crate) fn is_allowed(text: &str) -> bool {
    text.chars().all(|char| {
        matches!(char, '\t' | '\n' | '\r' | ' '..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..='\u{10FFFF}')
    })
}

/// A body for SQS, and how it was written if not as it is.
pub(crate) fn write(envelope: &Envelope) -> (String, Option<&'static str>) {
    match std::str::from_utf8(&envelope.body) {
        Ok("") => (NOTHING.to_owned(), Some(EMPTY)),
        Ok(text) if is_allowed(text) => (text.to_owned(), None),
        _ => (STANDARD.encode(&envelope.body), Some(BASE64)),
    }
}

/// The inverse of [`write`]. What does not fit its encoding is left as it came.
pub(crate) fn read(body: String, encoding: Option<&str>) -> Vec<u8> {
    match encoding {
        Some(EMPTY) if body == NOTHING => Vec::new(),
        Some(BASE64) => STANDARD.decode(&body).unwrap_or_else(|_| body.into_bytes()),
        _ => body.into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_body_comes_back() {
        let every_byte: Vec<u8> = (0..=u8::MAX).collect();
        let bodies: [&[u8]; 6] =
            [b"", b"-", b"{\"a\": 1.0}\n", "a\u{FFFE}".as_bytes(), "💶\t".as_bytes(), &every_byte];
        for body in bodies {
            let (text, encoding) = write(&Envelope::new(body.to_vec()));
            assert!(!text.is_empty() && is_allowed(&text));
            assert_eq!(read(text, encoding), body);
        }
        assert_eq!(write(&Envelope::new("plain")), ("plain".into(), None));
        assert_eq!(read("no base64".into(), Some(BASE64)), b"no base64");
    }
}
