//! Copies of dead letters for people's existing tools, and what it means when one comes back.

use std::time::Duration;

use hapax_core::{
    Code, ConsumerStore, DEAD_LETTER_HEADER, DeadFilter, DeadLetter, DeadNumber, Error, MessageId,
    OutboxEntry, Redrive, Settler, Transaction as _,
};
use tracing::info;

use crate::job::{Flaw, Job};
use crate::shared::Shared;

/// Headers that tell a reader of the copy what happened.
const CONSUMER_HEADER: &str = "hapax-dead-consumer";
const REASON_HEADER: &str = "hapax-dead-reason";
const ERROR_HEADER: &str = "hapax-dead-error";
/// The longest error in a header: brokers limit what all of them take together.
const LONGEST_ERROR: usize = 1_000;

impl<S: ConsumerStore, T: Settler<R>, R: Clone + Send + Sync + 'static> Shared<S, T, R> {
    /// Publishes a copy of a letter with the transaction that sets it aside, if that is asked for.
    pub(crate) fn publish_copy(&self, tx: &mut S::Tx, job: &Job<R>, number: DeadNumber, flaw: &Flaw) {
        let Some(destination) = &self.settings.dead_letters_to else { return };
        let mut envelope = job.envelope().clone();
        let error: String = flaw.reason.chars().take(LONGEST_ERROR).collect();
        envelope.headers.set(DEAD_LETTER_HEADER, number.to_string());
        envelope.headers.set(CONSUMER_HEADER, self.consumer.as_str());
        envelope.headers.set(REASON_HEADER, flaw.code.as_str());
        envelope.headers.set(ERROR_HEADER, error);
        // The number is the letter's alone: a message that dies again is another letter.
        let id = MessageId::new(format!("hapax-dead-letter-{}-{number}", self.consumer));
        let Ok(id) = id else { return }; // never: a name and a number are short
        tx.meta().outbox.put(OutboxEntry {
            id,
            producer: self.consumer.clone(),
            cause: job.id().cloned(),
            key: None,
            kind: job.kind().to_owned(),
            destination: destination.clone(),
            delay: Duration::ZERO,
            envelope,
        });
    }

    /// The letter of which this delivery is the copy, if it is set aside still.
    async fn letter_of(&self, job: &Job<R>, number: DeadNumber) -> Result<Option<DeadLetter>, Error> {
        let filter = DeadFilter {
            consumer: Some(self.consumer.clone()),
            after: Some(DeadNumber(number.0.saturating_sub(1))),
            limit: 1,
            ..DeadFilter::default()
        };
        let found = self.store.dead(&filter).await?;
        Ok(found.into_iter().find(|letter| letter.number == number && letter.id.as_ref() == job.id()))
    }

    /// Whether a message without an id is a letter's copy that came back. It cannot be redriven without an
    /// id, and must not become another letter.
    pub(crate) async fn is_set_aside_already(&self, job: &Job<R>) -> Result<bool, Error> {
        match returned(job) {
            Some(number) if job.id().is_none() => Ok(self.letter_of(job, number).await?.is_some()),
            _ => Ok(false),
        }
    }

    /// A copy that came back from where dead letters are published means that somebody wants the message
    /// handled again.
    pub(crate) async fn redrive_returned(&self, job: &Job<R>, number: DeadNumber) -> Result<(), Error> {
        if self.letter_of(job, number).await?.is_none() {
            return Ok(()); // redriven or discarded since: a late copy like any other
        }
        let by = job.envelope().origin.source.as_str();
        match self.store.redrive(&Redrive { number, id: None, by }).await {
            Ok(()) => {
                info!(consumer = %self.consumer, message_id = job.id_text(), %number, "a dead letter came back and is redriven");
                self.alarm.set(Duration::ZERO);
                Ok(())
            }
            Err(error) if error.code() == Code::RedriveLost => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The number of the dead letter of which a delivery is the copy.
pub(crate) fn returned<R>(job: &Job<R>) -> Option<DeadNumber> {
    job.envelope().headers.get(DEAD_LETTER_HEADER)?.parse().ok().map(DeadNumber)
}
