//! A store that falls silent is told from one that is busy, by those too who
//! wait behind other tasks of their process.

use std::future::{Future, pending, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{LockError, LockGuard, LockManager};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep, timeout};

use crate::support::locks::{held, is_busy, is_late, is_unavailable, says};
use crate::support::over_memory::Otherwise;
use crate::support::wait::eventually;
use crate::{connect, manager, seconds, settle, waits};

/// How long the store is waited for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The memory store behind a network that can be cut: nothing is answered then,
/// and a request that waits in the store's queue hears nothing.
#[derive(Clone, Debug)]
struct Mute {
    memory: Memory,
    silent: watch::Sender<bool>,
}

impl Mute {
    async fn new() -> (Self, LockManager) {
        let store = Self {
            memory: Memory::new(),
            silent: watch::Sender::new(false),
        };
        (store.clone(), store.manager().await)
    }

    /// Another process holds `k`, and a task of `here` waits for it.
    async fn waited_for() -> (Self, LockManager, (LockGuard, JoinSet<Answer>)) {
        let (store, here) = Self::new().await;
        let there = connect(&store.memory).await;
        let guard = held(there.lock("k")).await;
        let waiter = calls(1, || here.lock("k").acquire());
        settle().await;
        (store, here, (guard, waiter))
    }

    fn set_silent(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    async fn passes(&self) -> Result<(), BackendError> {
        let mut silent = self.silent.subscribe();
        match timeout(REQUEST_TIMEOUT, silent.wait_for(|silent| !silent)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(BackendError::unavailable("silence")),
        }
    }

    /// Waits until it has been silent for as long as it is waited for.
    async fn is_gone(&self) {
        let mut silent = self.silent.subscribe();
        loop {
            let _ = silent.wait_for(|silent| *silent).await;
            if self.passes().await.is_err() {
                return;
            }
        }
    }
}

#[async_trait::async_trait]
impl Otherwise for Mute {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.passes().await?;
        self.memory.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.passes().await?;
        let mut waits = self.memory.acquire(r);
        let hears = poll_fn(|context| match *self.silent.borrow() {
            true => Poll::Pending,
            false => waits.as_mut().poll(context),
        });
        tokio::select! {
            grant = hears => grant,
            // Also wakes the other when the silence ends.
            () = self.is_gone() => Err(BackendError::unavailable("silence")),
        }
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        match self.passes().await {
            Ok(()) => self.memory.renew(r).await,
            Err(error) => r.iter().map(|_| Err(error.clone())).collect(),
        }
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        self.passes().await?;
        self.memory.release(r).await
    }
    async fn before_a_look(&self) -> Result<(), BackendError> {
        self.passes().await
    }
}

/// Waits by asking now and then, and tells nobody that the lock is held.
#[derive(Debug)]
struct Untold(Memory);

#[async_trait::async_trait]
impl Otherwise for Untold {
    fn memory(&self) -> &Memory {
        &self.0
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        loop {
            if let Some(grant) = self.0.try_acquire(r).await? {
                return Ok(grant);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

type Answer = Result<LockGuard, LockError>;

/// Several calls in tasks of their own.
fn calls<F>(count: usize, call: impl Fn() -> F) -> JoinSet<Answer>
where
    F: Future<Output = Answer> + Send + 'static,
{
    let mut calls = JoinSet::new();
    for _ in 0..count {
        calls.spawn(call());
    }
    calls
}

/// Each of them has this answer.
async fn all<T>(calls: JoinSet<Answer>, is: fn(Answer) -> T) {
    for answer in calls.join_all().await {
        is(answer);
    }
}

/// The answer of a single one.
async fn only(mut call: JoinSet<Answer>) -> Answer {
    call.join_next().await.expect("one").expect("no panic")
}

#[tokio::test(start_paused = true)]
async fn a_try_behind_one_who_asks_takes_one_request_timeout() {
    for leader_tries in [false, true] {
        let (store, here) = Mute::new().await;
        store.set_silent(true);
        let start = Instant::now();
        let lock = || here.lock("k");
        let leader = match leader_tries {
            true => calls(1, || lock().try_acquire()),
            false => calls(1, || lock().acquire()),
        };
        settle().await;
        let tries = calls(8, || lock().try_acquire());
        all(tries, is_unavailable).await;
        assert!(start.elapsed() <= REQUEST_TIMEOUT, "{:?}", start.elapsed());
        is_unavailable(only(leader).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_is_busy_once_the_store_has_said_so() {
    let (store, here) = Mute::new().await;
    let there = connect(&store.memory).await;
    for held in [false, true] {
        let elsewhere = match held {
            true => Some(there.lock("k").acquire().await.expect("free")),
            false => None,
        };
        store.set_silent(true);
        let leader = calls(1, || here.lock("k").acquire());
        settle().await;
        let mut one = Box::pin(here.lock("k").try_acquire());
        assert!(waits(&mut one).await, "it is not known yet");
        store.set_silent(false);
        settle().await;
        // Had by the other task, or held elsewhere.
        let answer = timeout(seconds(1), one).await.expect("an answer");
        is_busy(answer);
        drop(elsewhere);
        let guard = only(leader).await;
        guard.expect("the lock").release().await.expect("held");
    }
}

/// A store elsewhere, which may be gone. The manager's thread blocks where `blocks` is
/// given back.
#[derive(Debug)]
struct Elsewhere {
    memory: Memory,
    gone: watch::Receiver<bool>,
    unblocked: Mutex<mpsc::Receiver<()>>,
}

#[async_trait::async_trait]
impl Otherwise for Elsewhere {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        capabilities.local = false;
        capabilities
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        if *self.gone.borrow() {
            return Err(BackendError::unavailable("it is gone"));
        }
        self.memory.try_acquire(r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        if &*r.key == "blocks" {
            let _ = self.unblocked.lock().expect("no panic").recv();
        }
        self.memory.release(r).await
    }
}

/// It is given back in the background, which has not come to it.
#[tokio::test]
async fn a_try_just_after_a_guard_was_dropped_is_told_of_the_outage() {
    let (gone, is_gone) = watch::channel(false);
    let (unblocks, unblocked) = mpsc::channel();
    let store = Elsewhere {
        memory: Memory::new(),
        gone: is_gone,
        unblocked: Mutex::new(unblocked),
    };
    let here = store.manager().await;
    let [before, guard] = ["blocks", "k"].map(|key| here.lock(key).acquire());
    let (before, guard) = (before.await.expect("free"), guard.await.expect("free"));
    gone.send_replace(true);
    drop(before);
    drop(guard);
    let answer = here.lock("k").try_acquire().await;
    drop(unblocks);
    is_unavailable(answer);
}

/// The task that asks leaves before there is an answer.
#[tokio::test(start_paused = true)]
async fn a_try_asks_by_itself_when_the_one_before_it_leaves() {
    let (store, here) = Mute::new().await;
    store.set_silent(true);
    let mut leader = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut leader).await);
    let mut one = Box::pin(here.lock("k").try_acquire());
    let mut two = Box::pin(here.lock("k").try_acquire());
    assert!(waits(&mut one).await && waits(&mut two).await);
    drop(leader);
    assert!(waits(&mut one).await && waits(&mut two).await);
    store.set_silent(false);
    let guard = one.await.expect("free");
    is_busy(two.await);
    guard.release().await.expect("held");
    assert!(here.list("").await.expect("answers").is_empty());
}

/// What is asked of a silent store is not asked for the whole time again, whoever
/// goes before and leaves late.
#[tokio::test(start_paused = true)]
async fn a_try_takes_one_request_timeout_whoever_leaves_before_it() {
    let margin = seconds(1);
    for waited_before in [false, true] {
        for [stays, leaders] in [[4900, 1], [400, 12]] {
            let (store, here) = Mute::new().await;
            let there = connect(&store.memory).await;
            let elsewhere = there.lock("k").acquire().await.expect("free");
            let acquire = || Box::pin(here.lock("k").acquire());
            let mut leader = acquire();
            if waited_before {
                assert!(waits(&mut leader).await, "it is told that it is held");
                sleep(seconds(1)).await;
            }
            store.set_silent(true);
            assert!(waits(&mut leader).await);
            let start = Instant::now();
            let one = calls(1, || here.lock("k").try_acquire());
            settle().await;
            for _ in 0..leaders {
                let mut next = acquire();
                assert!(waits(&mut next).await);
                let _ = timeout(Duration::from_millis(stays), &mut leader).await;
                leader = next;
                assert!(waits(&mut leader).await);
            }
            drop(leader);
            is_unavailable(only(one).await);
            let took = start.elapsed();
            assert!(
                took <= REQUEST_TIMEOUT + margin,
                "{took:?} behind {leaders} who leave, who have waited: {waited_before}"
            );
            drop(elsewhere);
        }
    }
}

/// A request that does not wait is of no use to who does.
#[tokio::test(start_paused = true)]
async fn who_waits_behind_a_try_that_leaves_asks_anew() {
    for asleep in [false, true] {
        let (store, here) = Mute::new().await;
        let there = connect(&store.memory).await;
        let elsewhere = there.lock("k").acquire().await.expect("free");
        store.set_silent(true);
        let mut leader = Box::pin(here.lock("k").try_acquire());
        assert!(waits(&mut leader).await);
        let waiter = calls(1, || here.lock("k").acquire());
        settle().await;
        if !asleep {
            drop(leader);
        }
        settle().await;
        store.set_silent(false);
        sleep(seconds(10)).await;
        elsewhere.release().await.expect("held");
        let guard = only(waiter).await;
        guard.expect("its turn").release().await.expect("held");
    }
}

/// What the task before it was told an hour ago says nothing of now.
#[tokio::test(start_paused = true)]
async fn a_try_behind_one_who_waits_tells_an_outage() {
    let (store, here, others) = Mute::waited_for().await;
    sleep(seconds(3600)).await;
    is_busy(here.lock("k").try_acquire().await);
    store.set_silent(true);
    all(calls(8, || here.lock("k").try_acquire()), is_unavailable).await;
    store.set_silent(false);
    drop(others);
}

/// The task that asks hears nothing, though the store is there: its runtime is
/// blocked, or its backend does not say that somebody holds the lock.
#[tokio::test(start_paused = true)]
async fn a_try_does_not_wait_for_one_who_hears_nothing() {
    let store = Untold(Memory::new());
    let there = connect(&store.0).await;
    let guard = held(there.lock("k")).await;
    let here = store.manager().await;
    let waiter = calls(1, || here.lock("k").acquire());
    settle().await;
    for _ in 0..2 {
        let busy = timeout(seconds(1), here.lock("k").try_acquire()).await;
        is_busy(busy.expect("an answer"));
    }
    drop((waiter, guard));
}

/// Calls that begin in an outage, behind one that was told before that somebody
/// holds the lock.
#[tokio::test(start_paused = true)]
async fn a_timeout_behind_others_tells_an_outage() {
    let (store, here, others) = Mute::waited_for().await;
    sleep(seconds(3600)).await;
    for limit in [Duration::from_millis(100), seconds(3)] {
        let calls = || calls(8, || here.lock("k").acquire_within(limit));
        all(calls(), is_late).await;
        store.set_silent(true);
        all(calls(), is_unavailable).await;
        store.set_silent(false);
        settle().await;
    }
    drop(others);
}

/// Nobody here has looked for the whole time that a call had, and its timer is the
/// first to be seen: the store is asked before it counts as silent.
#[tokio::test(start_paused = true)]
async fn a_call_that_stood_still_for_all_its_time_is_told_what_the_store_says() {
    let (store, here, others) = Mute::waited_for().await;
    for limit in [Duration::from_millis(100), seconds(3)] {
        for silent in [false, true] {
            sleep(seconds(60)).await;
            store.set_silent(silent);
            let mut call = Box::pin(here.lock("k").acquire_within(limit));
            assert!(waits(&mut call).await);
            advance(2 * limit).await;
            let start = Instant::now();
            let answer = call.await;
            match silent {
                true => is_unavailable(answer),
                false => is_late(answer),
            };
            assert!(start.elapsed() <= seconds(1), "{:?}", start.elapsed());
        }
        store.set_silent(false);
    }
    drop(others);
}

/// Held in this process, it is held, whether or not the store is there.
#[tokio::test(start_paused = true)]
async fn a_lock_held_in_this_process_is_busy_in_an_outage() {
    let (store, here) = Mute::new().await;
    let guard = here.lock("k").acquire().await.expect("free");
    store.set_silent(true);
    is_busy(here.lock("k").try_acquire().await);
    is_late(here.lock("k").acquire_within(seconds(1)).await);
    store.set_silent(false);
    guard.release().await.expect("held");
}

/// Nobody works under it any more, and the store does not take it back: that it is
/// held is no answer.
#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_given_back_is_an_outage() {
    // Longer than it takes until a renewal is on its way, too.
    for silent_for in [Duration::ZERO, seconds(11)] {
        let (store, here) = Mute::new().await;
        let guard = here.lock("k").acquire().await.expect("free");
        store.set_silent(true);
        sleep(silent_for).await;
        let early = calls(8, || here.lock("k").acquire_within(seconds(3)));
        settle().await;
        let released = tokio::spawn(guard.release());
        settle().await;
        let late = calls(8, || here.lock("k").acquire_within(seconds(2)));
        let tries = calls(8, || here.lock("k").try_acquire());
        for calls in [early, late, tries] {
            all(calls, is_unavailable).await;
        }
        store.set_silent(false);
        let guard = here.lock("k").acquire().await.expect("free at last");
        guard.release().await.expect("held");
        drop(released);
    }
}

/// The release is given up just before those behind it give up: what is asked then is
/// not asked for long.
#[tokio::test(start_paused = true)]
async fn a_timeout_just_after_a_failed_release_is_an_outage() {
    for after in [1, 400, 1_500].map(Duration::from_millis) {
        let (store, here) = Mute::new().await;
        let guard = here.lock("k").acquire().await.expect("free");
        store.set_silent(true);
        let released = tokio::spawn(guard.release());
        settle().await;
        sleep(after).await;
        let late = calls(8, || here.lock("k").acquire_within(REQUEST_TIMEOUT));
        all(late, is_unavailable).await;
        assert!(released.is_finished());
    }
}

/// The store takes it back in time, and somebody else has it then.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_given_back_late_is_no_outage() {
    let (store, here) = Mute::new().await;
    let there = connect(&store.memory).await;
    let guard = here.lock("k").acquire().await.expect("free");
    let elsewhere = calls(1, || there.lock("k").acquire());
    settle().await;
    store.set_silent(true);
    let released = tokio::spawn(guard.release());
    let waiter = calls(1, || here.lock("k").acquire_within(seconds(3)));
    let one = calls(1, || here.lock("k").try_acquire());
    sleep(Duration::from_millis(400)).await;
    store.set_silent(false);
    all(one, is_busy).await;
    all(waiter, is_late).await;
    released.await.expect("no panic").expect("held");
    drop(elsewhere);
}

/// One permit is held here. That says nothing of the other, and nor does one that has gone back.
#[tokio::test(start_paused = true)]
async fn a_try_for_a_permit_tells_an_outage_beside_one_that_is_held() {
    let (store, here) = Mute::new().await;
    let permit = || here.lock("k").permits(2);
    let stays = held(permit()).await;
    held(permit()).await.release().await.expect("held");
    store.set_silent(true);
    let leader = calls(1, || permit().acquire());
    settle().await;
    is_unavailable(permit().try_acquire().await);
    is_unavailable(only(leader).await);
    store.set_silent(false);
    stays.release().await.expect("held");
}

/// Whoever is next has only just asked, so the store may be there.
#[tokio::test(start_paused = true)]
async fn a_timeout_just_after_a_release_is_no_outage() {
    let (store, here) = Mute::new().await;
    let guard = held(here.lock("k")).await;
    let next = calls(1, || here.lock("k").acquire());
    settle().await;
    let late = calls(1, || here.lock("k").acquire_within(seconds(2)));
    sleep(Duration::from_millis(1_900)).await;
    guard.release().await.expect("held");
    store.set_silent(true);
    all(late, is_late).await;
    drop(next);
}

/// Answers no request for `k`, and no look at a lock.
#[derive(Debug, Default)]
struct Dumb {
    memory: Memory,
    /// A request is woken after this time, and has no answer.
    wakes: Option<Duration>,
    /// A look is refused.
    refuses: bool,
}

#[async_trait::async_trait]
impl Otherwise for Dumb {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        if &*r.key != "k" {
            return self.memory.acquire(r).await;
        }
        if let Some(after) = self.wakes {
            sleep(after).await;
        }
        pending().await
    }
    async fn before_a_look(&self) -> Result<(), BackendError> {
        match self.refuses {
            true => Err(BackendError::unavailable("it refuses to be looked at")),
            false => pending().await,
        }
    }
}

/// It has waited for that one, and has only just asked for this one.
#[tokio::test(start_paused = true)]
async fn a_timeout_just_after_another_key_was_had_is_no_outage() {
    let store = Dumb::default();
    let there = connect(&store.memory).await;
    let here = store.manager().await;
    let a = held(there.lock("a")).await;
    let late = calls(1, || here.lock(["a", "k"]).acquire_within(seconds(2)));
    sleep(Duration::from_millis(1_900)).await;
    a.release().await.expect("held");
    all(late, is_late).await;
}

/// Nobody has asked for its last key: who was to do so was not polled.
#[tokio::test(start_paused = true)]
async fn who_waits_for_one_that_does_not_come_has_a_moment_more() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let a = held(there.lock("a")).await;
    let k = held(here.lock("k")).await;
    let mut sleepy = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut sleepy).await);
    let limit = Duration::from_millis(3_200);
    let both = calls(1, || here.lock(["a", "k"]).acquire_within(limit));
    // From then on, `sleepy` has three seconds.
    sleep(Duration::from_millis(500)).await;
    k.release().await.expect("held");
    sleep(Duration::from_millis(1_100)).await;
    a.release().await.expect("held");
    let both = only(both).await.expect("a moment later");
    both.release().await.expect("held");
}

/// The store's own words tell more than that there was no answer.
#[tokio::test(start_paused = true)]
async fn a_timeout_behind_others_says_what_the_store_said() {
    let store = Dumb {
        refuses: true,
        ..Dumb::default()
    };
    let here = store.manager().await;
    let leader = calls(1, || here.lock("k").acquire());
    settle().await;
    let late = here.lock("k").acquire_within(seconds(1)).await;
    says(&is_unavailable(late), &["refuses to be looked at"]);
    drop(leader);
}

/// Its request was taken back while it was not polled. What it had begun to ask half-way has had no
/// answer since, so it need not ask again.
#[tokio::test(start_paused = true)]
async fn who_queues_again_at_the_end_is_told_of_an_outage_at_once() {
    let store = Dumb {
        wakes: Some(Duration::from_millis(2_100)),
        ..Dumb::default()
    };
    let here = store.manager().await;
    let mut late = Box::pin(here.lock("k").acquire_within(seconds(4)));
    let polled = timeout(Duration::from_millis(2_050), &mut late).await;
    assert!(polled.is_err(), "nobody answers");
    sleep(seconds(4)).await;
    let start = Instant::now();
    is_unavailable(late.await);
    assert!(start.elapsed() < Duration::from_millis(100));
}

/// Tells nobody that a lock is held, except those who look, while it is not silent.
#[derive(Debug)]
struct Looked {
    untold: Untold,
    silent: watch::Receiver<bool>,
}

#[async_trait::async_trait]
impl Otherwise for Looked {
    fn memory(&self) -> &Memory {
        self.untold.memory()
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.untold.acquire(r).await
    }
    async fn before_a_look(&self) -> Result<(), BackendError> {
        let mut silent = self.silent.clone();
        let heard = silent.wait_for(|silent| !silent).await;
        heard.expect("the test goes on");
        Ok(())
    }
}

/// Its answer will never come, which is not the store's silence.
#[test]
fn a_look_that_ended_with_its_runtime_is_repeated() {
    let [home, other] = [(); 2].map(|()| {
        let mut paused = Builder::new_current_thread();
        let paused = paused.enable_all().start_paused(true).build();
        paused.expect("a runtime")
    });
    let (silent, is_silent) = watch::channel(true);
    let memory = Memory::new();
    let (here, guard, waiter) = home.block_on(async {
        let guard = held(connect(&memory).await.lock("k")).await;
        let store = Looked {
            untold: Untold(memory.clone()),
            silent: is_silent,
        };
        let here = store.manager().await;
        let waiter = calls(1, || here.lock("k").acquire());
        settle().await;
        (here, guard, waiter)
    });
    other.block_on(async {
        let looks = here.lock("k").acquire_within(seconds(1));
        let left = timeout(Duration::from_millis(600), looks).await;
        assert!(left.is_err(), "it has looked, and leaves");
    });
    drop(other);
    silent.send_replace(false);
    home.block_on(async {
        sleep(seconds(60)).await;
        is_late(here.lock("k").acquire_within(seconds(1)).await);
        drop((waiter, guard));
    });
}

/// Never answers, and notes how often it was asked where its servers are.
#[derive(Debug)]
struct Nowhere {
    memory: Memory,
    looked: Arc<AtomicUsize>,
}

#[async_trait::async_trait]
impl Backend for Nowhere {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        capabilities.local = false;
        capabilities
    }
    fn servers(&self) -> Option<Servers> {
        self.looked.fetch_add(1, Ordering::SeqCst);
        Some(Servers::new(Protocol::Other, Vec::new()))
    }
    async fn try_acquire(&self, _: &Request) -> Result<Option<Grant>, BackendError> {
        std::future::pending().await
    }
    async fn acquire(&self, _: &Request) -> Result<Grant, BackendError> {
        std::future::pending().await
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.memory.renew(r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        self.memory.release(r).await
    }
    async fn inspect(&self, _: &str) -> Result<Option<LockInfo>, BackendError> {
        std::future::pending().await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.memory.list(prefix).await
    }
    async fn next_losses(&self) -> Vec<Owner> {
        std::future::pending().await
    }
}

/// So that its error can say that they refuse.
#[tokio::test]
async fn a_call_that_hears_nothing_looks_for_the_servers_before_its_time_is_over() {
    let looked = Arc::new(AtomicUsize::new(0));
    let store = Nowhere {
        memory: Memory::new(),
        looked: Arc::clone(&looked),
    };
    let here = crate::support::locks::by(store).await;
    let before = looked.load(Ordering::SeqCst);
    let limit = Duration::from_millis(200);
    is_unavailable(here.lock("k").acquire_within(limit).await);
    eventually("it has looked for the servers", async || {
        (looked.load(Ordering::SeqCst) > before).then_some(())
    })
    .await;
}
