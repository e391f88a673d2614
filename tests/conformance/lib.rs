//! The promises of every store of [`dlock`], as tests of its public surface. Each store runs all
//! of them, unchanged, against a real server.
//!
//! [`Store`] defines how a test reaches a store and breaks it. A store is not tested for what it
//! does not claim in its [`Capabilities`](dlock::backend::Capabilities). A test program for a
//! store looks like this:
//!
//! ```standalone_crate
//! use dlock::Config;
//! use dlock::backend::memory::Memory;
//! use dlock_conformance::{Store, async_trait, conformance};
//!
//! struct MemoryStore(Memory);
//!
//! #[async_trait(?Send)]
//! impl Store for MemoryStore {
//!     async fn start() -> Self {
//!         Self(Memory::new())
//!     }
//!
//!     fn config(&self) -> Config {
//!         Config::with_backend(self.0.clone())
//!     }
//!
//!     async fn take_away(&self, key: &str) {
//!         assert!(self.0.faults().take_away(key), "nobody held `{key}`");
//!     }
//!
//!     async fn set_outage(&self, outage: bool) {
//!         self.0.faults().set_unavailable(outage);
//!     }
//! }
//!
//! conformance!(crate::MemoryStore);
//! # fn main() {}
//! ```
//!
//! A store that processes can share, at its [`url`](Store::url), also runs [`contenders!`]. What
//! it grants to separate processes, some of which are killed or paused, is checked against the
//! history of a resource that trusts nobody.
//!
//! [`support`] has further tools for the tests of a store: a proxy that fails, futures that are
//! dropped at a chosen poll, waiting for a condition.

mod breaking;
#[doc(hidden)]
pub mod claims;
mod cost;
mod drops;
mod exclusion;
pub mod failover;
mod floors;
mod keys;
mod late_commands;
mod leases;
mod load;
mod once;
mod outages;
mod permits;
mod policies;
pub mod processes;
mod queues;
mod reentry;
mod refused;
mod release;
mod restart;
mod settings;
mod several;
pub mod support;
mod tokens;
mod unpolled;

use std::pin::Pin;
use std::time::Duration;

pub use async_trait::async_trait;
use dlock::{Config, LockManager};

pub use support::locks::connect;
use support::locks::{free, had, held, inspected, nothing_left};
use support::proxy::Proxy;
use support::wait::{HANG, eventually, until, within};

/// A store that belongs to one test.
#[async_trait(?Send)]
pub trait Store {
    /// Starts the store, empty.
    async fn start() -> Self
    where
        Self: Sized;

    /// Like [`start`](Self::start), for tests that ask for strict tokens: if the store can have
    /// strict tokens, it has them.
    async fn start_durable() -> Self
    where
        Self: Sized,
    {
        Self::start().await
    }

    /// Like [`start`](Self::start), on servers that no other test uses: only this test asks them,
    /// and they can be stopped.
    async fn start_alone() -> Self
    where
        Self: Sized,
    {
        Self::start().await
    }

    /// The themes of cases that this store leaves out: `permits` and `once`, if it does not have
    /// them; `cost`, if it has no [`costs`](Self::costs); `restart`, if it cannot be
    /// [restarted](Self::restart). No store is started for their cases. That it does not have
    /// them, and claims the others, is a test too.
    fn leaves_out() -> &'static [&'static str]
    where
        Self: Sized,
    {
        &[]
    }

    /// The URL of the store, which other processes can use too.
    fn url(&self) -> String {
        unreachable!("for a store that gives its `config`")
    }

    /// The configuration for the store. Each manager that connects stands for a process.
    fn config(&self) -> Config {
        Config::from_url(&self.url()).expect("a valid URL")
    }

    /// The configuration for another process. A store outside of dlock has no URL that dlock
    /// knows.
    fn config_at(url: &str) -> Config
    where
        Self: Sized,
    {
        Config::from_url(url).expect("a valid URL")
    }

    /// The proxies through which all of its servers are reached, so that a test can make the
    /// network fail.
    fn proxies(&self) -> &[Proxy] {
        &[]
    }

    /// Whether the store shows which processes hold a lock. The layout of another library has no
    /// room for that.
    fn shows_processes(&self) -> bool {
        true
    }

    /// A ttl that is short for a test, but long enough for this store to renew it in time on a
    /// busy machine.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(900)
    }

    /// For which holders the store shows since when they hold the lock.
    fn shows_since(&self) -> Since {
        Since::OfAll
    }

    /// For which holders the store shows the token, by which they can be broken.
    fn shows_tokens(&self) -> ShownTokens {
        ShownTokens::OfAll
    }

    /// Whether a waiter can be taken out of its queue. Asked only of a store that is fair.
    fn lets_waiters_out(&self) -> bool {
        true
    }

    /// Whether the store shows how many requests wait for a lock. A store without a queue does
    /// not know, and must not report that there are none.
    fn counts_waiters(&self) -> bool {
        true
    }

    /// How many requests wait for `key`. A store that does not count them must provide another
    /// way to find out.
    async fn waiters(&self, manager: &LockManager, key: &str) -> usize {
        let shown = async || inspected(manager, key).await;
        let lock = eventually("the store shows the lock", shown).await;
        lock.map_or(0, |lock| lock.waiters.expect("how many wait"))
    }

    /// How long this store may take to answer on a busy machine before it counts as gone.
    fn request_timeout(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// How many times two processes must hand a lock to each other within the time limit of a
    /// test. The default is for a store that notifies its waiters, on a busy machine.
    fn hand_overs(&self) -> usize {
        600
    }

    /// A configuration that bypasses the proxies, if there is one.
    fn past_proxies(&self) -> Option<Config> {
        None
    }

    /// Whether a call whose connection is dead is repeated over another connection, instead of
    /// being given up at its deadline.
    fn leaves_dead_connections(&self) -> bool {
        true
    }

    /// Whether its grants have fencing tokens. If they have none, the resource of the contenders
    /// counts the grants.
    fn has_tokens(&self) -> bool {
        true
    }

    /// Whether its tokens can be raised by a [floor](dlock::Config::token_floor).
    fn lifts_tokens(&self) -> bool {
        self.has_tokens()
    }

    /// The ttl of the contenders: so short that the lock of a process that died becomes free
    /// within the test.
    fn contenders_ttl(&self) -> Duration {
        Duration::from_secs(3)
    }

    /// Whether a process that is paused now blocks the store for all others. Only a store without
    /// a server has such moments.
    async fn is_stuck(&self) -> bool {
        false
    }

    /// Ends every lease on `key` without the holder's knowledge, as an operator could.
    async fn take_away(&self, key: &str) {
        unreachable!("`{key}`: for a store that runs the whole suite")
    }

    /// Begins an outage, in which the store cannot be reached; `false` ends it, if there is one.
    /// A store without [`proxies`](Self::proxies) must override this.
    async fn set_outage(&self, outage: bool) {
        for proxy in self.proxies() {
            proxy.refuse(outage);
        }
    }

    /// Makes the store silent while its connections stay open, if a test can do so; `false` ends
    /// that.
    async fn set_silence(&self, silence: bool) {
        if self.proxies().is_empty() {
            self.set_outage(silence).await;
        }
        for proxy in self.proxies() {
            proxy.stall(silence);
        }
    }

    /// Whether the locks of the store can still be inspected in such an outage.
    fn can_be_read_in_an_outage(&self) -> bool {
        false
    }

    /// Stops and starts the store, which keeps what it has confirmed. Returns `false` if this
    /// store cannot be restarted.
    async fn restart(&mut self) -> bool {
        false
    }

    /// The number of records in the store, if it can count them.
    async fn records(&self) -> Option<usize> {
        None
    }

    /// How much the store may be asked, if it counts that.
    fn costs(&self) -> Option<Costs> {
        None
    }

    /// How much it was asked so far, except by the test itself: the number of requests, or a more
    /// exact measure of the work they caused.
    async fn asked(&self) -> u64 {
        unreachable!("for a store that has `costs`")
    }
}

/// For which holders a store shows since when they hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Since {
    /// For every holder, by the store's clock.
    OfAll,
    /// For every holder, by the holder's own clock.
    OfAllByTheirClocks,
    /// For every holder that had to wait, by the store's clock.
    OfThoseWhoWaited,
    /// For every holder that has renewed its lease, by its own clock.
    OfThoseWhoRenewed,
    /// For every holder that had to wait and has renewed its lease, by its own clock.
    OfThoseWhoWaitedAndRenewed,
    /// The same, and for a holder after which nobody has asked, by the store's clock.
    OfTheLastAndThoseWhoWaitedAndRenewed,
    /// For no holder.
    OfNobody,
}

/// For which holders of a lock a store shows the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShownTokens {
    /// For every holder.
    OfAll,
    /// For the last holder, if there are several.
    OfTheLast,
    /// For every holder that has renewed its lease.
    OfThoseWhoRenewed,
    /// For no holder of a lock.
    OfNone,
}

/// The highest costs of locks, in the unit that a store [counts](Store::asked).
///
/// ```
/// let costs = dlock_conformance::Costs::of_section(2).waiting(2.0, 1_000).idle(1);
/// assert_eq!((costs.section, costs.keys), (2, 1_000));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Costs {
    /// A critical section whose lock nobody else wants.
    pub section: u64,
    /// One second of waiting of a process, however many of its tasks wait.
    pub waiting: f64,
    /// `waiting` holds for up to this many locks at once.
    pub keys: usize,
    /// One second in which nobody holds a lock or waits for one.
    pub idle: u64,
}

impl Costs {
    /// A section costs so much, and all else nothing.
    pub const fn of_section(section: u64) -> Self {
        Self {
            section,
            waiting: 0.0,
            keys: 1,
            idle: 0,
        }
    }

    /// Sets the cost of a second of waiting, for up to so many `keys` at once.
    #[must_use]
    pub const fn waiting(mut self, waiting: f64, keys: usize) -> Self {
        self.waiting = waiting;
        self.keys = keys;
        self
    }

    /// Sets the cost of an idle second.
    #[must_use]
    pub const fn idle(mut self, idle: u64) -> Self {
        self.idle = idle;
        self
    }
}

/// A running test case.
#[doc(hidden)]
pub type Running<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// How a test wants its store to be started.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    non_camel_case_types,
    reason = "named as the methods that they stand for"
)]
pub enum Start {
    start,
    start_durable,
    start_alone,
    /// As `start`, for a store that is reached over a network.
    start_far,
    /// As `start`, for tests with processes, which take longer.
    start_contended,
}

/// Runs one case against its own store, with a time limit, unless the store leaves out its theme.
#[doc(hidden)]
pub fn run<S: Store>(as_asked: Start, theme: &str, case: fn(&mut dyn Store) -> Running<'_>) {
    if S::leaves_out().contains(&theme) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let mut store = match as_asked {
            Start::start_durable => S::start_durable().await,
            Start::start_alone => S::start_alone().await,
            _ => S::start().await,
        };
        match as_asked {
            Start::start_far if store.proxies().is_empty() => {}
            // Each of its many steps has a time limit.
            Start::start_contended => case(&mut store).await,
            _ => within(2 * HANG, case(&mut store)).await,
        }
    });
}

/// The store's configuration with leases that outlast every test: a lock that becomes free in
/// time was given back, and did not just expire. On a busy machine, an answer may take longer than
/// the default request timeout.
pub fn config(store: &dyn Store) -> Config {
    store.config().ttl(20 * HANG).request_timeout(HANG / 6)
}

/// A manager, which looks like one more process to the store.
pub async fn process(store: &dyn Store) -> LockManager {
    connect(config(store)).await
}

/// The shortest time after which a store may pass over a waiter who does not come for its lock: if
/// the machine stands still for as long, the order of the queue is not kept.
const PASSED_OVER: Duration = Duration::from_millis(1_500);

/// Waits until `count` requests wait for `key`.
async fn queued(store: &dyn Store, manager: &LockManager, key: &str, count: usize) {
    let what = format!("{count} requests wait for `{key}`");
    until(
        &what,
        async || store.waiters(manager, key).await,
        |&waiting| waiting == count,
    )
    .await;
}

/// All cases, as input for another macro: the theme, and how its cases start the store.
#[doc(hidden)]
#[macro_export]
macro_rules! __themes {
    ([$($then:tt)*] $($with:tt)*) => {
        $($then)*! { $($with)*
            start_durable tokens {
                tokens_rise_from_grant_to_grant
                tokens_rise_through_hand_overs
                tokens_rise_after_a_lease_ran_out
                tokens_rise_over_keys_that_were_idle
                fenced_is_refused_where_tokens_may_go_back
            }
            start_durable floors {
                a_floor_is_obeyed_by_who_does_not_name_it
                a_floor_is_raised_while_locks_are_taken
                a_floor_that_cannot_be_is_refused
            }
            start policies {
                a_free_lock_is_had_at_once
                a_held_lock_is_busy_for_who_does_not_wait
                a_wait_ends_at_its_timeout
                the_configured_timeout_applies
                the_attribute_runs_its_body_under_the_lock
                the_attribute_gives_up_as_it_is_told
                on_error_makes_the_value
            }
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
            start settings {
                a_configuration_out_of_its_range_is_refused
                a_request_out_of_its_range_is_refused
                the_ends_of_the_ranges_work
            }
            start exclusion {
                bodies_of_one_key_do_not_overlap
                readers_share_and_a_writer_is_alone
                a_reader_waits_for_the_writer_that_holds
                a_writer_waits_for_every_reader
                readers_do_not_starve_a_writer
                readers_behind_a_writer_who_leaves_are_let_in
                readers_and_writers_are_let_in_as_they_came
            }
            start claims {
                permits_are_refused_where_they_cannot_be_kept
                once_is_refused_where_it_cannot_be_kept
            }
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
            start several {
                several_keys_are_had_together
                all_or_none
                order_does_not_matter
                tokens_come_in_the_order_written
            }
            start release {
                a_value_releases
                an_error_releases
                a_panic_releases
                a_dropped_body_releases
                a_dropped_guard_releases
                a_holder_that_died_frees_it_within_its_ttl
                a_late_release_changes_nothing
                a_foreign_lease_is_not_touched
                min_hold_keeps_it
                the_store_knows_of_min_hold_when_the_body_has_ended
                shutdown_finishes_what_is_under_way
                nothing_is_left_behind
            }
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
            start breaking {
                a_break_lets_the_next_in_at_once
                a_broken_holder_is_told
                a_wrong_token_breaks_nothing
                one_of_several_holders_is_broken
                one_of_several_holders_is_broken_by_its_token
                who_is_not_there_is_not_broken
                what_was_done_is_not_broken
                a_broken_process_queues_again
                a_waiter_is_taken_out_and_the_others_keep_their_order
                the_tasks_of_a_place_are_taken_out_together
                who_waited_behind_one_that_is_taken_out_is_let_in
                a_break_whose_answer_was_lost_breaks_nobody_else
            }
            start queues {
                a_released_lock_wakes_its_waiter
                processes_are_served_in_order
                tasks_of_one_process_are_served_in_order
                a_handing_over_process_lets_others_in
                strict_order_hands_nothing_over
            }
            start drops {
                dropped_at_every_poll_of_a_free_lock
                dropped_at_every_poll_of_a_held_lock
                dropped_at_every_poll_as_the_lock_comes_free
                a_dropped_waiter_does_not_hold_up_the_next
                dropped_at_every_poll_of_several_keys
                dropped_at_every_poll_of_a_release
                dropped_at_every_poll_outside_of_a_runtime
            }
            start unpolled {
                a_lock_that_nobody_comes_for_is_passed_on
                a_place_that_nobody_comes_for_is_passed_on
                a_hand_over_that_nobody_comes_for_is_passed_on
                what_a_sleeper_has_of_several_keys_is_passed_on
            }
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
            start refused {
                a_refused_connection_is_told_at_once
                a_refused_connection_is_the_cause_that_is_told
                another_kind_of_server_is_named
            }
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
            start_alone cost {
                a_section_costs_no_more_than_it_has_to
                a_permit_costs_what_a_read_lock_costs
                a_thousand_waiters_on_one_key_cost_as_much_as_one
                a_thousand_waiters_on_a_thousand_keys_cost_as_much_as_one
                a_release_wakes_one_of_many
            }
            start_alone restart {
                tokens_rise_across_a_restart
                a_floor_outlasts_a_restart
                what_is_held_and_waited_for_goes_on
                permits_and_what_was_done_go_on
            }
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

/// A boxed function for each case, so that it is compiled once, and not again for the tests of
/// each store.
macro_rules! cases {
    ($($start:ident $theme:ident { $($case:ident)* })*) => {$(
        pub mod $theme {$(
            pub fn $case(store: &mut dyn $crate::Store) -> $crate::Running<'_> {
                Box::pin($crate::$theme::$case(store))
            }
        )*}
    )*};
}

#[doc(hidden)]
pub mod cases {
    __themes! { [cases] }
    __contenders! { [cases] }
}

/// Generates a test for each case, for one store: the path, from the crate's root, of a type that
/// implements [`Store`]. If themes and names of cases follow, only for those: for a deployment of
/// a store that runs the other cases elsewhere.
#[macro_export]
macro_rules! conformance {
    ($store:ty) => {
        $crate::__themes! { [$crate::__tests] $store; }

        #[test]
        fn what_is_left_out_is_not_had() {
            $crate::claims::what_is_left_out_is_not_had::<$store>();
        }
    };
    ($store:ty: $($start:ident $theme:ident { $($case:ident)* })*) => {
        $crate::__tests! { $store; $($start $theme { $($case)* })* }
    };
}

/// Generates a test for each case of [`processes`], for one store: the path, from the crate's
/// root, of a type that implements [`Store`]. If names of cases follow, only for those, in a test
/// program that runs the other cases for another store.
///
/// The workers run the test program itself, with its test `plays_a_role`.
#[macro_export]
macro_rules! contenders {
    ($store:ty) => {
        $crate::__contenders! { [$crate::__tests] $store; }

        /// In a normal run this does nothing.
        #[test]
        fn plays_a_role() {
            if let Some(role) = $crate::support::worker::role() {
                $crate::processes::contender::play(&role, <$store as $crate::Store>::config_at);
            }
        }
    };
    ($store:ty: $($case:ident)*) => {
        $crate::__tests! { $store; start_contended processes { $($case)* } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ($store:ty; $($start:ident $theme:ident { $($case:ident)* })*) => {$(
        mod $theme {$(
            #[test]
            fn $case() {
                $crate::run::<$store>(
                    $crate::Start::$start,
                    stringify!($theme),
                    $crate::cases::$theme::$case,
                );
            }
        )*}
    )*};
}
