//! What a webhook is signed with.

use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hapax_core::{Code, Error, ErrorKind};
use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit as _, Mac};
use sha2::Sha256;

/// Base64 as secrets and signatures are written: with padding or without.
pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What Standard Webhooks allow, in bytes.
const STANDARD_LENGTH: std::ops::RangeInclusive<usize> = 24..=64;

/// A shared secret. It is never printed, neither whole nor in part.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// A signature, compared in constant time.
pub(super) type Signature = CtOutput<Hmac<Sha256>>;

impl Secret {
    /// These bytes, as GitHub's and Stripe's secrets are used. [`Code::ConfigWrongValue`] if there are none.
    pub fn bytes(secret: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let secret = secret.into();
        if secret.is_empty() { Err(wrong("it is empty")) } else { Ok(Self(secret)) }
    }

    /// `whsec_` and base64 of 24 to 64 bytes, as Standard Webhooks write secrets; the prefix can be left out.
    /// [`Code::ConfigWrongValue`] if it is none.
    pub fn standard(text: &str) -> Result<Self, Error> {
        if text.starts_with("whsk_") || text.starts_with("whpk_") {
            return Err(wrong("asymmetric keys are not supported: it must begin with `whsec_`"));
        }
        let encoded = text.strip_prefix("whsec_").unwrap_or(text);
        let secret = BASE64.decode(encoded).map_err(|_| wrong("it is not base64"))?;
        if STANDARD_LENGTH.contains(&secret.len()) {
            Ok(Self(secret))
        } else {
            Err(wrong("it must have 24 to 64 bytes"))
        }
    }

    /// Signs the parts as if they were one.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> Signature {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length makes an HMAC");
        parts.iter().fold(mac, Mac::chain_update).finalize()
    }
}

/// Whether one of the secrets made one of the signatures. All pairs are tried, so that time tells nothing.
pub(super) fn fits(secrets: &[Secret], parts: &[&[u8]], signatures: &[Signature]) -> bool {
    let matches = secrets.iter().map(|secret| {
        let expected = secret.sign(parts);
        signatures.iter().filter(|signature| expected == **signature).count()
    });
    matches.sum::<usize>() > 0
}

/// A signature from its bytes, if it has as many as one has.
pub(super) fn signature(bytes: &[u8]) -> Option<Signature> {
    let bytes: [u8; 32] = bytes.try_into().ok()?;
    Some(CtOutput::new(bytes.into()))
}

/// A signature in hex.
pub(super) fn hex_signature(text: &str) -> Option<Signature> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok();
    signature(&digits.chunks_exact(2).map(byte).collect::<Option<Vec<u8>>>()?)
}

/// Several secrets, of which at least one must be there.
pub(super) fn several(
    secrets: impl IntoIterator<Item = Result<Secret, Error>>,
) -> Result<std::sync::Arc<[Secret]>, Error> {
    let secrets = secrets.into_iter().collect::<Result<Vec<_>, _>>()?;
    if secrets.is_empty() { Err(wrong("there is none")) } else { Ok(secrets.into()) }
}

fn wrong(why: &str) -> Error {
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, format!("a webhook's secret cannot be used: {why}"))
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_in_no_debug_text_and_in_no_error() {
        let secret = Secret::standard("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        for wrong in ["whsec_not*base64", "whsec_c2hvcnQ=", "whsk_c2VjcmV0", ""] {
            let error = Secret::standard(wrong).unwrap_err().to_string();
            assert!(error.starts_with("HX0004"), "{error}");
            assert!(!error.contains("c2") && !error.contains("not*"), "{error}");
        }
        assert!(Secret::bytes("").is_err());
        assert!(several([]).is_err());
    }

    #[test]
    fn a_standard_secret_has_24_to_64_bytes() {
        let secret = |length: usize| Secret::standard(&format!("whsec_{}", BASE64.encode(vec![7; length])));
        assert!(secret(23).is_err() && secret(24).is_ok() && secret(64).is_ok() && secret(65).is_err());
    }

    #[test]
    fn hex_is_read_in_either_case_and_nothing_else_is() {
        let lower = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert!(hex_signature(lower).is_some());
        assert!(hex_signature(lower) == hex_signature(&lower.to_uppercase()));
        assert!(hex_signature(&lower[1..]).is_none());
        assert!(hex_signature(&lower.replace('7', "g")).is_none());
        assert!(hex_signature(&"ä".repeat(32)).is_none());
    }
}
