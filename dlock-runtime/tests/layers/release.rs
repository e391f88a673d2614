//! What is sent to the store when a lock goes back.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{LockManager, lock};
use tokio::time::{Instant, sleep};

use crate::support::locks::{connect, had, held, is_done, is_unavailable, served};
use crate::support::log::Log;
use crate::support::over_memory::Otherwise;
use crate::support::polls::poll_once;
use crate::support::wait::{HANG, within};
use crate::{current_thread, manager, seconds as s, settle};

#[tokio::test(start_paused = true)]
async fn returned_means_released_after_a_dropped_guard_inside() {
    let (memory, here) = manager().await;
    memory.faults().set_delay(Some(s(1)));
    let body = async { drop(held(lock("k")).await) };
    here.scope(lock("k").run(body)).await.unwrap();
    let next = here.lock("k").try_acquire().await;
    drop(next.expect("returned means released"));
}

#[tokio::test(start_paused = true)]
async fn a_release_after_a_dropped_guard_tells_of_an_outage() {
    let (memory, here) = manager().await;
    let body = async {
        let kept = held(lock("k")).await;
        drop(held(lock("k")).await);
        kept
    };
    let kept = here.scope(lock("k").run(body)).await.unwrap();
    memory.faults().set_unavailable(true);
    is_unavailable(kept.release().await);
    memory.faults().set_unavailable(false);
}

/// Answers no release before the second request is there.
#[derive(Debug, Default)]
struct Pipelined {
    memory: Memory,
    asked: tokio::sync::watch::Sender<u32>,
}

#[async_trait::async_trait]
impl Otherwise for Pipelined {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        capabilities.in_order = true;
        capabilities
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.asked.send_modify(|asked| *asked += 1);
        self.memory.acquire(r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        let released = self.memory.release(r).await;
        let _ = self.asked.subscribe().wait_for(|&asked| asked == 2).await;
        released
    }
}

#[tokio::test]
async fn the_next_request_is_sent_behind_a_release() {
    let here = connect(Pipelined::default().config().handoff(0)).await;
    let first = held(here.lock("k")).await;
    let second = here.lock("k").run(async {});
    // In this order: the second waits in the process when the first goes back.
    let both = async { tokio::join!(biased; second, first.release()) };
    let (second, released) = within(HANG, both).await;
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
impl Otherwise for Unheard {
    fn memory(&self) -> &Memory {
        &self.memory
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
}

async fn unheard(first: First) -> LockManager {
    let backend = Unheard {
        memory: Memory::new(),
        first,
        asked: AtomicBool::new(false),
    };
    backend.manager().await
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_caller_left_is_no_loss() {
    let (warnings, _guard) = Log::of_this_thread();
    let here = unheard(First::Silent).await;
    let guard = here.lock("k").acquire().await.unwrap();
    let left = tokio::time::timeout(s(1), guard.release()).await;
    left.expect_err("nothing is answered");
    here.shutdown().await;
    assert_eq!(warnings.text(), "");
}

/// The guard is gone, and its caller may be too: only the background knows of the lock.
#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_until_the_store_has_taken_it() {
    for is_dropped in [false, true] {
        let (memory, here) = manager().await;
        let there = crate::connect(&memory).await;
        let guard = held(here.lock("k").ttl(s(3600))).await;
        memory.faults().set_unavailable(true);
        if is_dropped {
            drop(guard);
        } else {
            is_unavailable(guard.release().await);
        }
        sleep(s(60)).await;
        memory.faults().set_unavailable(false);
        sleep(s(60)).await;
        let free = there.lock("k").try_acquire().await;
        drop(free.expect("it has gone back"));
    }
}

/// A mark is tried again as a release is. When it comes to nothing, the work was done all the same,
/// and may be done once more.
#[tokio::test(start_paused = true)]
async fn a_mark_that_failed_is_tried_again_and_then_told() {
    let ttl = s(10);
    for lasts in [ttl / 2, 3 * ttl] {
        let is_late = lasts > ttl;
        let (warnings, _guard) = Log::of_this_thread();
        let (memory, here) = manager().await;
        let there = crate::connect(&memory).await;
        let once = |manager: &LockManager| manager.lock("k").once(100 * ttl).ttl(ttl);
        let told = || warnings.lines_with("could not be remembered");

        let body = async {
            memory.faults().set_unavailable(true);
            Ok::<_, ()>("done")
        };
        let ran = once(&here).run(body).await;
        assert!(matches!(ran, Ok(Ok("done"))), "{ran:?}");
        assert_eq!(told(), [""; 0], "it may yet be remembered");
        sleep(lasts).await;
        let lines = told();
        assert_eq!(lines.len(), usize::from(is_late), "{lines:?}");
        for line in lines {
            assert!(line.starts_with("WARN dlock::release"), "{line}");
        }
        memory.faults().set_unavailable(false);
        sleep(ttl).await;

        let next = once(&there).run(async { Ok::<_, ()>("again") }).await;
        if is_late {
            assert!(matches!(next, Ok(Ok("again"))), "{next:?}");
        } else {
            is_done(next);
        }
        here.shutdown().await;
        assert_eq!(told().len(), usize::from(is_late));
    }
}

/// The store says so with an error: that is a warning, and the repeat is none.
#[tokio::test(start_paused = true)]
async fn a_release_that_failed_is_no_loss() {
    let (warnings, _guard) = Log::of_this_thread();
    let here = unheard(First::Failed).await;
    let guard = here.lock("stock").acquire().await.unwrap();
    is_unavailable(guard.release().await);
    let told = warnings.text();
    assert_eq!(told.lines().count(), 1);
    assert!(told.contains("key=stock "), "{told}");
    here.shutdown().await;
    assert_eq!(warnings.text().lines().count(), 1);
}

#[test]
fn a_release_whose_runtime_ended_is_no_loss() {
    let (warnings, _guard) = Log::of_this_thread();
    let (home, other) = (current_thread(), current_thread());
    let here = home.block_on(unheard(First::Silent));
    let guard = other.block_on(here.lock("k").acquire()).unwrap();
    let (on_its_way, is_on_its_way) = std::sync::mpsc::channel();
    other.block_on(async move {
        let mut release = Box::pin(guard.release());
        tokio::spawn(async move {
            poll_once(&mut release).await;
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
    assert_eq!(warnings.text(), "");
}

/// The body ended in time. What ran out was on its way back.
#[tokio::test(start_paused = true)]
async fn a_lease_that_runs_out_on_its_way_back_is_no_loss() {
    let (warnings, _guard) = Log::of_this_thread();
    let here = unheard(First::Late(s(20))).await;
    let guard = here.lock("k").ttl(s(10)).acquire().await.unwrap();
    guard.release().await.expect("it was held to the end");
    assert_eq!(warnings.text(), "");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_ends_with_min_hold_is_no_loss() {
    let (warnings, _guard) = Log::of_this_thread();
    let here = unheard(First::KeptSilent).await;
    let guard = here.lock("k").ttl(s(30)).min_hold(s(5));
    let guard = guard.acquire().await.unwrap();
    let left = tokio::time::timeout(s(1), guard.release()).await;
    left.expect_err("nothing is answered");
    tokio::time::sleep(s(60)).await;
    assert!(here.inspect("k").await.unwrap().is_none());
    assert_eq!(warnings.text(), "");
}

/// Notes of each release whether a request follows it, with which it may be sent.
#[derive(Debug)]
struct Followed {
    memory: Memory,
    noted: Arc<Mutex<Vec<bool>>>,
}

#[async_trait::async_trait]
impl Otherwise for Followed {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        capabilities.in_order = true;
        capabilities
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        self.noted.lock().unwrap().push(r.is_followed());
        self.memory.release(r).await
    }
}

/// A release that waited for a request that never comes would keep the lock from everybody.
#[tokio::test(start_paused = true)]
async fn a_release_is_followed_if_somebody_waits() {
    let noted = Arc::default();
    let store = Followed {
        memory: Memory::new(),
        noted: Arc::clone(&noted),
    };
    let here = store.manager().await;
    held(here.lock("k")).await.release().await.unwrap();
    let first = held(here.lock("k")).await;
    let second = tokio::spawn(here.lock("k").acquire());
    settle().await;
    first.release().await.unwrap();
    served(second).await.release().await.unwrap();
    assert_eq!(*noted.lock().unwrap(), [false, true, false]);
}

/// Notes what it is asked to do, and when it has done it. Takes a second to release, and a while to
/// renew.
#[derive(Clone, Debug, Default)]
struct Noting {
    memory: Memory,
    in_order: bool,
    renews_in: Duration,
    notes: Arc<Mutex<Vec<&'static str>>>,
}

impl Noting {
    fn note(&self, what: &'static str) {
        self.notes.lock().unwrap().push(what);
    }

    fn notes(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.notes.lock().unwrap())
    }
}

#[async_trait::async_trait]
impl Otherwise for Noting {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        capabilities.in_order = self.in_order;
        capabilities
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.note("acquire");
        self.memory.acquire(r).await
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.note("renew");
        sleep(self.renews_in).await;
        let renewed = self.memory.renew(r).await;
        self.note("renewed");
        renewed
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        self.note(match r.is_followed() {
            true => "release, followed",
            false => "release",
        });
        sleep(s(1)).await;
        let released = self.memory.release(r).await;
        self.note("released");
        released
    }
}

/// Where requests may overtake each other, the next one is made when the lock has gone back. A
/// release says that one follows only if one does, and only where they stay in order.
#[tokio::test(start_paused = true)]
async fn the_next_request_waits_for_a_release_that_it_could_overtake() {
    for in_order in [false, true] {
        let store = Noting {
            in_order,
            ..Noting::default()
        };
        let here = connect(store.clone().config().handoff(0)).await;
        held(here.lock("k")).await.release().await.unwrap();
        assert_eq!(store.notes(), ["acquire", "release", "released"]);

        for is_dropped in [false, true] {
            let first = held(here.lock("k")).await;
            let second = tokio::spawn(here.lock("k").run(async {}));
            settle().await;
            store.notes();
            match is_dropped {
                true => drop(first),
                false => first.release().await.unwrap(),
            }
            second.await.unwrap().unwrap();
            // The background has a connection of its own.
            let expected = match in_order && !is_dropped {
                true => ["release, followed", "acquire", "released"],
                false => ["release", "released", "acquire"],
            };
            assert_eq!(store.notes()[..3], expected, "{in_order}, {is_dropped}");
        }
    }
}

/// Otherwise the renewal might reach the store behind it, and bring back what was given back.
#[tokio::test(start_paused = true)]
async fn a_release_waits_for_the_renewal_before_it() {
    for min_hold in [None, Some(s(100))] {
        let store = Noting {
            renews_in: s(5),
            ..Noting::default()
        };
        let here = store.clone().manager().await;
        let lock = here.lock("k").ttl(s(30));
        let guard = match min_hold {
            None => held(lock).await,
            Some(least) => held(lock.min_hold(least)).await,
        };
        // It is due by now, and not answered.
        sleep(s(12)).await;
        assert_eq!(store.notes(), ["acquire", "renew"]);
        guard.release().await.unwrap();
        match min_hold {
            None => assert_eq!(store.notes(), ["renewed", "release", "released"]),
            Some(_) => assert_eq!(store.notes(), ["renewed", "renew", "renewed"]),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_what_is_on_its_way_back() {
    for is_dropped in [false, true] {
        let store = Noting::default();
        let here = store.clone().manager().await;
        let guard = held(here.lock("k")).await;
        if is_dropped {
            drop(guard);
        } else {
            tokio::spawn(guard.release());
        }
        settle().await;
        here.shutdown().await;
        assert_eq!(store.notes(), ["acquire", "release", "released"]);
    }
}

/// The store keeps it for its whole ttl, though this process believed in it for a little less.
#[tokio::test(start_paused = true)]
async fn a_release_is_repeated_until_the_store_has_let_the_lease_end() {
    let (memory, here) = manager().await;
    let there = crate::connect(&memory).await;
    let ttl = s(1000);
    let start = Instant::now();
    let guard = held(here.lock("k").ttl(ttl)).await;
    memory.faults().set_unavailable(true);
    is_unavailable(guard.release().await);
    sleep(ttl - s(20)).await;
    memory.faults().set_unavailable(false);
    had(&there, "k").await;
    let lasted = start.elapsed();
    assert!(lasted < ttl - s(15), "{lasted:?}");
}

/// When each release was asked for; all fail.
#[derive(Clone, Debug, Default)]
struct Refusing {
    memory: Memory,
    asked: Arc<Mutex<Vec<Instant>>>,
}

#[async_trait::async_trait]
impl Otherwise for Refusing {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn release(&self, _: &Request) -> Result<Released, BackendError> {
        self.asked.lock().unwrap().push(Instant::now());
        Err(BackendError::unavailable("no"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_repeated_when_the_lease_is_over() {
    for ttl in [s(1), s(3), s(10), s(30)] {
        let (warnings, _guard) = Log::of_this_thread();
        let store = Refusing::default();
        let here = store.clone().manager().await;
        let start = Instant::now();
        is_unavailable(held(here.lock("stock").ttl(ttl)).await.release().await);
        sleep(2 * ttl + s(10)).await;
        let asked = std::mem::take(&mut *store.asked.lock().unwrap());
        assert!(asked.len() > 3, "{asked:?}");
        let last = *asked.last().unwrap() - start;
        assert!(last <= ttl + ttl / 20, "{last:?} of {ttl:?}");
        let told = warnings.lines_with("the lock stays until its ttl has passed");
        assert_eq!(told.len(), 1, "{}", warnings.text());
        assert!(told[0].contains("key=stock "), "{told:?}");
    }
}

/// Fails so often, and leaves the rest to the store.
async fn fails_or(
    failures: &AtomicU32,
    release: impl Future<Output = Result<Released, BackendError>>,
) -> Result<Released, BackendError> {
    let fails = |left: u32| left.checked_sub(1);
    match failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails) {
        Ok(_) => Err(BackendError::unavailable("no")),
        Err(_) => release.await,
    }
}

/// Its renewals reach the store, and their answers do not come back; its first releases fail.
#[derive(Debug)]
struct OneWay {
    memory: Memory,
    failures: AtomicU32,
}

#[async_trait::async_trait]
impl Otherwise for OneWay {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let renewed = self.memory.renew(r).await;
        let unheard = |_| Err(BackendError::unavailable("nothing was heard"));
        renewed.into_iter().map(unheard).collect()
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        fails_or(&self.failures, self.memory.release(r)).await
    }
}

/// The store may have it for a whole ttl from a renewal that nobody heard of.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_given_back_though_the_first_attempts_fail() {
    let memory = Memory::new();
    let there = crate::connect(&memory).await;
    let failures = 3.into();
    let here = OneWay { memory, failures }.manager().await;
    let guard = held(here.lock("k").ttl(s(30))).await;
    guard.lost().await;
    drop(guard);
    let start = Instant::now();
    had(&there, "k").await;
    assert!(start.elapsed() < s(5), "{:?}", start.elapsed());
}

/// Its clock is slow: what it is told to end after a while ends 1% later. The first releases fail.
#[derive(Debug)]
struct SlowClock {
    memory: Memory,
    failures: AtomicU32,
}

#[async_trait::async_trait]
impl Otherwise for SlowClock {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let longer = |r: &Request| {
            let mut r = r.clone();
            r.ttl += r.ttl / 100;
            r
        };
        let r: Vec<_> = r.iter().map(longer).collect();
        self.memory.renew(&r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        fails_or(&self.failures, self.memory.release(r)).await
    }
}

/// Nobody works under it, and the next one need not wait for the clock of the store.
#[tokio::test(start_paused = true)]
async fn what_min_hold_kept_is_given_back_though_the_first_attempts_fail() {
    let memory = Memory::new();
    let there = crate::connect(&memory).await;
    let failures = 3.into();
    let here = SlowClock { memory, failures }.manager().await;
    let (least, start) = (s(1000), Instant::now());
    let kept = here.lock("k").ttl(s(3)).min_hold(least);
    kept.run(async {}).await.expect("free");
    sleep(least - s(10)).await;
    had(&there, "k").await;
    let lasted = start.elapsed();
    assert!(lasted >= least && lasted < least + s(2), "{lasted:?}");
}

/// It has been polled once. As long as it is neither polled nor dropped, its task can do nothing
/// for the lock.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_release_that_nobody_polls_until_its_ttl_is_over() {
    let ttl = s(10);
    for min_hold in [None, Some(s(5)), Some(s(60))] {
        let (memory, here) = manager().await;
        let start = Instant::now();
        let mut locked = here.lock(["a", "b"]).ttl(ttl);
        if let Some(least) = min_hold {
            locked = locked.min_hold(least);
        }
        let mut ends = Box::pin(locked.run(async { memory.faults().set_delay(Some(s(1))) }));
        poll_once(&mut ends).await;
        within(2 * ttl, here.shutdown()).await;
        let lasted = start.elapsed();
        assert!(lasted >= ttl - ttl / 50, "{min_hold:?}: {lasted:?}");
        assert!(lasted <= ttl + ttl / 50, "{min_hold:?}: {lasted:?}");

        // Whoever polls it again learns what came of it, and is told of no loss.
        let (warnings, _guard) = Log::of_this_thread();
        memory.faults().set_delay(None);
        within(HANG, ends).await.expect("the body was run");
        assert_eq!(warnings.text(), "", "{min_hold:?}");
    }
}

/// Answers no release, though it has taken the lock back.
#[derive(Debug)]
struct Mute {
    memory: Memory,
    releases: bool,
}

#[async_trait::async_trait]
impl Otherwise for Mute {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        if self.releases {
            self.memory.release(r).await?;
        }
        std::future::pending().await
    }
}

/// The next task would otherwise wait for the answer to a request that nobody polls.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_release_that_nobody_polls_soon_asks_for_itself() {
    let ttl = s(10);
    for releases in [false, true] {
        let store = Mute {
            memory: Memory::new(),
            releases,
        };
        let here = store.manager().await;
        let guard = held(here.lock("k").ttl(ttl)).await;
        // Came after the grant, so the lock is not handed over.
        let next = tokio::spawn(here.lock("k").ttl(ttl).acquire());
        settle().await;
        let start = Instant::now();
        let mut ends = Box::pin(guard.release());
        poll_once(&mut ends).await;
        let next = within(2 * ttl, next).await.expect("no panic");
        let waited = start.elapsed();
        std::mem::forget(next.expect("it is free"));
        let (least, most) = if releases { (s(3), s(4)) } else { (ttl, ttl) };
        assert!(waited >= least && waited <= most, "{releases}: {waited:?}");
    }
}

/// The last to end decides whether the work is done, and nobody said so of the guard's. The guard
/// outlives the body, so it is what gives the lock back.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_last_leaves_no_mark() {
    let (_memory, here) = manager().await;
    let once = || lock("k").once(s(3600));
    let body = async { Ok::<_, ()>(held(once()).await) };
    let kept = here
        .scope(once().run(body))
        .await
        .expect("free")
        .expect("ends");
    drop(kept);
    settle().await;
    let next = here.lock("k").once(s(3600)).try_acquire().await;
    drop(next.expect("it is to be done again"));
}
