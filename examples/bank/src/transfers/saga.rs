//! The handlers: news of a transfer moves it on, and says what is to happen next, in one transaction.

use hapax::{Failure, Message, OrReject as _};

use super::machine::{Misfit, News};
use super::{State, Transfer, Transfers};
use crate::events::{self, Ended, Entry, Movement, Opened, Rejected, say};

/// An account can be named in transfers from now on.
pub(super) async fn opened<Tx: Transfers>(tx: &mut Tx, news: Message<Opened>) -> hapax::Result {
    tx.learn(&news.account).await
}

pub(super) async fn debited<Tx: Transfers>(tx: &mut Tx, news: Message<Movement>) -> hapax::Result {
    let transfer = advance(tx, &news.transfer_id, News::Debited, None).await?;
    say(tx, events::CREDIT_REQUESTED, &transfer.id, transfer.movement(Entry::Credit))
}

pub(super) async fn debit_rejected<Tx: Transfers>(tx: &mut Tx, news: Message<Rejected>) -> hapax::Result {
    let transfer = advance(tx, &news.transfer_id, News::DebitRejected, Some(&news.reason)).await?;
    end(tx, transfer)
}

/// The payee has been credited, or the payer after the payee refused.
pub(super) async fn credited<Tx: Transfers>(tx: &mut Tx, news: Message<Movement>) -> hapax::Result {
    let what = if news.entry == Entry::Refund { News::Refunded } else { News::Credited };
    let transfer = advance(tx, &news.transfer_id, what, None).await?;
    end(tx, transfer)
}

/// The compensation: what was taken from the payer is given back.
pub(super) async fn credit_rejected<Tx: Transfers>(tx: &mut Tx, news: Message<Rejected>) -> hapax::Result {
    let transfer = advance(tx, &news.transfer_id, News::CreditRejected, Some(&news.reason)).await?;
    say(tx, events::REFUND_REQUESTED, &transfer.id, transfer.movement(Entry::Refund))
}

/// Moves a transfer on. News that has overtaken other news is tried again later; news that never fits is set aside
/// for somebody to look at, since copies do not get this far.
async fn advance<Tx: Transfers>(
    tx: &mut Tx,
    id: &str,
    news: News,
    reason: Option<&str>,
) -> hapax::Result<Transfer> {
    let mut transfer = tx.find(id).await?.ok_or("there is no such transfer").or_reject()?;
    transfer.state = transfer.state.after(news).map_err(|misfit| match misfit {
        Misfit::Early(..) => Failure::retry(misfit),
        Misfit::Never(..) => Failure::reject(misfit),
    })?;
    if let Some(reason) = reason {
        transfer.reason = Some(reason.to_owned());
    }
    tx.update(&transfer).await?;
    Ok(transfer)
}

fn end<Tx: Transfers>(tx: &mut Tx, transfer: Transfer) -> hapax::Result {
    let kind = if transfer.state == State::Completed { events::COMPLETED } else { events::FAILED };
    let Transfer { id, reason, .. } = transfer;
    say(tx, kind, &id, Ended { transfer_id: id.clone(), reason })
}
