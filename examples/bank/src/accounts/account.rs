//! An account: what its events add up to, and what they allow.

use crate::events::Entry;
use crate::money::Money;

/// An event in the life of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// It was opened with this balance.
    Opened(Money),
    /// It takes no more credits.
    Closed,
    /// Money went from or to it in a transfer.
    Moved { entry: Entry, amount: Money, transfer_id: String },
}

/// Why an account does not allow a movement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("there is no such account")]
    Unknown,
    #[error("the account is not covered")]
    NotCovered,
    #[error("the account is closed")]
    Closed,
    #[error("the account is full")]
    Full,
}

/// The state of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// How many events have made it so.
    pub(crate) version: i64,
    pub(crate) balance: Money,
    is_closed: bool,
}

impl Account {
    /// What events add up to; none if there are none.
    pub(crate) fn replay(facts: &[Fact]) -> Option<Self> {
        if facts.is_empty() {
            return None;
        }
        Some(facts.iter().fold(Self::default(), Self::after))
    }

    fn after(self, fact: &Fact) -> Self {
        let version = self.version + 1;
        match fact {
            Fact::Opened(balance) => Self { version, balance: *balance, is_closed: false },
            Fact::Closed => Self { version, is_closed: true, ..self },
            Fact::Moved { entry: Entry::Debit, amount, .. } => {
                Self { version, balance: Money(self.balance.0 - amount.0), ..self }
            }
            Fact::Moved { amount, .. } => Self { version, balance: Money(self.balance.0 + amount.0), ..self },
        }
    }

    /// Whether a movement is allowed. A closed account takes back what it has given.
    pub(crate) fn allows(&self, entry: Entry, amount: Money) -> Result<(), Refusal> {
        match entry {
            Entry::Debit => self.balance.minus(amount).map(drop).ok_or(Refusal::NotCovered),
            Entry::Credit if self.is_closed => Err(Refusal::Closed),
            Entry::Credit | Entry::Refund => self.balance.plus(amount).map(drop).ok_or(Refusal::Full),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(entry: Entry, amount: i64) -> Fact {
        Fact::Moved { entry, amount: Money(amount), transfer_id: "t".into() }
    }

    #[test]
    fn an_account_is_what_its_events_add_up_to() {
        let facts =
            [Fact::Opened(Money(100)), moved(Entry::Debit, 30), moved(Entry::Credit, 5), Fact::Closed];
        let account = Account::replay(&facts).unwrap();
        assert_eq!((account.version, account.balance), (4, Money(75)));
        assert_eq!(Account::replay(&[]), None);
    }

    #[test]
    fn an_account_gives_no_more_than_it_has() {
        let account = Account::replay(&[Fact::Opened(Money(100))]).unwrap();
        assert_eq!(account.allows(Entry::Debit, Money(100)), Ok(()));
        assert_eq!(account.allows(Entry::Debit, Money(101)), Err(Refusal::NotCovered));
        assert_eq!(account.allows(Entry::Credit, Money(i64::MAX)), Err(Refusal::Full));
    }

    #[test]
    fn a_closed_account_takes_refunds_but_no_credits() {
        let account = Account::replay(&[Fact::Opened(Money(100)), Fact::Closed]).unwrap();
        assert_eq!(account.allows(Entry::Credit, Money(1)), Err(Refusal::Closed));
        assert_eq!(account.allows(Entry::Refund, Money(1)), Ok(()));
        assert_eq!(account.allows(Entry::Debit, Money(1)), Ok(()));
    }
}
