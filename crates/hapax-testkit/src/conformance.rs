//! What every store, source and publisher must do, written once.
//!
//! An adapter implements [`StoreFixture`](store::StoreFixture), [`SourceFixture`](source::SourceFixture) or
//! [`PublisherFixture`](publisher::PublisherFixture) in its test folder and calls
//! [`store_conformance!`](crate::store_conformance), [`source_conformance!`](crate::source_conformance) or
//! [`publisher_conformance!`](crate::publisher_conformance), which makes a test of each case:
//!
//! ```ignore
//! hapax_testkit::store_conformance!(OnPostgres);
//! ```
//!
//! Cases that reproduce a scenario which users of comparable software reported carry its number: `case_07_…`.

pub mod publisher;
pub mod source;
pub mod store;

use std::time::Duration;

/// The longest a case may take; one that hangs fails with its name instead of holding up the run.
const LIMIT: Duration = Duration::from_mins(2);

/// The longest a condition is waited for that should hold at once.
const SOON: Duration = Duration::from_secs(20);

/// The shortest lease that a slow machine does not miss, for cases in which one is to run out.
const SHORT_LEASE: Duration = Duration::from_millis(300);

/// Runs a case within [`LIMIT`].
async fn within_limit(case: impl Future<Output = ()>) {
    assert!(tokio::time::timeout(LIMIT, case).await.is_ok(), "the case did not end within {LIMIT:?}");
}

/// Polls a future at most `polls` times, each time it asks for it, and drops it unless it completed.
#[doc(hidden)]
pub async fn cancelled_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Makes a test of each case; the names are the modules and functions of a suite.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($suite:ident, $fixture:ty, $($module:ident { $($case:ident)* })*) => {
        $(
            mod $module {
                #[allow(unused_imports, reason = "the fixture may be named by a path of its own")]
                use super::*;

                $(
                    #[tokio::test(flavor = "multi_thread")]
                    async fn $case() {
                        $crate::conformance::$suite::run(async |fixture: &$fixture| {
                            $crate::conformance::$suite::$module::$case(fixture).await;
                        })
                        .await;
                    }
                )*
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    /// Each suite's list of cases, and the files they are written in.
    const SUITES: [(&str, &[&str]); 3] = [
        (
            include_str!("conformance/store.rs"),
            &[
                include_str!("conformance/store/claim.rs"),
                include_str!("conformance/store/transaction.rs"),
                include_str!("conformance/store/rivals.rs"),
                include_str!("conformance/store/waiting_room.rs"),
                include_str!("conformance/store/order.rs"),
                include_str!("conformance/store/outbox.rs"),
                include_str!("conformance/store/dead_letters.rs"),
                include_str!("conformance/store/retention.rs"),
                include_str!("conformance/store/suspects.rs"),
                include_str!("conformance/store/instances.rs"),
                include_str!("conformance/store/inbox.rs"),
                include_str!("conformance/store/running.rs"),
                include_str!("conformance/store/calls.rs"),
                include_str!("conformance/store/versions.rs"),
            ],
        ),
        (
            include_str!("conformance/source.rs"),
            &[
                include_str!("conformance/source/delivery.rs"),
                include_str!("conformance/source/settle.rs"),
                include_str!("conformance/source/reconnect.rs"),
                include_str!("conformance/source/leases.rs"),
                include_str!("conformance/source/lanes.rs"),
                include_str!("conformance/source/consumer.rs"),
            ],
        ),
        (
            include_str!("conformance/publisher.rs"),
            &[
                include_str!("conformance/publisher/outage.rs"),
                include_str!("conformance/publisher/result.rs"),
            ],
        ),
    ];

    #[test]
    fn every_case_that_is_written_is_run() {
        for (suite, files) in SUITES {
            for line in files.iter().flat_map(|file| file.lines()) {
                let Some(signature) = line.strip_prefix("pub async fn ") else { continue };
                let case = signature.split('<').next().unwrap();
                assert!(suite.lines().any(|line| line.trim() == case), "`{case}` is not in the suite's list");
            }
        }
    }
}
