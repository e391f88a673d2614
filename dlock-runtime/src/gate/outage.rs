//! What a caller that gives up is told: that the lock was held, or that the store was away.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Gate;
use super::probe::Probe;
use super::queue::Queue;
use crate::backend::{BackendError, Progress, Request};
use crate::sync::Mutex;

/// What a caller waits for, and since when. Read when it gives up.
#[derive(Debug, Default)]
pub(crate) struct WaitState(Mutex<Option<Waits>>);

#[derive(Clone, Debug)]
enum Waits {
    /// For its turn in this queue.
    Queued(Arc<Queue>, Instant),
    /// It has all of its locks, and asks the store for something itself.
    Asks(Instant),
}

impl WaitState {
    pub(super) fn set(&self, queue: &Arc<Queue>, since: Instant) {
        let waits = Some(Waits::Queued(Arc::clone(queue), since));
        let before = std::mem::replace(&mut *self.0.lock(), waits);
        // A caller that queues again keeps the probe that it has begun.
        if let Some(Waits::Queued(before, _)) = before
            && !Arc::ptr_eq(&before, queue)
            && before.key() == queue.key()
        {
            let known = before.probe.lock().clone();
            let mut probe = queue.probe.lock();
            *probe = probe.take().or(known);
        }
    }

    /// The caller has all of its locks, and waits for the store's answer from now on.
    pub(crate) fn asks(&self, now: Instant) {
        let before = self.0.lock().replace(Waits::Asks(now));
        // After the mutex is released: it may be the last that refers to a queue.
        drop(before);
    }

    /// The store has answered, and the caller pauses.
    pub(crate) fn pauses(&self) {
        let before = self.0.lock().take();
        // As above.
        drop(before);
    }

    fn get(&self) -> Option<Waits> {
        self.0.lock().clone()
    }
}

impl Gate {
    /// Called when half of a caller's time is over. If the lock is on its way back, or the
    /// store has not said that it is held, nothing is known of the store now: a probe has the
    /// other half to find out. It is needed even while a request is on its way, as another
    /// request may replace that before the end.
    pub(crate) fn make_sure_of_the_store(&self, wait_state: &WaitState) {
        let Some(Waits::Queued(queue, since)) = wait_state.get() else {
            return;
        };
        let is_unknown = match queue.held() {
            Some(lease) => lease.returns_since().is_some(),
            None => queue
                .asked(since)
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

    /// What a caller that gives up after it has `waited` knows. It called
    /// [`make_sure_of_the_store`](Self::make_sure_of_the_store) `looked` ago: half of its time,
    /// unless it was polled late.
    pub(crate) fn known(
        &self,
        wait_state: &WaitState,
        waited: Duration,
        looked: Duration,
    ) -> Known {
        let now = self.leases.now();
        let silence = |asked| Progress::silence(asked, looked, waited, now);
        let (queue, since) = match wait_state.get() {
            None => return Known::Held,
            Some(Waits::Asks(asked)) => {
                return silence(asked).map_or(Known::Nothing, Known::Outage);
            }
            Some(Waits::Queued(queue, since)) => (queue, since),
        };
        if let Some(lease) = queue.held() {
            let returns = lease.returns_since();
            let told = returns.and_then(|returns| silence(returns.max(since)));
            return told.map_or(Known::Held, Known::Outage);
        }
        // This process held the lock meanwhile, or the caller spent most of its time on another
        // of its keys.
        let was_held = queue.was_held_since(since)
            || now.saturating_duration_since(since) < Progress::nearly(looked);
        let unknown = match was_held {
            true => Known::Held,
            false => Known::Nothing,
        };
        let request = queue.asked(since);
        let has_heard = |request: &Request| request.progress().heard_since(since);
        if request.as_ref().is_some_and(has_heard) {
            return Known::Held;
        }
        // Even if no request is on its way: the last one may have failed.
        let shown = match probed(&queue, since, silence) {
            Ok(shown) => shown,
            Err(outage) => return Known::Outage(outage),
        };
        let Some(request) = request else {
            return unknown;
        };
        let progress = request.progress();
        match shown {
            Some(is_held) if is_held || progress.heard_last() => Known::Held,
            // The leader has not asked yet, because it leaves the lock to other processes first.
            _ if progress.asked().is_none() => Known::Held,
            // Nobody has said that the lock is held, and the store may be there. If the leader's
            // request has had no answer in all this time, the caller has waited for the store. A
            // younger request does not tell: the one before it may have failed.
            _ => match progress.outage(since, looked, waited, now) {
                Some(outage) => Known::Outage(outage),
                None => unknown,
            },
        }
    }
}

/// Whether the store knows of the lock, as the last probe was told since then, or the outage that
/// the probe met.
fn probed(
    queue: &Queue,
    since: Instant,
    silence: impl Fn(Instant) -> Option<BackendError>,
) -> Result<Option<bool>, BackendError> {
    let Some(probe) = queue.probe.lock().clone() else {
        return Ok(None);
    };
    // A probe that began before the caller came has been silent for all of the caller's time.
    if !probe.is_answered()
        && let Some(outage) = silence(probe.begun.max(since))
    {
        return Err(outage);
    }
    probe.answered_since(since).transpose()
}

/// What a caller who gives up knows of the lock and its store.
#[derive(Debug)]
pub(crate) enum Known {
    /// Somebody had the lock.
    Held,
    /// The store counts as unavailable.
    Outage(BackendError),
    /// Nobody is known to have had it, but the store was asked only just now: for another task,
    /// or because the caller was polled late.
    Nothing,
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use tokio::time::sleep;

    use super::*;
    use crate::backend::{Backend, Capabilities, Grant, LockInfo, Mode, Released, Renewed};
    use crate::gate::Entry;
    use crate::observe::{Labels, SectionSpan};
    use crate::token::FencingToken;
    use crate::{Config, LockError, LockManager};

    /// A store that grants once. After that, it does not answer requests for a lock.
    #[derive(Debug, Default)]
    struct Silent {
        has_granted: AtomicBool,
        /// An inspection says after this time whether the lock is held.
        shows: Option<(Duration, bool)>,
        /// Each request is told that somebody holds the lock.
        is_held: bool,
        /// Each request is woken after this time, without a grant.
        wakes: Option<Duration>,
        /// The first request is told after half of this time that somebody holds the lock, and after
        /// all of it that the body has been done.
        is_done_after: Option<Duration>,
        was_done: AtomicBool,
        /// Requests are kept back, as by a process that leaves the lock to others.
        keeps_back: bool,
        /// From then on, requests are granted again.
        recovers: Option<tokio::time::Instant>,
    }

    /// How long a release takes until it fails.
    const GIVES_UP: Duration = Duration::from_secs(3);

    #[async_trait]
    impl Backend for Silent {
        fn capabilities(&self) -> Capabilities {
            // So the manager goes by the clock of the test.
            let mut capabilities = Capabilities::new("silent");
            capabilities.local = true;
            capabilities
        }

        async fn try_acquire(&self, _: &Request) -> Result<Option<Grant>, BackendError> {
            pending().await
        }

        async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
            let recovers = self.recovers;
            let is_well = recovers.is_some_and(|at| at <= tokio::time::Instant::now());
            if self.has_granted.swap(true, Ordering::Relaxed) && !is_well {
                if let Some(time) = self.is_done_after
                    && !self.was_done.swap(true, Ordering::Relaxed)
                {
                    sleep(time / 2).await;
                    request.note_held();
                    sleep(time / 2).await;
                    return Err(BackendError::done());
                }
                if self.is_held {
                    request.note_held();
                }
                if self.keeps_back {
                    request.progress().asks_later();
                }
                if let Some(after) = self.wakes {
                    sleep(after).await;
                    request.progress().asks_again();
                }
                return pending().await;
            }
            if is_well {
                sleep(Duration::from_millis(10)).await;
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

    /// A caller before this one has begun the probe. When the release has failed, that caller asks
    /// for the lock, just before this one gives up.
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

    /// A partition ends just before the caller gives up. The request for the lock has no answer
    /// yet, and the probe has one.
    #[tokio::test(start_paused = true)]
    async fn a_lock_that_nobody_holds_is_no_reason_for_a_timeout() {
        for is_held in [false, true] {
            let store = Silent {
                has_granted: AtomicBool::new(true),
                shows: Some((Duration::from_millis(450), is_held)),
                wakes: None,
                recovers: None,
                ..Silent::default()
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

    /// The second caller begins a probe just before the first gives up. The first had its answer
    /// from the probe before.
    #[tokio::test(start_paused = true)]
    async fn what_one_caller_was_told_is_not_lost_when_another_asks() {
        let store = Silent {
            has_granted: AtomicBool::new(true),
            shows: Some((Duration::from_millis(50), true)),
            wakes: None,
            recovers: None,
            ..Silent::default()
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

    /// A lease is kept for a while, cannot be given back then, and runs out. Only then does a
    /// waiter ask the store, just before the caller gives up.
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

    /// The request of the task before has ended just before the caller gives up, and the next one
    /// has no answer yet.
    #[tokio::test(start_paused = true)]
    async fn what_the_task_before_has_heard_counts_for_those_behind_it() {
        let store = Silent {
            has_granted: AtomicBool::new(true),
            is_done_after: Some(Duration::from_millis(1_050)),
            ..Silent::default()
        };
        let manager = LockManager::connect(Config::with_backend(store)).await;
        let manager = manager.expect("it needs no server");
        let before = tokio::spawn(manager.lock("key").acquire());
        sleep(Duration::from_millis(100)).await;
        let began = tokio::time::Instant::now();
        let within = manager.lock("key").acquire_within(Duration::from_secs(1));
        let told = within.await.expect_err("who asked has no answer");
        assert!(matches!(told, LockError::Timeout { .. }), "{told:?}");
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        let done = before.await.expect("no panic").expect_err("it is done");
        assert!(matches!(done, LockError::Done { .. }), "{done:?}");
    }

    /// Also if the store then says that nobody holds it: only this process could think so.
    #[tokio::test(start_paused = true)]
    async fn a_lock_on_its_way_back_is_no_reason_for_a_timeout() {
        let store = Silent {
            shows: Some((Duration::from_millis(450), false)),
            ..Silent::default()
        };
        let manager = LockManager::connect(Config::with_backend(store)).await;
        let manager = manager.expect("it needs no server");
        let guard = manager.lock("key").acquire().await.expect("granted");
        let releases = tokio::spawn(guard.release());
        let before = tokio::spawn(manager.lock("key").acquire());
        sleep(GIVES_UP - Duration::from_millis(700)).await;
        let within = manager.lock("key").acquire_within(Duration::from_secs(1));
        let told = within.await.expect_err("nobody answers");
        assert!(matches!(told, LockError::Unavailable { .. }), "{told:?}");
        before.abort();
        releases.abort();
    }

    /// A probe began before the caller came, and is answered after that. Of a quorum, most nodes
    /// may have answered it long before.
    #[tokio::test(start_paused = true)]
    async fn what_the_store_was_asked_before_the_caller_came_is_no_news() {
        let at = Duration::from_millis;
        let store = Silent {
            has_granted: AtomicBool::new(true),
            shows: Some((at(1_200), true)),
            is_held: true,
            wakes: Some(at(3_200)),
            ..Silent::default()
        };
        let manager = LockManager::connect(Config::with_backend(store)).await;
        let manager = manager.expect("it needs no server");
        let before = tokio::spawn(manager.lock("key").acquire());
        sleep(at(100)).await;
        let probes = tokio::spawn(manager.lock("key").acquire_within(at(4_000)));
        sleep(at(2_400)).await;
        let within = manager.lock("key").acquire_within(at(1_000));
        let told = within.await.expect_err("who asked has no answer");
        assert!(matches!(told, LockError::Unavailable { .. }), "{told:?}");
        probes.abort();
        before.abort();
    }

    /// Nobody has asked the store yet, which is no outage, and no cause to wait for longer.
    #[tokio::test(start_paused = true)]
    async fn a_process_that_leaves_the_lock_to_others_is_told_in_time() {
        let limit = Duration::from_secs(1);
        let store = Silent {
            has_granted: AtomicBool::new(true),
            shows: Some((Duration::from_millis(50), false)),
            keeps_back: true,
            ..Silent::default()
        };
        let manager = LockManager::connect(Config::with_backend(store)).await;
        let manager = manager.expect("it needs no server");
        let begun = tokio::time::Instant::now();
        let within = manager.lock("key").acquire_within(limit);
        let told = within.await.expect_err("it is left to others");
        assert!(matches!(told, LockError::Timeout { .. }), "{told:?}");
        assert_eq!(begun.elapsed(), limit);
    }

    /// A caller before this one was told that somebody holds the lock. If it has been woken since
    /// and has asked again, it has no answer to that, and the lock is free.
    #[tokio::test(start_paused = true)]
    async fn who_asked_again_and_had_no_answer_is_no_reason_for_a_timeout() {
        for asks_again in [false, true] {
            let store = Silent {
                has_granted: AtomicBool::new(true),
                shows: Some((Duration::from_millis(50), false)),
                is_held: true,
                wakes: asks_again.then_some(Duration::from_millis(600)),
                ..Silent::default()
            };
            let manager = LockManager::connect(Config::with_backend(store)).await;
            let manager = manager.expect("it needs no server");
            let before = tokio::spawn(manager.lock("key").acquire());
            sleep(Duration::from_millis(400)).await;
            let within = manager.lock("key").acquire_within(Duration::from_secs(1));
            let told = within.await.expect_err("who asked has no answer");
            match asks_again {
                true => assert!(matches!(told, LockError::Unavailable { .. }), "{told:?}"),
                false => assert!(matches!(told, LockError::Timeout { .. }), "{told:?}"),
            }
            before.abort();
        }
    }

    /// The request of the task before has failed. The next one has not asked yet, and the probe has
    /// no answer.
    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_not_answered_tells_of_an_outage_while_nobody_asks() {
        let second = Duration::from_secs(1);
        let manager = LockManager::connect(Config::with_backend(Silent::default())).await;
        let manager = manager.expect("it needs no server");
        let gate = &manager.inner().gate;
        let section = SectionSpan::of_nobody(Labels::of_call("key", "silent", Mode::Write));
        let entry = Entry {
            mode: Mode::Write,
            ttl: second,
            try_only: false,
            fresh: false,
            section: &section,
        };
        let joined = gate.queues.join(&Arc::from("key"), &entry);
        let (queue, _ticket) = joined.expect("nobody is there");
        let waits = WaitState::default();
        waits.set(&queue, gate.leases.now());
        let probe = Probe::begin(&gate.leases, queue.key(), None);
        *queue.probe.lock() = Some(Arc::new(probe));
        sleep(second).await;
        let known = gate.known(&waits, 2 * second, second);
        assert!(matches!(known, Known::Outage(_)), "{known:?}");
    }

    /// The caller is not polled when half of its time is over. When it is polled again, the time
    /// for its last look is much shorter than that half.
    #[tokio::test(start_paused = true)]
    async fn who_was_not_polled_half_way_is_told_of_an_outage() {
        for (limit, stands) in [(4, 6), (4, 3), (20, 15), (20, 25)] {
            let store = Silent {
                has_granted: AtomicBool::new(true),
                shows: None,
                wakes: Some(Duration::from_millis(800)),
                recovers: None,
                ..Silent::default()
            };
            let manager = LockManager::connect(Config::with_backend(store)).await;
            let manager = manager.expect("it needs no server");
            let limit = Duration::from_secs(limit);
            let mut within = Box::pin(manager.lock("key").acquire_within(limit));
            tokio::select! {
                told = &mut within => panic!("{told:?}"),
                () = sleep(Duration::from_millis(100)) => {}
            }
            sleep(Duration::from_secs(stands)).await;
            let told = within.await.expect_err("nobody answers");
            assert!(
                matches!(told, LockError::Unavailable { .. }),
                "{limit:?}: {told:?}"
            );
        }
    }

    /// As far as is known, nobody had the lock. The caller's request was taken back while the
    /// caller was not polled, so it asks anew, and has time for an answer.
    #[tokio::test(start_paused = true)]
    async fn who_was_not_polled_at_the_end_looks_once_more() {
        for is_well in [true, false] {
            let recovers = is_well.then_some(Duration::from_secs(4));
            let store = Silent {
                has_granted: AtomicBool::new(true),
                shows: Some((Duration::from_millis(50), false)),
                wakes: Some(Duration::from_millis(800)),
                recovers: recovers.map(|after| tokio::time::Instant::now() + after),
                ..Silent::default()
            };
            let manager = LockManager::connect(Config::with_backend(store)).await;
            let manager = manager.expect("it needs no server");
            let mut within = Box::pin(manager.lock("key").acquire_within(Duration::from_secs(1)));
            tokio::select! {
                told = &mut within => panic!("{told:?}"),
                () = sleep(Duration::from_millis(600)) => {}
            }
            sleep(Duration::from_secs(6)).await;
            match within.await {
                Ok(guard) if is_well => std::mem::forget(guard),
                Err(LockError::Unavailable { .. }) if !is_well => {}
                told => panic!("{is_well}: {told:?}"),
            }
        }
    }

    /// The caller's request was taken back while the caller was not polled, so it asks anew, and
    /// gives up.
    #[tokio::test(start_paused = true)]
    async fn who_was_not_polled_until_the_end_is_told_of_an_outage() {
        for is_waited_for in [false, true] {
            let store = Silent {
                has_granted: AtomicBool::new(true),
                shows: None,
                wakes: Some(Duration::from_millis(2_100)),
                recovers: None,
                ..Silent::default()
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
