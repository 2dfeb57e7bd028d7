//! The key that a client gives a request, as it stands in the header `Idempotency-Key`.

use http::{HeaderMap, HeaderName};

/// The header that carries the key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest key, in bytes.
const MAX: usize = 255;

/// A key, without its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    text: String,
    /// It came without quotes.
    bare: bool,
}

/// Why a header is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAKey {
    #[error("there are {0} Idempotency-Key headers; one is allowed")]
    Several(usize),
    #[error("the key is empty")]
    Empty,
    #[error("the key is {0} bytes long; at most 255 are allowed")]
    TooLong(usize),
    #[error("the key holds a character that is not printable ASCII")]
    NotAscii,
    #[error("the key is not a string in double quotes")]
    NotQuoted,
    #[error("the key's closing quote is missing")]
    NotClosed,
    #[error("only `\\\"` and `\\\\` can be escaped in a key")]
    BadEscape,
    #[error("the header is a list; one key is allowed")]
    List,
    #[error("what stands behind the key is not a parameter")]
    Trailing,
}

impl RequestKey {
    /// Reads the header: none where it is missing, and an error where it is not exactly one key.
    pub(crate) fn of(headers: &HeaderMap, bare_allowed: bool) -> Result<Option<Self>, NotAKey> {
        let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else { return Ok(None) };
        match values.count() {
            0 => Self::parse(value.as_bytes(), bare_allowed).map(Some),
            more => Err(NotAKey::Several(more + 1)),
        }
    }

    fn parse(value: &[u8], bare_allowed: bool) -> Result<Self, NotAKey> {
        let text = std::str::from_utf8(value).map_err(|_| NotAKey::NotAscii)?;
        if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(NotAKey::NotAscii);
        }
        let text = text.trim_matches(' ');
        let key = match text.strip_prefix('"') {
            Some(rest) => quoted(rest)?,
            None if text.is_empty() => return Err(NotAKey::Empty),
            None if bare_allowed => Self { text: bare(text)?.to_owned(), bare: true },
            None => return Err(NotAKey::NotQuoted),
        };
        match key.text.len() {
            0 => Err(NotAKey::Empty),
            length if length > MAX => Err(NotAKey::TooLong(length)),
            _ => Ok(key),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_bare(&self) -> bool {
        self.bare
    }
}

/// An `sf-string` (RFC 8941, 3.3.3) behind its opening quote, and parameters that are of no concern to us.
fn quoted(rest: &str) -> Result<RequestKey, NotAKey> {
    let mut text = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    loop {
        match chars.next().ok_or(NotAKey::NotClosed)? {
            '"' => break,
            '\\' => match chars.next().ok_or(NotAKey::NotClosed)? {
                escaped @ ('"' | '\\') => text.push(escaped),
                _ => return Err(NotAKey::BadEscape),
            },
            plain => text.push(plain),
        }
    }
    parameters(chars.as_str())?;
    Ok(RequestKey { text, bare: false })
}

/// A key without quotes. What could be the punctuation of a list, of parameters or of a string is refused,
/// so that no malformed string passes for a key.
fn bare(text: &str) -> Result<&str, NotAKey> {
    match text.chars().find(|c| matches!(c, ' ' | ',' | ';' | '"' | '\\')) {
        None => Ok(text),
        Some(',') => Err(NotAKey::List),
        Some(_) => Err(NotAKey::NotQuoted),
    }
}

/// Parameters (RFC 8941, 3.1.2): their form is checked, their meaning ignored.
fn parameters(mut rest: &str) -> Result<(), NotAKey> {
    while let Some(parameter) = rest.strip_prefix(';') {
        rest = parameter_value(parameter_name(parameter.trim_start_matches(' '))?)?;
    }
    match rest.trim_start_matches(' ').as_bytes().first() {
        None => Ok(()),
        Some(b',') => Err(NotAKey::List),
        Some(_) => Err(NotAKey::Trailing),
    }
}

fn parameter_name(text: &str) -> Result<&str, NotAKey> {
    let first = |c: char| c.is_ascii_lowercase() || c == '*';
    let then = |c: char| first(c) || c.is_ascii_digit() || matches!(c, '_' | '-' | '.');
    let rest = text.strip_prefix(first).ok_or(NotAKey::Trailing)?;
    Ok(rest.trim_start_matches(then))
}

/// Behind `=` a bare item: a string, a byte sequence, a boolean, a number or a token.
fn parameter_value(text: &str) -> Result<&str, NotAKey> {
    let Some(value) = text.strip_prefix('=') else { return Ok(text) };
    if let Some(string) = value.strip_prefix('"') {
        return string_end(string).ok_or(NotAKey::Trailing);
    }
    if let Some(bytes) = value.strip_prefix(':') {
        return bytes.split_once(':').map(|(_, rest)| rest).ok_or(NotAKey::Trailing);
    }
    let in_item = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/?".contains(c);
    let rest = value.trim_start_matches(in_item);
    if rest.len() == value.len() { Err(NotAKey::Trailing) } else { Ok(rest) }
}

fn string_end(text: &str) -> Option<&str> {
    let mut chars = text.chars();
    loop {
        match chars.next()? {
            '"' => return Some(chars.as_str()),
            '\\' => drop(chars.next()?),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn strict(value: &[u8]) -> Result<String, NotAKey> {
        RequestKey::parse(value, false).map(|key| key.text)
    }

    fn lenient(value: &[u8]) -> Result<String, NotAKey> {
        RequestKey::parse(value, true).map(|key| key.text)
    }

    #[test]
    fn the_drafts_own_example_is_a_key() {
        let key = strict(br#""8e03978e-40d5-43dd-bc93-6894a57f9324""#);
        assert_eq!(key.unwrap(), "8e03978e-40d5-43dd-bc93-6894a57f9324");
    }

    #[test]
    fn a_quote_and_a_backslash_can_be_escaped_and_nothing_else() {
        assert_eq!(strict(br#""a\"b\\c""#).unwrap(), r#"a"b\c"#);
        assert_eq!(strict(br#""a\nb""#), Err(NotAKey::BadEscape));
        assert_eq!(strict(br#""a\""#), Err(NotAKey::NotClosed));
        assert_eq!(strict(br#""a\"#), Err(NotAKey::NotClosed));
    }

    #[test]
    fn parameters_are_allowed_and_ignored() {
        for good in [r#""k";a"#, r#""k"; a=1;b="x\"y";c=:aGk=:;d=?1;*e=tok/en"#, r#" "k" "#] {
            assert_eq!(strict(good.as_bytes()).unwrap(), "k", "{good}");
        }
        for bad in
            [r#""k";"#, r#""k";A=1"#, r#""k";a="#, r#""k";a="x"#, r#""k";a=:x"#, r#""k"x"#, r#""k" "l""#]
        {
            assert!(strict(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_is_no_key_with_or_without_quotes() {
        assert_eq!(strict(br#""a", "b""#), Err(NotAKey::List));
        assert_eq!(lenient(br#""a","b""#), Err(NotAKey::List));
        assert_eq!(lenient(b"a,b"), Err(NotAKey::List));
    }

    #[test]
    fn several_headers_are_no_key_even_if_they_are_equal() {
        let mut headers = HeaderMap::new();
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("\"a\""));
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("\"a\""));
        assert_eq!(RequestKey::of(&headers, true), Err(NotAKey::Several(2)));
        assert_eq!(RequestKey::of(&HeaderMap::new(), true), Ok(None));
    }

    #[test]
    fn an_empty_key_is_no_key() {
        for empty in [&b"\"\""[..], b"", b"  "] {
            assert!(matches!(lenient(empty), Err(NotAKey::Empty)));
        }
    }

    #[test]
    fn a_key_outside_of_ascii_is_refused() {
        for bad in ["\"schlüssel\"".as_bytes(), b"\"a\tb\"", b"\"\xff\"", b"\"a\x7f\""] {
            assert_eq!(lenient(bad), Err(NotAKey::NotAscii));
        }
    }

    #[test]
    fn a_key_has_255_bytes_at_most_and_is_never_cut() {
        let quoted = |length: usize| format!("\"{}\"", "k".repeat(length));
        assert_eq!(strict(quoted(255).as_bytes()).unwrap().len(), 255);
        assert_eq!(strict(quoted(256).as_bytes()), Err(NotAKey::TooLong(256)));
        assert_eq!(lenient("k".repeat(256).as_bytes()), Err(NotAKey::TooLong(256)));
    }

    #[test]
    fn bare_keys_are_accepted_only_where_they_are_allowed() {
        let uuid = b"8e03978e-40d5-43dd-bc93-6894a57f9324";
        assert!(RequestKey::parse(uuid, true).unwrap().is_bare());
        for bare in [&uuid[..], b"42", b"?1", b":aGk=:", b"token"] {
            assert_eq!(strict(bare), Err(NotAKey::NotQuoted));
        }
        for bad in [&b"a b"[..], b"a;b", b"a\"b", b"a\\b", b"a\""] {
            assert!(lenient(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_as_a_string_is_read_as_it_was(key in "[ -~]{1,255}") {
            let written = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
            prop_assert_eq!(strict(written.as_bytes()).unwrap(), key);
        }

        #[test]
        fn whatever_comes_is_a_key_or_refused(value in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(key) = lenient(&value) {
                prop_assert!((1..=255).contains(&key.len()));
                prop_assert!(key.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            }
        }
    }
}
