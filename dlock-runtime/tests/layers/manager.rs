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
use tokio::time::{Instant, timeout};

use crate::support::locks::{held, is_lost, is_misconfigured, is_shut_down, is_unsupported};
use crate::support::over_memory::Otherwise;
use crate::{connect, manager, seconds as s, settle, waits};

/// A backend starts once and serves one manager.
#[tokio::test(start_paused = true)]
async fn a_backend_serves_one_manager() {
    let config = Config::with_backend(Memory::new());
    let one = LockManager::connect(config.clone()).await.unwrap();
    is_misconfigured(LockManager::connect(config).await);
    drop(one);
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
    here.lock("k").run(async {}).await.unwrap();
    store.weak.store(false, Ordering::Release);
    here.lock("k").fenced(true).run(async {}).await.unwrap();
}
