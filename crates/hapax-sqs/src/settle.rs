//! Deleting, handing back, extending.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, ChangeMessageVisibilityBatchResultEntry,
    DeleteMessageBatchRequestEntry, DeleteMessageBatchResultEntry,
};
use hapax_core::{Error, Settle, Settlement, Settler, crash_point};
use tokio::time::Instant;

use crate::batch::{Outcome, in_tens, outcomes};
use crate::error::{self, Trouble};
use crate::line::{Line, Queue};
use crate::receipt::{Extension, Receipt};
use crate::shelf::Shelf;

/// Deletes, hands back and extends a source's deliveries. Cheap to clone, and used by many workers at once.
///
/// A request for each ten deliveries of a call. What SQS fails by its own fault, or does not answer, is tried once
/// more. A delivery whose visibility has passed is neither settled nor extended (`ErrorKind::NotFound`): somebody
/// else may have it. The message comes again, as a duplicate.
#[derive(Clone)]
pub struct SqsSettler {
    line: Arc<Line>,
    shelf: Arc<Shelf>,
}

impl SqsSettler {
    pub(crate) fn new(line: Arc<Line>, shelf: Arc<Shelf>) -> Self {
        Self { line, shelf }
    }

    async fn delete(&self, queue: &Queue, receipts: &[&Receipt]) -> Vec<Result<(), Error>> {
        let results = in_tens(receipts.len(), |ten| {
            let ten = ten.into_iter().map(|entry| receipts[entry].handle().to_owned()).collect();
            self.delete_ten(queue, ten)
        });
        let results = results.await;
        self.shelf.metrics.acks.increment(succeeded(&results));
        results
    }

    async fn delete_ten(&self, queue: &Queue, handles: Vec<String>) -> Vec<Outcome> {
        let count = handles.len();
        let entries = handles.into_iter().enumerate().map(|(place, handle)| {
            DeleteMessageBatchRequestEntry::builder().id(place.to_string()).receipt_handle(handle).build()
        });
        // Fails only without an id or a handle.
        let entries = entries.filter_map(Result::ok).collect();
        let request =
            self.line.client.delete_message_batch().queue_url(&queue.url).set_entries(Some(entries));
        match request.send().await.map_err(Trouble::from) {
            Ok(answer) => {
                let done = answer.successful().iter().map(DeleteMessageBatchResultEntry::id);
                outcomes(count, done, answer.failed(), error::entry_not_settled)
            }
            Err(trouble) => (0..count).map(|_| Err(error::settling(&trouble))).collect(),
        }
    }

    /// Makes deliveries visible after these times from now on.
    async fn change(&self, queue: &Queue, changes: &[(&Receipt, Duration)]) -> Vec<Result<(), Error>> {
        in_tens(changes.len(), |ten| {
            let ten: Vec<_> = ten.into_iter().map(|entry| changes[entry]).collect();
            self.change_ten(queue, ten)
        })
        .await
    }

    async fn change_ten(&self, queue: &Queue, changes: Vec<(&Receipt, Duration)>) -> Vec<Outcome> {
        let entries = changes.iter().enumerate().map(|(place, (receipt, visibility))| {
            ChangeMessageVisibilityBatchRequestEntry::builder()
                .id(place.to_string())
                .receipt_handle(receipt.handle())
                .visibility_timeout(seconds(*visibility))
                .build()
        });
        // Fails only without an id or a handle.
        let entries = entries.filter_map(Result::ok).collect();
        let request = self
            .line
            .client
            .change_message_visibility_batch()
            .queue_url(&queue.url)
            .set_entries(Some(entries));
        let sent = Instant::now();
        let results = match request.send().await.map_err(Trouble::from) {
            Ok(answer) => {
                let done = answer.successful().iter().map(ChangeMessageVisibilityBatchResultEntry::id);
                outcomes(changes.len(), done, answer.failed(), error::entry_not_settled)
            }
            Err(trouble) => changes.iter().map(|_| Err(error::settling(&trouble))).collect(),
        };
        for ((receipt, visibility), outcome) in changes.iter().zip(&results) {
            if outcome.is_ok() && !visibility.is_zero() {
                receipt.extended(sent + *visibility);
            }
        }
        results
    }

    /// The ends of deliveries that are still ours; the others have had theirs.
    async fn settle_those(
        &self,
        queue: &Queue,
        settlements: &[Settlement<Receipt>],
    ) -> Vec<Result<(), Error>> {
        let now = Instant::now();
        let mut results: Vec<Result<(), Error>> = settlements.iter().map(|_| Err(error::expired())).collect();
        let ours =
            settlements.iter().enumerate().filter(|(_, entry)| entry.receipt.settle(entry.verdict, now));
        let (handed_back, acked): (Vec<_>, Vec<_>) =
            ours.partition(|(_, entry)| entry.verdict == Settle::HandBack);
        let stale = settlements.len() - handed_back.len() - acked.len();
        self.shelf.metrics.stale.increment(stale as u64);

        let to_delete: Vec<&Receipt> = acked.iter().map(|(_, entry)| &entry.receipt).collect();
        let to_show: Vec<_> = handed_back.iter().map(|(_, entry)| (&entry.receipt, Duration::ZERO)).collect();
        let (deleted, shown) = tokio::join!(self.delete(queue, &to_delete), self.change(queue, &to_show));
        self.shelf.metrics.hand_backs.increment(succeeded(&shown));
        let places = acked.iter().chain(&handed_back).map(|(place, _)| *place);
        for (place, result) in places.zip(deleted.into_iter().chain(shown)) {
            results[place] = result;
        }
        results
    }
}

fn succeeded(results: &[Result<(), Error>]) -> u64 {
    results.iter().filter(|result| result.is_ok()).count() as u64
}

/// At most 12 hours, which an `i32` holds.
pub(crate) fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

impl fmt::Debug for SqsSettler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSettler").field("queue", &self.line.name).finish_non_exhaustive()
    }
}

impl Settler<Receipt> for SqsSettler {
    async fn settle(&self, settlements: Vec<Settlement<Receipt>>) -> Vec<Result<(), Error>> {
        // Until a queue was found nothing was received from it.
        let Some(queue) = self.line.queue() else {
            return settlements.iter().map(|_| Err(error::expired())).collect();
        };
        crash_point!("sqs-before-ack");
        let results = self.settle_those(queue, &settlements).await;
        crash_point!("sqs-after-ack");
        results
    }

    async fn extend(&self, receipts: Vec<Receipt>) -> Vec<Result<(), Error>> {
        let Some(queue) = self.line.queue() else {
            return receipts.iter().map(|_| Err(error::expired())).collect();
        };
        let now = Instant::now();
        let mut results = Vec::with_capacity(receipts.len());
        let mut changes = Vec::with_capacity(receipts.len());
        for (place, receipt) in receipts.iter().enumerate() {
            results.push(match receipt.extension(queue.visibility, now) {
                Extension::By(visibility) => {
                    changes.push((place, (receipt, visibility)));
                    Ok(())
                }
                Extension::Needless => Ok(()),
                Extension::TooLate => Err(error::expired()),
                Extension::Exhausted => Err(error::too_long_in_hand()),
            });
        }
        let (places, changes): (Vec<usize>, Vec<_>) = changes.into_iter().unzip();
        let extended = self.change(queue, &changes).await;
        self.shelf.metrics.extensions.increment(succeeded(&extended));
        for (place, result) in places.into_iter().zip(extended) {
            results[place] = result;
        }
        let failed = results.iter().filter(|result| result.is_err()).count();
        self.shelf.metrics.not_extended.increment(failed as u64);
        results
    }

    fn holds(&self, receipt: &Receipt) -> bool {
        receipt.holds(Instant::now())
    }
}
