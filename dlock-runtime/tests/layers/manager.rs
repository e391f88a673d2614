//! A manager: how it is made, what its settings do, and its shutdown.

use std::future::Future as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::{
    Backend as _, BackendError, Capabilities, Grant, LockInfo, Request, TokenTier,
};
use dlock_runtime::{Config, LockManager, lock};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::support::locks::{
    held, is_lost, is_misconfigured, is_shut_down, is_taken_out, is_unsupported, says,
};
use crate::support::log::Log;
use crate::support::over_memory::Otherwise;
use crate::support::wait::within;
use crate::{connect, current_thread, manager, seconds as s, settle, waits};

/// A backend starts once and serves one manager.
#[tokio::test(start_paused = true)]
async fn a_backend_serves_one_manager() {
    let config = Config::with_backend(Memory::new());
    let one = LockManager::connect(config.clone()).await.unwrap();
    is_misconfigured(LockManager::connect(config).await);
    drop(one);
}

#[derive(Debug)]
struct Stops(Memory, mpsc::UnboundedSender<()>);

#[async_trait::async_trait]
impl Otherwise for Stops {
    fn memory(&self) -> &Memory {
        &self.0
    }
    async fn stop(&self) {
        let _ = self.1.send(());
    }
}

/// Also without a shutdown, and not before the last handle to it has gone.
#[tokio::test(start_paused = true)]
async fn a_manager_that_is_dropped_stops_its_store() {
    let (stops, mut stopped) = mpsc::unbounded_channel();
    let here = Stops(Memory::new(), stops).manager().await;
    let clone = here.clone();
    drop(held(here.lock("k")).await);
    drop(here);
    settle().await;
    assert!(stopped.is_empty(), "a handle is left");
    drop(clone);
    let stops = timeout(s(10), stopped.recv()).await;
    stops.expect("it stops").expect("once");
}

#[derive(Debug, Default)]
struct WritersOnly(Memory);

#[async_trait::async_trait]
impl Otherwise for WritersOnly {
    fn memory(&self) -> &Memory {
        &self.0
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.read_write = false;
        capabilities
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_without_readers_takes_writers() {
    let here = WritersOnly::default().manager().await;
    is_unsupported(here.lock("k").read().try_acquire().await);
    is_unsupported(here.lock(["k", "l"]).read().try_acquire().await);
    // Inside one's own lock neither, where nothing is asked of the store.
    let inside = async { is_unsupported(here.lock("k").read().try_acquire().await) };
    here.lock("k").run(inside).await.expect("free");
    drop(held(here.lock("k")).await);
}

#[derive(Debug, Default)]
struct ShowsAll(Memory);

#[async_trait::async_trait]
impl Otherwise for ShowsAll {
    fn memory(&self) -> &Memory {
        &self.0
    }
    async fn list(&self, _: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.0.list("").await
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_may_show_what_it_was_not_asked_for() {
    let store = ShowsAll::default();
    let there = connect(&store.0).await;
    let (_one, _two) = (held(there.lock("aé")).await, held(there.lock("x:aé")).await);
    let here = LockManager::connect(store.config().namespace("x"))
        .await
        .unwrap();
    let shown = here.list("").await.unwrap();
    assert!(shown.len() == 2 && shown.iter().all(|lock| lock.key == "aé"));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_refuses_those_who_wait() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let guard = held(there.lock("k")).await;
    let mut waiter = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut waiter).await);
    here.shutdown().await;
    guard.release().await.unwrap();
    is_shut_down(timeout(s(5), waiter).await.expect("told at once"));
}

/// The process may end when the shutdown has, and then nobody would take their places and grants
/// out of the store.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_until_those_whom_it_refuses_have_left_the_store() {
    for limit in [None, Some(s(60))] {
        let (memory, here) = manager().await;
        let there = connect(&memory).await;
        let _guard = held(there.lock("b")).await;
        let asks = || {
            let lock = here.lock(["a", "b"]);
            tokio::spawn(async move {
                match limit {
                    None => lock.acquire().await,
                    Some(limit) => lock.acquire_within(limit).await,
                }
            })
        };
        let waiters = [asks(), asks()];
        settle().await;
        assert_eq!(there.list("").await.unwrap().len(), 2, "one has its first");
        here.shutdown().await;
        let locks = there.list("").await.unwrap();
        assert_eq!(locks.len(), 1, "{locks:?}");
        assert_eq!(locks[0].waiters, Some(0), "{locks:?}");
        for waiter in waiters {
            is_shut_down(waiter.await.unwrap());
        }
    }
}

/// A call that is not polled cannot leave.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_a_moment_for_calls_that_nobody_polls() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let _guard = held(there.lock("k")).await;
    let mut waiter = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut waiter).await);
    let start = Instant::now();
    within(s(60), here.shutdown()).await;
    let waited = start.elapsed();
    assert!(waited <= s(5), "{waited:?}");
    is_shut_down(waiter.await);
}

/// Where there is no timer to limit it, it does not wait.
#[test]
fn a_shutdown_outside_a_runtime_waits_for_no_call() {
    let runtime = current_thread();
    let (here, _guard, _waiter) = runtime.block_on(async {
        let (memory, here) = manager().await;
        let guard = held(connect(&memory).await.lock("k")).await;
        let mut waiter = Box::pin(here.lock("k").acquire());
        assert!(waits(&mut waiter).await);
        (here, guard, waiter)
    });
    let mut shutdown = std::pin::pin!(here.shutdown());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(shutdown.as_mut().poll(&mut context).is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_running_body_may_reenter_after_a_shutdown() {
    let (_memory, here) = manager().await;
    let body = async {
        here.shutdown().await;
        let run = lock("k").run(async {}).await;
        (run, lock("k").acquire().await.map(drop))
    };
    let (run, guard) = here.scope(lock("k").run(body)).await.unwrap();
    assert_eq!(run.is_ok(), guard.is_ok(), "{run:?} {guard:?}");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_zero_in_the_configuration_is_try() {
    let memory = Memory::new();
    let config = Config::with_backend(memory.clone()).timeout(Duration::ZERO);
    let here = LockManager::connect(config).await.unwrap();
    memory.faults().set_delay(Some(Duration::from_millis(1)));
    let tried = here.lock("k").acquire_within(Duration::ZERO).await;
    tried.expect("zero means try").release().await.unwrap();
    drop(here.lock("k").acquire().await.expect("free"));
}

#[test]
fn an_error_of_connecting_speaks_of_no_lock() {
    let mut f = Box::pin(LockManager::connect(Config::default()));
    let std::task::Poll::Ready(Err(e)) = f
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    else {
        panic!()
    };
    assert!(!e.to_string().contains("lock `connect`"), "{e}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_leases_that_have_run_out() {
    let (memory, here) = manager().await;
    let lock = here.lock("k").ttl(s(600));
    let task = tokio::spawn(lock.run(std::future::pending::<()>()));
    settle().await;
    memory.faults().set_unavailable(true);
    is_lost(task.await.unwrap());
    let start = Instant::now();
    here.shutdown().await;
    let waited = start.elapsed();
    assert!(waited < s(60), "{waited:?} for a lease that ran out before");
}

/// A server whose settings change: its tokens are strict, or not.
#[derive(Clone, Debug, Default)]
struct Changing {
    memory: Memory,
    weak: Arc<AtomicBool>,
    /// It finds that out while it grants.
    weakens: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Otherwise for Changing {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        if self.weak.load(Ordering::Acquire) {
            capabilities.tokens = TokenTier::BestEffort;
        }
        capabilities
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        let grant = self.memory.acquire(r).await;
        if self.weakens.load(Ordering::Acquire) {
            self.weak.store(true, Ordering::Release);
        }
        grant
    }
}

/// What tokens are worth is asked for each lock, before and behind the grant: a
/// server may have been started again with other settings.
#[tokio::test(start_paused = true)]
async fn tokens_that_are_not_strict_any_more_are_refused() {
    for of_the_manager in [false, true] {
        let store = Changing::default();
        let config = store.clone().config().fenced(of_the_manager);
        let here = LockManager::connect(config).await.unwrap();
        let run = async || {
            let lock = here.lock("k").fenced(!of_the_manager);
            lock.run(async {}).await
        };
        run().await.unwrap();
        store.weakens.store(true, Ordering::Release);
        is_unsupported(run().await);
        assert_eq!(here.capabilities().tokens, TokenTier::BestEffort);
        here.shutdown().await;
        let left = store.memory.inspect("k").await.unwrap();
        assert!(left.is_none(), "{left:?}");
    }
    let store = Changing::default();
    let here = store.clone().manager().await;
    store.weak.store(true, Ordering::Release);
    // Nor is it asked: it would not answer.
    store.memory.faults().set_unavailable(true);
    is_unsupported(here.lock("k").fenced(true).run(async {}).await);
    store.memory.faults().set_unavailable(false);
    let inside = async { here.lock("k").fenced(true).run(async {}).await };
    is_unsupported(here.lock("k").run(inside).await.unwrap());
    store.weak.store(false, Ordering::Release);
    here.lock("k").fenced(true).run(async {}).await.unwrap();
}

/// A store of other capabilities.
#[derive(Debug)]
struct Other {
    memory: Memory,
    capabilities: Capabilities,
    request_timeout: Option<Duration>,
}

impl Other {
    fn new(change: impl FnOnce(&mut Capabilities)) -> Self {
        let memory = Memory::new();
        let mut capabilities = memory.capabilities();
        change(&mut capabilities);
        Self {
            memory,
            capabilities,
            request_timeout: None,
        }
    }
}

#[async_trait::async_trait]
impl Otherwise for Other {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    fn request_timeout(&self) -> Option<Duration> {
        self.request_timeout
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_remembers_nothing_refuses_once() {
    for (with, told) in [
        ("", "; use another store"),
        ("set it up", "; set it up, or use another store"),
    ] {
        let here = Other::new(|store| {
            store.once = false;
            store.once_with = with;
        });
        let here = here.manager().await;
        let once = || here.lock("k").once(s(60));
        let error = is_unsupported(once().try_acquire().await);
        assert!(error.to_string().ends_with(told), "{error}");
        // Inside one's own lock neither.
        let inside = async { is_unsupported(once().run(async { Ok::<_, ()>(()) }).await) };
        here.lock("k").run(inside).await.expect("free");
    }
}

#[tokio::test(start_paused = true)]
async fn once_is_for_one_key_and_an_exclusive_lock() {
    let (_memory, here) = manager().await;
    let once = |key: &[&str]| here.lock(key).once(s(60));
    for (request, told) in [
        (once(&["k"]).read(), "`read`"),
        (once(&["k"]).permits(2), "`permits`"),
        (once(&["k", "l"]), "several"),
        (here.lock("k").once(Duration::ZERO), "too short"),
    ] {
        says(
            &is_misconfigured(request.try_acquire().await),
            &["once", told],
        );
    }
}

/// Whatever it is that would have to be kept for so long.
#[tokio::test(start_paused = true)]
async fn nothing_is_kept_for_longer_than_the_store_can() {
    let day = s(24 * 60 * 60);
    for (most, told) in [
        (30 * day, "at most 30 days"),
        (30 * day - s(1), "less than 30 days"),
    ] {
        let here = Other::new(|store| store.max_ttl = most).manager().await;
        let lock = || here.lock("k");
        for refused in [
            lock().ttl(most + s(1)).try_acquire().await,
            lock().min_hold(most + s(1)).try_acquire().await,
            lock().once(most + s(1)).try_acquire().await,
        ] {
            says(&is_misconfigured(refused), &["too long", told]);
        }
        let most = lock().ttl(most).min_hold(most).once(most);
        drop(most.try_acquire().await.expect("not too long"));
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_begin_above_the_floor() {
    let floor = 1 << 40;
    for is_set in [false, true] {
        let config = Config::with_backend(Memory::new());
        let config = match is_set {
            true => config.token_floor(floor),
            false => config,
        };
        let here = LockManager::connect(config).await.unwrap();
        let token = u64::from(held(here.lock("k")).await.token());
        assert_eq!(token > floor, is_set, "{token}");
    }
}

/// A store on another machine may take so long to answer that there is no second attempt to renew.
#[tokio::test]
async fn a_ttl_that_is_too_short_for_the_request_timeout_is_told_once() {
    let least = s(15);
    let connected = async |local: bool, ttl: Duration| {
        let mut store = Other::new(|store| store.local = local);
        store.request_timeout = Some(least / 3);
        let config = store.config().ttl(ttl);
        LockManager::connect(config).await.expect("it answers")
    };
    let asks = async |here: &LockManager, ttl: Duration| {
        let lock = here.lock("k").template("orders").ttl(ttl);
        lock.try_acquire().await.unwrap().release().await.unwrap();
    };
    let short = least - s(1);
    let (warnings, _guard) = Log::of_this_thread();
    let told = || warnings.lines_with("shorter than three request timeouts");

    // Who keeps all locks so short hears of it at the start, and of no single lock.
    let here = connected(false, short).await;
    let all = told();
    assert_eq!(all.len(), 1, "{all:?}");
    for word in ["template=\"all\"", "14s", "5s", "15s"] {
        assert!(all[0].contains(word), "{word} is missing from: {all:?}");
    }
    asks(&here, short).await;
    assert_eq!(told().len(), 1);
    // But of another time.
    for _ in 0..2 {
        asks(&here, short - s(1)).await;
        let one = told();
        assert_eq!(one.len(), 2, "{one:?}");
        assert!(
            one[1].contains("orders") && one[1].contains("13s"),
            "{one:?}"
        );
    }

    let here = connected(false, least).await;
    asks(&here, least).await;
    asks(&here, least + s(1)).await;
    // It is in this process.
    let here = connected(true, short).await;
    asks(&here, short - s(1)).await;
    assert_eq!(told().len(), 2, "{:?}", told());
}

#[tokio::test(start_paused = true)]
async fn who_is_taken_out_of_the_queue_is_told_so() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let guard = held(here.lock("k")).await;
    let waiter = tokio::spawn(there.lock("k").acquire());
    settle().await;
    let shown = here.inspect("k").await.unwrap().expect("held");
    let broken = here.break_waiter("k", &shown.queue[0].owner).await;
    broken.unwrap().expect("it waited");
    is_taken_out(waiter.await.unwrap());
    guard.release().await.unwrap();
}
