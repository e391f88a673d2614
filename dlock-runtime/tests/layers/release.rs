//! What is sent to the store when a lock goes back.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{Config, LockError, LockManager, lock};

use crate::losses::Warnings;
use crate::{connect, seconds as s, settle};

#[tokio::test(start_paused = true)]
async fn returned_means_released_after_a_dropped_guard_inside() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    memory.faults().set_delay(Some(s(1)));
    here.scope(lock("k").run(async {})).await.unwrap();
    here.lock("k")
        .try_acquire()
        .await
        .expect("control: returned means released")
        .release()
        .await
        .unwrap();
    here.scope(lock("k").run(async {
        drop(lock("k").acquire().await.unwrap());
    }))
    .await
    .unwrap();
    drop(
        here.lock("k")
            .try_acquire()
            .await
            .expect("returned means released"),
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_after_a_dropped_guard_tells_of_an_outage() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let mut kept = None;
    here.scope(lock("k").run(async {
        kept = Some(lock("k").acquire().await.unwrap());
        drop(lock("k").acquire().await.unwrap());
    }))
    .await
    .unwrap();
    memory.faults().set_unavailable(true);
    let r = kept.take().unwrap().release().await;
    assert!(matches!(r, Err(LockError::Unavailable { .. })), "{r:?}");
    memory.faults().set_unavailable(false);
    drop(there);
}

/// Answers no release before the second request is there.
#[derive(Debug, Default)]
struct Pipelined {
    memory: Memory,
    asked: tokio::sync::watch::Sender<u32>,
}

#[async_trait::async_trait]
impl Backend for Pipelined {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        capabilities.in_order = true;
        capabilities
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.memory.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.asked.send_modify(|asked| *asked += 1);
        self.memory.acquire(r).await
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.memory.renew(r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        let released = self.memory.release(r).await;
        let _ = self.asked.subscribe().wait_for(|&asked| asked == 2).await;
        released
    }
    async fn inspect(&self, k: &str) -> Result<Option<LockInfo>, BackendError> {
        self.memory.inspect(k).await
    }
    async fn list(&self, p: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.memory.list(p).await
    }
}

#[tokio::test]
async fn the_next_request_is_sent_behind_a_release() {
    let config = Config::with_backend(Pipelined::default()).handoff(0);
    let here = LockManager::connect(config).await.unwrap();
    let first = here.lock("k").acquire().await.unwrap();
    let second = here.lock("k").run(async {});
    let (second, released) = tokio::time::timeout(s(20), async {
        // In this order: the second waits in the process when the first goes back.
        tokio::join!(biased; second, first.release())
    })
    .await
    .expect("the next request waits for the answer of the release");
    released.unwrap();
    second.unwrap();
}

/// How the first release ends, which the store has done all the same.
#[derive(Debug, Clone, Copy)]
enum First {
    Silent,
    Failed,
    /// The answer comes when the lease would have run out by itself.
    Late(Duration),
    /// Of a lock under `min_hold`: the store is to let it end by itself.
    KeptSilent,
}

#[derive(Debug)]
struct Unheard {
    memory: Memory,
    first: First,
    asked: AtomicBool,
}

#[async_trait::async_trait]
impl Backend for Unheard {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.memory.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.memory.acquire(r).await
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        if !matches!(self.first, First::KeptSilent) {
            return self.memory.renew(r).await;
        }
        if !self.asked.swap(true, Ordering::SeqCst) {
            self.memory.renew(r).await;
            return std::future::pending().await;
        }
        // Until it has ended.
        tokio::time::sleep(s(6)).await;
        let answers = self.memory.renew(r).await;
        assert!(matches!(answers[..], [Ok(Renewed::Gone)]), "{answers:?}");
        answers
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        if self.asked.swap(true, Ordering::SeqCst) {
            return self.memory.release(r).await;
        }
        if let First::Late(by) = self.first {
            tokio::time::sleep(by).await;
            return self.memory.release(r).await;
        }
        assert_eq!(self.memory.release(r).await?, Released::Released);
        match self.first {
            First::Failed => Err(BackendError::unavailable("nothing was heard")),
            _ => std::future::pending().await,
        }
    }
    async fn inspect(&self, k: &str) -> Result<Option<LockInfo>, BackendError> {
        self.memory.inspect(k).await
    }
    async fn list(&self, p: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.memory.list(p).await
    }
}

async fn unheard(first: First) -> LockManager {
    let backend = Unheard {
        memory: Memory::new(),
        first,
        asked: AtomicBool::new(false),
    };
    LockManager::connect(Config::with_backend(backend))
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_caller_left_is_no_loss() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let here = unheard(First::Silent).await;
    let guard = here.lock("k").acquire().await.unwrap();
    let left = tokio::time::timeout(s(1), guard.release()).await;
    left.expect_err("nothing is answered");
    here.shutdown().await;
    assert_eq!(warnings.count(), 0);
}

/// The store says so with an error: that is a warning, and the repeat is none.
#[tokio::test(start_paused = true)]
async fn a_release_that_failed_is_no_loss() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let here = unheard(First::Failed).await;
    let guard = here.lock("k").acquire().await.unwrap();
    let error = guard.release().await.expect_err("an outage");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert_eq!(warnings.count(), 1);
    here.shutdown().await;
    assert_eq!(warnings.count(), 1);
}

#[test]
fn a_release_whose_runtime_ended_is_no_loss() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let runtime = || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap()
    };
    let (home, other) = (runtime(), runtime());
    let here = home.block_on(unheard(First::Silent));
    let guard = other.block_on(here.lock("k").acquire()).unwrap();
    let (on_its_way, is_on_its_way) = std::sync::mpsc::channel();
    other.block_on(async move {
        let mut release = Box::pin(guard.release());
        tokio::spawn(async move {
            poll_fn(|context| {
                assert!(release.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            on_its_way.send(()).unwrap();
            release.await
        });
        settle().await;
    });
    is_on_its_way.recv().unwrap();
    drop(other);
    home.block_on(async {
        settle().await;
        assert!(here.inspect("k").await.unwrap().is_none());
        here.shutdown().await;
    });
    assert_eq!(warnings.count(), 0);
}

/// The body ended in time. What ran out was on its way back.
#[tokio::test(start_paused = true)]
async fn a_lease_that_runs_out_on_its_way_back_is_no_loss() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let here = unheard(First::Late(s(20))).await;
    let guard = here.lock("k").ttl(s(10)).acquire().await.unwrap();
    guard.release().await.expect("it was held to the end");
    assert_eq!(warnings.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_ends_with_min_hold_is_no_loss() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let here = unheard(First::KeptSilent).await;
    let guard = here.lock("k").ttl(s(30)).min_hold(s(5));
    let guard = guard.acquire().await.unwrap();
    let left = tokio::time::timeout(s(1), guard.release()).await;
    left.expect_err("nothing is answered");
    tokio::time::sleep(s(60)).await;
    assert!(here.inspect("k").await.unwrap().is_none());
    assert_eq!(warnings.count(), 0);
}
