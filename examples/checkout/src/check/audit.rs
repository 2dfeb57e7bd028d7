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
