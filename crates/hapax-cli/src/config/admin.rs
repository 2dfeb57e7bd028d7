//! `[admin]`: the listener inside `hapax run`, and how it ends.

use std::net::SocketAddr;
use std::time::Duration;

use super::problem::Placed;
use super::read::Value;
use super::secret::Secret;

/// The admin listener and the shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    /// Where `/live`, `/ready` and `/metrics` are served; none opens no port.
    pub listen: Option<Placed<SocketAddr>>,
    /// What a request that changes something must carry, from `token_file`.
    pub token: Option<Secret>,
    /// How long messages in hand may take after SIGTERM; what is left is handed back.
    pub drain: Duration,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: None, token: None, drain: Duration::from_secs(25) }
    }
}

impl Admin {
    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        value.table(|table| {
            Some(Self {
                listen: table.optional("listen", |value| value.placed(read_address)),
                token: table.optional("token_file", read_token),
                drain: table.or("drain", Self::default().drain, Value::positive_duration),
            })
        })
    }
}

fn read_address(value: &Value<'_>) -> Option<SocketAddr> {
    let address = value.text()?.value.parse().ok();
    if address.is_none() {
        value.wrong(
            "is no address with a port",
            "Write an IP address and a port: `127.0.0.1:9464`, `[::]:9464`.",
        );
    }
    address
}

/// An empty token would let everybody in.
fn read_token(value: &Value<'_>) -> Option<Secret> {
    let (_, token) = value.file()?;
    if token.is_empty() {
        value.wrong("names an empty file", "Write a token into the file.");
        return None;
    }
    Some(Secret::new(token))
}
