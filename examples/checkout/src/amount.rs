//! Amounts: whole minor units, written as a decimal string.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The most digits before the point: sums of such amounts stay far from what an integer can hold.
const WHOLE_DIGITS: usize = 9;

/// An amount in minor units. In JSON it is a string such as `"25.00"`: a number would pass through a float in
/// somebody's parser, and is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Amount(pub(crate) i64);

/// Why a text is no amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no amount: write it without a sign and with two decimals, such as \"25.00\"")]
pub(crate) struct NotAmount(String);

impl FromStr for Amount {
    type Err = NotAmount;

    fn from_str(text: &str) -> Result<Self, NotAmount> {
        let refused = || NotAmount(text.chars().take(40).collect());
        let (whole, cents) = text.split_once('.').ok_or_else(refused)?;
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(cents) || whole.len() > WHOLE_DIGITS || cents.len() != 2 {
            return Err(refused());
        }
        format!("{whole}{cents}").parse().map(Self).map_err(|_| refused())
    }
}

impl TryFrom<String> for Amount {
    type Error = NotAmount;

    fn try_from(text: String) -> Result<Self, NotAmount> {
        text.parse()
    }
}

impl From<Amount> for String {
    fn from(amount: Amount) -> Self {
        amount.to_string()
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_read_and_written_digit_for_digit() {
        for (text, minor) in [("25.00", 2_500), ("0.01", 1), ("999999999.99", 99_999_999_999)] {
            assert_eq!(text.parse(), Ok(Amount(minor)));
            assert_eq!(Amount(minor).to_string(), text);
        }
    }

    #[test]
    fn whatever_else_is_refused() {
        for text in ["", "25", "25.0", "25.000", ".50", "-1.00", "+1.00", " 1.00", "1e2.00", "1000000000.00"]
        {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Amount>("25.00").is_err(), "a number may have been a float");
    }
}
