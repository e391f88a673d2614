//! A failover in which the old master served for a moment after its replicas had
//! heard the last of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::backend::{Backend, Mode, Released, Request};
use tokio::task::{JoinHandle, JoinSet};

use super::wait::{HANG, until, within};

/// So many that a test would hang if each of them were waited for.
const GHOSTS: usize = 24;

/// What is left of the holder's lease when the old master is cut off: the new one knows it, and
/// waits for its end.
const SHORT: Duration = Duration::from_secs(5);

/// The processes whose waiters are served.
pub(crate) struct Processes<B>(pub(crate) [Arc<B>; 2]);

impl<B: Backend> Processes<B> {
    pub(crate) async fn start(backends: [B; 2]) -> Self {
        for backend in &backends {
            within(HANG, backend.start()).await.expect("a connection");
        }
        Self(backends.map(Arc::new))
    }

    /// Their waiters queue, and `cut_off` takes the replicas away. The old master
    /// serves them all. `fail_over` makes a replica the master, in whose queue
    /// they stand to this day, before those who wait meanwhile: these are served
    /// all the same.
    pub(crate) async fn outlive_their_ghosts<S>(
        &self,
        key: &str,
        servers: &mut S,
        cut_off: impl AsyncFnOnce(&mut S),
        fail_over: impl AsyncFnOnce(&mut S),
    ) {
        let here = &self.0[0];
        let mut holder = Request::new(key, Mode::Write, 2 * HANG);
        within(HANG, here.acquire(&holder)).await.expect("the lock");
        let mut served = JoinSet::new();
        for (before, backend) in (0..GHOSTS).zip(self.0.iter().cycle()) {
            served.spawn(self.waits(backend, key, before).await);
        }
        holder.ttl = SHORT;
        let shortened = Instant::now();
        for answer in here.renew(std::slice::from_ref(&holder)).await {
            answer.expect("a lease");
        }
        cut_off(servers).await;
        let released = within(HANG, here.release(&holder)).await;
        let is_released = released.expect("the release") == Released::Released;
        // On a slow machine the lease has ended by itself meanwhile.
        assert!(is_released || shortened.elapsed() >= SHORT, "it was lost");
        within(HANG, served.join_all()).await;

        let holder = Request::new(key, Mode::Write, 2 * HANG);
        within(HANG, here.acquire(&holder)).await.expect("the lock");
        let mut waiting = JoinSet::new();
        for (before, backend) in self.0.iter().enumerate() {
            waiting.spawn(self.waits(backend, key, before).await);
        }
        fail_over(servers).await;
        within(HANG, waiting.join_all()).await;
    }

    /// One more waits, behind so many. It gives the lock back when it has it.
    async fn waits(
        &self,
        backend: &Arc<B>,
        key: &str,
        before: usize,
    ) -> impl Future<Output = ()> + Send + use<B> {
        let (backend, request) = (
            Arc::clone(backend),
            Request::new(key, Mode::Write, 2 * HANG),
        );
        let waiting: JoinHandle<()> = tokio::spawn(async move {
            backend.acquire(&request).await.expect("the lock");
            gives_back(&backend, &request).await;
        });
        let waiters = async || {
            let lock = self.0[0].inspect(key).await.expect("inspect");
            lock.and_then(|lock| lock.waiters).unwrap_or(0)
        };
        until("it waits", waiters, |&waiters| waiters == before + 1).await;
        async move { waiting.await.expect("no panic") }
    }
}

async fn gives_back(backend: &Arc<impl Backend>, request: &Request) {
    let released = within(HANG, backend.release(request)).await;
    assert_eq!(released.expect("the release"), Released::Released);
}
