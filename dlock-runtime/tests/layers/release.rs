//! What is sent to the store when a lock goes back.

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{Config, LockError, LockManager, lock};

use crate::{connect, seconds as s};

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
