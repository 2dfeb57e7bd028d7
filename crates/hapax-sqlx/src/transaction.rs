//! The transaction that a handler gets.

use std::fmt;
use std::fmt::Write as _;

use hapax_core::{ConsumerName, MessageId, Place, Publishable, Settled, StoreReceipt, Transaction, TxMeta};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::connection::Held;
use crate::dialect::{Claims, Dialect};
use crate::outbox::write_outbox;

/// A transaction in which messages were claimed: owned, without a lifetime.
///
/// What runs on [`conn`](Self::conn) commits with the claims or not at all. A nested
/// `tx.conn().begin()` is a savepoint. Dropped, it closes its connection, which rolls back.
pub struct SqlTx<D: Dialect> {
    pub(crate) held: Held<D>,
    pub(crate) consumer: ConsumerName,
    /// The messages whose inbox rows this transaction holds.
    pub(crate) taken: Vec<MessageId>,
    /// What their claims are known by, see [`Taking::token`](crate::dialect::Taking::token).
    pub(crate) token: i64,
    pub(crate) meta: TxMeta,
}

impl<D: Dialect> SqlTx<D> {
    /// The connection that carries the transaction: what statements are executed on.
    pub fn conn(&mut self) -> &mut D::Connection {
        self.held.conn()
    }

    /// Publishes a message if and when this transaction commits: an [`Event`](hapax_core::Event), or a
    /// [`Publication`](hapax_core::Publication) that says more. It costs no round trip of its own.
    ///
    /// [`Failure::Reject`](hapax_core::Failure::Reject), under
    /// [`Code::PublicationInvalid`](hapax_core::Code::PublicationInvalid): it cannot be published as it is given.
    pub fn publish(&mut self, message: impl Publishable) -> hapax_core::Result {
        Transaction::publish(self, message)
    }

    /// Whether the inbox row of a message is held by this transaction.
    pub(crate) fn holds(&self, consumer: &ConsumerName, id: &MessageId) -> bool {
        self.consumer == *consumer && self.taken.contains(id)
    }

    /// The sentinel, what is settled, and the commit, as one text and so one round trip. The sentinel
    /// comes first: where the handler has ended our transaction, nothing after it may run.
    ///
    /// Numbers and escaped ids are written into the text, since a text of several statements takes no
    /// parameters.
    pub(crate) fn ending(&self, schema: &str, store: u64) -> SqlStr {
        let published = self.meta.outbox.entries();
        let TxMeta { settled, erased_starts, results, .. } = &self.meta;
        let confirms = self.token != 0 && !self.taken.is_empty();
        if !confirms
            && settled.is_empty()
            && erased_starts.is_empty()
            && published.is_empty()
            && results.is_empty()
        {
            return SqlStr::from_static(D::ENDING);
        }
        let mut text = String::from("RELEASE SAVEPOINT hapax; ");
        text.push_str(D::LET_COMMIT);
        if confirms {
            let claims = Claims { consumer: &self.consumer, ids: &self.taken, token: self.token };
            D::confirm(&mut text, &D::table(schema, "inbox"), &claims);
        }
        forget_queued::<D>(&mut text, &D::table(schema, "queue"), &self.queued(store));
        forget_waiting::<D>(&mut text, &D::table(schema, "waiting"), &self.waiting());
        self.erase_starts(&mut text, &D::table(schema, "starts"));
        self.keep_results(&mut text, &D::table(schema, "inbox"));
        write_outbox::<D>(&mut text, &D::table(schema, "outbox"), published);
        text.push_str("COMMIT");
        AssertSqlSafe(text).into_sql_str()
    }

    fn queued(&self, store: u64) -> Vec<StoreReceipt> {
        let queued = self.meta.settled.iter().filter_map(|settled| match settled {
            Settled::Queued(receipt) if receipt.store == store => Some(*receipt),
            _ => None,
        });
        queued.collect()
    }

    fn waiting(&self) -> Vec<Place> {
        let waiting = self.meta.settled.iter().filter_map(|settled| match settled {
            Settled::Waiting(place) => Some(*place),
            _ => None,
        });
        waiting.collect()
    }

    fn keep_results(&self, text: &mut String, table: &str) {
        let consumer = D::literal(self.consumer.as_str());
        for (id, result) in self.meta.results.iter().filter(|(id, _)| self.taken.contains(id)) {
            let (id, result) = (D::literal(id.as_str()), D::blob(result));
            let _ = write!(
                text,
                "UPDATE {table} SET result = {result} WHERE consumer = {consumer} AND id = {id}; "
            );
        }
    }

    fn erase_starts(&self, text: &mut String, table: &str) {
        if self.meta.erased_starts.is_empty() {
            return;
        }
        let ids = listed(self.meta.erased_starts.iter().map(|id| D::literal(id.as_str())));
        let consumer = D::literal(self.consumer.as_str());
        let delete = D::delete_by(table, "PRIMARY");
        let _ = write!(text, "{delete} WHERE consumer = {consumer} AND id IN ({ids}); ");
    }
}

/// A row that was leased again since is somebody else's: its fence differs.
fn forget_queued<D: Dialect>(text: &mut String, table: &str, receipts: &[StoreReceipt]) {
    if receipts.is_empty() {
        return;
    }
    let numbers = listed(receipts.iter().map(|receipt| receipt.number.to_string()));
    let delete = D::delete_by(table, "PRIMARY");
    let _ = write!(text, "{delete} WHERE number IN ({numbers}) AND fence = CASE number");
    for StoreReceipt { number, fence, .. } in receipts {
        let _ = write!(text, " WHEN {number} THEN {fence}");
    }
    text.push_str(" END; ");
}

fn forget_waiting<D: Dialect>(text: &mut String, table: &str, places: &[Place]) {
    if places.is_empty() {
        return;
    }
    let numbers = listed(places.iter().map(|place| place.0.to_string()));
    let delete = D::delete_by(table, "waiting_number");
    let _ = write!(text, "{delete} WHERE number IN ({numbers}); ");
}

fn listed(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

impl<D: Dialect> Transaction for SqlTx<D> {
    fn meta(&mut self) -> &mut TxMeta {
        &mut self.meta
    }
}

impl<D: Dialect> fmt::Debug for SqlTx<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlTx")
            .field("consumer", &self.consumer.as_str())
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}
