//! The states of a transfer, and which news may follow which.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a transfer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// The payer is asked for the money.
    Requested,
    /// The payer has given it; the payee is asked to take it.
    CreditRequested,
    /// The payee has refused it; the payer is asked to take it back.
    Refunding,
    /// The payee has it.
    Completed,
    /// The payer has it: never gave it, or was given it back.
    Failed,
}

/// What the account service says of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Debited,
    DebitRejected,
    Credited,
    CreditRejected,
    Refunded,
}

/// Why news does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
    /// It has overtaken other news, and fits once that has come.
    #[error("{1:?} came before what must come first: the transfer is {0}")]
    Early(State, News),
    /// It can never fit any more. The inbox stops copies, so this is somebody's bug.
    #[error("{1:?} cannot follow: the transfer is {0}")]
    Never(State, News),
}

impl State {
    const ALL: [Self; 5] =
        [Self::Requested, Self::CreditRequested, Self::Refunding, Self::Completed, Self::Failed];

    /// The state that news leads to.
    pub(crate) fn after(self, news: News) -> Result<Self, Misfit> {
        match (self, news) {
            (Self::Requested, News::Debited) => Ok(Self::CreditRequested),
            (Self::Requested, News::DebitRejected) | (Self::Refunding, News::Refunded) => Ok(Self::Failed),
            (Self::CreditRequested, News::Credited) => Ok(Self::Completed),
            (Self::CreditRequested, News::CreditRejected) => Ok(Self::Refunding),
            (Self::Requested, News::Credited | News::CreditRejected | News::Refunded)
            | (Self::CreditRequested, News::Refunded) => Err(Misfit::Early(self, news)),
            _ => Err(Misfit::Never(self, news)),
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::CreditRequested => "credit-requested",
            Self::Refunding => "refunding",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    pub(crate) fn from_str(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_NEWS: [News; 5] =
        [News::Debited, News::DebitRejected, News::Credited, News::CreditRejected, News::Refunded];

    #[test]
    fn the_three_ways_a_transfer_can_go() {
        let ways: [(&[News], State); 3] = [
            (&[News::Debited, News::Credited], State::Completed),
            (&[News::DebitRejected], State::Failed),
            (&[News::Debited, News::CreditRejected, News::Refunded], State::Failed),
        ];
        for (news, end) in ways {
            let reached = news.iter().try_fold(State::Requested, |state, news| state.after(*news));
            assert_eq!(reached, Ok(end));
        }
    }

    #[test]
    fn nothing_follows_an_end() {
        for (state, news) in
            [State::Completed, State::Failed].into_iter().flat_map(|state| ALL_NEWS.map(|news| (state, news)))
        {
            assert_eq!(state.after(news), Err(Misfit::Never(state, news)));
        }
    }

    #[test]
    fn no_news_fits_twice() {
        for state in State::ALL {
            for news in ALL_NEWS {
                let Ok(next) = state.after(news) else { continue };
                assert_eq!(next.after(news), Err(Misfit::Never(next, news)));
            }
        }
    }

    #[test]
    fn what_has_overtaken_other_news_is_early_and_fits_later() {
        assert_eq!(
            State::Requested.after(News::Credited),
            Err(Misfit::Early(State::Requested, News::Credited))
        );
        assert!(State::Requested.after(News::Debited).unwrap().after(News::Credited).is_ok());
    }

    #[test]
    fn states_survive_the_database() {
        assert!(State::ALL.into_iter().all(|state| State::from_str(state.as_str()) == Some(state)));
    }
}
