//! Messages set aside.

use hapax_core::{
    Burial, Code, ConsumerName, DeadFilter, DeadLetter, DeadLetters, DeadNumber, Digest, Error, ErrorKind,
    InboxRow, InboxState, MessageId, Redrive, Transaction as _,
};

use super::database::{Database, DeadEntry, WaitingEntry};
use super::faults::{MemoryError, Op};
use super::store::MemoryStore;
use super::transaction::MemoryTx;

impl DeadLetters for MemoryStore {
    async fn bury(
        &self,
        tx: &mut MemoryTx,
        consumer: &ConsumerName,
        burial: &Burial<'_>,
    ) -> Result<DeadNumber, Error> {
        self.call(Op::Bury, |database| {
            tx.check_intact(database)?;
            Ok(tx.bury(database, consumer, burial))
        })
        .await
    }

    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<DeadLetter>, Error> {
        self.call(Op::Dead, |database| {
            Ok(database.dead_by(filter).take(filter.limit as usize).cloned().collect())
        })
        .await
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64, Error> {
        self.call(Op::Dead, |database| Ok(database.dead_by(filter).count() as u64)).await
    }

    async fn redrive(&self, redrive: &Redrive<'_>) -> Result<(), Error> {
        self.call(Op::Redrive, |database| database.redrive(redrive)).await
    }

    async fn discard(&self, number: DeadNumber) -> Result<(), Error> {
        self.call(Op::Discard, |database| {
            let gone = database.lost(number);
            database.dead.remove(&number).map(drop).ok_or(gone)
        })
        .await
    }
}

impl MemoryTx {
    /// Decides what becomes of a message that this transaction holds.
    pub(super) fn turn(
        &mut self,
        consumer: &ConsumerName,
        id: &MessageId,
        state: InboxState,
    ) -> Result<(), MemoryError> {
        let taken = self.taken.get_mut(id).filter(|_| self.consumer == *consumer);
        let taken = taken.ok_or_else(|| {
            MemoryError::new(ErrorKind::Statement, format!("the transaction does not hold `{id}`"))
        })?;
        taken.state = state;
        Ok(())
    }

    fn bury(&mut self, database: &mut Database, consumer: &ConsumerName, burial: &Burial<'_>) -> DeadNumber {
        // A copy with another payload leaves the row of the first as it is.
        let held = burial.id.filter(|id| self.turn(consumer, id, InboxState::Dead).is_ok());
        self.meta().erased_starts.extend(held.cloned());
        let waiting = held.and_then(|id| database.waiting_of(consumer, id));
        let first_failed_at = waiting.and_then(|(_, entry)| entry.first_failed_at);
        let place = waiting.map(|(place, _)| place);
        self.unparked.extend(place);
        let died_at = database.now();
        let letter = DeadLetter {
            number: database.next_number(),
            consumer: consumer.clone(),
            id: burial.id.cloned(),
            kind: burial.kind.to_owned(),
            order: burial.order.map(str::to_owned),
            reason: burial.reason.to_string(),
            error: burial.error.to_owned(),
            failures: burial.failures,
            crashes: burial.crashes,
            first_failed_at: first_failed_at.unwrap_or(died_at),
            died_at,
            envelope: burial.envelope.clone(),
        };
        let number = letter.number;
        let place = place.or(burial.place).unwrap_or_else(|| database.next_place());
        self.buried.push(DeadEntry { letter, place });
        number
    }
}

impl Database {
    fn dead_by<'d>(&'d self, filter: &'d DeadFilter) -> impl Iterator<Item = &'d DeadLetter> {
        self.dead.values().map(|entry| &entry.letter).filter(|letter| {
            filter.consumer.as_ref().is_none_or(|consumer| *consumer == letter.consumer)
                && filter.reason.is_none_or(|reason| reason.as_str() == letter.reason)
                && filter.id.as_ref().is_none_or(|id| letter.id.as_ref() == Some(id))
                && filter.after.is_none_or(|after| after < letter.number)
        })
    }

    /// Why a dead letter is not there.
    fn lost(&self, number: DeadNumber) -> Error {
        if self.had_number(number) {
            let context = format!("dead letter {number} was already redriven or discarded");
            return Error::new(ErrorKind::NotFound, Code::RedriveLost, context);
        }
        Error::new(ErrorKind::NotFound, Code::NotFound, format!("there is no dead letter {number}"))
    }

    fn redrive(&mut self, redrive: &Redrive<'_>) -> Result<(), Error> {
        let number = redrive.number;
        let Some(entry) = self.dead.get(&number) else { return Err(self.lost(number)) };
        let id = entry.letter.id.as_ref().or(redrive.id).cloned().ok_or_else(|| {
            let context = format!("dead letter {number} has no id");
            Error::new(ErrorKind::Statement, Code::RedriveNeedsId, context)
        })?;
        let consumer = &entry.letter.consumer;
        if self.waiting_of(consumer, &id).is_some() || self.held.contains_key(&(consumer.clone(), id.clone()))
        {
            return Err(MemoryError::new(ErrorKind::Busy, format!("`{id}` is waiting already")).into());
        }
        let Some(entry) = self.dead.remove(&number) else { return Err(self.lost(number)) };
        self.redriven.insert(number, (redrive.by.to_owned(), self.now()));
        self.wait_again(id, entry);
        Ok(())
    }

    /// Puts a dead letter into the waiting room at the place it had, with its slate wiped.
    fn wait_again(&mut self, id: MessageId, DeadEntry { letter, place }: DeadEntry) {
        let now = self.now();
        let scoped = (letter.consumer.clone(), id.clone());
        self.starts.remove(&scoped);
        let row = self.inbox.entry(scoped).or_insert_with(|| InboxRow {
            id: id.clone(),
            state: InboxState::Dead,
            digest: Digest::of(&letter.envelope.body),
            sent_at: None,
            processed_at: now,
            lease_until: None,
            result: None,
        });
        if row.state == InboxState::Dead {
            (row.state, row.processed_at) = (InboxState::Waiting, now);
        }
        let entry = WaitingEntry {
            consumer: letter.consumer,
            id,
            envelope: letter.envelope,
            order: letter.order,
            failures: 0,
            code: None,
            error: String::new(),
            due_at: now,
            parked_at: now,
            first_failed_at: Some(letter.first_failed_at),
            leased_until: None,
        };
        self.waiting.insert(place, entry);
    }
}
