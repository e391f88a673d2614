//! Guarantee 11, in this process: what a lock needed in memory goes with it,
//! however it ended. Every key is new, so that whatever is kept of one shows.

mod support;

use std::alloc::System;
use std::time::Duration;

use dlock::backend::memory::Memory;
use dlock::{Config, LockError, LockManager};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use support::alone::alone_on_one_thread;
use support::locks::{connect, is_busy, is_late, nothing_left};
use support::polls::drop_at_poll;
use support::wait::{HANG, until, within};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What is allocated now: how many pieces, of how many bytes together.
fn live() -> (usize, usize) {
    let stats = ALLOCATOR.stats();
    let pieces = stats.allocations - stats.deallocations;
    (pieces, stats.bytes_allocated - stats.bytes_deallocated)
}

/// A connection keeps the largest buffers that it ever needed: on a machine that is
/// busy, a few of them grow late, by up to 16 KiB in all.
#[cfg(feature = "redis")]
const BUFFERS: usize = 32 * 1024;

/// Two processes, as far as the store can tell, and a way to end a lease
/// behind its holder's back.
struct Contenders<T> {
    one: LockManager,
    other: LockManager,
    take_away: T,
}

impl<T: AsyncFn(&str)> Contenders<T> {
    /// A lock's life, and end, in every way there is.
    async fn use_up(&self, key: &str) -> Result<(), LockError> {
        let Self {
            one,
            other,
            take_away,
        } = self;
        // By a value, after a hand-over, re-entered, in the middle.
        let three = [(); 3].map(|()| one.lock(key).run(one.lock(key).run(async {})));
        let [first, second, third] = three;
        let (first, second, third) = tokio::join!(first, second, third);
        first.and(second).and(third)??;
        let hung = one.lock(key).run(std::future::pending::<()>());
        drop_at_poll(hung, 8, Duration::from_millis(2)).await;

        let guard = one.lock(key).acquire().await?;
        is_busy(other.lock(key).try_acquire().await);
        let late = other.lock(key).acquire_within(Duration::from_millis(1));
        late.await.map(drop).expect_err("it is held");
        // A waiter in the store's queue and one in this process go.
        drop_at_poll(other.lock(key).acquire(), 4, Duration::from_millis(1)).await;
        drop_at_poll(one.lock(key).acquire(), 4, Duration::from_millis(1)).await;
        // One waits, and is served.
        let (guard, released) = tokio::join!(other.lock(key).acquire(), guard.release());
        released?;
        drop(guard?);

        let readers = tokio::join!(
            one.lock(key).read().acquire(),
            other.lock(key).read().acquire()
        );
        readers.0?.release().await?;
        readers.1?.release().await?;

        let guard = one.lock(key).acquire().await?;
        take_away(key).await;
        assert!(guard.release().await.is_err(), "it was taken away");
        let kept = one.lock(key).min_hold(Duration::from_millis(1));
        kept.run(async {}).await
    }

    /// But for so many bytes that have nothing to do with how many locks there were.
    async fn leave_nothing(&self, few: usize, many: usize, besides: usize) {
        let mut numbers = 0..;
        let mut use_up = async |count| {
            for number in numbers.by_ref().take(count) {
                let key = format!("key:{number}");
                within(HANG, self.use_up(&key)).await.expect("the lock");
                if number % 4 == 0 {
                    self.use_in_another_runtime(number).await;
                }
            }
            nothing_left(&self.one).await;
        };
        // Tables grow to the size that so many at a time need.
        use_up(few).await;
        let (pieces, bytes) = live();
        use_up(many).await;
        // What is kept of each lock is a piece of its own, or makes a table longer: the
        // name of its key alone would take twice the bytes.
        let most = (pieces + many / 8, bytes + 12 * many + besides);
        let is_free = |now: &(usize, usize)| now.0 <= most.0 && now.1 <= most.1;
        let what = format!("no more than {most:?} pieces and bytes are left");
        until(&what, async || live(), is_free).await;
    }

    /// As in a service that makes a runtime for each of its jobs. Its time is
    /// paused, or `memory:` would keep its leases elsewhere.
    async fn use_in_another_runtime(&self, number: usize) {
        let manager = self.one.clone();
        let thread = tokio::task::spawn_blocking(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().start_paused(true).build();
            let runtime = runtime.expect("a runtime");
            runtime.block_on(manager.lock(format!("other:{number}")).run(async {}))
        });
        thread.await.expect("no panic").expect("the lock");
    }
}

#[test]
fn memory_leaves_nothing() {
    alone_on_one_thread("memory_leaves_nothing", &[], async || {
        let memory = Memory::new();
        // What is kept for as long as a lease would last shows too.
        let config = || Config::with_backend(memory.clone()).ttl(20 * HANG);
        let contenders = Contenders {
            one: connect(config()).await,
            other: connect(config()).await,
            take_away: async |key: &str| assert!(memory.faults().take_away(key)),
        };
        contenders.leave_nothing(200, 1_600, 0).await;
    });
}

/// However long the lock is held, and however many give up meanwhile.
#[test]
fn who_stops_waiting_leaves_nothing() {
    alone_on_one_thread("who_stops_waiting_leaves_nothing", &[], async || {
        let manager = connect(Config::default()).await;
        let guard = manager.lock("key").acquire().await.expect("free");
        let give_up = async |count| {
            for _ in 0..count {
                let short = manager.lock("key").acquire_within(Duration::from_millis(1));
                is_late(within(HANG, short).await);
            }
        };
        give_up(100).await;
        let (pieces, bytes) = live();
        give_up(800).await;
        let most = (pieces + 100, bytes + 12 * 800);
        let is_free = |now: &(usize, usize)| now.0 <= most.0 && now.1 <= most.1;
        let what = format!("no more than {most:?} pieces and bytes are left");
        until(&what, async || live(), is_free).await;
        guard.release().await.expect("it was held to the end");
    });
}

#[cfg(feature = "redis")]
#[test]
fn redis_leaves_nothing() {
    alone_on_one_thread("redis_leaves_nothing", &[], async || {
        let server = support::redis::RedisServer::start().await;
        let config = || {
            let config = Config::from_url(&server.url()).expect("a valid URL");
            // A busy machine is not an outage.
            config.request_timeout(HANG / 9)
        };
        let contenders = Contenders {
            one: connect(config()).await,
            other: connect(config()).await,
            take_away: async |key: &str| {
                let deleted: u32 = server.command(&["DEL", &format!("dlock:{{{key}}}")]).await;
                assert_eq!(deleted, 1);
            },
        };
        contenders.leave_nothing(100, 800, BUFFERS).await;
    });
}
