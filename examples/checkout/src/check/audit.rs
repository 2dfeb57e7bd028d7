//! The audit: what was asked for, what stands in the service's books, and what the provider charged.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Serialize;

use super::load::Wanted;
use crate::amount::Amount;
use crate::payments::{Account, Payment};
use crate::provider::Charge;

/// What a trial has led to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Findings {
    pub(super) payments: usize,
    pub(super) copies: usize,
    /// Those that got no answer, or were told to come again, included.
    pub(super) requests: u64,
    pub(super) kills: u32,
    /// Payments in the table that no answer told of.
    pub(super) doubled: usize,
    /// Payments that were not accepted, or are not in the table as they were asked for.
    pub(super) lost: usize,
    /// Copies that were told something else than the first.
    pub(super) differing_answers: usize,
    /// Accounts whose total is not the sum of what was asked for.
    pub(super) wrong_totals: usize,
    /// Charges beyond the first for a payment, under whatever key.
    pub(super) charged_twice: usize,
    /// Payments without a charge, or with one of another amount.
    pub(super) not_charged: usize,
    /// Payments that were not marked as charged once, with the provider's receipt.
    pub(super) wrong_receipts: usize,
    /// Messages that were set aside.
    pub(super) dead: u64,
    /// How often the provider was asked, for all its charges together.
    pub(super) calls: u64,
    pub(super) seed: u64,
}

impl Findings {
    /// Whether every payment was made and charged once, and every copy was told the same.
    pub(super) fn is_clean(&self) -> bool {
        [
            self.doubled,
            self.lost,
            self.differing_answers,
            self.wrong_totals,
            self.charged_twice,
            self.not_charged,
            self.wrong_receipts,
        ] == [0; 7]
            && self.dead == 0
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { payments, copies, requests, kills, calls, .. } = self;
        writeln!(f, "{payments} payments, {copies} copies of each: {requests} requests, {kills} kills")?;
        let Self { doubled, lost, differing_answers, wrong_totals, .. } = self;
        writeln!(
            f,
            "{doubled} doubled, {lost} lost, {differing_answers} differing answers, {wrong_totals} wrong totals"
        )?;
        let Self { charged_twice, not_charged, wrong_receipts, dead, .. } = self;
        writeln!(
            f,
            "{calls} calls to the provider: {charged_twice} charged twice, {not_charged} not charged, \
             {wrong_receipts} wrong receipts, {dead} set aside"
        )?;
        f.write_str(if self.is_clean() { "clean" } else { "NOT CLEAN" })
    }
}

/// What stands where.
pub(super) struct Books {
    pub(super) payments: Vec<Payment>,
    pub(super) accounts: Vec<Account>,
    pub(super) charges: Vec<Charge>,
}

/// Compares the books with what was asked for. Accounts of other runs are none of its concern.
pub(super) fn compare(wanted: &[Wanted], books: &Books) -> Findings {
    let mut totals: HashMap<&str, (i64, i64)> = HashMap::new();
    for wanted in wanted {
        let (total, payments) = totals.entry(&wanted.account).or_default();
        (*total, *payments) = (*total + wanted.amount.0, *payments + 1);
    }
    let kept: HashMap<&str, &Account> =
        books.accounts.iter().map(|account| (account.name.as_str(), account)).collect();
    let is_wrong = |(name, expected): &(&&str, &(i64, i64))| {
        let kept = kept.get(**name).map(|account| (account.total.0, account.payments));
        kept != Some(**expected)
    };
    let mut findings = Findings {
        payments: wanted.len(),
        wrong_totals: totals.iter().filter(is_wrong).count(),
        ..Findings::default()
    };

    let told: HashSet<String> = wanted.iter().filter_map(Wanted::id).collect();
    let own = |payment: &&Payment| totals.contains_key(payment.account.as_str());
    let rows: HashMap<&str, &Payment> =
        books.payments.iter().filter(own).map(|payment| (payment.id.as_str(), payment)).collect();
    findings.doubled = rows.keys().filter(|id| !told.contains(**id)).count();

    let mut charges: HashMap<&str, Vec<&Charge>> = HashMap::new();
    for charge in books.charges.iter().filter(|charge| totals.contains_key(charge.request.account.as_str())) {
        findings.calls += charge.asked;
        charges.entry(&charge.request.payment).or_default().push(charge);
    }
    findings.charged_twice = charges.values().map(|charges| charges.len() - 1).sum();
    for wanted in wanted {
        let row = wanted.id().and_then(|id| rows.get(id.as_str()).copied());
        findings.judge(wanted.amount, &wanted.account, row, &charges);
    }
    findings
}

impl Findings {
    /// Compares one payment with its row and its charge.
    fn judge(
        &mut self,
        amount: Amount,
        account: &str,
        row: Option<&Payment>,
        charges: &HashMap<&str, Vec<&Charge>>,
    ) {
        let Some(row) = row.filter(|row| row.amount == amount && row.account == account) else {
            self.lost += 1;
            self.not_charged += 1;
            return;
        };
        let charge = charges.get(row.id.as_str()).and_then(|charges| charges.first());
        let Some(charge) = charge.filter(|charge| charge.request.amount == amount) else {
            self.not_charged += 1;
            return;
        };
        let is_marked_once = row.charges == 1 && row.receipt.as_ref() == Some(&charge.receipt);
        self.wrong_receipts += usize::from(!is_marked_once);
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use hyper::{HeaderMap, StatusCode};

    use super::super::load::Load;
    use super::*;
    use crate::client::Answer;

    /// Two payments of a run, the first of which was accepted as `a`, the second as `b`; and books that fit.
    fn clean() -> (Load, Books) {
        let load = Load::draw(2, 1, "run", &mut Rng::with_seed(1));
        let (mut payments, mut accounts, mut charges) = (Vec::new(), Vec::<Account>::new(), Vec::new());
        for (wanted, id) in load.wanted.iter().zip(["a", "b"]) {
            let (account, amount, receipt) = (wanted.account.clone(), wanted.amount, format!("receipt-{id}"));
            let headers = HeaderMap::from_iter([(
                "location".parse().unwrap(),
                format!("/payments/{id}").parse().unwrap(),
            )]);
            assert!(wanted.compare(&Answer { status: StatusCode::CREATED, headers, body: id.into() }));
            charges.push(charge(id, &account, amount));
            accounts.push(Account { name: account.clone(), total: amount, payments: 1 });
            payments.push(Payment { id: id.into(), account, amount, receipt: Some(receipt), charges: 1 });
        }
        assert_ne!(accounts[0].name, accounts[1].name, "the seed is one that draws two accounts");
        (load, Books { payments, accounts, charges })
    }

    fn charge(id: &str, account: &str, amount: Amount) -> Charge {
        let request = crate::charges::ChargeRequested { payment: id.into(), account: account.into(), amount };
        Charge { key: format!("key-{id}"), request, receipt: format!("receipt-{id}"), asked: 1 }
    }

    /// What is found when something is wrong with the books.
    fn found(spoil: impl FnOnce(&mut Books)) -> Findings {
        let (load, mut books) = clean();
        spoil(&mut books);
        compare(&load.wanted, &books)
    }

    #[test]
    fn books_that_fit_are_clean() {
        let findings = found(|_| {});
        assert!(findings.is_clean() && findings.calls == 2, "{findings}");
    }

    #[test]
    fn what_is_wrong_is_counted_as_what_it_is() {
        let doubled = found(|books| {
            books.payments.push(Payment { id: "c".into(), ..books.payments[0].clone() });
            books.accounts[0].payments += 1;
        });
        assert_eq!((doubled.doubled, doubled.wrong_totals, doubled.lost), (1, 1, 0));
        let lost = found(|books| drop(books.payments.pop()));
        assert_eq!((lost.lost, lost.not_charged, lost.doubled), (1, 1, 0));
        let twice = found(|books| books.charges.push(Charge { key: "k".into(), ..books.charges[0].clone() }));
        assert_eq!(twice.charged_twice, 1);
        let never = found(|books| drop(books.charges.pop()));
        assert_eq!((never.not_charged, never.lost), (1, 0));
        let marked_twice = found(|books| books.payments[0].charges = 2);
        assert_eq!(marked_twice.wrong_receipts, 1);
        let not_marked = found(|books| books.payments[0].receipt = None);
        assert_eq!(not_marked.wrong_receipts, 1);
        for findings in [doubled, lost, twice, never, marked_twice, not_marked] {
            assert!(!findings.is_clean(), "{findings}");
        }
    }

    #[test]
    fn accounts_of_other_runs_are_none_of_its_concern() {
        let findings = found(|books| {
            let stranger = "other-1".to_owned();
            books.payments.push(Payment {
                id: "z".into(),
                account: stranger.clone(),
                ..books.payments[0].clone()
            });
            books.charges.push(charge("z", &stranger, Amount(1)));
            books.accounts.push(Account { name: stranger, total: Amount(1), payments: 1 });
        });
        assert!(findings.is_clean(), "{findings}");
    }
}
