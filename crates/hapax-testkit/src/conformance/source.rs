//! What every source must do.

pub(super) mod by_hand;
pub mod consumer;
pub mod delivery;
pub mod lanes;
pub mod leases;
pub mod reconnect;
pub mod settle;

use hapax_core::{Envelope, Headers, Source};

use super::within_limit;

/// A source under test, with a queue of its own.
pub trait SourceFixture: Sized + Send + Sync + 'static {
    /// The source.
    type Source: Source;

    /// The largest body it carries, in bytes; larger ones are not tried. Default: 1 MiB.
    const LARGEST_BODY: usize = 1 << 20;

    /// Whether its settler tells when a delivery's time has passed ([`Settler::holds`](hapax_core::Settler::holds)).
    const KNOWS_WHAT_IT_HOLDS: bool = false;

    /// An empty queue of its own, which goes when the fixture is dropped. Where deliveries are leased, the
    /// lease should be about a second: the cases wait for it to run out. None if the server it needs is not
    /// there, which [`require`](crate::servers::require) has noted.
    fn fresh() -> impl Future<Output = Option<Self>>;

    /// Publishes a message to the queue and waits until the broker has it.
    fn publish(&self, envelope: Envelope) -> impl Future<Output = ()>;

    /// A source on the queue, with a connection of its own.
    fn source(&self) -> impl Future<Output = Self::Source>;

    /// Cuts the connections of all its sources, as a network does, and says whether it can.
    fn drop_connections(&self) -> impl Future<Output = bool> {
        async { false }
    }

    /// Whether what is in hand when a connection goes stays in hand, and may be settled through the next one. False:
    /// it comes again, and the earlier receipt is stale.
    fn receipts_outlive_connections() -> bool {
        false
    }

    /// What the broker can carry of an envelope. Left as it is: everything but the broker's own id.
    fn carried(envelope: Envelope) -> Envelope {
        let mut carried = envelope;
        carried.properties.broker_id = None;
        carried
    }
}

/// An envelope as cases compare it: its origin is the source's to say, and headers have no order on some
/// brokers.
fn comparable(mut envelope: Envelope) -> Envelope {
    let mut headers: Vec<(String, String)> =
        envelope.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    headers.sort();
    envelope.headers = headers.into_iter().collect::<Headers>();
    envelope.properties.broker_id = None;
    envelope.origin = hapax_core::Origin::default();
    envelope
}

/// Runs one case on a fresh fixture, if there is one to be had.
pub async fn run<F: SourceFixture>(case: impl AsyncFnOnce(&F)) {
    within_limit(async {
        if let Some(fixture) = F::fresh().await {
            case(&fixture).await;
        }
    })
    .await;
}

/// Makes a test of each case of the source suite, for a [`SourceFixture`] that is in scope.
///
/// The crate needs `tokio` with the features `macros` and `rt-multi-thread` among its dev-dependencies.
#[macro_export]
macro_rules! source_conformance {
    ($fixture:ty) => {
        $crate::conformance_cases! {
            source, $fixture,
            delivery {
                a_message_comes_through_byte_for_byte
                every_message_comes_once_in_batches_of_max
                a_first_delivery_is_not_redelivered
                a_check_takes_no_message
                it_waits_for_what_is_published
                case_43_a_fetch_cancelled_anywhere_loses_nothing
                a_small_limit_lets_everything_through
                two_sources_share_a_queue
            }
            settle {
                an_acked_message_never_comes_again
                an_unsettled_message_comes_again
                a_message_handed_back_comes_again
                a_batch_is_settled_entry_by_entry
                acking_the_last_does_not_ack_the_first
                acks_may_come_in_any_order
                many_workers_settle_at_once
                nothing_can_be_settled
                close_returns_what_was_not_handed_out
                a_receipt_of_a_source_that_went_does_no_harm
            }
            reconnect {
                case_17_a_source_goes_on_after_its_connection_was_cut
                case_17_a_late_ack_does_not_reach_the_new_connection
                settling_while_the_connection_goes_ends
            }
            leases {
                case_13_an_extended_delivery_is_not_taken_away
                case_13_a_receipt_that_ran_out_does_no_harm
                case_14_what_ran_out_is_no_longer_held
                case_14_what_lay_in_the_source_for_too_long_is_not_handed_out
            }
            lanes {
                the_messages_of_a_lane_come_in_order
            }
            consumer {
                case_09_a_copy_that_is_sent_again_has_no_effect
                case_36_ids_are_told_apart_byte_for_byte
                case_37_ids_of_several_fields_do_not_run_together
                case_38_messages_without_an_id_are_set_aside_each
                case_39_a_payload_that_cannot_be_used_is_set_aside
                case_40_amounts_arrive_digit_for_digit
                case_41_a_type_nobody_handles_is_set_aside
                case_42_a_batch_in_which_two_fail
            }
        }
    };
}
