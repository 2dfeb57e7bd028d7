//! Webhooks as their senders sign them.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

pub(crate) const GITHUB: &str = "a secret of GitHub's";
pub(crate) const STRIPE: &str = "whsec_stripe";
/// `whsec_` and base64 of 24 sevens.
pub(crate) const STANDARD_SECRET: &str = "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH";
const SEVENS: [u8; 24] = [7; 24];

/// The service's arguments for these secrets.
pub(crate) const SECRETS: [&str; 6] =
    ["--github-secret", GITHUB, "--stripe-secret", STRIPE, "--standard-secret", STANDARD_SECRET];

type Headers = Vec<(&'static str, String)>;

fn mac(secret: &[u8], signed: &[u8]) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length");
    mac.chain_update(signed).finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// Seconds since the epoch, so much before now.
pub(crate) fn seconds_ago(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    (now.as_secs() - seconds).to_string()
}

pub(crate) fn github(secret: &str, id: &str, kind: &str, body: &[u8]) -> Headers {
    let signature = format!("sha256={}", hex(&mac(secret.as_bytes(), body)));
    vec![
        ("x-hub-signature-256", signature),
        ("x-github-delivery", id.into()),
        ("x-github-event", kind.into()),
    ]
}

pub(crate) fn standard(id: &str, at: &str, body: &[u8]) -> Headers {
    let signed = [id.as_bytes(), b".", at.as_bytes(), b".", body].concat();
    let signature = format!("v1,{}", STANDARD.encode(mac(&SEVENS, &signed)));
    vec![("webhook-id", id.into()), ("webhook-timestamp", at.into()), ("webhook-signature", signature)]
}

pub(crate) fn stripe(at: &str, body: &[u8]) -> Headers {
    let signed = [at.as_bytes(), b".", body].concat();
    vec![("stripe-signature", format!("t={at},v1={}", hex(&mac(STRIPE.as_bytes(), &signed))))]
}
