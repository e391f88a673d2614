//! The promises of every store of [`dlock`], as tests of its public surface. Each store runs all
//! of them, unchanged, against a real server, but for the themes that it
//! [leaves out](Store::leaves_out). A variant of a store may run a part of them.
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
//!     fn leaves_out() -> &'static [&'static str] {
//!         &["late_commands", "cost", "restart"]
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

#[macro_use]
mod themes;

mod breaking;
#[doc(hidden)]
pub mod claims;
mod cost;
mod drops;
mod exclusion;
pub mod failover;
mod floors;
mod keys;
mod late_answers;
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
use tokio::time::sleep;

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
    /// them; `late_commands`, if it is reached through no [`proxies`](Self::proxies), so that no
    /// network can fail; `cost`, if it has no [`costs`](Self::costs); `restart`, if it cannot be
    /// [restarted](Self::restart). No store is started for their cases. A test sees that it does
    /// not have them, and that it claims `permits` and `once` if it does not leave them out.
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

    /// The configuration for another process, or for servers at other addresses. A store outside of
    /// dlock has no URL that dlock knows, so it must override this.
    fn config_at(url: &str) -> Config
    where
        Self: Sized,
    {
        Config::from_url(url).expect("a valid URL")
    }

    /// The proxies through which all of its servers are reached, so that a test can make the
    /// network fail. A store that has some also provides [`past_proxies`](Self::past_proxies) or
    /// [`records`](Self::records), by which a test sees what arrives at the store while no answer
    /// does; and its [`url`](Self::url) names the proxies as `127.0.0.1:<port>`, so that a test
    /// can name ports where there is no server, or another one.
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
    let running = async {
        let mut store = match as_asked {
            Start::start_durable => S::start_durable().await,
            Start::start_alone => S::start_alone().await,
            _ => S::start().await,
        };
        match as_asked {
            Start::start_far if store.proxies().is_empty() => panic!(
                "in `{theme}` the network fails: reach the store through `proxies`, or name \
                 `{theme}` in `leaves_out`"
            ),
            // Each of its many steps has a time limit.
            Start::start_contended => case(&mut store).await,
            _ => within(2 * HANG, case(&mut store)).await,
        }
        farewell(&store).await;
    };
    let runtime = runtime.expect("a runtime");
    runtime.block_on(CONFIG_AT.scope(S::config_at, running));
}

tokio::task_local! {
    /// [`Store::config_at`] of the store that runs a case, which sees its store without its type.
    static CONFIG_AT: fn(&str) -> Config;
}

/// Gives managers that were dropped a moment to take their leave. Without their store they would
/// go on asking for it, beside the cases that follow.
async fn farewell(store: &dyn Store) {
    for _ in 0..50 {
        if !store.proxies().iter().any(Proxy::is_used) {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
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
    __themes! { [cases] [] }
    __contenders! { [cases] }
}

/// Generates a test for each case, for one store: the path, from the crate's root, of a type that
/// implements [`Store`].
///
/// A variant of a store may run only some of them, if the store runs them all: whole themes, and
/// behind a `;` cases of others. The whole suite with an attribute such as `#[ignore]` is for a
/// run that has more time.
///
/// ```text
/// conformance!(crate::ItsVariant:
///     tokens exclusion;
///     start load { ten_contenders_add_up }
/// );
///
/// mod whole {
///     super::conformance!(#[ignore = "takes long"] crate::ItsVariant);
/// }
/// ```
#[macro_export]
macro_rules! conformance {
    (#[$attribute:meta] $store:ty) => {
        $crate::__themes! { [$crate::__tests] [#[$attribute] $store;] }
        $crate::__tests! { @left_out #[$attribute] $store }
    };
    // A test needs no attribute, and this is one that changes nothing.
    ($store:ty) => {
        $crate::conformance! { #[cfg(test)] $store }
    };
    ($store:ty: $($start:ident $theme:ident { $($case:ident)* })*) => {
        $crate::conformance! { $store: ; $($start $theme { $($case)* })* }
    };
    ($store:ty: $($whole:ident)*; $($start:ident $theme:ident { $($case:ident)* })*) => {
        $crate::__each_theme! { [$($whole)*] [$crate::__tests] [#[cfg(test)] $store;] }
        $crate::__tests! { #[cfg(test)] $store; $($start $theme { $($case)* })* }
        $crate::__tests! { @left_out #[cfg(test)] $store }
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
        $crate::__contenders! { [$crate::__tests] #[cfg(test)] $store; }

        /// In a normal run this does nothing.
        #[test]
        fn plays_a_role() {
            if let Some(role) = $crate::support::worker::role() {
                $crate::processes::contender::play(&role, <$store as $crate::Store>::config_at);
            }
        }
    };
    ($store:ty: $($case:ident)*) => {
        $crate::__tests! { #[cfg(test)] $store; start_contended processes { $($case)* } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    (@left_out #[$attribute:meta] $store:ty) => {
        #[test]
        #[$attribute]
        fn what_is_left_out_is_not_had() {
            $crate::claims::what_is_left_out_is_not_had::<$store>();
        }
    };
    (#[$attribute:meta] $store:ty; $($start:ident $theme:ident { $($case:ident)* })*) => {$(
        mod $theme {$(
            #[test]
            #[$attribute]
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
