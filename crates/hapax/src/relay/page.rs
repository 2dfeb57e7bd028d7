//! What was read of the outbox and is still to be published.

use std::collections::HashSet;

use hapax_core::{OnFailure, Unsent};

/// Rows in the order of their numbers.
pub(super) struct Page {
    rows: Vec<Unsent>,
    on_failure: OnFailure,
}

impl Page {
    pub(super) fn new(rows: Vec<Unsent>, on_failure: OnFailure) -> Self {
        Self { rows, on_failure }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Takes rows that can be published together: of a key only the first where order is kept, since the
    /// second must not get through if the first does not.
    pub(super) fn wave(&mut self, max: usize) -> Vec<Unsent> {
        if self.on_failure == OnFailure::Skip {
            return self.rows.drain(..max.min(self.rows.len())).collect();
        }
        let mut keys: HashSet<String> = HashSet::new();
        let mut taken = 0;
        let is_first = |row: &mut Unsent| {
            let first = taken < max && row.key.as_ref().is_none_or(|key| keys.insert(key.clone()));
            taken += usize::from(first);
            first
        };
        self.rows.extract_if(.., is_first).collect()
    }

    /// Leaves out what stands behind rows that were not published: it is read again when they were.
    pub(super) fn hold_back(&mut self, not_sent: &HashSet<String>) {
        if self.on_failure == OnFailure::Block && !not_sent.is_empty() {
            self.rows.retain(|row| row.key.as_ref().is_none_or(|key| !not_sent.contains(key)));
        }
    }

    /// Leaves out rows for which this does not hold.
    pub(super) fn retain(&mut self, holds: impl Fn(&Unsent) -> bool) {
        self.rows.retain(holds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{Destination, Envelope, OutboxNumber};

    fn row(number: i64, key: Option<&str>) -> Unsent {
        Unsent {
            number: OutboxNumber(number),
            bucket: 0,
            key: key.map(str::to_owned),
            attempts: 0,
            destination: Destination::default(),
            envelope: Envelope::default(),
        }
    }

    fn numbers(rows: &[Unsent]) -> Vec<i64> {
        rows.iter().map(|row| row.number.0).collect()
    }

    fn page(on_failure: OnFailure) -> Page {
        let rows = [(1, Some("a")), (2, Some("a")), (3, None), (4, Some("b")), (5, None), (6, Some("a"))];
        Page::new(rows.into_iter().map(|(number, key)| row(number, key)).collect(), on_failure)
    }

    #[test]
    fn of_a_key_one_row_at_a_time() {
        let mut page = page(OnFailure::Block);
        assert_eq!(numbers(&page.wave(3)), [1, 3, 4]);
        assert_eq!(numbers(&page.wave(3)), [2, 5]);
        assert_eq!(numbers(&page.wave(3)), [6]);
        assert!(page.is_empty());
    }

    #[test]
    fn where_failures_are_skipped_all_go_together() {
        let mut page = page(OnFailure::Skip);
        assert_eq!(numbers(&page.wave(4)), [1, 2, 3, 4]);
        page.hold_back(&HashSet::from(["a".to_owned()]));
        assert_eq!(numbers(&page.wave(4)), [5, 6]);
    }

    #[test]
    fn behind_a_row_that_failed_its_key_waits() {
        let mut page = page(OnFailure::Block);
        page.wave(1);
        page.hold_back(&HashSet::from(["a".to_owned()]));
        assert_eq!(numbers(&page.wave(9)), [3, 4, 5]);
    }
}
