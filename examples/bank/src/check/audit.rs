//! The audit: every cent is where it belongs, or is missing, or was invented.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;

use hapax::BoxError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::accounts::Balance;
use crate::client::{get, send};
use crate::events::{Entry, Movement};
use crate::money::Money;
use crate::transfers::{State, Transfer};

/// What a trial has led to. Money is in minor units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Findings {
    pub(crate) transfers: usize,
    pub(crate) completed: usize,
    /// All of them have their money: never gave it, or were given it back.
    pub(crate) failed: usize,
    /// Of the failed: those that were given it back.
    pub(crate) compensated: usize,
    pub(crate) money_before: i64,
    pub(crate) money_after: i64,
    /// What was given more often than once.
    pub(crate) invented: i64,
    /// What was taken more often than once, or taken and never given.
    pub(crate) missing: i64,
    /// Movements that were made more than once, or that nobody asked for.
    pub(crate) doubled: usize,
    /// Transfers that were accepted and are gone, or have ended without a movement that they needed.
    pub(crate) lost: usize,
    /// Transfers that will never end.
    pub(crate) stuck: usize,
    pub(crate) duplicates_seen: u64,
    pub(crate) kills: u32,
    pub(crate) seed: u64,
}

impl Findings {
    /// Whether every transfer was completed, or failed with its money returned, and no cent is too many or missing: by
    /// the balances, and by the ledger.
    pub(crate) fn is_clean(&self) -> bool {
        self.money_before == self.money_after
            && (self.invented, self.missing) == (0, 0)
            && (self.doubled, self.lost, self.stuck) == (0, 0, 0)
            && self.completed + self.failed == self.transfers
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transfers, completed, failed, compensated, doubled, lost, stuck, .. } = self;
        let (before, after) = (Money(self.money_before), Money(self.money_after));
        writeln!(
            f,
            "{transfers} transfers: {completed} completed, {failed} failed ({compensated} of them paid back)"
        )?;
        writeln!(f, "money: {before} before, {after} after")?;
        writeln!(f, "{doubled} doubled, {lost} lost, {stuck} stuck")?;
        writeln!(f, "{} duplicates seen, {} kills", self.duplicates_seen, self.kills)?;
        f.write_str(if self.is_clean() { "clean" } else { "NOT CLEAN" })
    }
}

/// All the money there is.
pub(crate) async fn money(accounts: SocketAddr) -> Result<i64, BoxError> {
    let balances: Vec<Balance> = fetch(accounts, "/accounts").await?;
    Ok(balances.iter().map(|balance| balance.balance.0).sum())
}

/// Compares what was accepted with what became of it.
pub(crate) async fn audit(
    transfers: SocketAddr,
    accounts: SocketAddr,
    accepted: &[String],
) -> Result<Findings, BoxError> {
    let money_after = money(accounts).await?;
    let ledger: Vec<Movement> = fetch(accounts, "/ledger").await?;
    let found: Vec<Transfer> = fetch(transfers, "/transfers").await?;
    Ok(Findings { money_after, ..compare(&found, &ledger, accepted) })
}

async fn fetch<T: DeserializeOwned>(server: SocketAddr, path: &str) -> Result<T, BoxError> {
    let answer = send(server, get(path)?).await?;
    if !answer.status.is_success() {
        return Err(format!("{path}: {}", answer.status).into());
    }
    Ok(serde_json::from_slice(&answer.body)?)
}

fn compare(transfers: &[Transfer], ledger: &[Movement], accepted: &[String]) -> Findings {
    let mut made: HashMap<&str, Vec<&Movement>> = HashMap::new();
    for movement in ledger {
        made.entry(&movement.transfer_id).or_default().push(movement);
    }
    let mut findings = Findings { transfers: accepted.len(), ..Findings::default() };
    let known: HashSet<&str> = transfers.iter().map(|transfer| transfer.id.as_str()).collect();
    findings.lost = accepted.iter().filter(|id| !known.contains(id.as_str())).count();
    for transfer in transfers {
        findings.judge(transfer, &made.remove(transfer.id.as_str()).unwrap_or_default());
    }
    for stray in made.into_values().flatten() {
        findings.doubled += 1;
        findings.is_off(stray.entry, stray.amount);
    }
    findings
}

impl Findings {
    /// Compares a transfer's state with the movements that were made for it.
    fn judge(&mut self, transfer: &Transfer, made: &[&Movement]) {
        let times = |entry: Entry| made.iter().filter(|movement| movement.entry == entry).count();
        for entry in [Entry::Debit, Entry::Credit, Entry::Refund] {
            for _ in 1..times(entry) {
                self.doubled += 1;
                self.is_off(entry, transfer.amount);
            }
        }
        let [debit, credit, refund] =
            [Entry::Debit, Entry::Credit, Entry::Refund].map(|entry| times(entry) > 0);
        let given = usize::from(credit) + usize::from(refund);
        if given > usize::from(debit) {
            self.doubled += 1;
            self.is_off(Entry::Credit, transfer.amount);
        } else if given < usize::from(debit) {
            self.is_off(Entry::Debit, transfer.amount);
        }
        match transfer.state {
            State::Completed => {
                self.completed += 1;
                self.lost += usize::from(!debit || !credit);
            }
            State::Failed => {
                self.failed += 1;
                self.compensated += usize::from(refund);
                self.lost += usize::from(debit && !refund);
            }
            State::Requested | State::CreditRequested | State::Refunding => self.stuck += 1,
        }
    }

    /// A movement has nothing that balances it.
    fn is_off(&mut self, entry: Entry, amount: Money) {
        match entry {
            Entry::Debit => self.missing += amount.0,
            Entry::Credit | Entry::Refund => self.invented += amount.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(id: &str, state: State) -> Transfer {
        let (from, to) = ("a".to_owned(), "b".to_owned());
        Transfer { id: id.into(), from, to, amount: Money(5), state, reason: None }
    }

    fn compared(state: State, entries: &[Entry]) -> (usize, usize, usize) {
        let transfer = transfer("t", state);
        let ledger: Vec<_> = entries.iter().map(|entry| transfer.movement(*entry)).collect();
        let Findings { doubled, lost, stuck, .. } = compare(&[transfer], &ledger, &["t".into()]);
        (doubled, lost, stuck)
    }

    #[test]
    fn a_transfer_that_ended_well_is_clean() {
        assert_eq!(compared(State::Completed, &[Entry::Debit, Entry::Credit]), (0, 0, 0));
        assert_eq!(compared(State::Failed, &[Entry::Debit, Entry::Refund]), (0, 0, 0));
        assert_eq!(compared(State::Failed, &[]), (0, 0, 0));
    }

    #[test]
    fn what_is_wrong_is_counted_as_what_it_is() {
        assert_eq!(compared(State::Completed, &[Entry::Debit, Entry::Credit, Entry::Credit]), (1, 0, 0));
        assert_eq!(compared(State::Completed, &[Entry::Credit]), (1, 1, 0));
        assert_eq!(compared(State::Completed, &[Entry::Debit]), (0, 1, 0));
        assert_eq!(compared(State::Failed, &[Entry::Debit]), (0, 1, 0));
        assert_eq!(compared(State::CreditRequested, &[Entry::Debit]), (0, 0, 1));
        assert_eq!(compared(State::Failed, &[Entry::Debit, Entry::Credit, Entry::Refund]), (1, 0, 0));
    }

    #[test]
    fn money_is_invented_or_missing_by_what_nothing_balances() {
        let transfer = transfer("t", State::CreditRequested);
        for (entries, expected) in [
            (&[Entry::Debit][..], (0, 5)),
            (&[Entry::Debit, Entry::Debit, Entry::Credit], (0, 5)),
            (&[Entry::Debit, Entry::Credit, Entry::Credit], (5, 0)),
            (&[Entry::Debit, Entry::Credit, Entry::Refund], (5, 0)),
            (&[Entry::Debit, Entry::Credit], (0, 0)),
        ] {
            let ledger: Vec<_> = entries.iter().map(|entry| transfer.movement(*entry)).collect();
            let findings = compare(std::slice::from_ref(&transfer), &ledger, &[]);
            assert_eq!((findings.invented, findings.missing), expected, "{entries:?}");
        }
    }

    #[test]
    fn what_was_accepted_and_is_gone_is_lost_and_what_nobody_asked_for_is_invented() {
        let stray = transfer("stray", State::Completed).movement(Entry::Credit);
        let findings = compare(&[], &[stray], &["t".into()]);
        assert_eq!((findings.doubled, findings.invented, findings.lost), (1, 5, 1));
    }
}
