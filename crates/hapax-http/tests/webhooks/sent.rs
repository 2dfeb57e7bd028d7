//! Webhooks as senders send them.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hapax_core::Timestamp;
use hapax_http::webhook::{GitHub, StandardWebhooks, Stripe};
use hmac::{Hmac, KeyInit as _, Mac};
use sha2::Sha256;

/// The moment at which all of them are sent, and the receiver's clock.
pub(crate) const NOW: i64 = 1_649_367_553;

/// The vector that Standard Webhooks publish with their libraries.
pub(crate) const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
pub(crate) const ID: &str = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
pub(crate) const BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;
pub(crate) const SIGNATURE: &str = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";

pub(crate) fn now() -> Timestamp {
    Timestamp::from_micros(NOW * 1_000_000)
}

pub(crate) fn headers(headers: &[(&'static str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    headers.iter().map(header).collect()
}

pub(crate) fn mac(secret: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    parts.iter().fold(mac, Mac::chain_update).finalize().into_bytes().to_vec()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// A signature by Standard Webhooks, under the 24 bytes that `fill` repeats.
pub(crate) fn standard_signature(fill: u8, id: &str, seconds: &str, body: &[u8]) -> String {
    let signed: [&[u8]; 5] = [id.as_bytes(), b".", seconds.as_bytes(), b".", body];
    format!("v1,{}", STANDARD.encode(mac(&[fill; 24], &signed)))
}

pub(crate) fn standard_secret(fill: u8) -> String {
    format!("whsec_{}", STANDARD.encode([fill; 24]))
}

/// An event by Standard Webhooks under the secret of sevens, sent at `NOW + seconds`.
pub(crate) fn standard(id: &str, seconds: i64, body: &[u8]) -> HeaderMap {
    let at = (NOW + seconds).to_string();
    let signature = standard_signature(7, id, &at, body);
    headers(&[("webhook-id", id), ("webhook-timestamp", &at), ("webhook-signature", &signature)])
}

pub(crate) fn receiver() -> StandardWebhooks {
    StandardWebhooks::new([standard_secret(7).as_str()]).unwrap().clock(now)
}

pub(crate) fn stripe(seconds: i64, body: &[u8]) -> HeaderMap {
    let at = (NOW + seconds).to_string();
    let signature = hex(&mac(b"whsec_stripe", &[at.as_bytes(), b".", body]));
    headers(&[("stripe-signature", &format!("t={at},v1={signature},v0=abc"))])
}

pub(crate) fn stripe_receiver() -> Stripe {
    Stripe::new(["whsec_stripe"]).unwrap().clock(now)
}

/// The example in GitHub's documentation.
pub(crate) fn github() -> (GitHub, HeaderMap, Bytes) {
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let headers = headers(&[
        ("x-hub-signature-256", signature),
        ("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"),
        ("x-github-event", "issues"),
    ]);
    (GitHub::new(["It's a Secret to Everybody"]).unwrap(), headers, Bytes::from_static(b"Hello, World!"))
}
