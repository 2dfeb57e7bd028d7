//! What is in hand, and until when.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::Settle;
use tokio::time::Instant;

/// SQS keeps a message from others for no longer than this after it was received, however often it is extended.
const LONGEST: Duration = Duration::from_hours(12);

/// What SQS wants to see again: a receipt handle, and until when it is good. Clones share what becomes of it.
///
/// The time runs from before the request that began it was sent, so that it ends here no later than at SQS.
#[derive(Clone)]
pub struct Receipt(Arc<InHand>);

struct InHand {
    handle: String,
    received: Instant,
    /// The delivery before it in its FIFO group. If that one goes back, this one has to.
    ahead: Option<Receipt>,
    tenure: Mutex<Tenure>,
}

#[derive(Clone, Copy)]
struct Tenure {
    until: Instant,
    settled: Option<Settle>,
}

/// What to do about an extension.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Extension {
    /// Ask for so many more seconds from now on.
    By(Duration),
    /// It is settled: there is nothing to keep.
    Needless,
    /// Its visibility has passed.
    TooLate,
    /// SQS allows no more.
    Exhausted,
}

impl Receipt {
    pub(crate) fn new(handle: String, received: Instant, until: Instant, ahead: Option<Self>) -> Self {
        let tenure = Mutex::new(Tenure { until, settled: None });
        Self(Arc::new(InHand { handle, received, ahead, tenure }))
    }

    pub(crate) fn handle(&self) -> &str {
        &self.0.handle
    }

    fn tenure(&self) -> MutexGuard<'_, Tenure> {
        self.0.tenure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is still kept for us, and nothing of its group that comes before it is on its way back.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        let Tenure { until, settled } = *self.tenure();
        let is_ours = settled.is_none() && now < until;
        is_ours && self.0.ahead.as_ref().is_none_or(|ahead| ahead.is_past(now))
    }

    /// Whether what comes after it may be started.
    fn is_past(&self, now: Instant) -> bool {
        let settled = self.tenure().settled;
        match settled {
            Some(Settle::HandBack) => false,
            Some(_) => true,
            None => self.holds(now),
        }
    }

    /// Notes its end, after which it is neither extended nor settled again. False if it has no other end than
    /// that its visibility has passed.
    pub(crate) fn settle(&self, verdict: Settle, now: Instant) -> bool {
        let mut tenure = self.tenure();
        if tenure.settled.is_some() || now >= tenure.until {
            return false;
        }
        tenure.settled = Some(verdict);
        true
    }

    /// What an extension by `visibility` comes to, in whole seconds.
    pub(crate) fn extension(&self, visibility: Duration, now: Instant) -> Extension {
        let Tenure { until, settled } = *self.tenure();
        if settled.is_some() {
            return Extension::Needless;
        }
        if now >= until {
            return Extension::TooLate;
        }
        let left = LONGEST.saturating_sub(now - self.0.received);
        match Duration::from_secs(visibility.min(left).as_secs()) {
            Duration::ZERO => Extension::Exhausted,
            by => Extension::By(by),
        }
    }

    /// It is ours until then. Never shortened: an answer may come late.
    pub(crate) fn extended(&self, until: Instant) {
        let mut tenure = self.tenure();
        tenure.until = tenure.until.max(until);
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tenure { until, settled } = *self.tenure();
        f.debug_struct("Receipt").field("until", &until).field("settled", &settled).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn receipt(now: Instant, seconds: u32, ahead: Option<&Receipt>) -> Receipt {
        Receipt::new("handle".into(), now, now + SECOND * seconds, ahead.cloned())
    }

    #[test]
    fn it_holds_until_its_time_has_passed_or_it_is_settled() {
        let now = Instant::now();
        let first = receipt(now, 30, None);
        assert!(first.holds(now + SECOND * 29) && !first.holds(now + SECOND * 30));
        first.extended(now + SECOND * 50);
        first.extended(now + SECOND * 40);
        assert!(first.holds(now + SECOND * 49));
        assert!(first.settle(Settle::Ack, now) && !first.settle(Settle::Ack, now), "once");
        assert!(!first.holds(now));
        assert!(!receipt(now, 30, None).settle(Settle::Ack, now + SECOND * 30), "too late");
    }

    #[test]
    fn a_group_goes_back_as_a_whole_from_where_it_begins_to() {
        let now = Instant::now();
        let first = receipt(now, 10, None);
        let second = receipt(now, 30, Some(&first));
        let third = receipt(now, 30, Some(&second));
        assert!(third.holds(now));
        assert!(!third.holds(now + SECOND * 10), "the first has gone back, and comes before it");
        assert!(first.settle(Settle::Ack, now));
        assert!(third.holds(now + SECOND * 10), "the first is done");
        assert!(second.settle(Settle::HandBack, now));
        assert!(!third.holds(now));
    }

    #[test]
    fn an_extension_ends_with_the_twelve_hours() {
        let now = Instant::now();
        let held = receipt(now, 43_200, None);
        let hour = Duration::from_hours(1);
        assert_eq!(held.extension(hour, now), Extension::By(hour));
        assert_eq!(held.extension(hour, now + hour * 12 - SECOND * 90), Extension::By(SECOND * 90));
        assert_eq!(held.extension(hour, now + hour * 12 - SECOND / 2), Extension::Exhausted);
        assert_eq!(held.extension(hour, now + hour * 12), Extension::TooLate);
        held.settle(Settle::Ack, now);
        assert_eq!(held.extension(hour, now), Extension::Needless);
    }

    #[test]
    fn nothing_prints_the_handle() {
        assert!(!format!("{:?}", receipt(Instant::now(), 1, None)).contains("handle"));
    }
}
