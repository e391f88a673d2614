//! Answers that nobody was there to hear: the caller's runtime stood still for longer than a request
//! may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{LockError, LockGuard, LockManager};
use tokio::time::{Instant, advance, sleep};

use crate::support::locks::{held, is_busy, is_misconfigured, is_unavailable};
use crate::support::over_memory::Otherwise;
use crate::support::polls::poll_once;
use crate::{connect, seconds, settle};

const TIMEOUT: Duration = Duration::from_secs(5);

/// A failure that comes later than this was not heard in time.
const LATEST: Duration = Duration::from_millis(5_250);

/// For so long a request that finds the lock held is repeated: what the first one was granted may
/// be on its way back.
const EARLY: Duration = Duration::from_millis(1_250);

/// How the first request fails.
#[derive(Clone, Copy, Debug)]
enum First {
    Unavailable,
    Refused,
    /// After it has said that somebody holds the lock.
    Held,
}

#[derive(Debug)]
struct Unheard {
    memory: Memory,
    first: First,
    /// What dropped requests left is never removed.
    leaves: bool,
    asked: Arc<AtomicU32>,
}

impl Unheard {
    async fn fails(&self, r: &Request) -> Result<(), BackendError> {
        if self.asked.fetch_add(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        // Until the caller is polled again.
        tokio::task::yield_now().await;
        match self.first {
            First::Unavailable => Err(BackendError::unavailable("no answer")),
            First::Refused => Err(BackendError::new(BackendErrorKind::Config, "no password")),
            First::Held => {
                r.note_held();
                Err(BackendError::unavailable("no answer"))
            }
        }
    }
}

#[async_trait::async_trait]
impl Otherwise for Unheard {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    fn request_timeout(&self) -> Option<Duration> {
        Some(TIMEOUT)
    }
    async fn settle(&self) {
        if self.leaves {
            std::future::pending().await
        }
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.fails(r).await?;
        self.memory.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.fails(r).await?;
        self.memory.acquire(r).await
    }
}

struct Scene {
    memory: Memory,
    here: LockManager,
    asked: Arc<AtomicU32>,
}

impl Scene {
    async fn new(first: First, leaves: bool) -> Self {
        let (memory, asked) = (Memory::new(), Arc::default());
        let store = Unheard {
            memory: memory.clone(),
            first,
            leaves,
            asked: Arc::clone(&asked),
        };
        let here = store.manager().await;
        Self {
            memory,
            here,
            asked,
        }
    }

    /// A call that stands still for so long before it sees that its first request has failed, and
    /// how long it took after that.
    async fn call(&self, tries: bool, still: Duration) -> (Result<LockGuard, LockError>, Duration) {
        let lock = self.here.lock("k");
        let mut call = match tries {
            true => Box::pin(lock.try_acquire()) as futures_util::future::BoxFuture<'_, _>,
            false => Box::pin(lock.acquire()),
        };
        poll_once(&mut call).await;
        advance(still).await;
        let start = Instant::now();
        let answer = call.await;
        (answer, start.elapsed())
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }
}

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn who_stood_still_beyond_the_request_timeout_asks_once_more() {
    for tries in [false, true] {
        let scene = Scene::new(First::Unavailable, false).await;
        let (answer, took) = scene.call(tries, LATEST + MS).await;
        let guard = answer.unwrap_or_else(|error| panic!("{tries}: {error}"));
        assert!(guard.is_held());
        assert!(took < seconds(1), "{took:?}");
        assert_eq!(scene.asked(), 2);
        guard.release().await.expect("held");
    }
}

/// It was there to hear it: that is an outage.
#[tokio::test(start_paused = true)]
async fn a_failure_within_the_request_timeout_is_told_and_not_asked_about_again() {
    for still in [Duration::ZERO, TIMEOUT, LATEST] {
        for tries in [false, true] {
            let scene = Scene::new(First::Unavailable, false).await;
            is_unavailable(scene.call(tries, still).await.0);
            assert_eq!(scene.asked(), 1, "{still:?}");
        }
    }
}

/// These are answers, however late they are seen.
#[tokio::test(start_paused = true)]
async fn what_the_store_has_answered_is_not_asked_again() {
    for tries in [false, true] {
        let scene = Scene::new(First::Refused, false).await;
        is_misconfigured(scene.call(tries, 2 * TIMEOUT).await.0);
        assert_eq!(scene.asked(), 1);
        let scene = Scene::new(First::Held, false).await;
        is_unavailable(scene.call(tries, 2 * TIMEOUT).await.0);
        assert_eq!(scene.asked(), 1);
    }
}

/// A store of several nodes may still hold what the first request was granted.
#[tokio::test(start_paused = true)]
async fn who_asks_once_more_waits_for_what_its_first_request_left() {
    let scene = Scene::new(First::Unavailable, false).await;
    let there = connect(&scene.memory).await;
    let left = held(there.lock("k")).await;
    let goes_back = tokio::spawn(async move {
        // In the time of the second request.
        sleep(LATEST + MS + EARLY * 3 / 4).await;
        left.release().await
    });
    settle().await;
    let (answer, took) = scene.call(true, LATEST + MS).await;
    answer.expect("free by then").release().await.expect("held");
    assert!(took < EARLY, "{took:?}");
    goes_back.await.expect("no panic").expect("held");
}

#[tokio::test(start_paused = true)]
async fn who_asks_once_more_is_told_soon_that_somebody_holds_the_lock() {
    let scene = Scene::new(First::Unavailable, false).await;
    let there = connect(&scene.memory).await;
    let guard = held(there.lock("k")).await;
    let (answer, took) = scene.call(true, LATEST + MS).await;
    is_busy(answer);
    assert!(took >= EARLY && took < EARLY + TIMEOUT / 40, "{took:?}");
    guard.release().await.expect("held");
}

/// Half a request timeout, so that a call which does not wait has the other half for its answer.
#[tokio::test(start_paused = true)]
async fn what_dropped_requests_left_is_not_waited_for_without_end() {
    for tries in [false, true] {
        let scene = Scene::new(First::Unavailable, true).await;
        let (answer, took) = scene.call(tries, LATEST + MS).await;
        drop(answer.unwrap_or_else(|error| panic!("{tries}: {error}")));
        assert!(took <= TIMEOUT / 2 + MS, "{took:?}");
    }
}
