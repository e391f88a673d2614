//! Grants whose lease is over when their answer is seen.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{LockError, LockGuard, LockManager, LockRequest};
use tokio::time::advance;

use crate::support::locks::served;
use crate::support::log::Log;
use crate::support::over_memory::Otherwise;
use crate::support::polls::{Polled, leave_at_poll, poll_once};
use crate::support::wait::HANG;
use crate::{seconds as s, settle};

const TTL: Duration = Duration::from_millis(200);

/// Takes its time for the answers, but not for what it answers.
#[derive(Debug)]
struct Slow {
    memory: Memory,
    /// So many of the first.
    slow: AtomicU32,
    /// So long, or until the caller is polled again.
    answer: Option<Duration>,
    /// So many of its leases end before anybody has them.
    ended: AtomicU32,
}

/// Whether there was one left.
fn take_one(of: &AtomicU32) -> bool {
    let left = |left: u32| left.checked_sub(1);
    of.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left)
        .is_ok()
}

impl Slow {
    async fn answer(&self) {
        let slow = take_one(&self.slow);
        match self.answer {
            Some(time) if slow => tokio::time::sleep(time).await,
            _ => tokio::task::yield_now().await,
        }
    }
}

#[async_trait::async_trait]
impl Otherwise for Slow {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        let grant = self.memory.try_acquire(r).await;
        self.answer().await;
        grant
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        let grant = self.memory.acquire(r).await;
        self.answer().await;
        grant
    }
    fn has_ended(&self, _: Owner) -> bool {
        take_one(&self.ended)
    }
}

async fn slow(slow: u32, answer: Option<Duration>) -> LockManager {
    connect(slow, answer, 0).await
}

/// A store that ends so many of its leases before anybody has them.
async fn ends(ended: u32) -> LockManager {
    connect(0, None, ended).await
}

async fn connect(slow: u32, answer: Option<Duration>, ended: u32) -> LockManager {
    let backend = Slow {
        memory: Memory::new(),
        slow: slow.into(),
        answer,
        ended: ended.into(),
    };
    backend.manager().await
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Wait,
    Try,
    Read,
}

const HOW: [How; 3] = [How::Wait, How::Try, How::Read];

async fn ask(how: How, request: LockRequest) -> Result<LockGuard, LockError> {
    let request = request.ttl(TTL);
    match how {
        How::Wait => request.acquire().await,
        How::Try => request.try_acquire().await,
        How::Read => request.read().acquire().await,
    }
}

/// Drops what was had, and sees that nothing stays.
async fn nothing_is_left(here: &LockManager, had: Result<LockGuard, LockError>) {
    drop(had);
    here.shutdown().await;
    let left = here.list("").await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_came_too_late_is_asked_for_again() {
    let (warnings, _guard) = Log::of_this_thread();
    for how in HOW {
        let here = slow(1, Some(2 * TTL)).await;
        let guard = ask(how, here.lock("k")).await;
        let guard = guard.unwrap_or_else(|error| panic!("{how:?}: {error}"));
        assert!(guard.is_held());
        nothing_is_left(&here, Ok(guard)).await;
    }
    // Nobody worked under the lease that was over.
    assert_eq!(warnings.text(), "");
}

#[tokio::test(start_paused = true)]
async fn a_store_slower_than_the_ttl_is_told() {
    for how in HOW {
        let here = slow(u32::MAX, Some(TTL + TTL / 4)).await;
        let start = tokio::time::Instant::now();
        let error = ask(how, here.lock("k")).await.expect_err("always late");
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().contains("raise the ttl"), "{error}");
        assert!(start.elapsed() < s(1), "after {:?}", start.elapsed());
        nothing_is_left(&here, Err(error)).await;
    }
}

/// A lease is over at its deadline, so this store too is slower than the ttl, and is not asked for
/// ever.
#[tokio::test(start_paused = true)]
async fn an_answer_at_the_deadline_is_too_late() {
    for how in HOW {
        let at_once = slow(0, None).await;
        let asked_at = tokio::time::Instant::now();
        let guard = ask(how, at_once.lock("k")).await.expect("the lock");
        let to_the_deadline = guard.deadline().expect("a lease") - asked_at;
        nothing_is_left(&at_once, Ok(guard)).await;

        let here = slow(u32::MAX, Some(to_the_deadline)).await;
        let asked = tokio::time::timeout(s(60), ask(how, here.lock("k"))).await;
        let error = asked.expect("an answer").expect_err("always late");
        assert!(error.to_string().contains("raise the ttl"), "{error}");
        assert!(!error.to_string().contains("stood still"), "{error}");
        nothing_is_left(&here, Err(error)).await;
    }
}

/// Polls it, and lets the ttl pass before it is polled again, so often.
async fn stand_still<F: Future + Unpin>(mut asked: F, times: u32) -> F::Output {
    for _ in 0..times {
        poll_once(&mut asked).await;
        advance(2 * TTL).await;
    }
    asked.await
}

/// Each time between question and answer, while the store answers at once.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_stands_still_again_and_again_is_served() {
    for how in [How::Wait, How::Read] {
        let here = slow(0, None).await;
        let asked = pin!(ask(how, here.lock("k")));
        let guard = stand_still(asked, 5).await;
        let guard = guard.unwrap_or_else(|error| panic!("{how:?}: {error}"));
        assert!(guard.is_held());
        nothing_is_left(&here, Ok(guard)).await;
    }
}

/// Who does not wait asks once more, and no more.
#[tokio::test(start_paused = true)]
async fn a_try_that_stands_still_is_made_twice() {
    for times in [1, 2] {
        let here = slow(0, None).await;
        let asked = pin!(ask(How::Try, here.lock("k")));
        let answer = stand_still(asked, times).await;
        match (&answer, times) {
            (Ok(guard), 1) => assert!(guard.is_held()),
            (Err(error @ LockError::Unavailable { .. }), 2) => {
                assert!(error.to_string().contains("stood still"), "{error}");
            }
            _ => panic!("{answer:?}"),
        }
        nothing_is_left(&here, answer).await;
    }
}

/// One of them stands still for all who wait behind it.
#[tokio::test(start_paused = true)]
async fn those_who_wait_behind_it_are_served_too() {
    let here = slow(0, None).await;
    let mut first = Box::pin(here.lock("k").ttl(TTL).run(async {}));
    poll_once(&mut first).await;
    let behind: Vec<_> = (0..3)
        .map(|_| tokio::spawn(here.lock("k").ttl(TTL).run(async {})))
        .collect();
    settle().await;
    advance(2 * TTL).await;
    first.await.expect("the lock");
    for waiter in behind {
        served(waiter).await;
    }
}

/// What it is told is its own: the store has answered, and the lock is free.
#[tokio::test(start_paused = true)]
async fn a_try_that_stands_still_fails_nobody_behind_it() {
    let here = slow(0, None).await;
    let mut first = pin!(ask(How::Try, here.lock("k")));
    poll_once(&mut first).await;
    let behind = behind(&here, &HOW_BEHIND).await;
    advance(2 * TTL).await;
    let error = stand_still(first, 1).await.expect_err("stood still twice");
    assert!(error.to_string().contains("stood still"), "{error}");
    all_are_served(&here, behind).await;
}

/// The same, where the store has ended what it granted.
#[tokio::test(start_paused = true)]
async fn a_lease_that_ended_twice_fails_nobody_behind_it() {
    for how in [How::Wait, How::Try] {
        let here = ends(2).await;
        let mut first = pin!(ask(how, here.lock("k")));
        poll_once(&mut first).await;
        let behind = behind(&here, &HOW_BEHIND).await;
        let error = first.await.expect_err("ended twice");
        assert!(error.to_string().contains("ended its lease"), "{error}");
        all_are_served(&here, behind).await;
    }
}

/// A ttl that the store does not keep is everybody's: they would only find out
/// one after the other.
#[tokio::test(start_paused = true)]
async fn a_store_slower_than_the_ttl_is_told_to_all() {
    let here = slow(2, Some(TTL + TTL / 4)).await;
    let mut first = pin!(ask(How::Try, here.lock("k")));
    poll_once(&mut first).await;
    let behind = behind(&here, &[How::Wait, How::Wait]).await;
    first.await.expect_err("always late");
    for waiter in behind {
        let error = waiter.await.unwrap().expect_err("told of it");
        assert!(error.to_string().contains("raise the ttl"), "{error}");
    }
}

/// Who is behind, in this order: a try asks for itself when nobody waits.
const HOW_BEHIND: [How; 3] = [How::Wait, How::Wait, How::Try];

type Behind = Vec<tokio::task::JoinHandle<Result<bool, LockError>>>;

async fn behind(here: &LockManager, how: &[How]) -> Behind {
    let behind = how.iter().map(|&how| {
        let asked = ask(how, here.lock("k"));
        tokio::spawn(async move { Ok(asked.await?.is_held()) })
    });
    let behind = behind.collect();
    settle().await;
    behind
}

/// Who waits has the lock; a try has it, or was told that another has.
async fn all_are_served(here: &LockManager, behind: Behind) {
    for (waiter, how) in behind.into_iter().zip(HOW_BEHIND) {
        match waiter.await.unwrap() {
            Ok(held) => assert!(held),
            Err(LockError::Busy { .. }) if how == How::Try => {}
            Err(error) => panic!("{how:?}: {error}"),
        }
    }
    here.shutdown().await;
    let left = here.list("").await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

/// Dropped on the way, it leaves nothing either.
#[tokio::test(start_paused = true)]
async fn dropped_while_it_asks_again_leaves_nothing() {
    for how in HOW {
        for polls in 1..10 {
            let here = slow(1, Some(2 * TTL)).await;
            let mut asked = Box::pin(ask(how, here.lock("k")));
            let mut done = false;
            for _ in 0..polls {
                let polled = leave_at_poll(&mut asked, 1, HANG).await;
                done = matches!(polled, Polled::Done(_));
                if done {
                    break;
                }
                advance(TTL).await;
            }
            drop(asked);
            here.shutdown().await;
            let left = here.list("").await.unwrap();
            assert!(left.is_empty(), "{how:?} at poll {polls}: {left:?}");
            if done {
                break;
            }
        }
    }
}

/// Grants so late that the lease is over for the caller, while the store has just begun it.
#[derive(Debug)]
struct Delayed {
    memory: Memory,
    by: Duration,
    /// So many releases fail.
    failures: AtomicU32,
}

#[async_trait::async_trait]
impl Otherwise for Delayed {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        let sent_at = tokio::time::Instant::now();
        tokio::time::sleep(self.by).await;
        let grant = self.memory.acquire(r).await?;
        Ok(Grant::new(grant.token, sent_at))
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        match take_one(&self.failures) {
            true => Err(BackendError::unavailable("no")),
            false => self.memory.release(r).await,
        }
    }
}

/// Nobody has it, so it is given back for as long as the store would keep it.
#[tokio::test(start_paused = true)]
async fn what_came_too_late_is_given_back_though_the_first_attempts_fail() {
    let memory = Memory::new();
    let there = crate::support::locks::by(memory.clone()).await;
    let (ttl, by) = (s(100), s(150));
    let here = Delayed {
        memory,
        by,
        failures: AtomicU32::new(20),
    };
    let here = here.manager().await;
    let late = here.lock("k").ttl(ttl).acquire().await;
    assert!(
        matches!(late, Err(LockError::Unavailable { .. })),
        "{late:?}"
    );
    let start = tokio::time::Instant::now();
    drop(there.lock("k").acquire().await.expect("free at last"));
    let waited = start.elapsed();
    assert!(waited > s(20) && waited < s(50), "{waited:?}");
}
