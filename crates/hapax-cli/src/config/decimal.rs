//! Decimal numbers as text: read from JSON's notation, written without an exponent, never rounded.

/// The most digits of a number once its exponent is written out. PostgreSQL's `numeric` takes a declared
/// precision of at most this; the bound also keeps `1e999999999` from filling the memory.
const MOST_DIGITS: usize = 1_000;

/// Why a text is not written out as a decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inexact {
    /// It is no number in JSON's notation.
    NotANumber,
    /// It has more digits than [`MOST_DIGITS`].
    TooLong,
}

/// A number in JSON's notation.
struct Number<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    exponent: Option<&'a str>,
}

/// Writes a number in JSON's notation plainly: `1.50e3` as `1500`, `2500.10` as it is. Zero has no sign.
pub(super) fn canonical(text: &str) -> Result<String, Inexact> {
    let number = Number::parse(text).ok_or(Inexact::NotANumber)?;
    let (whole, fraction) = number.shifted()?;
    let is_zero = whole.bytes().chain(fraction.bytes()).all(|digit| digit == b'0');
    let sign = if number.negative && !is_zero { "-" } else { "" };
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        trimmed => trimmed,
    };
    let point = if fraction.is_empty() { "" } else { "." };
    Ok(format!("{sign}{whole}{point}{fraction}"))
}

impl<'a> Number<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (unsigned, None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let leading_zero = whole.len() > 1 && whole.starts_with('0');
        let fits = is_digits(whole)
            && !leading_zero
            && fraction.is_none_or(is_digits)
            && exponent
                .is_none_or(|exponent| is_digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)));
        fits.then(|| Self {
            negative: unsigned.len() < text.len(),
            whole,
            fraction: fraction.unwrap_or_default(),
            exponent,
        })
    }

    /// The digits before and after the point once the exponent has moved it.
    fn shifted(&self) -> Result<(String, String), Inexact> {
        // An exponent beyond `i32` cannot fit, whatever the mantissa is: not even for zero, whose scale counts.
        let shift: i32 = self.exponent.unwrap_or("0").parse().map_err(|_| Inexact::TooLong)?;
        let distance = usize::try_from(shift.unsigned_abs()).map_err(|_| Inexact::TooLong)?;
        if self.whole.len() + self.fraction.len() + distance > MOST_DIGITS {
            return Err(Inexact::TooLong);
        }
        let (mut whole, mut fraction) = (self.whole.to_owned(), self.fraction.to_owned());
        if shift >= 0 {
            let moved = distance.min(fraction.len());
            whole.push_str(&fraction[..moved]);
            whole.push_str(&"0".repeat(distance - moved));
            fraction.drain(..moved);
        } else {
            whole.insert_str(0, &"0".repeat(distance));
            fraction.insert_str(0, &whole.split_off(whole.len() - distance));
        }
        Ok((whole, fraction))
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn exponents_are_written_out_exactly() {
        for (text, plain) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.00", "0.00"),
            ("12.340", "12.340"),
            ("1e2", "100"),
            ("1.234e2", "123.4"),
            ("1.2E+1", "12"),
            ("12e-1", "1.2"),
            ("12e-5", "0.00012"),
            ("-1.5e-1", "-0.15"),
            ("0e3", "0"),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(plain), "{text}");
        }
    }

    #[test]
    fn only_the_notation_of_json_is_a_number() {
        for text in
            ["", "-", "+1", "01", "1.", ".5", "1e", "1e+", "0x1", "NaN", "inf", " 1", "1 ", "1_0", "١"]
        {
            assert_eq!(canonical(text), Err(Inexact::NotANumber), "{text}");
        }
        for text in ["1e1000", "1e-1000", "1e99999999999999999999", "-1e-2147483648"] {
            assert_eq!(canonical(text), Err(Inexact::TooLong), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_plain_number_is_its_own_form(text in "-?[1-9][0-9]{0,40}(\\.[0-9]{1,40})?") {
            prop_assert_eq!(canonical(&text), Ok(text));
        }

        #[test]
        fn an_exponent_there_and_back_changes_nothing(
            whole in "[1-9][0-9]{0,20}", fraction in "[0-9]{1,20}", shift in 0..20_usize,
        ) {
            let moved = canonical(&format!("{whole}.{fraction}e-{shift}")).expect("a number");
            let back = canonical(&format!("{moved}e{shift}")).expect("a number");
            prop_assert_eq!(back, format!("{whole}.{fraction}"));
        }
    }
}
