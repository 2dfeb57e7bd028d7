//! `sqs://key:secret@host:port?region=…`: an SQS that is not Amazon's.

use hapax_core::Error;

use crate::error;

const SCHEME: &str = "sqs://";
/// Local servers check no credentials unless told to, but the protocol wants some.
const ANY_KEY: &str = "test";
const USUAL_REGION: &str = "us-east-1";

/// What such a URL says.
#[derive(PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) region: String,
    pub(crate) access_key_id: String,
    pub(crate) secret_access_key: String,
}

impl Endpoint {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let rest = url.strip_prefix(SCHEME).ok_or_else(|| malformed("it does not begin with sqs://"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, host) = place.rsplit_once('@').unwrap_or(("", place));
        let host = host.strip_suffix('/').unwrap_or(host);
        if host.is_empty() || host.contains(['/', '#']) {
            return Err(malformed("it names no host, or a path after it"));
        }
        let (key, secret) = login.split_once(':').unwrap_or((login, ""));
        let or_any = |text: &str| if text.is_empty() { Ok(ANY_KEY.to_owned()) } else { decoded(text) };
        Ok(Self {
            url: format!("http://{host}"),
            region: region(query)?,
            access_key_id: or_any(key)?,
            secret_access_key: or_any(secret)?,
        })
    }
}

fn region(query: &str) -> Result<String, Error> {
    let mut region = USUAL_REGION.to_owned();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("region", name)) if !name.is_empty() => name.clone_into(&mut region),
            _ => return Err(malformed("its query knows only region=NAME")),
        }
    }
    Ok(region)
}

/// `%2F` is `/`: secrets have slashes.
fn decoded(text: &str) -> Result<String, Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let code = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(
            code.ok_or_else(|| malformed("a % in its login is not followed by two hexadecimal digits"))?,
        );
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| malformed("its login is not UTF-8"))
}

/// The URL may hold a secret and is not repeated.
fn malformed(reason: &str) -> Error {
    error::misconfigured(format!("the SQS URL is not of the form sqs://host:port?region=NAME: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_says_where_and_as_whom() {
        let plain = Endpoint::parse("sqs://127.0.0.1:4566").unwrap();
        assert_eq!((plain.url.as_str(), plain.region.as_str()), ("http://127.0.0.1:4566", "us-east-1"));
        assert_eq!((plain.access_key_id.as_str(), plain.secret_access_key.as_str()), ("test", "test"));
        let full = Endpoint::parse("sqs://AKIA:a%2Fb%2b@[::1]:4566/?region=eu-central-1").unwrap();
        assert_eq!((full.url.as_str(), full.region.as_str()), ("http://[::1]:4566", "eu-central-1"));
        assert_eq!((full.access_key_id.as_str(), full.secret_access_key.as_str()), ("AKIA", "a/b+"));
    }

    #[test]
    fn what_is_no_such_url_is_refused_without_repeating_it() {
        for url in [
            "amqp://k:hunter2@h",
            "sqs://",
            "sqs://k:hunter2@",
            "sqs://k:hunter2%@h",
            "sqs://h/path",
            "sqs://h?x=hunter2",
        ] {
            let Err(error) = Endpoint::parse(url) else { panic!("{url}") };
            assert_eq!(error.code(), hapax_core::Code::ConfigWrongValue);
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
