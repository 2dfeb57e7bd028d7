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
    /// A handler of HTTP requests. Without anything in front of it, it is the baseline of those with `--http`.
    Http(Mode),
    /// The same requests once more, which are answered from the record.
    Replays(Mode),
}

/// What stands in front of a handler of HTTP requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nothing.
    Bare,
    /// The layer for keys, in the handler's transaction.
    Transactional,
    /// The layer for keys, in transactions of its own.
    Recorded,
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

    /// Every contender of `--http`, the baseline first.
    pub(super) const HTTP: [Self; 5] = [
        Self::Http(Mode::Bare),
        Self::Http(Mode::Transactional),
        Self::Http(Mode::Recorded),
        Self::Replays(Mode::Transactional),
        Self::Replays(Mode::Recorded),
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
            Self::Http(Mode::Transactional) => "http-transactional",
            Self::Http(Mode::Recorded) => "http-recorded",
            Self::Replays(Mode::Transactional) => "replays-transactional",
            Self::Replays(Mode::Recorded) => "replays-recorded",
            Self::Http(Mode::Bare) | Self::Replays(Mode::Bare) => "http-bare",
        }
    }

    /// The most messages in one transaction.
    pub(super) const fn batch(self) -> usize {
        match self {
            Self::Unprotected | Self::SeedForm | Self::Http(_) | Self::Replays(_) => 1,
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
        let all: Vec<Contender> = Contender::ALL.into_iter().chain(Contender::HTTP).collect();
        let names: Vec<&str> = all.iter().map(|contender| contender.name()).collect();
        for (place, contender) in all.into_iter().enumerate() {
            assert_eq!(names.iter().position(|name| *name == contender.name()), Some(place));
            if let Some((_, batch)) = contender.name().split_once("batch-") {
                assert_eq!(batch.parse(), Ok(contender.batch()));
            }
        }
    }
}
