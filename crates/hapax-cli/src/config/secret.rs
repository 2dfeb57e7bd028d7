//! Values that are never printed, and the blanking of those that stand in a configuration's text.

use std::fmt;
use std::ops::Range;

/// What a secret shows of itself.
const MASK: &str = "***";

/// A value that `Debug` and `Display` do not reveal; only [`Secret::expose`] does.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// Takes a value into custody.
    pub(crate) fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the driver that needs it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// A URL that may hold a password: printed with the password replaced by `***`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretUrl(String);

impl SecretUrl {
    /// Takes a URL into custody; nothing about it is checked here.
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The URL with its password, for the driver that connects with it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// What stands before the first colon, such as `postgres`; empty without a colon.
    pub(crate) fn scheme(&self) -> &str {
        self.0.split_once(':').map_or("", |(scheme, _)| scheme)
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = 0;
        for password in url_passwords(&self.0) {
            write!(f, "{}{MASK}", &self.0[shown..password.start])?;
            shown = password.end;
        }
        f.write_str(&self.0[shown..])
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text of a configuration with the passwords in it replaced by asterisks, byte for byte, so that
/// every place still points at what it did.
///
/// This works on the text and not on the parsed document, because a file that does not parse is shown too.
/// It would rather blank too much than too little. What is only named (`${PASSWORD}`) stays readable.
pub(super) fn blank_out(text: &str) -> String {
    let mut blanked = text.to_owned();
    for range in url_passwords(text).into_iter().chain(assigned_secrets(text)).chain(headers(text)) {
        let hidden = text[range.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { '*' });
        let hidden: String = hidden.collect();
        blanked.replace_range(range, &hidden);
    }
    blanked
}

/// The passwords of every URL in the text: `scheme://user:HERE@host` and `?password=HERE`.
fn url_passwords(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (position, _) in text.match_indices("://") {
        let start = position + "://".len();
        let length = text[start..].find(ends_url).unwrap_or(text.len() - start);
        let url = &text[start..start + length];
        let ranges = user_password(url).into_iter().chain(query_passwords(url));
        found.extend(ranges.map(|range| range.start + start..range.end + start));
    }
    found.retain(|range| !is_only_a_name(&text[range.clone()]));
    found.sort_by_key(|range| range.start);
    found.dedup_by(|later, earlier| later.start < earlier.end);
    found
}

fn ends_url(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'')
}

/// The last `@` counts, not the first: a password that should have been percent-encoded is one all the same.
fn user_password(url: &str) -> Option<Range<usize>> {
    let at = url.rfind('@')?;
    let colon = url[..at].find(':')?;
    Some(colon + 1..at)
}

fn query_passwords(url: &str) -> impl Iterator<Item = Range<usize>> {
    url.match_indices(['?', '&']).filter_map(|(separator, _)| {
        let pair = url[separator + 1..].split('&').next()?;
        let (name, value) = pair.split_once('=')?;
        let end = separator + 1 + pair.len();
        is_secret_name(name).then(|| end - value.len()..end)
    })
}

/// The quoted values of keys and HTTP headers that are called like a secret: `password = "HERE"`.
fn assigned_secrets(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (equals, _) in text.match_indices('=') {
        let key = text[..equals].trim_end().trim_end_matches(['"', '\'']);
        let name = key.rsplit(|c| !is_key_character(c)).next();
        if name.is_some_and(is_secret_name) {
            found.extend(quoted_value(text, equals + 1));
        }
    }
    found.retain(|range| !is_only_a_name(&text[range.clone()]));
    found
}

/// Everything in quotes that is given as a header, whatever the header is called: `headers = { X-Any = "HERE" }`, and
/// the lines below `[….headers]`.
fn headers(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (position, word) in text.match_indices("headers") {
        let after = position + word.len();
        let rest = text[after..].trim_start_matches(['"', '\'', ' ', '\t']);
        let start = text.len() - rest.len();
        let end = match rest.chars().next() {
            // A table of its own reaches to the next one.
            Some(']') => text[start..].find("\n[").map_or(text.len(), |end| start + end),
            Some('=') => start + end_of_value(&text[start..]),
            // `headers.X-Any = "…"`
            Some('.') => start + text[start..].find('\n').unwrap_or(rest.len()),
            _ => continue,
        };
        found.extend(quoted_after_equals(text, start..end));
    }
    found.retain(|range| !is_only_a_name(&text[range.clone()]));
    found
}

/// The end of an assigned value: of its brackets, or of its line. A bracket in quotes only makes it longer.
fn end_of_value(assignment: &str) -> usize {
    let value = assignment.trim_start_matches(['=', ' ', '\t']);
    let closing = match value.chars().next() {
        Some('{') => "}",
        Some('[') => "]",
        _ => "\n",
    };
    let last = assignment.find('\n').unwrap_or(assignment.len());
    let line_end = if closing == "]" { assignment.find("]\n").unwrap_or(last) } else { last };
    assignment.rfind(closing).filter(|end| *end <= line_end).unwrap_or(line_end)
}

/// The insides of all quoted texts in a range that are values: what a key is in quotes is not.
fn quoted_after_equals(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = range.start;
    while let Some(offset) = text[from..range.end].find(['"', '\'']) {
        let Some(inside) = quoted_value(text, from + offset) else { break };
        let is_key = text[inside.end..].trim_start_matches(['"', '\'', ' ', '\t']).starts_with('=');
        from = (inside.end + 1).min(range.end);
        if !is_key {
            found.push(inside);
        }
    }
    found
}

fn is_key_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// The inside of the string that starts at `from`, whichever of TOML's four kinds of string it is.
fn quoted_value(text: &str, from: usize) -> Option<Range<usize>> {
    let value = text[from..].trim_start_matches([' ', '\t']);
    let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| value.starts_with(quote))?;
    let start = text.len() - value.len() + quote.len();
    let length = closing_quote(&text[start..], quote);
    Some(start..start + length)
}

/// The length of a string's inside. One that is not closed is taken to reach to the end of its line, or of
/// the text if it may span lines.
fn closing_quote(inside: &str, quote: &str) -> usize {
    let end = if quote.len() == 1 { inside.find('\n').unwrap_or(inside.len()) } else { inside.len() };
    let mut escaped = false;
    for (position, c) in inside[..end].char_indices() {
        if !escaped && inside[position..].starts_with(quote) {
            return position;
        }
        escaped = c == '\\' && !escaped && quote.starts_with('"');
    }
    end
}

/// Whether a key or a URL's option holds a secret, judged by its name: also by one that was mistyped,
/// since the report about the unknown key shows its line.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    if name.ends_with("_file") {
        return false;
    }
    ["pass", "secret", "token", "authorization", "api-key", "apikey", "api_key", "cookie", "credential"]
        .iter()
        .any(|word| name.contains(word))
        || strsim::osa_distance(&name, "password") <= 2
}

/// `${NAME}` says where a secret is and not what it is.
fn is_only_a_name(text: &str) -> bool {
    text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).is_some_and(|name| !name.contains('}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_prints_itself() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?}"), "*** ***");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn a_url_prints_without_its_password() {
        for (url, printed) in [
            ("postgres://me:hunter2@db:5432/shop", "postgres://me:***@db:5432/shop"),
            ("amqp://me:hun@ter2@mq/%2f", "amqp://me:***@mq/%2f"),
            ("amqp://me:hun/ter2@mq", "amqp://me:***@mq"),
            (
                "postgres://db/shop?user=me&password=hunter2&x=1",
                "postgres://db/shop?user=me&password=***&x=1",
            ),
            ("sqlite:shop.db", "sqlite:shop.db"),
            ("postgres://db:5432/shop", "postgres://db:5432/shop"),
        ] {
            let url = SecretUrl::new(url);
            assert_eq!(url.to_string(), printed);
            assert_eq!(format!("{url:?}"), printed);
        }
    }

    #[test]
    fn a_text_keeps_its_length_when_its_passwords_are_blanked() {
        let text = "url = \"postgres://me:hunter2@db/x\"\npasswrod = 'hunter2'\nheaders = { Authorization = \
                    \"Bearer hunter2\" }\ntoken = \"\"\"\nhunter2\n\"\"\"\n\"password\" = \"hünter2\\\"hunter2\"";
        let blanked = blank_out(text);
        assert_eq!(blanked.len(), text.len());
        assert!(!blanked.contains("nter2"), "{blanked}");
        assert_eq!(blanked.lines().count(), text.lines().count());
    }

    #[test]
    fn every_header_is_blanked_whatever_it_is_called() {
        for text in [
            "headers = { X-Auth = \"hunter2\", \"X-Pin\" = 'hunter2' }\nurl = \"https://x\"",
            "headers = \"X-Auth: hunter2\"\nurl = \"https://x\"",
            "headers = [\n  \"X-Auth: hunter2\",\n]\nurl = \"https://x\"",
            "[consumers.a.on.B.http.headers]\nX-Auth = \"hunter2\"\n[store]\nurl = \"https://x\"",
            "headers.X-Auth = \"hunter2\"\nurl = \"https://x\"",
            "headers = { X-Auth = \"hunter2",
        ] {
            let blanked = blank_out(text);
            assert!(!blanked.contains("hunter2"), "{blanked}");
            assert_eq!(blanked.len(), text.len());
            assert_eq!(blanked.contains("https://x"), text.contains("https://x"), "{blanked}");
        }
    }

    #[test]
    fn what_is_only_named_stays_readable() {
        let text =
            "url = \"amqp://me:${MQ_PASSWORD}@mq\"\npassword_file = \"/run/secrets/mq\"\npassword = \"${P}\"";
        assert_eq!(blank_out(text), text);
    }

    #[test]
    fn a_name_may_follow_any_character() {
        assert_eq!(blank_out("…password = \"hunter2\""), "…password = \"*******\"");
    }

    #[test]
    fn a_string_that_is_never_closed_is_blanked_to_its_end() {
        assert_eq!(blank_out("password = \"hunter2\nx = 1"), "password = \"*******\nx = 1");
    }
}
