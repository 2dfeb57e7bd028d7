//! What of one partition is delivered, in hand and done, and how far its offset may be committed.

use std::collections::VecDeque;

use hapax_core::{Envelope, Settle};

/// A record from its delivery until everything before it is done, too.
struct Entry {
    offset: i64,
    state: State,
}

enum State {
    /// Received, and not handed over or handed back.
    Ready(Envelope),
    /// Handed over. The message stays here, since it is delivered from memory again if it is handed back.
    InHand(Envelope),
    Done,
}

/// One partition since it was assigned.
///
/// Offsets may have gaps, from compaction and from transactions: what counts is the order of delivery. The
/// offset to commit is the one behind the longest run of done records, counted from the first delivered.
#[derive(Default)]
pub(crate) struct Progress {
    /// In the order of their offsets. The first one is not done.
    entries: VecDeque<Entry>,
    /// The offsets of those that are ready, in order.
    ready: VecDeque<i64>,
    ready_bytes: usize,
    in_hand: usize,
    /// Where to go on, once anything is done.
    position: Option<i64>,
    /// The position that the broker was told last.
    told: Option<i64>,
    /// Nothing of it is handed over any more.
    leaving: bool,
}

impl Progress {
    /// Takes in a record. One at or before the last is a repetition, as after the client lost its place.
    pub(crate) fn receive(&mut self, offset: i64, envelope: Envelope) -> bool {
        let last = self.entries.back().map(|entry| entry.offset).or(self.position.map(|next| next - 1));
        if self.leaving || last.is_some_and(|last| offset <= last) {
            return false;
        }
        self.ready_bytes += envelope.body.len();
        self.ready.push_back(offset);
        self.entries.push_back(Entry { offset, state: State::Ready(envelope) });
        true
    }

    /// Hands over at most `max` of what is ready, in order.
    pub(crate) fn take(&mut self, max: usize) -> Vec<(i64, Envelope)> {
        let count = self.ready.len().min(max);
        let offsets: Vec<i64> = self.ready.drain(..count).collect();
        let mut taken = Vec::with_capacity(count);
        for offset in offsets {
            let Some(place) = self.place(offset) else { continue };
            let state = &mut self.entries[place].state;
            if let State::Ready(envelope) = state {
                let envelope = envelope.clone();
                self.ready_bytes -= envelope.body.len();
                self.in_hand += 1;
                *state = State::InHand(envelope.clone());
                taken.push((offset, envelope));
            }
        }
        taken
    }

    /// Settles a record that is in hand, and says whether it was.
    pub(crate) fn settle(&mut self, offset: i64, verdict: Settle) -> bool {
        let Some(place) = self.place(offset) else { return false };
        let state = &mut self.entries[place].state;
        let State::InHand(envelope) = state else { return false };
        self.in_hand -= 1;
        if verdict != Settle::HandBack {
            *state = State::Done;
            self.advance();
            return true;
        }
        let envelope = std::mem::take(envelope);
        self.ready_bytes += envelope.body.len();
        *state = State::Ready(envelope);
        if !self.leaving {
            let at = self.ready.partition_point(|other| *other < offset);
            self.ready.insert(at, offset);
        }
        true
    }

    fn advance(&mut self) {
        while self.entries.front().is_some_and(|entry| matches!(entry.state, State::Done)) {
            self.position = self.entries.pop_front().map(|entry| entry.offset + 1);
        }
    }

    fn place(&self, offset: i64) -> Option<usize> {
        self.entries.binary_search_by_key(&offset, |entry| entry.offset).ok()
    }

    /// Hands nothing over any more: only what is in hand may still be settled.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        self.ready.clear();
    }

    pub(crate) fn in_hand(&self) -> usize {
        self.in_hand
    }

    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn ready_bytes(&self) -> usize {
        self.ready_bytes
    }

    /// Delivered records that stand behind one that is not done, that one included.
    pub(crate) fn uncommitted(&self) -> usize {
        self.entries.len()
    }

    /// The offset to commit, if the broker has not been told. It counts as told from now on.
    pub(crate) fn due(&mut self) -> Option<i64> {
        let position = self.position.filter(|position| Some(*position) != self.told)?;
        self.told = Some(position);
        Some(position)
    }

    pub(crate) fn has_to_commit(&self) -> bool {
        self.position != self.told
    }

    /// The broker may not have heard: tell it again.
    pub(crate) fn untold(&mut self) {
        self.told = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(offsets: impl IntoIterator<Item = i64>) -> Progress {
        let mut progress = Progress::default();
        for offset in offsets {
            assert!(progress.receive(offset, Envelope::new(offset.to_string())));
        }
        progress
    }

    fn taken(progress: &mut Progress, max: usize) -> Vec<i64> {
        progress.take(max).into_iter().map(|(offset, _)| offset).collect()
    }

    #[test]
    fn only_the_contiguous_prefix_is_committed() {
        let mut progress = delivered(10..15);
        assert_eq!(taken(&mut progress, 9), [10, 11, 12, 13, 14]);
        for (offset, position) in [(11, None), (14, None), (10, Some(12)), (13, None), (12, Some(15))] {
            assert!(progress.settle(offset, Settle::Ack));
            assert_eq!(progress.due(), position, "after {offset}");
        }
        assert_eq!((progress.in_hand(), progress.uncommitted()), (0, 0));
    }

    /// Offsets that a compaction removed, or that are a transaction's marks, are never delivered.
    #[test]
    fn gaps_are_no_holes() {
        let mut progress = delivered([3, 7, 8, 100]);
        taken(&mut progress, 9);
        for (offset, position) in [(3, Some(4)), (8, None), (7, Some(9)), (100, Some(101))] {
            assert!(progress.settle(offset, Settle::Ack));
            assert_eq!(progress.due(), position, "after {offset}");
        }
    }

    #[test]
    fn what_is_handed_back_comes_again_in_its_place_and_holds_the_offset() {
        let mut progress = delivered(0..4);
        assert_eq!(taken(&mut progress, 3), [0, 1, 2]);
        assert!(progress.settle(1, Settle::HandBack));
        assert!(progress.settle(0, Settle::HandBack));
        assert!(progress.settle(2, Settle::Ack));
        assert_eq!(progress.due(), None);
        let again = progress.take(9);
        assert_eq!(again.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(again[0].1.body, "0", "with what it said");
    }

    #[test]
    fn a_record_is_settled_once_and_only_from_the_hand() {
        let mut progress = delivered(0..3);
        assert_eq!(taken(&mut progress, 2), [0, 1]);
        assert!(progress.settle(0, Settle::Ack));
        for offset in [0, 2, 7] {
            assert!(!progress.settle(offset, Settle::Ack), "{offset} is not in hand");
        }
        assert_eq!((progress.in_hand(), progress.ready()), (1, 1));
    }

    #[test]
    fn a_record_that_comes_twice_is_taken_once() {
        let mut progress = delivered(5..8);
        assert!(!progress.receive(6, Envelope::new("")));
        taken(&mut progress, 9);
        (5..8).for_each(|offset| assert!(progress.settle(offset, Settle::Ack)));
        assert!(!progress.receive(7, Envelope::new("")), "it is done");
        assert!(progress.receive(8, Envelope::new("")));
    }

    #[test]
    fn a_partition_that_leaves_hands_nothing_over_and_commits_what_is_done() {
        let mut progress = delivered(0..4);
        assert_eq!(taken(&mut progress, 3), [0, 1, 2]);
        progress.leave();
        assert!(progress.take(9).is_empty() && !progress.receive(9, Envelope::new("")));
        assert!(progress.settle(0, Settle::Ack) && progress.settle(1, Settle::HandBack));
        assert!(progress.take(9).is_empty(), "what is handed back now is the next owner's");
        assert_eq!((progress.in_hand(), progress.due()), (1, Some(1)));
    }

    #[test]
    fn a_commit_that_failed_is_repeated() {
        let mut progress = delivered(0..1);
        taken(&mut progress, 1);
        assert!(progress.settle(0, Settle::Ack));
        assert_eq!((progress.due(), progress.due()), (Some(1), None));
        progress.untold();
        assert!(progress.has_to_commit());
        assert_eq!(progress.due(), Some(1));
    }

    /// Every order in which five deliveries can end: at no time is an offset committed that lies behind one
    /// that is not done.
    #[test]
    fn no_order_of_acks_commits_too_much() {
        let mut orders = Vec::new();
        permute(&mut [0, 2, 3, 5, 8], 0, &mut orders);
        for order in orders {
            let mut progress = delivered([0, 2, 3, 5, 8]);
            taken(&mut progress, 9);
            let mut open = vec![0, 2, 3, 5, 8];
            for offset in &order {
                assert!(progress.settle(*offset, Settle::Ack));
                open.retain(|other| other != offset);
                if let Some(position) = progress.due() {
                    assert!(open.iter().all(|other| *other >= position), "{order:?} at {offset}");
                }
            }
            assert_eq!(progress.position, Some(9), "{order:?}");
        }
    }

    fn permute(offsets: &mut [i64], from: usize, into: &mut Vec<Vec<i64>>) {
        if from == offsets.len() {
            return into.push(offsets.to_vec());
        }
        for place in from..offsets.len() {
            offsets.swap(from, place);
            permute(offsets, from + 1, into);
            offsets.swap(from, place);
        }
    }
}
