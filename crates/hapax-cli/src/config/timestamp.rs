//! RFC 3339 times.

use jiff::{Timestamp, Unit};

const REFUSED: &str = "is no RFC 3339 time with an offset, such as `2026-01-31T12:00:00Z`";

/// A time in UTC with six digits after the second. What is finer is cut off: towards the past, so that a
/// time never becomes a later one.
pub(super) fn canonical(text: &str) -> Result<String, &'static str> {
    if !has_shape(text) {
        return Err(REFUSED);
    }
    let time: Timestamp = text.parse().map_err(|_| REFUSED)?;
    let rounding = jiff::TimestampRound::new().smallest(Unit::Microsecond).mode(jiff::RoundMode::Floor);
    let time = time.round(rounding).map_err(|_| REFUSED)?;
    let written = format!("{time:.6}");
    if written.starts_with('-') || written.starts_with("0000") {
        return Err("lies before the year 1");
    }
    Ok(written)
}

/// Whether a text has RFC 3339's shape. The parser behind takes all of ISO 8601 and more, and turns a leap
/// second into the second before it.
fn has_shape(text: &str) -> bool {
    const DATE_AND_TIME: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let bytes = text.as_bytes();
    let Some((start, rest)) = bytes.split_at_checked(DATE_AND_TIME.len()) else { return false };
    matches(start, DATE_AND_TIME) && !start.ends_with(b"60") && is_offset(without_fraction(rest))
}

fn without_fraction(rest: &[u8]) -> &[u8] {
    let Some(digits) = rest.strip_prefix(b".") else { return rest };
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 { rest } else { &digits[length..] }
}

fn is_offset(bytes: &[u8]) -> bool {
    matches!(bytes, b"Z" | b"z") || matches(bytes, b"+dd:dd") || matches(bytes, b"-dd:dd")
}

/// Whether `bytes` follows `pattern`, in which `d` is a digit and `T` what may stand between date and time.
fn matches(bytes: &[u8], pattern: &[u8]) -> bool {
    bytes.len() == pattern.len()
        && bytes.iter().zip(pattern).all(|(byte, expected)| match expected {
            b'd' => byte.is_ascii_digit(),
            b'T' => matches!(byte, b'T' | b't' | b' '),
            _ => byte == expected,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_utc_to_the_microsecond() {
        for (text, written) in [
            ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000000Z"),
            ("2026-01-31t12:00:00.1234567z", "2026-01-31T12:00:00.123456Z"),
            ("2026-01-31 12:00:00+05:30", "2026-01-31T06:30:00.000000Z"),
            ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999Z"),
            ("2024-02-29T23:59:59.999999-00:00", "2024-02-29T23:59:59.999999Z"),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(written), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-01-31T12:00Z",
            "2026-01-31T12:00:00.Z",
            "2026-01-31T12:00:60Z",
            "2026-02-29T12:00:00Z",
            "2026-01-31T12:00:00+0100",
            "2026-01-31T12:00:00Z[Europe/Paris]",
            "20260131T120000Z",
            "0000-01-01T00:00:00Z",
            "0001-01-01T00:00:00+01:00",
            "1767225600",
            "2026-01-31T12:00:00é",
        ] {
            assert!(canonical(text).is_err(), "{text}");
        }
    }
}
