//! What a loss or an outage does to those who hold, wait or nest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{Config, LockError, LockManager, OnLost, current, lock};
use tokio::time::{sleep, timeout};

use crate::{connect, seconds as s, settle, waits};

#[tokio::test(start_paused = true)]
async fn a_lost_guard_does_not_keep_local_waiters_out() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let guard = here
        .lock("k")
        .ttl(s(3))
        .max_hold(s(5))
        .acquire()
        .await
        .unwrap();
    guard.lost().await;
    sleep(s(10)).await;
    // Free in the store: another process has it at once.
    there
        .lock("k")
        .ttl(s(3))
        .try_acquire()
        .await
        .expect("free")
        .release()
        .await
        .unwrap();
    let other = timeout(s(3600), here.lock("k").ttl(s(3)).acquire()).await;
    assert!(other.is_ok(), "a free lock was slept on for an hour");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_ran_out_is_not_busy() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let _guard = here
        .lock("k")
        .ttl(s(3))
        .renew(false)
        .acquire()
        .await
        .unwrap();
    sleep(s(10)).await;
    assert!(here.inspect("k").await.unwrap().is_none());
    drop(
        here.lock("k")
            .ttl(s(3))
            .try_acquire()
            .await
            .expect("nobody holds it"),
    );
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_after_a_loss_does_not_wait_for_itself() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let body = async {
        memory.faults().take_away("k");
        current().unwrap().lost().await;
        lock("k").run(async {}).await
    };
    let out = timeout(
        s(3600),
        here.scope(lock("k").on_lost(OnLost::Continue).run(body)),
    )
    .await;
    assert!(out.is_ok(), "deadlock with itself");
}

#[tokio::test(start_paused = true)]
async fn min_hold_ends_with_a_loss() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let body = async {
        memory.faults().take_away("k");
        std::future::pending::<()>().await
    };
    let r = here.lock("k").min_hold(s(3600)).run(body).await;
    assert!(matches!(r, Err(LockError::Lost { .. })));
    let got = timeout(s(60), here.lock("k").acquire()).await;
    assert!(got.is_ok(), "the store's lock is free");
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_while_another_is_awaited_is_taken_again() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let b = there.lock("b").acquire().await.unwrap();
    let mut both = Box::pin(here.lock(["a", "b"]).acquire());
    assert!(waits(&mut both).await);
    memory.faults().take_away("a");
    let a = there.lock("a").acquire().await.unwrap();
    settle().await;
    b.release().await.unwrap();
    let guard = timeout(s(100), both).await;
    assert!(guard.is_err(), "`a` is held by {}", a.token());
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_retries_of_a_renewal() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let start = tokio::time::Instant::now();
    // ttl 30, max_hold 15: the only renewal is due at ~8..10 s.
    let body = async {
        sleep(s(5)).await;
        memory.faults().set_unavailable(true);
        sleep(s(20)).await; // 25: max_hold is long past
        memory.faults().set_unavailable(false);
        std::future::pending::<()>().await;
    };
    let r = here.lock("k").ttl(s(30)).max_hold(s(15)).run(body).await;
    assert!(matches!(r, Err(LockError::Lost { .. })));
    assert!(
        start.elapsed() <= s(31),
        "renewed after max_hold: held {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_ended_body_does_not_hear_of_the_next_ones_loss() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let start = there.lock("k").acquire().await.unwrap();
    let m = here.clone();
    let first =
        tokio::spawn(async move { m.lock("k").run(async { current().unwrap() }).await.unwrap() });
    settle().await;
    let m = here.clone();
    let second = tokio::spawn(async move { m.lock("k").run(std::future::pending::<()>()).await });
    settle().await;
    start.release().await.unwrap();
    let held = first.await.unwrap();
    settle().await;
    memory.faults().take_away("k");
    assert!(second.await.unwrap().is_err());
    assert!(
        timeout(s(1), held.lost()).await.is_err(),
        "never, as the lock was released first"
    );
}

#[tokio::test]
async fn a_lost_lease_never_comes_back() {
    for _ in 0..3 {
        let memory = Memory::new();
        let here = connect(&memory).await;
        let t0 = std::time::Instant::now();
        let guard = here
            .lock("k")
            .ttl(Duration::from_millis(1000))
            .acquire()
            .await
            .unwrap();
        memory.faults().set_unavailable(true);
        memory.faults().set_delay(Some(Duration::from_millis(60)));
        // Renewals fail meanwhile. Just before the end, one that will be answered is
        // under way, and the runtime stands still until that has passed.
        sleep(Duration::from_millis(930).saturating_sub(t0.elapsed())).await;
        while guard.is_held() {
            std::thread::sleep(Duration::from_micros(100));
        }
        memory.faults().set_unavailable(false);
        for _ in 0..50 {
            tokio::task::yield_now().await;
            assert!(!guard.is_held(), "false, then true again");
        }
    }
}

/// Ends each lease, and tells, before its caller has taken the grant.
#[derive(Debug, Default)]
struct Hasty {
    memory: Memory,
    ended: std::sync::Mutex<Vec<Owner>>,
    told: tokio::sync::watch::Sender<bool>,
}

#[async_trait::async_trait]
impl Backend for Hasty {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.acquire(r).await.map(Some)
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        let grant = self.memory.acquire(r).await?;
        self.memory.faults().take_away(&r.key);
        self.ended.lock().unwrap().push(r.owner);
        // The keeper looks for the lease, and does not find it.
        self.told.send_replace(true);
        settle().await;
        Ok(grant)
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
    async fn next_losses(&self) -> Vec<Owner> {
        let mut told = self.told.subscribe();
        let _ = told.wait_for(|&told| told).await;
        self.told.send_replace(false);
        self.ended.lock().unwrap().clone()
    }
    fn has_ended(&self, owner: Owner) -> bool {
        self.ended.lock().unwrap().contains(&owner)
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_does_not_begin_under_a_lease_that_is_known_to_have_ended() {
    let here = LockManager::connect(Config::with_backend(Hasty::default()))
        .await
        .unwrap();
    for wait in [true, false] {
        let refused = match wait {
            true => here.lock("k").acquire().await,
            false => here.lock("k").try_acquire().await,
        };
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    }
}

#[derive(Debug, Clone, Default)]
struct Forgetful(Memory);

#[async_trait::async_trait]
impl Backend for Forgetful {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.0.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.0.acquire(r).await
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.0.renew(r).await
    }
    async fn release(&self, _: &Request) -> Result<Released, BackendError> {
        Ok(Released::NotHeld)
    }
    async fn inspect(&self, k: &str) -> Result<Option<LockInfo>, BackendError> {
        self.0.inspect(k).await
    }
    async fn list(&self, p: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.0.list(p).await
    }
}

#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<AtomicUsize>);

impl Warnings {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, m: &tracing::Metadata<'_>) -> bool {
        *m.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_gone_at_release_is_told() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let here = LockManager::connect(Config::with_backend(Forgetful::default()))
        .await
        .unwrap();
    let r = here.lock("k").run(async {}).await;
    assert!(
        r.is_err() || warnings.count() > 0,
        "Ok, and not even a warning"
    );
}

/// A store that has not answered is not somebody who holds the lock.
#[tokio::test]
async fn a_timeout_in_an_outage_is_told_as_one() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let limit = Duration::from_millis(100);
    memory.faults().set_delay(Some(s(3600)));
    let mut asked = Vec::new();
    for read in [false, false, true] {
        let request = here.lock("k");
        let request = if read { request.read() } else { request };
        asked.push(tokio::spawn(request.acquire_within(limit)));
    }
    for answer in asked {
        let answer = answer.await.unwrap();
        assert!(
            matches!(answer, Err(LockError::Unavailable { .. })),
            "{answer:?}"
        );
    }
    memory.faults().set_delay(None);
    let held = there.lock("k").acquire().await.unwrap();
    for read in [false, true] {
        let request = here.lock("k");
        let request = if read { request.read() } else { request };
        let answer = request.acquire_within(limit).await;
        assert!(
            matches!(answer, Err(LockError::Timeout { .. })),
            "{answer:?}"
        );
    }
    held.release().await.unwrap();
}
