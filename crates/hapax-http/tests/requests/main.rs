//! Requests with a key, in both modes and on every store: each takes effect once, and its copies get its
//! answer.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod cases;
mod outage;
mod protocol;
mod service;
mod stores;
mod takeover;
mod transaction;
mod trips;

/// Makes a test of each case, in both modes, for a fixture.
macro_rules! cases {
    ($fixture:ty) => {
        cases! { both $fixture, cases:
            case_31_another_body_is_422_when_the_first_has_finished
            case_31_another_body_is_422_while_the_first_runs
            case_31_another_body_is_422_while_a_copy_waits_for_the_answer
            case_31_another_method_query_or_content_type_is_422
            case_32_a_copy_is_409_while_the_first_runs_and_gets_its_answer_afterwards
            case_32_a_refusal_is_given_again
            case_32_a_failure_is_not_kept_and_the_key_can_be_used_again
            case_32_a_copy_can_wait_for_the_answer
            case_32_a_copy_that_waits_in_vain_gets_409
            case_32_a_second_process_does_not_run_it_again
            case_33_a_request_without_a_key_is_400
            case_33_what_is_not_one_quoted_string_is_400_and_never_treated_as_one
            case_34_one_key_of_two_tenants_is_two_requests
            case_34_who_is_nobody_is_400
            a_hundred_copies_at_once_run_the_handler_once
            a_client_that_hangs_up_gets_the_answer_when_it_asks_again
            a_panic_is_500_and_leaves_no_record
            a_key_of_255_bytes_works_with_a_long_tenant
            whoever_shuts_down_can_wait_for_what_is_at_work
        }
        mod recorded {
            cases! { one $fixture, takeover, recorded:
                a_request_whose_process_died_runs_again_and_is_told_so
                a_request_whose_process_died_is_refused_if_so_configured
                case_31_another_body_is_422_when_the_process_of_the_first_has_died
                a_handler_that_runs_for_three_leases_is_not_taken_over
                who_was_taken_over_answers_with_what_the_other_one_recorded
                case_31_another_body_is_422_while_the_first_runs_in_another_process
                case_32_a_copy_is_409_while_the_first_runs_in_another_process
                an_answer_that_is_too_large_leaves_a_record_without_it
            }
        }
        mod transactional {
            cases! { one $fixture, transaction, transactional:
                key_change_outbox_and_answer_commit_together
                a_key_that_is_free_again_publishes_under_ids_of_its_own
                an_answer_that_is_not_kept_rolls_back
                a_handler_that_keeps_its_transaction_is_rolled_back
                a_transaction_is_taken_once_at_a_time
                a_handler_that_never_takes_its_transaction_is_on_record_all_the_same
                a_route_without_the_layer_has_no_transaction
                what_the_database_undid_runs_again
                an_answer_that_is_too_large_rolls_back_or_passes
                case_32_a_copy_is_409_while_the_first_is_uncommitted_in_another_process
                a_lease_of_the_other_mode_that_has_ended_is_no_obstacle
            }
        }
    };
    (both $fixture:ty, $module:ident: $($case:ident)*) => {
        mod both_recorded { cases! { one $fixture, $module, recorded: $($case)* } }
        mod both_transactional { cases! { one $fixture, $module, transactional: $($case)* } }
    };
    (one $fixture:ty, $module:ident, $mode:ident: $($case:ident)*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            hapax_testkit::conformance::store::run::<$fixture>(async |fixture| {
                crate::$module::$case(&crate::service::$mode(fixture).await).await;
            })
            .await;
        }
    )* };
}

mod memory {
    cases! { crate::stores::InMemory }
}

mod sqlite {
    cases! { crate::stores::OnSqlite }
}

mod server {
    mod postgres {
        cases! { crate::stores::OnPostgres }
    }

    mod mongodb {
        cases! { crate::stores::OnMongo }
    }
}
