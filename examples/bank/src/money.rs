//! Money: whole minor units, written as a decimal string.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An amount in minor units. In JSON it is a string such as `"25.00"`: a number would pass through a float in
/// somebody's parser, and is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Money(pub(crate) i64);

/// Why a text is no amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no amount: write it with two decimals, such as \"25.00\"")]
pub(crate) struct NotMoney(String);

impl Money {
    /// The sum, unless it is more than can be counted.
    pub(crate) fn plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The rest, unless there would be less than none.
    pub(crate) fn minus(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).filter(|rest| *rest >= 0).map(Self)
    }
}

impl FromStr for Money {
    type Err = NotMoney;

    fn from_str(text: &str) -> Result<Self, NotMoney> {
        let refused = || NotMoney(text.chars().take(40).collect());
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
        let (whole, cents) = digits.split_once('.').ok_or_else(refused)?;
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !plain(whole) || !plain(cents) || cents.len() != 2 {
            return Err(refused());
        }
        let minor: i64 = format!("{whole}{cents}").parse().map_err(|_| refused())?;
        Ok(Self(sign * minor))
    }
}

impl TryFrom<String> for Money {
    type Error = NotMoney;

    fn try_from(text: String) -> Result<Self, NotMoney> {
        text.parse()
    }
}

impl From<Money> for String {
    fn from(money: Money) -> Self {
        money.to_string()
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, minor) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        write!(f, "{sign}{}.{:02}", minor / 100, minor % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_read_and_written_digit_for_digit() {
        for (text, minor) in
            [("25.00", 2_500), ("0.01", 1), ("-3.07", -307), ("90071992547409.93", 9_007_199_254_740_993)]
        {
            assert_eq!(text.parse(), Ok(Money(minor)));
            assert_eq!(Money(minor).to_string(), text);
        }
    }

    #[test]
    fn whatever_else_is_refused() {
        for text in [
            "",
            "25",
            "25.0",
            "25.000",
            ".50",
            "1e2.00",
            "+1.00",
            " 1.00",
            "1,000.00",
            "--1.00",
            "99999999999999999999.00",
        ] {
            assert!(text.parse::<Money>().is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Money>("25.00").is_err(), "a number may have been a float");
    }
}
