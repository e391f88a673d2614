//! What the stores that keep their locks in the tables of a database have in
//! common: each runs `tables!(ItsStore)`, and those with a server
//! `far_tables!(ItsStore)` too.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "a file has no network to fail"
)]

pub(crate) mod before;
pub(crate) mod clocks;
pub(crate) mod faults;
pub(crate) mod foreign;
pub(crate) mod late;
pub(crate) mod people;
pub(crate) mod permits;
pub(crate) mod places;
pub(crate) mod quick;
pub(crate) mod together;

use std::time::Duration;

use dlock::Config;
use dlock_conformance::Store;

use crate::support::proxy::Proxy;

/// A store whose tables a test can change behind its back.
pub(crate) trait Tables: Store {
    /// Milliseconds since 1970, as this database says it.
    const NOW: &'static str;

    /// What the version before said to this database in its own way: see `before.sql`.
    const BEFORE: &'static str;

    /// What a page has to make the tables of the version before those of this one. None,
    /// dlock does it.
    fn upgrade() -> Vec<&'static str>;

    /// Leads to tables that are there: a server's are neither made nor changed.
    fn as_they_are(&self) -> Config;

    /// Runs a statement: how many rows it has changed.
    async fn execute(&self, sql: &str) -> u64;

    /// Runs statements: all that they answer with.
    async fn rows(&self, sql: &str) -> Vec<Vec<String>>;

    /// The number that a query answers with.
    async fn number(&self, sql: &str) -> i64;
}

/// The same, reached over a network that can fail.
pub(crate) trait FarTables: Tables {
    type Keeper;

    fn proxy(&self) -> &Proxy;

    /// Leads to it by another way.
    fn direct(&self) -> Config;

    /// Keeps the row of a lock from everybody else, until it is dropped.
    async fn keep(&self, key: &str) -> Self::Keeper;

    /// Makes the row of a lock that has none, and keeps it from everybody else, until
    /// it is dropped: then there is none again.
    async fn keep_new(&self, key: &str) -> Self::Keeper;

    /// Keeps the queues of all locks from everybody else, until it is dropped.
    async fn keep_queue(&self) -> Self::Keeper;

    /// Leads to it over one connection at a time.
    fn narrow(&self, request_timeout: Duration) -> Config;
}

/// Rows of any columns, as text. `sqlx` knows only the concrete types.
macro_rules! rows {
    ($connection:expr, $sql:expr) => {
        async {
            use ::sqlx::Row as _;
            let rows = sqlx::raw_sql($sql).fetch_all($connection).await?;
            let read = rows.iter().map(|row| {
                let columns = 0..row.len();
                columns
                    .map(|column| row.try_get_unchecked(column))
                    .collect()
            });
            read.collect::<sqlx::Result<Vec<Vec<String>>>>()
        }
    };
}
pub(crate) use rows;

macro_rules! tables {
    ($store:ty) => {
        $crate::tables::tables! { @cases $store;
            before {
                processes_of_the_version_before_go_on_beside
                turns_are_kept_between_versions
                readers_and_places_are_kept_between_versions
            }
            clocks {
                a_reader_learns_that_the_lock_was_taken_away
                a_reader_learns_that_a_writer_got_the_lock
                a_lock_that_nobody_holds_is_free_whatever_the_clock_says
                a_free_lock_is_found_whatever_the_clock_says
                a_free_lock_is_cleaned_away_whatever_the_clock_says
                what_dead_readers_have_left_is_cleaned_away_under_a_writer
            }
            foreign {
                what_is_not_ours_is_told_and_gives_no_token_twice
                a_token_without_room_spoils_no_other_lock
                a_floor_without_room_is_named
            }
            people {
                who_holds_it_and_who_waits_is_read_by_sql
            }
            permits {
                who_goes_past_permits_leaves_them_their_places
                a_permit_counts_the_readers_before_it
                a_dead_permit_at_the_head_keeps_nobody
                a_number_that_is_none_fails_nobody
                the_place_of_a_permit_that_left_is_given_up
            }
            places {
                a_place_without_a_waiter_is_given_up_and_hides_no_other
                a_place_that_is_given_up_ends_no_lock_of_its_owner
            }
            quick {
                who_had_it_a_moment_ago_does_not_overtake
                a_call_that_stands_still_keeps_no_connection
                a_release_that_stands_still_lets_the_next_in
            }
            together {
                each_is_answered_as_if_it_were_alone
                one_that_is_refused_fails_alone
            }
        }
    };
    (@cases $store:ty; $($theme:ident { $($case:ident)* })*) => {
        mod rows {$(
            mod $theme {$(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let mut store = <$store as ::dlock_conformance::Store>::start().await;
                    let case = $crate::tables::$theme::$case(&mut store);
                    $crate::support::wait::within(2 * $crate::support::wait::HANG, case).await;
                }
            )*}
        )*}
    };
}
pub(crate) use tables;

macro_rules! far_tables {
    ($store:ty) => {
        mod far {
            $crate::tables::tables! { @cases $store;
                faults {
                    a_row_that_somebody_keeps_costs_no_other_lease
                    a_lease_that_ends_while_its_row_is_waited_for_has_ended
                    a_connection_that_was_forgotten_costs_no_operation
                    a_silence_behind_an_answer_keeps_no_place
                    a_try_has_one_request_timeout_for_all_it_asks
                    a_shutdown_waits_for_no_script_that_may_come_yet
                }
                late {
                    a_reader_whose_answer_was_lost_is_put_behind_nobody
                    a_permit_whose_answer_was_lost_needs_no_room
                    a_script_that_comes_late_locks_nothing_for_who_has_left
                }
                quick {
                    a_row_that_is_kept_is_locked_for_nobody_later
                    a_grant_whose_answer_is_lost_is_given_back
                    a_release_whose_answer_is_lost_is_done
                }
                together {
                    a_row_that_somebody_keeps_costs_no_other_lock
                    those_whose_answer_is_lost_are_given_back
                    a_row_that_is_reached_late_is_locked_for_nobody
                }
            }
        }
    };
}
pub(crate) use far_tables;
