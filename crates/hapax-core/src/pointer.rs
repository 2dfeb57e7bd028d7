//! JSON pointers (RFC 6901) into a body, without losing a digit.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use serde_json::value::RawValue;

/// A JSON pointer such as `/order/0/id`; the empty pointer is the whole document.
///
/// It yields the value's own text ([`RawValue`]), so that `2500.10` stays `2500.10` and
/// 9007199254740993 stays itself.
///
/// ```
/// use hapax_core::Pointer;
///
/// let pointer: Pointer = "/amount".parse()?;
/// let found = pointer.find(br#"{"amount": 2500.10}"#)?.expect("there");
/// assert_eq!(found.get(), "2500.10");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer(Vec<String>);

impl Pointer {
    /// Finds the value in a JSON document: `Ok(None)` when there is none, an error when `body` is not JSON.
    pub fn find<'b>(&self, body: &'b [u8]) -> Result<Option<&'b RawValue>, serde_json::Error> {
        let whole: &RawValue = serde_json::from_slice(body)?;
        Ok(self.find_in(whole))
    }

    /// Finds the value below one that is already parsed.
    pub fn find_in<'b>(&self, whole: &'b RawValue) -> Option<&'b RawValue> {
        self.0.iter().try_fold(whole, |value, step| child(value, step))
    }
}

fn child<'b>(value: &'b RawValue, step: &str) -> Option<&'b RawValue> {
    match value.get().as_bytes().first()? {
        b'{' => {
            let object: HashMap<Cow<'b, str>, &'b RawValue> = serde_json::from_str(value.get()).ok()?;
            object.get(step).copied()
        }
        b'[' => {
            let canonical = step == "0" || !(step.starts_with('0') || step.starts_with('+'));
            let array: Vec<&'b RawValue> = serde_json::from_str(value.get()).ok()?;
            array.get(canonical.then(|| step.parse::<usize>().ok())??).copied()
        }
        _ => None,
    }
}

impl FromStr for Pointer {
    type Err = NotAPointer;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let steps = text.strip_prefix('/').ok_or(NotAPointer)?;
        Ok(Self(steps.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect()))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|step| write!(f, "/{}", step.replace('~', "~0").replace('/', "~1")))
    }
}

/// The text is not a JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a JSON pointer is empty or starts with `/`")]
pub struct NotAPointer;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(pointer: &str, body: &str) -> Option<String> {
        let pointer: Pointer = pointer.parse().unwrap();
        pointer.find(body.as_bytes()).unwrap().map(|raw| raw.get().to_owned())
    }

    #[test]
    fn walks_objects_arrays_and_escapes() {
        let body = r#"{"a/b":{"~":[10, {"c":null}]},"":1,"\u00e9":2}"#;
        assert_eq!(find("/a~1b/~0/0", body).as_deref(), Some("10"));
        assert_eq!(find("/a~1b/~0/1/c", body).as_deref(), Some("null"));
        assert_eq!(find("/", body).as_deref(), Some("1"));
        assert_eq!(find("/é", body).as_deref(), Some("2"));
        assert_eq!(find("/a~1b/~0/01", body), None);
        assert_eq!(find("/nothing", body), None);
    }

    #[test]
    fn refuses_what_is_not_json() {
        assert!(Pointer(vec![]).find(b"{oops").is_err());
        assert!(Pointer(vec![]).find(b"{} {}").is_err());
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(steps in proptest::collection::vec("[a-c~/0-2]{0,2}", 0..4)) {
            let body = r#"{"a":{"b":[1,{"c":2}],"~":3},"b":[[0,1],2],"":{"a":4}}"#;
            let value: serde_json::Value = serde_json::from_str(body).unwrap();
            let text = Pointer(steps).to_string();
            let ours = find(&text, body).map(|raw| serde_json::from_str::<serde_json::Value>(&raw).unwrap());
            prop_assert_eq!(ours.as_ref(), value.pointer(&text));
        }
    }
}
