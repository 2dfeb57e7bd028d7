//! A short fingerprint of a payload, kept with its id.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// The first 8 bytes of a payload's SHA-256.
///
/// Two payloads under one id are a producer's bug that would otherwise vanish as a duplicate.
/// Eight bytes find a bug with certainty enough; they are no proof against an adversary.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 8]);

impl Digest {
    /// Of these bytes.
    pub fn of(payload: &[u8]) -> Self {
        let mut short = [0; 8];
        short.copy_from_slice(&Sha256::digest(payload)[..8]);
        Self(short)
    }

    /// As a store keeps it: one 64-bit integer (big-endian).
    pub const fn as_i64(self) -> i64 {
        i64::from_be_bytes(self.0)
    }

    /// From what a store kept.
    pub const fn from_i64(kept: i64) -> Self {
        Self(kept.to_be_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_store_and_tells_payloads_apart() {
        let digest = Digest::of(b"one");
        assert_eq!(Digest::from_i64(digest.as_i64()), digest);
        assert_ne!(digest, Digest::of(b"two"));
        assert_eq!(Digest::of(b"").to_string(), "e3b0c44298fc1c14");
    }
}
