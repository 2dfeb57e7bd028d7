//! What every publisher to a broker must do.

pub mod outage;
pub mod result;

use std::future::Future;

use hapax_core::{Envelope, Outgoing, Publisher};

use super::source::SourceFixture;
use super::within_limit;

/// A publisher under test, and a source of what it publishes.
pub trait PublisherFixture: SourceFixture {
    /// The publisher.
    type Publisher: Publisher;

    /// A publisher whose connections can be cut off.
    fn publisher(&self) -> impl Future<Output = Self::Publisher>;

    /// The queue that the fixture's source reads, as a message is addressed to it.
    fn queue(&self) -> String;

    /// A queue that is not there; none if there is nothing that is not.
    fn nowhere(&self) -> Option<String>;

    /// How large a body is too large, if anything is.
    fn too_large(&self) -> Option<usize>;

    /// Lets nobody through to the broker any more.
    fn cut_off(&self) -> impl Future<Output = ()>;

    /// Lets everybody through again.
    fn heal(&self) -> impl Future<Output = ()>;
}

fn to_queue<F: PublisherFixture>(fixture: &F, envelope: Envelope) -> Outgoing {
    Outgoing::to_queue(fixture.queue(), envelope)
}

/// Runs one case on a fresh fixture, if there is one to be had.
pub async fn run<F: PublisherFixture>(case: impl AsyncFnOnce(&F)) {
    within_limit(async {
        if let Some(fixture) = F::fresh().await {
            case(&fixture).await;
        }
    })
    .await;
}

/// Makes a test of each case of the publisher suite, for a [`PublisherFixture`] that is in scope.
///
/// The crate needs `tokio` with the features `macros` and `rt-multi-thread` among its dev-dependencies.
#[macro_export]
macro_rules! publisher_conformance {
    ($fixture:ty) => {
        $crate::conformance_cases! {
            publisher, $fixture,
            result {
                what_is_confirmed_can_be_read
                the_messages_of_a_key_come_in_their_order
                case_26_what_goes_nowhere_is_an_error_and_the_others_are_sent
                case_27_what_is_too_large_is_an_error_and_the_others_are_sent
            }
            outage {
                case_26_while_the_broker_is_away_nothing_counts_as_sent
            }
        }
    };
}
