//! `[…params]`: typed values that a statement takes from a message's payload.
//!
//! A value goes from the payload's text to the database's without a float in between, so every digit of a
//! number survives. Missing is not null: a missing value rejects the message, and so does `null` unless the
//! parameter is `nullable`.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::value::RawValue;

use super::decimal::{self, Inexact};
use super::field::{Pointer, read_pointer};
use super::read::{Choice, Value};
use super::timestamp;

/// The standard alphabet; producers disagree about the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParamType {
    /// A whole number of 64 bits: a JSON number whose value is whole, or a string of digits, as producers
    /// write numbers that JavaScript would round.
    Int,
    /// A decimal number of any precision: a JSON number, or a string that holds one.
    Decimal,
    /// A string without NUL.
    Text,
    /// `true` or `false`.
    Bool,
    /// A string with an RFC 3339 time and its offset.
    Timestamp,
    /// A string with a UUID.
    Uuid,
    /// A string with bytes in Base64, padded or not.
    Bytes,
    /// Any JSON, as its text.
    Json,
}

impl Choice for ParamType {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("int", Self::Int),
        ("decimal", Self::Decimal),
        ("text", Self::Text),
        ("bool", Self::Bool),
        ("timestamp", Self::Timestamp),
        ("uuid", Self::Uuid),
        ("bytes", Self::Bytes),
        ("json", Self::Json),
    ];
}

impl ParamType {
    /// The word for it in the configuration.
    pub(crate) fn word(self) -> &'static str {
        Self::CHOICES.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }
}

/// A value as a statement is given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// A whole number.
    Int(i64),
    /// A decimal number in plain notation (`-12.50`), without an exponent, with every digit it came with.
    Decimal(String),
    /// A string without NUL.
    Text(String),
    /// A truth value.
    Bool(bool),
    /// A time in UTC with six digits after the second, `2026-01-31T12:00:00.000000Z`: texts of this form
    /// sort as their times do. What is finer than a microsecond is cut off, as the databases store it.
    Timestamp(String),
    /// A UUID in lower case with hyphens.
    Uuid(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A JSON text, as it came.
    Json(String),
}

/// A parameter: where in the payload it is and what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// Its name, without the colon.
    pub name: String,
    /// Where in the payload it is.
    pub json: Pointer,
    /// What it must be.
    pub kind: ParamType,
    /// Whether `null` is a value. It reaches the database as SQL's NULL, for type `json` too.
    pub nullable: bool,
}

/// Why a payload does not fit a parameter. Says what was found, never the value itself: it is kept with the
/// dead letter and printed in logs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameter `{name}` at `{pointer}` {reason}")]
pub(crate) struct Unbound {
    name: String,
    pointer: String,
    reason: Reason,
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("is missing from the payload")]
    Missing,
    #[error("is null, and not declared `nullable`")]
    Null,
    #[error("must be {expected}, and is {found}")]
    Type { expected: &'static str, found: &'static str },
    #[error("{0}")]
    Value(&'static str),
}

impl Parameter {
    /// The value that a statement is given for this place of the payload: `raw` is what stands there, `None`
    /// if nothing does. A null gives `None`.
    pub(crate) fn bind(&self, raw: Option<&RawValue>) -> Result<Option<Bound>, Unbound> {
        let raw = raw.ok_or_else(|| self.unbound(Reason::Missing))?.get();
        if raw == "null" {
            return if self.nullable { Ok(None) } else { Err(self.unbound(Reason::Null)) };
        }
        self.kind.convert(raw).map(Some).map_err(|reason| self.unbound(reason))
    }

    fn unbound(&self, reason: Reason) -> Unbound {
        Unbound { name: self.name.clone(), pointer: self.json.as_str().to_owned(), reason }
    }

    pub(super) fn read(name: &str, value: &Value<'_>) -> Option<Self> {
        if !is_parameter_name(name) {
            value.wrong_key(
                "cannot be written in a statement",
                "Use letters, digits and `_`, no digit first: a statement refers to it as `:name`.",
            );
        }
        value.table(|table| {
            let json = table.required("json", "Say where it is: `json = \"/pointer\"`.", read_pointer);
            let kind = table.required("type", "Say what it is: `type = \"text\"`.", Value::choice);
            let nullable = table.or("nullable", false, Value::boolean);
            Some(Self { name: name.to_owned(), json: json?, kind: kind?, nullable })
        })
    }
}

fn is_parameter_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl ParamType {
    /// Converts a JSON token that is not `null`.
    fn convert(self, raw: &str) -> Result<Bound, Reason> {
        match self {
            Self::Int => int(raw).map(Bound::Int),
            Self::Decimal => decimal(raw).map(Bound::Decimal),
            Self::Text => text(raw).map(Bound::Text),
            Self::Bool => boolean(raw).map(Bound::Bool),
            Self::Timestamp => {
                let text = string(raw, "a string with a time")?;
                timestamp::canonical(&text).map(Bound::Timestamp).map_err(Reason::Value)
            }
            Self::Uuid => uuid(raw).map(Bound::Uuid),
            Self::Bytes => bytes(raw).map(Bound::Bytes),
            Self::Json => json(raw).map(Bound::Json),
        }
    }
}

fn int(raw: &str) -> Result<i64, Reason> {
    let digits = number(raw, "a whole number")?;
    let whole = decimal::canonical(&digits).map_err(|error| match error {
        Inexact::NotANumber => Reason::Value("is a string that holds no whole number"),
        Inexact::TooLong => Reason::Value("is beyond 64 bits"),
    })?;
    let (whole, fraction) = whole.split_once('.').unwrap_or((&whole, ""));
    if fraction.bytes().any(|digit| digit != b'0') {
        return Err(Reason::Value("must be a whole number, and has a fraction"));
    }
    whole.parse().map_err(|_| Reason::Value("is beyond 64 bits"))
}

fn decimal(raw: &str) -> Result<String, Reason> {
    let digits = number(raw, "a number, or a string that holds one")?;
    decimal::canonical(&digits).map_err(|error| match error {
        Inexact::NotANumber => Reason::Value("is a string that holds no number"),
        Inexact::TooLong => Reason::Value("has more digits than a database takes"),
    })
}

/// The text of a number, be it a JSON number or a string.
fn number(raw: &str, expected: &'static str) -> Result<String, Reason> {
    match found(raw) {
        "a number" => Ok(raw.to_owned()),
        _ => string(raw, expected),
    }
}

fn text(raw: &str) -> Result<String, Reason> {
    let text = string(raw, "a string")?;
    if text.contains('\0') {
        return Err(Reason::Value("holds a NUL character, which text in a database cannot"));
    }
    Ok(text)
}

fn boolean(raw: &str) -> Result<bool, Reason> {
    match raw {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Reason::Type { expected: "`true` or `false`", found: found(raw) }),
    }
}

fn uuid(raw: &str) -> Result<String, Reason> {
    let text = string(raw, "a string with a UUID")?;
    let uuid = uuid::Uuid::try_parse(&text).map_err(|_| Reason::Value("is no UUID"))?;
    Ok(uuid.hyphenated().to_string())
}

fn bytes(raw: &str) -> Result<Vec<u8>, Reason> {
    let text = string(raw, "a string with bytes in Base64")?;
    BASE64.decode(text).map_err(|_| Reason::Value("is not Base64"))
}

fn json(raw: &str) -> Result<String, Reason> {
    if has_escaped_nul(raw) {
        return Err(Reason::Value("holds a NUL character, which JSON in a database cannot"));
    }
    Ok(raw.to_owned())
}

/// Whether a JSON text holds `\u0000`, as opposed to an escaped backslash and the text `u0000`.
fn has_escaped_nul(raw: &str) -> bool {
    raw.match_indices("\\u0000").any(|(start, _)| {
        let backslashes = raw[..start].bytes().rev().take_while(|byte| *byte == b'\\').count();
        backslashes % 2 == 0
    })
}

fn string(raw: &str, expected: &'static str) -> Result<String, Reason> {
    let found = found(raw);
    if found != "a string" {
        return Err(Reason::Type { expected, found });
    }
    // A token from a parsed document can still hold half of a surrogate pair.
    serde_json::from_str(raw).map_err(|_| Reason::Value("is a string that is not valid Unicode"))
}

/// What a JSON token is, by its first character.
fn found(raw: &str) -> &'static str {
    match raw.as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b't' | b'f') => "a truth value",
        _ => "a number",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parameter(kind: ParamType, nullable: bool) -> Parameter {
        let json = Pointer::parse("/x").expect("a pointer");
        Parameter { name: "x".to_owned(), json, kind, nullable }
    }

    fn bind(kind: ParamType, raw: &str) -> Result<Bound, String> {
        let raw = RawValue::from_string(raw.to_owned()).expect("JSON");
        match parameter(kind, false).bind(Some(&raw)) {
            Ok(bound) => Ok(bound.expect("not null")),
            Err(unbound) => Err(unbound.to_string()),
        }
    }

    #[test]
    fn case_40_every_digit_of_a_number_survives() {
        for (raw, bound) in [
            ("2500.10", "2500.10"),
            ("9007199254740993", "9007199254740993"),
            ("\"2500.10\"", "2500.10"),
            ("-0.000", "0.000"),
            ("1.50e3", "1500"),
            ("1.5E-3", "0.0015"),
            ("123456789012345678901234567890.123456789", "123456789012345678901234567890.123456789"),
        ] {
            assert_eq!(bind(ParamType::Decimal, raw), Ok(Bound::Decimal(bound.to_owned())), "{raw}");
        }
        for raw in ["9007199254740993", "\"9007199254740993\"", "9007199254740993.0", "900719925474099300e-2"]
        {
            assert_eq!(bind(ParamType::Int, raw), Ok(Bound::Int(9_007_199_254_740_993)), "{raw}");
        }
        assert_eq!(bind(ParamType::Int, "-9223372036854775808"), Ok(Bound::Int(i64::MIN)));
    }

    #[test]
    fn missing_is_not_null() {
        let null = RawValue::from_string("null".to_owned()).expect("JSON");
        let (strict, nullable) = (parameter(ParamType::Json, false), parameter(ParamType::Json, true));
        assert_eq!(nullable.bind(Some(&null)), Ok(None));
        let refused =
            |result: Result<_, Unbound>| result.map(|_: Option<Bound>| ()).expect_err("refused").to_string();
        assert_eq!(
            refused(strict.bind(Some(&null))),
            "the parameter `x` at `/x` is null, and not declared `nullable`"
        );
        assert_eq!(refused(strict.bind(None)), "the parameter `x` at `/x` is missing from the payload");
        assert_eq!(refused(nullable.bind(None)), "the parameter `x` at `/x` is missing from the payload");
    }

    #[test]
    fn values_take_one_form() {
        for (kind, raw, bound) in [
            (ParamType::Text, r#""a\né""#, Bound::Text("a\né".to_owned())),
            (ParamType::Bool, "true", Bound::Bool(true)),
            (
                ParamType::Timestamp,
                "\"2026-01-31T23:30:00.5-01:00\"",
                Bound::Timestamp("2026-02-01T00:30:00.500000Z".to_owned()),
            ),
            (
                ParamType::Uuid,
                "\"6BA7B810-9DAD-11D1-80B4-00C04FD430C8\"",
                Bound::Uuid("6ba7b810-9dad-11d1-80b4-00c04fd430c8".to_owned()),
            ),
            (ParamType::Bytes, "\"AP8=\"", Bound::Bytes(vec![0, 255])),
            (ParamType::Bytes, "\"AP8\"", Bound::Bytes(vec![0, 255])),
            (ParamType::Json, "{ \"a\": 1.50, \"b\": \"\\\\u0000\" }", {
                Bound::Json("{ \"a\": 1.50, \"b\": \"\\\\u0000\" }".to_owned())
            }),
        ] {
            assert_eq!(bind(kind, raw), Ok(bound), "{raw}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_without_being_quoted() {
        for (kind, raw, reason) in [
            (ParamType::Int, "9223372036854775808", "is beyond 64 bits"),
            (ParamType::Int, "1e999999999", "is beyond 64 bits"),
            (ParamType::Int, "1.5", "must be a whole number, and has a fraction"),
            (ParamType::Int, "true", "must be a whole number, and is a truth value"),
            (ParamType::Int, "\"12 \"", "is a string that holds no whole number"),
            (ParamType::Decimal, "1e999999999", "has more digits than a database takes"),
            (ParamType::Decimal, "\"1,5\"", "is a string that holds no number"),
            (ParamType::Decimal, "\"NaN\"", "is a string that holds no number"),
            (ParamType::Text, "12", "must be a string, and is a number"),
            (ParamType::Text, r#""a\u0000""#, "holds a NUL character, which text in a database cannot"),
            (ParamType::Text, r#""\ud800""#, "is a string that is not valid Unicode"),
            (ParamType::Bool, "\"true\"", "must be `true` or `false`, and is a string"),
            (
                ParamType::Timestamp,
                "\"2026-01-31T23:30:00\"",
                "is no RFC 3339 time with an offset, such as `2026-01-31T12:00:00Z`",
            ),
            (ParamType::Uuid, "\"x\"", "is no UUID"),
            (ParamType::Bytes, "\"_-\"", "is not Base64"),
            (ParamType::Json, r#"["\\\u0000"]"#, "holds a NUL character, which JSON in a database cannot"),
        ] {
            assert_eq!(bind(kind, raw), Err(format!("the parameter `x` at `/x` {reason}")), "{raw}");
        }
    }

    proptest! {
        #[test]
        fn every_whole_number_of_64_bits_survives(number: i64) {
            prop_assert_eq!(bind(ParamType::Int, &number.to_string()), Ok(Bound::Int(number)));
        }
    }
}
