//! Whether the store is there, for callers who give up.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Gate;
use super::probe::Probe;
use super::queue::Queue;
use crate::backend::{BackendError, Progress};
use crate::sync::Mutex;

/// Where a caller waits, and since when, for when it gives up.
#[derive(Debug, Default)]
pub(crate) struct WaitState(Mutex<Option<Waits>>);

type Waits = (Arc<Queue>, Instant);

impl WaitState {
    pub(super) fn set(&self, queue: &Arc<Queue>, since: Instant) {
        let waits = Some((Arc::clone(queue), since));
        let before = std::mem::replace(&mut *self.0.lock(), waits);
        // Who queues again has asked already whether the store is there.
        if let Some((before, _)) = before
            && !Arc::ptr_eq(&before, queue)
            && before.key() == queue.key()
        {
            let known = before.probe.lock().clone();
            let mut probe = queue.probe.lock();
            *probe = probe.take().or(known);
        }
    }

    fn get(&self) -> Option<Waits> {
        self.0.lock().clone()
    }
}

impl Gate {
    /// Half of a caller's time is over. If it waits for a lock that is on its way back,
    /// or was not told that the lock is held, nothing is known of the store now: it has
    /// the other half to answer. Also where a request is on its way for it: another may
    /// take its place before the end.
    pub(crate) fn make_sure_of_the_store(&self, wait_state: &WaitState) {
        let Some((queue, since)) = wait_state.get() else {
            return;
        };
        let is_unknown = match queue.held() {
            Some(lease) => lease.returns_since().is_some(),
            None => queue
                .asked()
                .is_some_and(|request| !request.progress().heard_since(since)),
        };
        if is_unknown {
            let mut probe = queue.probe.lock();
            if probe.as_ref().is_none_or(|known| known.is_answered()) {
                let next = Probe::begin(&self.leases, queue.key(), probe.as_deref());
                *probe = Some(Arc::new(next));
            }
        }
    }

    /// For a caller who gives up after waiting this long: why the store counts
    /// as unavailable, or none if the lock is held by somebody.
    pub(crate) fn outage(&self, wait_state: &WaitState, waited: Duration) -> Option<BackendError> {
        let now = self.leases.now();
        let (queue, since) = wait_state.get()?;
        if let Some(lease) = queue.held() {
            return Progress::silence(lease.returns_since()?.max(since), waited, now);
        }
        let request = queue.asked()?;
        let progress = request.progress();
        if progress.heard_since(since) {
            return None;
        }
        let probe = queue.probe.lock().clone();
        // One that began before the caller came has been silent all its time.
        let silent = probe.as_ref().filter(|probe| !probe.is_answered());
        let silence =
            silent.and_then(|probe| Progress::silence(probe.begun.max(since), waited, now));
        if silence.is_some() {
            return silence;
        }
        match probe.and_then(|probe| probe.answered_since(since)) {
            Some(Err(error)) => Some(error),
            Some(Ok(is_held)) if is_held || progress.has_heard() => None,
            // Nobody has said that the lock is held. The store may be there: if who asks
            // it for the lock had no answer in all this time, that is what the caller
            // waited for. And before its request another may have failed.
            _ => progress.outage(since, waited, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use tokio::time::sleep;

    use super::*;
    use crate::backend::{
        Backend, Capabilities, Grant, LockInfo, Mode, Released, Renewed, Request,
    };
    use crate::token::FencingToken;
    use crate::{Config, LockError, LockManager};

    /// A store that grants once, and answers nothing more to who asks for a lock.
    #[derive(Debug, Default)]
    struct Silent {
        has_granted: AtomicBool,
        /// Says whether the lock is held, after this time.
        shows: Option<(Duration, bool)>,
        /// Whoever asks is woken after this time, for nothing.
        wakes: Option<Duration>,
    }

    /// For so long a release is repeated.
    const GIVES_UP: Duration = Duration::from_secs(3);

    #[async_trait]
    impl Backend for Silent {
        fn capabilities(&self) -> Capabilities {
            // On the clock of the test.
            let mut capabilities = Capabilities::new("silent");
            capabilities.local = true;
            capabilities
        }

        async fn try_acquire(&self, _: &Request) -> Result<Option<Grant>, BackendError> {
            pending().await
        }

        async fn acquire(&self, _: &Request) -> Result<Grant, BackendError> {
            if self.has_granted.swap(true, Ordering::Relaxed) {
                if let Some(after) = self.wakes {
                    sleep(after).await;
                }
                return pending().await;
            }
            let sent_at = tokio::time::Instant::now();
            Ok(Grant::new(FencingToken::from(1), sent_at))
        }

        async fn renew(&self, _: &[Request]) -> Vec<Result<Renewed, BackendError>> {
            pending().await
        }

        async fn release(&self, _: &Request) -> Result<Released, BackendError> {
            sleep(GIVES_UP).await;
            Err(BackendError::unavailable("it is silent"))
        }

        async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
            let Some((after, is_held)) = self.shows else {
                return pending().await;
            };
            sleep(after).await;
            let info = || LockInfo::new(key.to_owned(), Mode::Write, Vec::new(), 0);
            Ok(is_held.then(info))
        }

        async fn list(&self, _: &str) -> Result<Vec<LockInfo>, BackendError> {
            pending().await
        }
    }

    /// The caller before it has had the store asked. When the release has failed, the
    /// lock is asked for by another, and that was just now.
    #[tokio::test(start_paused = true)]
    async fn a_probe_that_began_before_the_caller_tells_of_an_outage_too() {
        let manager = LockManager::connect(Config::with_backend(Silent::default())).await;
        let manager = manager.expect("it needs no server");
        let guard = manager.lock("key").acquire().await.expect("granted");
        let releases = tokio::spawn(guard.release());
        let after = |start, limit| {
            let lock = manager.lock("key");
            async move {
                sleep(Duration::from_millis(start)).await;
                lock.acquire_within(Duration::from_millis(limit)).await
            }
        };
        let before = tokio::spawn(after(100, 4_000));
        let told = after(2_300, 1_000).await.expect_err("nobody answers");
        assert!(matches!(told, LockError::Unavailable { .. }), "{told:?}");
        before.abort();
        releases.abort();
    }

    /// A partition that ends just before the caller gives up: who asks for the lock had
    /// no answer yet, and the question whether the store is there had one.
    #[tokio::test(start_paused = true)]
    async fn a_lock_that_nobody_holds_is_no_reason_for_a_timeout() {
        for is_held in [false, true] {
            let store = Silent {
                has_granted: AtomicBool::new(true),
                shows: Some((Duration::from_millis(450), is_held)),
                wakes: None,
            };
            let manager = LockManager::connect(Config::with_backend(store)).await;
            let manager = manager.expect("it needs no server");
            let before = tokio::spawn(manager.lock("key").acquire());
            sleep(Duration::from_millis(100)).await;
            let within = manager.lock("key").acquire_within(Duration::from_secs(1));
            let told = within.await.expect_err("who asked has no answer");
            match is_held {
                true => assert!(matches!(told, LockError::Timeout { .. }), "{told:?}"),
                false => assert!(matches!(told, LockError::Unavailable { .. }), "{told:?}"),
            }
            before.abort();
        }
    }

    /// The second begins to ask just before the first gives up, who has its answer.
    #[tokio::test(start_paused = true)]
    async fn what_one_caller_was_told_is_not_lost_when_another_asks() {
        let store = Silent {
            has_granted: AtomicBool::new(true),
            shows: Some((Duration::from_millis(50), true)),
            wakes: None,
        };
        let manager = LockManager::connect(Config::with_backend(store)).await;
        let manager = manager.expect("it needs no server");
        let before = tokio::spawn(manager.lock("key").acquire());
        let second = || manager.lock("key").acquire_within(Duration::from_secs(1));
        sleep(Duration::from_millis(100)).await;
        let first = tokio::spawn(second());
        sleep(Duration::from_millis(480)).await;
        let other = tokio::spawn(second());
        let told = first.await.expect("no panic").expect_err("it is held");
        assert!(matches!(told, LockError::Timeout { .. }), "{told:?}");
        other.abort();
        before.abort();
    }

    /// A lease that is kept for a while, and then cannot be given back, runs out. Who
    /// waits for it asks the store only then, which is just before the caller gives up.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_kept_and_could_not_be_given_back_is_an_outage() {
        let manager = LockManager::connect(Config::with_backend(Silent::default())).await;
        let manager = manager.expect("it needs no server");
        let lock = || manager.lock("key").ttl(Duration::from_secs(2));
        let keeps = lock().min_hold(Duration::from_millis(300)).acquire().await;
        drop(keeps.expect("granted"));
        let before = tokio::spawn(lock().acquire());
        sleep(Duration::from_millis(1_100)).await;
        let within = lock().acquire_within(Duration::from_secs(1));
        let told = within.await.expect_err("nobody answers");
        assert!(matches!(told, LockError::Unavailable { .. }), "{told:?}");
        before.abort();
    }

    /// Its request was taken from it meanwhile, so that it asks anew, and gives up.
    #[tokio::test(start_paused = true)]
    async fn who_was_not_polled_until_the_end_is_told_of_an_outage() {
        for is_waited_for in [false, true] {
            let store = Silent {
                has_granted: AtomicBool::new(true),
                shows: None,
                wakes: Some(Duration::from_millis(2_100)),
            };
            let manager = LockManager::connect(Config::with_backend(store)).await;
            let manager = manager.expect("it needs no server");
            let mut within = Box::pin(manager.lock("key").acquire_within(Duration::from_secs(4)));
            let half = sleep(Duration::from_millis(2_050));
            tokio::select! {
                told = &mut within => panic!("{told:?}"),
                () = half => {}
            }
            let behind = is_waited_for.then(|| tokio::spawn(manager.lock("key").acquire()));
            sleep(Duration::from_secs(4)).await;
            let told = within.await.expect_err("nobody answers");
            assert!(matches!(told, LockError::Unavailable { .. }), "{told:?}");
            behind.inspect(tokio::task::JoinHandle::abort);
        }
    }
}
