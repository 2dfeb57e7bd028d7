//! The handler: moves money from or to an account, and says what came of it, in one transaction.

use hapax::{Failure, Message};

use super::Accounts;
use super::account::{Account, Fact, Refusal};
use crate::events::{self, Entry, Movement, Rejected, say};
use crate::money::Money;

/// What became of an order.
enum Booked {
    Now,
    /// The ledger has it already, so this is a copy that got past the inbox. What is to be said was said then.
    Before,
    Refused(Refusal),
}

/// Carries out an order to debit, credit or refund an account.
pub(super) async fn carry_out<Tx: Accounts>(tx: &mut Tx, order: Message<Movement>) -> hapax::Result {
    check(&order)?;
    let (done, refused) = match order.entry {
        Entry::Debit => (events::DEBITED, events::DEBIT_REJECTED),
        Entry::Credit | Entry::Refund => (events::CREDITED, events::CREDIT_REJECTED),
    };
    let booked = book(tx, &order).await?;
    let Movement { transfer_id, account, .. } = order.payload().clone();
    match booked {
        Booked::Now => say(tx, done, &transfer_id, order.into_payload()),
        Booked::Refused(refusal) => {
            let key = transfer_id.clone();
            say(tx, refused, &key, Rejected { transfer_id, account, reason: refusal.to_string() })
        }
        Booked::Before => {
            tracing::warn!(%transfer_id, "the ledger stopped a movement that had been made before");
            Ok(())
        }
    }
}

async fn book<Tx: Accounts>(tx: &mut Tx, order: &Movement) -> hapax::Result<Booked> {
    let Some(account) = Account::replay(&tx.history(&order.account).await?) else {
        return Ok(Booked::Refused(Refusal::Unknown));
    };
    if let Err(refusal) = account.allows(order.entry, order.amount) {
        return Ok(Booked::Refused(refusal));
    }
    if !tx.enter(order).await? {
        return Ok(Booked::Before);
    }
    let Movement { transfer_id, entry, amount, .. } = order.clone();
    tx.append(&order.account, account.version + 1, &Fact::Moved { entry, amount, transfer_id }).await?;
    Ok(Booked::Now)
}

/// An order that nobody should have given is set aside.
fn check(order: &Message<Movement>) -> hapax::Result {
    let means = match order.entry {
        Entry::Debit => events::REQUESTED,
        Entry::Credit => events::CREDIT_REQUESTED,
        Entry::Refund => events::REFUND_REQUESTED,
    };
    if order.kind() != means.name {
        return Err(Failure::reject(format!("{} is no order to {}", order.kind(), order.entry.as_str())));
    }
    if order.amount <= Money(0) {
        return Err(Failure::reject(format!("an order to move {}", order.amount)));
    }
    Ok(())
}
