//! Sending to one queue: batch by batch, looked at entry by entry.

use std::collections::{HashSet, VecDeque};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::SendMessageBatchResultEntry;
use hapax_core::Error;
use tokio::time::sleep;

use crate::batch::{Outcome, PAUSE, is_worth_another, outcomes};
use crate::error::{self, Meaning, Trouble};
use crate::parcel::{Parcel, next_batch};

/// Messages' places in a call, and what became of each.
pub(crate) type Results = Vec<(usize, Result<(), Error>)>;

/// A queue to send to.
pub(crate) struct Sender<'a> {
    pub(crate) client: &'a Client,
    pub(crate) queue: &'a str,
    pub(crate) url: &'a str,
}

impl Sender<'_> {
    /// Sends all, one request after another. Once a message was not taken, those after it in its FIFO group are not
    /// sent.
    pub(crate) async fn send(&self, parcels: Vec<Parcel>) -> Results {
        let mut results = Vec::with_capacity(parcels.len());
        let mut broken = HashSet::new();
        let mut waiting = VecDeque::from(parcels);
        while !waiting.is_empty() {
            let batch = next_batch(&mut waiting);
            for (parcel, result) in batch.iter().zip(self.insist(&batch).await) {
                if let (Err(_), Some(group)) = (&result, &parcel.group) {
                    broken.insert(group.clone());
                }
                results.push((parcel.place, result));
            }
            waiting.retain(|parcel| match &parcel.group {
                Some(group) if broken.contains(group) => {
                    results.push((parcel.place, Err(error::behind(group))));
                    false
                }
                _ => true,
            });
        }
        results
    }

    /// Sends a batch, and once more what SQS failed by its own fault.
    async fn insist(&self, batch: &[Parcel]) -> Vec<Result<(), Error>> {
        let all: Vec<&Parcel> = batch.iter().collect();
        let mut outcomes = self.apart(&all).await;
        let again: Vec<usize> =
            (0..batch.len()).filter(|place| is_worth_another(&outcomes[*place])).collect();
        if !again.is_empty() {
            sleep(PAUSE).await;
            let parcels: Vec<&Parcel> = again.iter().map(|place| &batch[*place]).collect();
            for (place, outcome) in again.into_iter().zip(self.apart(&parcels).await) {
                outcomes[place] = outcome;
            }
        }
        outcomes.into_iter().map(|outcome| outcome.map_err(|setback| setback.error)).collect()
    }

    /// Sends a batch. If SQS refuses the whole over one of its messages, each is sent by itself, so that only that one
    /// fails.
    async fn apart(&self, parcels: &[&Parcel]) -> Vec<Outcome> {
        let trouble = match self.request(parcels).await {
            Ok(outcomes) => return outcomes,
            Err(trouble) => trouble,
        };
        if trouble.meaning != Meaning::Fault || parcels.len() == 1 {
            return parcels.iter().map(|_| Err(error::not_published(self.queue, &trouble))).collect();
        }
        let mut outcomes = Vec::with_capacity(parcels.len());
        for parcel in parcels {
            outcomes.push(match self.request(&[parcel]).await {
                Ok(mut outcome) => outcome.pop().unwrap_or_else(|| Err(error::left_out())),
                Err(trouble) => Err(error::not_published(self.queue, &trouble)),
            });
        }
        outcomes
    }

    async fn request(&self, parcels: &[&Parcel]) -> Result<Vec<Outcome>, Trouble> {
        let entries = parcels.iter().enumerate().filter_map(|(number, parcel)| parcel.entry(number).ok());
        // An entry fails only without an id or a body; the answer then leaves it out.
        let request = self.client.send_message_batch().queue_url(self.url);
        let answer = request.set_entries(Some(entries.collect())).send().await?;
        let taken = answer.successful().iter().map(SendMessageBatchResultEntry::id);
        let refused = |entry: &_| error::entry_not_published(self.queue, entry);
        Ok(outcomes(parcels.len(), taken, answer.failed(), refused))
    }
}
