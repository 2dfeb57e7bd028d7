//! Whose key it is: one key of two tenants is two keys.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use hapax_core::MessageId;
use http::request::Parts;
use sha2::{Digest as _, Sha256};

use crate::key::RequestKey;

type Find = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

/// How the tenant of a request is found.
#[derive(Clone)]
pub(crate) enum Scope {
    /// There are no tenants: everybody shares one set of keys.
    One,
    /// By a function.
    ByTenant(Find),
}

/// Nobody can tell whose request it is.
#[derive(Debug)]
pub(crate) struct TenantUnknown;

impl Scope {
    /// The tenant, if there are tenants. An empty name is nobody's.
    pub(crate) fn tenant(&self, parts: &Parts) -> Result<Option<String>, TenantUnknown> {
        match self {
            Self::One => Ok(None),
            Self::ByTenant(find) => {
                find(parts).filter(|name| !name.is_empty()).map(Some).ok_or(TenantUnknown)
            }
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "One",
            Self::ByTenant(_) => "ByTenant",
        })
    }
}

/// The id under which a request is on record: `5:north:KEY` for the tenant `north`, `:KEY` where there are
/// no tenants. The length before the tenant keeps ("a", "bc") from ("ab", "c"). What is longer than an id
/// can be, or cannot be one, is recorded as `#` and its SHA-256 in hex; no other id begins like that.
pub(crate) fn record_id(tenant: Option<&str>, key: &RequestKey) -> MessageId {
    let key = key.as_str();
    let whole = match tenant {
        Some(tenant) => format!("{}:{tenant}:{key}", tenant.len()),
        None => format!(":{key}"),
    };
    MessageId::new(&whole).unwrap_or_else(|_| {
        let mut hashed = String::from("#");
        for byte in Sha256::digest(whole.as_bytes()) {
            let _ = write!(hashed, "{byte:02x}"); // writing to a string cannot fail
        }
        MessageId::new(hashed).expect("65 characters of ASCII are an id")
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Request};
    use proptest::prelude::*;

    use super::*;
    use crate::key::IDEMPOTENCY_KEY;

    fn key(text: &str) -> RequestKey {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(&format!("\"{text}\"")).unwrap());
        RequestKey::of(&headers, false).unwrap().unwrap()
    }

    #[test]
    fn an_operator_can_read_a_short_id() {
        assert_eq!(record_id(Some("north"), &key("k1")).as_str(), "5:north:k1");
        assert_eq!(record_id(None, &key("k1")).as_str(), ":k1");
    }

    #[test]
    fn a_key_of_255_bytes_works_with_and_without_a_tenant() {
        let long = "k".repeat(255);
        let ids = [record_id(None, &key(&long)), record_id(Some("north"), &key(&long))];
        assert!(ids.iter().all(|id| id.as_str().starts_with('#') && id.as_str().len() == 65));
        assert_ne!(ids[0], ids[1]);
        assert_ne!(ids[1], record_id(Some("north"), &key(&"k".repeat(254))));
        assert!(record_id(Some("nor\0th"), &key("k")).as_str().starts_with('#'));
    }

    #[test]
    fn nobody_is_not_a_tenant() {
        let (parts, ()) = Request::new(()).into_parts();
        let scope =
            |found: Option<&'static str>| Scope::ByTenant(Arc::new(move |_| found.map(str::to_owned)));
        assert!(scope(None).tenant(&parts).is_err());
        assert!(scope(Some("")).tenant(&parts).is_err());
        assert_eq!(scope(Some("a")).tenant(&parts).unwrap().as_deref(), Some("a"));
        assert_eq!(Scope::One.tenant(&parts).unwrap(), None);
    }

    proptest! {
        #[test]
        fn tenant_and_key_do_not_run_together(
            a in "[0-9a:]{1,4}", b in "[0-9a:]{1,4}", c in "[0-9a:]{1,4}", d in "[0-9a:]{1,4}",
        ) {
            let equal = record_id(Some(&a), &key(&b)) == record_id(Some(&c), &key(&d));
            prop_assert_eq!(equal, (a, b) == (c, d));
        }

        #[test]
        fn nobodys_key_is_no_tenants_key(tenant in "[0-9a:]{1,4}", b in "[0-9a:]{1,9}", d in "[0-9a:]{1,9}") {
            prop_assert_ne!(record_id(Some(&tenant), &key(&b)), record_id(None, &key(&d)));
        }
    }
}
