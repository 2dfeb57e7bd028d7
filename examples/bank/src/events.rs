//! What the services tell each other: types, routing keys, payloads, and the envelope around them.

use hapax::{BoxError, Format, Identity, MessageId, Publication, SentAtRule, Transaction, TypeRule};
use serde::{Deserialize, Serialize};

use crate::money::Money;

/// The topic exchange of all messages.
pub(crate) const EXCHANGE: &str = "banking.events";

/// A type of message and the routing key it is published under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) route: &'static str,
}

const fn kind(name: &'static str, route: &'static str) -> Kind {
    Kind { name, route }
}

/// Take the amount from the payer.
pub(crate) const REQUESTED: Kind = kind("Transfer.Requested", "transfers.transfer.requested");
/// Give it to the payee.
pub(crate) const CREDIT_REQUESTED: Kind =
    kind("Transfer.CreditRequested", "transfers.transfer.credit-requested");
/// Give it back to the payer.
pub(crate) const REFUND_REQUESTED: Kind =
    kind("Transfer.RefundRequested", "transfers.transfer.refund-requested");
/// The payee has it.
pub(crate) const COMPLETED: Kind = kind("Transfer.Completed", "transfers.transfer.completed");
/// The payer has it, still or again.
pub(crate) const FAILED: Kind = kind("Transfer.Failed", "transfers.transfer.failed");

/// There is an account now.
pub(crate) const OPENED: Kind = kind("Account.Opened", "accounts.account.opened");
/// The payer no longer has it.
pub(crate) const DEBITED: Kind = kind("Account.Debited", "accounts.account.debited");
/// The payer keeps it.
pub(crate) const DEBIT_REJECTED: Kind = kind("Account.DebitRejected", "accounts.account.debit-rejected");
/// Somebody has it: the payee, or after a refund the payer.
pub(crate) const CREDITED: Kind = kind("Account.Credited", "accounts.account.credited");
/// The payee cannot take it.
pub(crate) const CREDIT_REJECTED: Kind = kind("Account.CreditRejected", "accounts.account.credit-rejected");

/// What happens to an account within a transfer: each at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Entry {
    Debit,
    Credit,
    Refund,
}

impl Entry {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Debit => "debit",
            Self::Credit => "credit",
            Self::Refund => "refund",
        }
    }

    pub(crate) fn from_str(text: &str) -> Option<Self> {
        [Self::Debit, Self::Credit, Self::Refund].into_iter().find(|entry| entry.as_str() == text)
    }
}

/// Money that is to move, or has moved, to or from one account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Movement {
    pub(crate) transfer_id: String,
    pub(crate) entry: Entry,
    pub(crate) account: String,
    pub(crate) amount: Money,
}

/// Money that cannot move.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rejected {
    pub(crate) transfer_id: String,
    pub(crate) account: String,
    pub(crate) reason: String,
}

/// How a transfer ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ended {
    pub(crate) transfer_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// An account that can be named in transfers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Opened {
    pub(crate) account: String,
}

/// The body of every message. Its id is also the broker's message-id property, and the same each time the same
/// handling says it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'e, T> {
    message_id: &'e str,
    #[serde(rename = "type")]
    kind: &'e str,
    occurred_at: String,
    correlation_id: &'e str,
    causation_id: Option<&'e str>,
    payload: &'e T,
}

/// Says something if and when the transaction commits; what concerns one `key` is published in order.
pub(crate) fn say<T>(tx: &mut impl Transaction, kind: Kind, key: &str, payload: T) -> hapax::Result
where
    T: Serialize + Send + 'static,
{
    let message = Publication::made(kind.name, move |stamp| {
        serde_json::to_vec(&Envelope {
            message_id: stamp.id.as_str(),
            kind: kind.name,
            occurred_at: stamp.sent_at.to_string(),
            correlation_id: &stamp.correlation_id,
            causation_id: stamp.causation_id.as_ref().map(MessageId::as_str),
            payload: &payload,
        })
    });
    tx.publish(message.to_exchange(EXCHANGE, kind.route).key(key).content_type("application/json"))
}

/// How a message is read. The id is the header's, the property's or the envelope's, and those that are there must
/// agree: so a body pasted by hand, without any property, is still the message that it was.
pub(crate) fn format(key: &str) -> Result<Format, BoxError> {
    Ok(Format::default()
        .identity(Identity::or_envelope("/messageId".parse()?))
        .kind(TypeRule::Part("json:/type".parse()?))
        .sent_at(SentAtRule::Part("json:/occurredAt".parse()?))
        .payload("/payload".parse()?)
        .key(key.parse()?))
}
