//! The lists of all cases.

/// All themes, each as input for another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __themes {
    ($($then_and_with:tt)*) => {
        $crate::__each_theme! { [
            tokens floors policies keys settings exclusion claims permits once several release
            leases breaking queues drops unpolled outages refused reentry late_answers
            late_commands cost restart load
        ] $($then_and_with)* }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __each_theme {
    ([$($theme:ident)*] $then:tt $with:tt) => {
        $($crate::__theme! { $theme $then $with })*
    };
}

/// The cases of a theme, as input for another macro, and how they start the store.
#[doc(hidden)]
#[macro_export]
macro_rules! __theme {
    (tokens [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start_durable tokens {
                tokens_rise_from_grant_to_grant
                tokens_rise_through_hand_overs
                tokens_rise_after_a_lease_ran_out
                tokens_rise_over_keys_that_were_idle
                fenced_is_refused_where_tokens_may_go_back
            }
        }
    };
    (floors [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start_durable floors {
                a_floor_is_obeyed_by_who_does_not_name_it
                a_floor_is_raised_while_locks_are_taken
                a_floor_that_cannot_be_is_refused
            }
        }
    };
    (policies [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start policies {
                a_free_lock_is_had_at_once
                a_held_lock_is_busy_for_who_does_not_wait
                a_wait_ends_at_its_timeout
                the_configured_timeout_applies
                the_attribute_runs_its_body_under_the_lock
                the_attribute_gives_up_as_it_is_told
                on_error_makes_the_value
            }
        }
    };
    (keys [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start keys {
                keys_do_not_wait_for_each_other
                namespaces_keep_the_same_key_apart
                any_text_can_be_a_key
                what_cannot_be_a_key_is_refused
                a_key_is_shown_on_one_short_line
                a_ttl_that_the_store_cannot_keep_is_refused
                the_first_of_a_list_are_the_first_by_key
                inspect_and_list_show_what_is_held
                who_holds_and_who_waits_is_shown
                since_when_it_is_held_is_that_of_the_grant
            }
        }
    };
    (settings [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start settings {
                a_configuration_out_of_its_range_is_refused
                a_request_out_of_its_range_is_refused
                the_ends_of_the_ranges_work
            }
        }
    };
    (exclusion [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start exclusion {
                bodies_of_one_key_do_not_overlap
                readers_share_and_a_writer_is_alone
                a_reader_waits_for_the_writer_that_holds
                a_writer_waits_for_every_reader
                readers_do_not_starve_a_writer
                readers_behind_a_writer_who_leaves_are_let_in
                readers_and_writers_are_let_in_as_they_came
            }
        }
    };
    (claims [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start claims {
                permits_are_refused_where_they_cannot_be_kept
                once_is_refused_where_it_cannot_be_kept
            }
        }
    };
    (permits [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start permits {
                all_permits_are_in_use_and_no_more
                a_queue_of_two_hundred_is_let_in_seven_at_a_time
                readers_take_permits_and_writers_all_of_them
                who_waits_for_a_permit_is_let_in_as_it_came
                a_writer_among_permits_waits_its_turn
                readers_writers_and_permits_are_all_served
                who_waits_behind_one_that_gives_up_is_let_in
                a_permit_that_is_given_back_is_the_next_ones
                a_permit_goes_from_task_to_task
                a_place_that_is_taken_out_is_that_of_one_task
                processes_that_name_different_numbers_are_told
                a_wait_for_a_permit_ends_at_its_timeout
                tokens_of_permits_rise_from_grant_to_grant
                a_process_with_many_tasks_leaves_permits_to_others
                a_permit_of_the_dead_comes_free
                a_permit_of_the_dead_is_for_whom_there_is_room
                a_permit_is_renewed
                re_entry_costs_no_permit
                permits_of_several_keys_are_had_together
            }
        }
    };
    (once [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start once {
                what_was_done_is_remembered
                it_is_remembered_for_its_time
                what_was_not_done_is_not_remembered
                a_lease_that_was_lost_marks_nothing
                a_lock_that_was_taken_away_is_not_marked
                a_task_inside_says_that_it_is_done
                a_shutdown_waits_for_a_mark
                who_waits_for_what_was_done_is_told
                who_waits_is_told_at_once
                tasks_that_wait_for_what_was_done_are_told
                inside_another_it_is_remembered_when_that_ends
                one_around_it_that_does_not_come_to_its_end_undoes_it
                what_is_lost_behind_it_is_not_remembered
                a_guard_says_that_it_is_done
                min_hold_is_kept_by_the_mark
                the_attribute_runs_its_body_once
                a_mark_whose_answer_was_lost_is_made
                a_mark_is_made_up_for_after_an_outage
                copies_that_come_whenever_do_it_once
            }
        }
    };
    (several [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start several {
                several_keys_are_had_together
                all_or_none
                order_does_not_matter
                tokens_come_in_the_order_written
            }
        }
    };
    (release [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start release {
                a_value_releases
                an_error_releases
                a_panic_releases
                a_dropped_body_releases
                a_dropped_guard_releases
                a_holder_that_died_frees_it_within_its_ttl
                a_holder_that_died_keeps_it_no_longer
                a_late_release_changes_nothing
                a_foreign_lease_is_not_touched
                min_hold_keeps_it
                the_store_knows_of_min_hold_when_the_body_has_ended
                shutdown_finishes_what_is_under_way
                nothing_is_left_behind
            }
        }
    };
    (leases [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start leases {
                a_lease_is_renewed
                a_fixed_lease_ends
                max_hold_ends_a_hung_body
                a_lease_taken_away_ends_the_body
                a_lease_taken_away_shows_in_the_guard
                on_lost_continue_lets_the_body_go_on
                a_body_that_blocks_its_runtime_keeps_its_lease
                a_body_that_blocks_the_runtime_of_its_manager_keeps_its_lease
                a_fixed_lease_is_lost_after_a_block
                a_lease_past_its_max_hold_is_lost_after_a_block
                a_block_past_max_hold_holds_up_no_other_lock
                a_runtime_that_stands_still_has_its_lock
                a_runtime_that_stands_still_tells_of_no_outage
            }
        }
    };
    (breaking [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start breaking {
                a_break_lets_the_next_in_at_once
                a_broken_holder_is_told
                a_wrong_token_breaks_nothing
                one_of_several_holders_is_broken
                one_of_several_holders_is_broken_by_its_token
                who_has_the_lock_since_is_not_broken
                who_is_not_there_is_not_broken
                what_was_done_is_not_broken
                a_broken_process_queues_again
                a_waiter_is_taken_out_and_the_others_keep_their_order
                the_tasks_of_a_place_are_taken_out_together
                who_waited_behind_one_that_is_taken_out_is_let_in
                a_break_whose_answer_was_lost_breaks_nobody_else
            }
        }
    };
    (queues [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start queues {
                a_released_lock_wakes_its_waiter
                processes_are_served_in_order
                who_waits_long_keeps_its_place
                tasks_of_one_process_are_served_in_order
                a_handing_over_process_lets_others_in
                strict_order_hands_nothing_over
                who_has_no_cause_to_ask_is_not_woken
            }
        }
    };
    (drops [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start drops {
                dropped_at_every_poll_of_a_free_lock
                dropped_at_every_poll_of_a_held_lock
                dropped_at_every_poll_as_the_lock_comes_free
                a_dropped_waiter_does_not_hold_up_the_next
                dropped_at_every_poll_of_several_keys
                dropped_at_every_poll_of_a_release
                dropped_at_every_poll_outside_of_a_runtime
            }
        }
    };
    (unpolled [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start unpolled {
                a_lock_that_nobody_comes_for_is_passed_on
                a_place_that_nobody_comes_for_is_passed_on
                a_hand_over_that_nobody_comes_for_is_passed_on
                what_a_sleeper_has_of_several_keys_is_passed_on
            }
        }
    };
    (outages [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start outages {
                an_outage_is_its_own_error
                a_timeout_bounds_an_outage
                a_try_takes_one_request_timeout_of_silence
                a_store_that_comes_back_serves_again
                a_lease_outlives_a_short_outage
                a_lease_does_not_outlive_a_long_outage
                a_lease_does_not_outlive_a_long_silence
                a_waiter_does_not_hang_in_an_outage
                a_release_is_made_up_for_after_an_outage
                a_try_behind_a_task_that_asks_is_told_of_the_outage
                calls_behind_others_tell_an_outage
                calls_behind_a_release_tell_an_outage
                many_releases_wait_for_one_outage
                a_shutdown_waits_for_one_outage
            }
        }
    };
    (refused [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start refused {
                a_refused_connection_is_told_at_once
                a_refused_connection_is_the_cause_that_is_told
                another_kind_of_server_is_named
            }
        }
    };
    (reentry [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start reentry {
                a_nested_call_returns_at_once_with_the_same_token
                a_nested_attribute_reenters
                re_entry_asks_nothing_of_the_store
                halves_of_a_join_exclude_each_other
                a_spawned_task_waits
                a_spawned_task_in_the_lock_scope_reenters
                the_lock_scope_ends_with_the_lock
                a_task_inside_keeps_the_lock
                writing_inside_ones_own_read_is_refused
                reading_inside_ones_own_write_is_re_entry
                current_shows_the_innermost_lock
            }
        }
    };
    (late_answers [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start late_answers {
                a_lease_counts_from_its_question
                a_renewed_lease_counts_from_its_question
                a_question_that_has_to_wait_is_given_up_in_time
            }
        }
    };
    (late_commands [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start_far late_commands {
                a_request_that_arrives_late_leaves_nothing
                a_dropped_call_that_arrives_late_leaves_nothing
                a_lock_that_was_had_unheard_is_given_back
                a_lock_whose_answer_was_lost_is_had
                a_release_whose_answer_was_lost_is_one
                a_permit_whose_answer_was_lost_is_one_of_two
                a_shutdown_waits_for_what_was_dropped
                cut_connections_keep_nobody_waiting
                dead_connections_are_replaced
            }
        }
    };
    (cost [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start_alone cost {
                a_section_costs_no_more_than_it_has_to
                a_permit_costs_what_a_read_lock_costs
                a_thousand_waiters_on_one_key_cost_as_much_as_one
                a_thousand_waiters_on_a_thousand_keys_cost_as_much_as_one
                a_release_wakes_one_of_many
            }
        }
    };
    (restart [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start_alone restart {
                tokens_rise_across_a_restart
                a_floor_outlasts_a_restart
                what_is_held_and_waited_for_goes_on
                permits_and_what_was_done_go_on
            }
        }
    };
    (load [$($then:tt)*] [$($with:tt)*]) => {
        $($then)*! { $($with)*
            start load {
                ten_contenders_add_up
                two_hundred_contenders_add_up
                tasks_over_keys_drawn_at_random_add_up
                contenders_that_renew_add_up
            }
        }
    };
}

/// The cases with processes, as input for another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __contenders {
    ([$($then:tt)*] $($with:tt)*) => {
        $($then)*! { $($with)*
            start_contended processes {
                processes_add_up
                a_deploy_in_which_half_name_a_floor_adds_up
                a_killed_holder_frees_its_lock
                a_killed_waiter_delays_the_rest_for_a_bounded_time
                a_paused_holder_stops_when_it_comes_back
                a_paused_holder_that_writes_late_is_refused
                kills_and_pauses_at_random_moments_add_up
                permits_bear_kills_and_pauses
                what_is_done_bears_kills_and_pauses
                a_death_between_the_end_of_the_body_and_its_mark_runs_it_again
            }
        }
    };
}
