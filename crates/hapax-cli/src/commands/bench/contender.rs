//! Who is measured.

/// A row of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    /// What people write today: BEGIN, UPDATE, COMMIT on a pool of sqlx's. The baseline.
    Unprotected,
    /// What people write when they have read of the inbox: check, UPDATE, INSERT in one transaction.
    SeedForm,
    /// A consumer with every default on.
    Protected { batch: usize },
    /// The same with one set-based statement for a batch.
    OnBatch { batch: usize },
    /// The same with statements of a configuration file.
    SqlHandlers { batch: usize },
    /// The same messages once more.
    Duplicates { batch: usize },
}

impl Contender {
    /// Every contender, the baseline first.
    pub(super) const ALL: [Self; 9] = [
        Self::Unprotected,
        Self::SeedForm,
        Self::Protected { batch: 1 },
        Self::Protected { batch: 10 },
        Self::Protected { batch: 50 },
        Self::Protected { batch: 100 },
        Self::OnBatch { batch: 100 },
        Self::SqlHandlers { batch: 50 },
        Self::Duplicates { batch: 50 },
    ];

    /// What the result calls it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Unprotected => "unprotected",
            Self::SeedForm => "seed-form",
            Self::Protected { batch: 10 } => "protected-batch-10",
            Self::Protected { batch: 50 } => "protected-batch-50",
            Self::Protected { batch: 100 } => "protected-batch-100",
            Self::Protected { .. } => "protected",
            Self::OnBatch { .. } => "on-batch-100",
            Self::SqlHandlers { .. } => "sql-handlers",
            Self::Duplicates { .. } => "duplicates",
        }
    }

    /// The most messages in one transaction.
    pub(super) const fn batch(self) -> usize {
        match self {
            Self::Unprotected | Self::SeedForm => 1,
            Self::Protected { batch }
            | Self::OnBatch { batch }
            | Self::SqlHandlers { batch }
            | Self::Duplicates { batch } => batch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_tell_the_batch() {
        let names = Contender::ALL.map(Contender::name);
        for (place, contender) in Contender::ALL.into_iter().enumerate() {
            assert_eq!(names.iter().position(|name| *name == contender.name()), Some(place));
            if let Some((_, batch)) = contender.name().split_once("batch-") {
                assert_eq!(batch.parse(), Ok(contender.batch()));
            }
        }
    }
}
