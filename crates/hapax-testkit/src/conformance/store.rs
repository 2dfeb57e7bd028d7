//! What every store must do.

mod by_hand;
pub mod calls;
pub mod claim;
pub mod dead_letters;
pub mod inbox;
pub mod instances;
pub mod order;
pub mod outbox;
pub mod retention;
pub mod rivals;
pub mod running;
pub mod suspects;
pub mod transaction;
pub mod versions;
pub mod waiting_room;

use hapax_core::{BoxError, CallRecords, ConsumerStore, Outbox, Running, Store, Versions};

use super::within_limit;

/// A store under test, with a database of its own.
pub trait StoreFixture: Sized + Send + Sync + 'static {
    /// The store.
    type Store: ConsumerStore + Running + CallRecords + Versions + Outbox;

    /// Whether one transaction at a time can write, as in SQLite: a rival then waits for its turn, in its
    /// process, or is refused as [`Busy`](hapax_core::ErrorKind::Busy), where other databases answer
    /// [`Busy`](hapax_core::Claim::Busy) for the one message.
    const ONE_WRITER: bool = false;

    /// A store on an empty database of its own, which goes when the fixture is dropped, with a table of
    /// accounts for [`add`](Self::add). None if the server it needs is not there, which
    /// [`require`](crate::servers::require) has noted.
    fn fresh() -> impl Future<Output = Option<Self>>;

    /// The store.
    fn store(&self) -> Self::Store;

    /// A second store on the same database with connections of its own, as another process would have.
    fn reopened(&self) -> impl Future<Output = Self::Store>;

    /// A handler's effect: adds to an account in the handler's transaction, relative to what is there.
    fn add(
        tx: &mut <Self::Store as Store>::Tx,
        account: &str,
        n: i64,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// What is committed in an account, read through a connection of its own; zero if there is none.
    fn total(&self, account: &str) -> impl Future<Output = i64>;
}

/// Runs one case on a fresh fixture, if there is one to be had.
pub async fn run<F: StoreFixture>(case: impl AsyncFnOnce(&F)) {
    within_limit(async {
        if let Some(fixture) = F::fresh().await {
            case(&fixture).await;
        }
    })
    .await;
}

/// Makes a test of each case of the store suite, for a [`StoreFixture`] that is in scope.
///
/// The crate needs `tokio` with the features `macros` and `rt-multi-thread` among its dev-dependencies.
#[macro_export]
macro_rules! store_conformance {
    ($fixture:ty) => {
        $crate::conformance_cases! {
            store, $fixture,
            claim {
                a_new_message_takes_effect_once
                case_01_a_message_that_failed_is_new_again
                case_06_a_claim_that_was_lost_leaves_no_mark
                case_07_two_consumers_keep_their_own_records
                answers_stand_in_the_order_of_the_keys
                a_large_batch_commits_whole_or_not_at_all
                case_36_ids_are_told_apart_byte_for_byte
                case_37_ids_of_several_fields_do_not_run_together
                case_47_another_payload_under_a_known_id_shows
                a_row_keeps_digest_and_times_exactly
                another_process_sees_what_is_done
            }
            transaction {
                effect_and_record_commit_together
                an_unfinished_transaction_leaves_nothing_behind
                a_claim_of_nothing_is_a_plain_transaction
                a_handler_reads_its_own_writes
                case_43_a_claim_cancelled_anywhere_holds_nothing
                case_43_a_commit_cancelled_anywhere_is_whole_or_nothing
                as_many_can_be_open_as_it_says
                a_fresh_store_answers_and_has_its_schema
            }
            rivals {
                case_02_of_two_at_once_one_handles_and_neither_breaks
                case_04_of_fifty_at_once_exactly_one_commits
                a_message_held_by_a_rival_is_busy_and_the_others_are_not
                a_message_held_by_another_process_is_busy
                what_a_rival_rolls_back_is_new
                case_47_another_payload_shows_after_the_rival_committed
                case_07_another_consumer_is_no_rival
                overlapping_batches_take_effect_once_each
            }
            waiting_room {
                a_failed_message_waits_and_its_copies_do_not_count
                only_its_place_takes_a_waiting_message
                success_takes_the_waiting_row_along
                a_rolled_back_success_leaves_the_message_waiting
                a_rolled_back_parking_leaves_the_message_new
                a_message_is_not_leased_before_its_time
                parking_again_keeps_place_and_first_time
                a_deferred_message_has_no_failure_and_no_code
                a_batch_is_parked_whole
                a_leased_message_is_nobody_elses
                leases_taken_at_once_do_not_overlap
                a_lease_that_ran_out_shows
                a_message_given_back_is_due_and_unmarked
                a_renewed_lease_outlasts_the_first
                a_message_comes_out_byte_for_byte
                depth_counts_what_is_there
                case_47_a_copy_does_not_change_the_waiting_message
            }
            order {
                a_message_behind_a_waiting_one_is_held
                a_message_behind_a_dead_one_is_held
                a_copy_is_not_held_behind_itself
                only_the_head_of_a_key_is_leased
                the_next_of_a_key_follows_the_head
                a_waiting_message_with_one_before_it_is_held
                a_dead_letter_holds_its_key_until_it_is_discarded
                a_dead_letter_does_not_hold_those_before_it
                a_redriven_message_keeps_its_place
                a_redriven_message_that_never_waited_comes_first_too
                case_49_the_messages_of_a_key_take_effect_in_order
            }
            dead_letters {
                a_dead_letter_is_kept_whole
                copies_of_a_dead_message_do_not_run
                a_dead_letter_remembers_its_first_failure
                a_rolled_back_burial_leaves_nothing
                case_38_messages_without_an_id_are_set_aside_each
                case_47_a_copy_that_differs_is_set_aside_beside_the_record
                case_08_a_redriven_message_takes_effect_once
                a_redriven_message_starts_afresh
                case_09_a_processed_message_resubmitted_has_no_effect
                case_10_of_two_redrives_at_once_one_counts
                a_redriven_message_may_die_again
                a_message_without_an_id_is_redriven_under_a_given_one
                a_message_with_an_id_keeps_it
                a_discarded_message_stays_dead
                an_unknown_number_is_not_found
                dead_letters_are_found_by_what_is_asked
                a_redriven_message_is_due_now
            }
            retention {
                a_young_row_is_kept
                a_row_is_as_old_as_the_later_of_its_times
                a_purge_is_bounded
                waiting_and_dead_rows_are_never_purged
                the_horizon_moves_with_the_rows
                another_consumers_rows_are_left_alone
                case_12_what_may_have_been_purged_is_ambiguous
                slack_widens_what_is_ambiguous
                an_ambiguous_message_can_be_handled_or_set_aside
                an_ambiguous_message_of_a_held_key_is_ambiguous
                case_11_purges_and_claims_do_not_stand_in_each_others_way
            }
            suspects {
                case_15_starts_are_counted_up_to_the_limit
                a_message_that_would_not_run_is_not_charged
                a_waiting_message_is_charged_at_its_place
                a_held_message_is_not_charged
                starts_are_erased_with_the_commit
                a_message_in_a_rivals_hands_is_not_charged
            }
            instances {
                a_clean_end_leaves_nothing_to_suspect
                an_unclean_end_stays_visible
                a_beat_is_a_newer_sign_of_life
                instances_belong_to_their_consumer
                what_is_silent_for_long_is_forgotten
                a_beat_brings_a_forgotten_instance_back
            }
            inbox {
                a_look_answers_in_the_order_of_the_ids
                a_record_is_new_once
                a_waiting_message_is_recorded_at_its_place
                of_many_records_at_once_one_is_new
                a_record_in_a_transaction_commits_with_it
                a_rename_moves_every_record
                a_rename_to_a_taken_name_is_refused
                a_rename_of_nothing_moves_nothing
            }
            outbox {
                what_a_transaction_publishes_commits_with_it
                a_rolled_back_transaction_publishes_nothing
                a_published_message_is_kept_whole
                case_29_a_second_run_publishes_the_same_ids
                messages_of_a_key_come_in_order
                a_delayed_message_comes_later
                a_sent_message_is_not_sent_again
                two_relays_share_the_buckets
                a_key_belongs_to_one_relay
                a_dead_relays_buckets_are_taken
                a_relay_that_lives_keeps_its_buckets
                case_28_a_failing_message_blocks_its_key_or_is_skipped
                case_27_a_failing_message_is_parked_and_visible
                a_discarded_message_holds_up_nobody
                messages_for_a_broker_that_is_away_are_left_alone
                rows_are_found_by_what_is_asked
                a_commit_wakes_relays
            }
            running {
                what_is_begun_is_seen_by_everybody
                case_04_of_fifty_at_once_one_begins
                case_20_what_a_dead_one_began_is_taken_over
                case_47_another_payload_shows_when_it_takes_over
                case_21_what_is_renewed_is_not_taken_over
                case_22_a_late_loser_changes_nothing
                case_23_a_lease_of_zero_has_ended
                a_lease_that_ended_can_be_renewed_until_it_is_taken
                a_result_is_kept_beside_the_record
                a_result_commits_with_its_transaction
                what_is_given_up_is_new
                a_waiting_message_is_begun_at_its_place
                a_claim_with_the_fence_ends_it_in_the_transaction
                a_claim_with_a_fence_stands_among_others
                what_is_begun_can_wait_or_die
                a_message_in_a_transaction_is_not_begun
                case_12_what_may_have_been_purged_is_ambiguous_when_begun
                case_49_a_message_behind_another_of_its_key_is_not_begun
                a_begun_message_is_charged_to_its_owner
                what_is_begun_is_never_purged
            }
            calls {
                a_call_is_begun_once
                of_fifty_calls_at_once_one_is_made
                a_finished_call_answers_with_its_result
                case_35_an_unfinished_call_is_made_again
                a_renewed_call_is_not_made_again
                a_released_call_is_made_again_at_once
                another_request_under_the_label_is_refused
                an_unfinished_call_is_not_repeated_under_a_stale_key
                the_calls_of_a_message_are_listed
                calls_go_with_the_record_of_their_message
            }
            versions {
                case_45_an_older_version_is_not_newer
                the_first_version_is_newer_than_none
                case_45_a_deleted_entity_stays_deleted
                versions_belong_to_entity_and_consumer
                a_rolled_back_note_is_forgotten
                versions_noted_at_once_end_at_the_newest
            }
        }
    };
}
