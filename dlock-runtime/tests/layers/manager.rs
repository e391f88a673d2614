//! A manager: how it is made, what its settings do, and its shutdown.

use std::future::Future as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::{
    Backend, BackendError, Capabilities, Grant, LockInfo, Released, Renewed, Request, TokenTier,
};
use dlock_runtime::{Config, LockError, LockManager, lock};
use tokio::time::timeout;

use crate::{connect, seconds as s, settle, waits};

/// A backend starts once and serves one manager.
#[tokio::test(start_paused = true)]
async fn a_backend_serves_one_manager() {
    let config = Config::with_backend(Memory::new());
    let one = LockManager::connect(config.clone()).await.unwrap();
    let two = LockManager::connect(config).await;
    assert!(matches!(two, Err(LockError::Config { .. })), "{two:?}");
    drop(one);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_refuses_those_who_wait() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let held = there.lock("k").acquire().await.unwrap();
    let mut waiter = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut waiter).await);
    here.shutdown().await;
    held.release().await.unwrap();
    let r = timeout(s(5), waiter).await;
    assert!(matches!(r, Ok(Err(LockError::ShutDown { .. }))), "{r:?}");
}

#[tokio::test(start_paused = true)]
async fn a_running_body_may_reenter_after_a_shutdown() {
    let here = connect(&Memory::new()).await;
    let m = here.clone();
    let (run, guard) = here
        .scope(lock("k").run(async move {
            m.shutdown().await;
            (
                lock("k").run(async {}).await,
                lock("k").acquire().await.map(drop),
            )
        }))
        .await
        .unwrap();
    assert_eq!(run.is_ok(), guard.is_ok(), "{run:?} {guard:?}");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_zero_in_the_configuration_is_try() {
    let memory = Memory::new();
    let here = LockManager::connect(Config::with_backend(memory.clone()).timeout(Duration::ZERO))
        .await
        .unwrap();
    memory.faults().set_delay(Some(Duration::from_millis(1)));
    here.lock("k")
        .acquire_within(Duration::ZERO)
        .await
        .expect("control: zero means try")
        .release()
        .await
        .unwrap();
    drop(here.lock("k").acquire().await.expect("free"));
}

#[tokio::test(start_paused = true)]
async fn namespaces_do_not_share_locks() {
    let memory = Memory::new();
    let one = LockManager::connect(Config::with_backend(memory.clone()).namespace("shop"))
        .await
        .unwrap();
    let two = LockManager::connect(Config::with_backend(memory.clone()).namespace("shop:eu"))
        .await
        .unwrap();
    let _g = one.lock("eu:stock").try_acquire().await.unwrap();
    drop(
        two.lock("stock")
            .try_acquire()
            .await
            .expect("another namespace"),
    );
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
    let memory = Memory::new();
    let here = connect(&memory).await;
    memory.faults().set_delay(None);
    let m = here.clone();
    let task = tokio::spawn(async move {
        m.lock("k")
            .ttl(s(600))
            .run(std::future::pending::<()>())
            .await
    });
    settle().await;
    memory.faults().set_unavailable(true);
    assert!(task.await.unwrap().is_err()); // lost: the ttl has passed
    let start = tokio::time::Instant::now();
    here.shutdown().await;
    assert!(
        start.elapsed() < s(60),
        "waited {:?} for a lease that ran out before",
        start.elapsed()
    );
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
impl Backend for Changing {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        if self.weak.load(Ordering::Acquire) {
            capabilities.tokens = TokenTier::BestEffort;
        }
        capabilities
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.memory.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        let grant = self.memory.acquire(r).await;
        if self.weakens.load(Ordering::Acquire) {
            self.weak.store(true, Ordering::Release);
        }
        grant
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.memory.renew(r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        self.memory.release(r).await
    }
    async fn inspect(&self, k: &str) -> Result<Option<LockInfo>, BackendError> {
        self.memory.inspect(k).await
    }
    async fn list(&self, p: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.memory.list(p).await
    }
}

/// What tokens are worth is asked for each lock, before and behind the grant: a
/// server may have been started again with other settings.
#[tokio::test(start_paused = true)]
async fn tokens_that_are_not_strict_any_more_are_refused() {
    let refused = |r: Result<(), LockError>| {
        assert!(matches!(r, Err(LockError::Unsupported { .. })), "{r:?}");
    };
    for of_the_manager in [false, true] {
        let store = Changing::default();
        let config = Config::with_backend(store.clone()).fenced(of_the_manager);
        let here = LockManager::connect(config).await.unwrap();
        let run = async || {
            let lock = here.lock("k").fenced(!of_the_manager);
            lock.run(async {}).await
        };
        run().await.unwrap();
        store.weakens.store(true, Ordering::Release);
        refused(run().await);
        assert_eq!(here.capabilities().tokens, TokenTier::BestEffort);
        here.shutdown().await;
        let left = store.memory.inspect("k").await.unwrap();
        assert!(left.is_none(), "{left:?}");
    }
    let store = Changing::default();
    let here = LockManager::connect(Config::with_backend(store.clone()))
        .await
        .unwrap();
    store.weak.store(true, Ordering::Release);
    refused(here.lock("k").fenced(true).run(async {}).await);
    here.lock("k").run(async {}).await.unwrap();
    store.weak.store(false, Ordering::Release);
    here.lock("k").fenced(true).run(async {}).await.unwrap();
}
