//! Work under a lease.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use hapax_core::{Code, Error, ErrorKind};
use tracing::warn;

/// Does some work and renews its lease meanwhile, three times within one. What the renewals answer is not asked
/// for: a lease that was lost shows when the work is recorded. A renewal that is under way when the work is done is
/// waited for, since a store's operations are not to be cut off.
pub(crate) async fn under_lease<W, R>(lease: Duration, renew: impl Fn() -> R, work: W) -> W::Output
where
    W: Future,
    R: Future<Output = Result<(), Error>>,
{
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(lease / 3) => {}
        }
        let mut renewal = pin!(async {
            if let Err(error) = renew().await {
                warn!(%error, "a lease could not be renewed");
            }
        });
        tokio::select! {
            biased;
            done = &mut work => {
                renewal.await;
                return done;
            }
            () = &mut renewal => {}
        }
    }
}

/// A database's clock must be able to hold its end.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// Refuses a lease that has ended when it begins, or never does.
pub(crate) fn check_lease(lease: Duration) -> Result<(), Error> {
    let context = if lease.is_zero() {
        "a lease of zero has ended before its work begins: give one that outlasts a pause of the process, such as 30 s"
    } else if lease > LONGEST {
        "a lease of more than a year does not end: give one that outlasts a pause of the process, such as 30 s"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context))
}
