//! Short functions for what tests do with locks. None of them waits forever.

use std::time::{Duration, Instant};

use dlock::backend::{Backend, LockInfo};
use dlock::{Config, LockError, LockGuard, LockKey, LockManager, LockRequest};
use tokio::task::{JoinHandle, JoinSet};

use super::calm::unless_it_stands_still;
use super::wait::{HANG, eventually, until, within};

/// The configuration for a store that belongs to the test, with leases that outlast every test: a
/// lock that becomes free was given back.
pub fn config(url: &str) -> Config {
    Config::from_url(url).expect("a valid URL").ttl(20 * HANG)
}

/// A manager of a store that belongs to the test. It must connect within its request timeout,
/// which is short in many tests.
pub async fn connect(config: Config) -> LockManager {
    let connecting = move || {
        let connecting = within(HANG, LockManager::connect(config.clone()));
        async {
            connecting
                .await
                .expect("a connection to the test's own store")
        }
    };
    unless_it_stands_still(STANDS_STILL, connecting).await
}

/// A manager of a backend of the test's own, which can be connected once: it has all the time
/// that the machine needs.
pub async fn by(store: impl Backend) -> LockManager {
    let connected = within(HANG, LockManager::connect(Config::with_backend(store)));
    connected
        .await
        .expect("a connection to the test's own store")
}

/// If the test stands still for this long, so may a server on the same machine.
const STANDS_STILL: Duration = Duration::from_millis(100);

/// An outage that is told sooner has not been waited for.
const IMPATIENT: Duration = Duration::from_millis(200);

/// A manager that soon takes silence for an outage. On a busy machine, its first connection may
/// take several attempts.
pub async fn impatient(config: impl Fn() -> Config) -> LockManager {
    eventually("it connects in its short time", async || {
        LockManager::connect(config()).await.ok()
    })
    .await
}

/// Asks for a read lock or a write lock.
pub fn wants(request: LockRequest, read: bool) -> LockRequest {
    if read { request.read() } else { request }
}

/// Waits for the lock.
#[track_caller]
pub fn held<R: Send + 'static>(request: LockRequest<R>) -> impl Future<Output = LockGuard> {
    let acquired = within(HANG, request.acquire());
    async move { acquired.await.expect("the lock") }
}

/// Like [`held`], for a manager that may take a busy machine for an outage.
pub async fn held_at_last(request: impl Fn() -> LockRequest) -> LockGuard {
    eventually("it has the lock", async || {
        match request().acquire().await {
            Ok(guard) => Some(guard),
            Err(LockError::Unavailable { .. }) => None,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await
}

/// Waits for the lock, and gives it back.
#[track_caller]
pub fn had(manager: &LockManager, key: impl Into<LockKey>) -> impl Future<Output = ()> {
    let ran = within(HANG, manager.lock(key).run(async {}));
    async move { ran.await.expect("the lock") }
}

/// The result of a task that waited for a lock.
#[track_caller]
pub fn served<T>(waiting: JoinHandle<Result<T, LockError>>) -> impl Future<Output = T> {
    let done = within(HANG, waiting);
    async move { done.await.expect("no panic").expect("the lock") }
}

/// Like [`served`], for many tasks. Tasks that are served may wait for one that failed, so a
/// failure is reported at once.
#[track_caller]
pub fn all_served<T: 'static>(
    mut waiting: JoinSet<Result<T, LockError>>,
) -> impl Future<Output = Vec<T>> {
    within(HANG, async move {
        let mut all = Vec::new();
        while let Some(one) = waiting.join_next().await {
            all.push(one.expect("no panic").expect("the lock"));
        }
        all
    })
}

/// The results of these futures, in tasks that start together.
pub async fn all_at_once<T: Send + 'static>(
    asked: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let all: Vec<_> = asked.into_iter().map(tokio::spawn).collect();
    let mut answers = Vec::new();
    for one in all {
        answers.push(within(HANG, one).await.expect("no panic"));
    }
    answers
}

/// What the store shows about a lock that somebody holds.
#[track_caller]
pub fn shown(manager: &LockManager, key: &str) -> impl Future<Output = LockInfo> {
    let shown = within(HANG, manager.inspect(key));
    async move { shown.await.expect("inspect").expect("a holder") }
}

/// Waits until the store shows that this many requests wait for `key`.
pub async fn queued(manager: &LockManager, key: &str, count: usize) {
    // During a failover the store may not answer.
    let waiters = async || {
        let lock = manager.inspect(key).await.ok().flatten();
        lock.and_then(|lock| lock.waiters).unwrap_or(0)
    };
    let what = format!("{count} requests wait for `{key}`");
    until(&what, waiters, |&waiters| waiters == count).await;
}

/// What the store shows of `key`; `None` if that took longer than the manager waits for an answer,
/// which may be an impatient one on a busy machine.
pub async fn inspected(manager: &LockManager, key: &str) -> Option<Option<LockInfo>> {
    let asked = Instant::now();
    match manager.inspect(key).await {
        Err(LockError::Unavailable { .. }) if asked.elapsed() >= IMPATIENT => None,
        lock => Some(lock.expect("inspect")),
    }
}

/// Waits until the store has no lock on `key`. Its answer may take long.
pub async fn free(manager: &LockManager, key: &str) {
    let inspect = async || inspected(manager, key).await;
    let what = format!("`{key}` is free");
    until(&what, inspect, |lock| matches!(lock, Some(None))).await;
}

/// Waits until the store has no lock at all. Its answer may take long.
pub async fn nothing_left(manager: &LockManager) {
    let list = async || match manager.list("").await {
        Err(LockError::Unavailable { .. }) => None,
        list => Some(list.expect("list")),
    };
    let none = |list: &Option<Vec<_>>| list.as_ref().is_some_and(Vec::is_empty);
    until("no lock is left", list, none).await;
}

/// Gives back a lock that was held to the end. An impatient manager may take a busy machine for an
/// outage, and then gives the lock back in the background.
pub async fn given_back(guard: LockGuard) {
    assert!(guard.is_held());
    match within(HANG, guard.release()).await {
        Ok(()) | Err(LockError::Unavailable { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
}

/// Asks until the store serves the manager again. Only the errors of an outage are allowed until
/// then.
pub async fn healed(manager: &LockManager) {
    healed_at(manager, "healed").await;
}

/// Like [`healed`], for a store where the key decides which server is asked.
pub async fn healed_at(manager: &LockManager, key: &str) {
    eventually("the manager serves again", async || {
        match manager.lock(key).run(async {}).await {
            Ok(()) => Some(()),
            Err(LockError::Unavailable { .. }) => None,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
}

macro_rules! is_refused {
    ($($(#[$doc:meta])* $name:ident: $kind:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<T>(answer: Result<T, LockError>) -> LockError {
            let error = answer.map(drop).expect_err(stringify!($kind));
            assert!(matches!(error, LockError::$kind { .. }), "{error:?}");
            error
        }
    )*};
}

is_refused! {
    /// Somebody holds the lock.
    is_busy: Busy;
    /// Its body has been done.
    is_done: Done;
    /// An operator has taken the request out of the queue.
    is_taken_out: TakenOut;
    /// The store does not answer.
    is_unavailable: Unavailable;
    /// The lease has ended.
    is_lost: Lost;
    /// A setting is wrong.
    is_misconfigured: Config;
    /// The store does not support this.
    is_unsupported: Unsupported;
    /// The time to wait was over.
    is_late: Timeout;
    /// The call would wait for itself.
    would_deadlock: WouldDeadlock;
    /// The manager has shut down.
    is_shut_down: ShutDown;
    /// The key is not valid.
    is_no_key: InvalidKey;
    /// There is no manager.
    has_no_manager: NotInitialized;
}

/// Checks that an error contains all of these words.
#[track_caller]
pub fn says(error: &LockError, words: &[&str]) {
    says_each_cause_once(error);
    let message = error.to_string();
    for word in words {
        assert!(
            message.contains(word),
            "{word:?} is missing from: {message}"
        );
    }
}

/// Checks that a report of the whole chain, such as `{:#}` of `anyhow`, says nothing twice.
pub fn says_each_cause_once(error: &LockError) {
    let mut told: &dyn std::error::Error = error;
    while let Some(source) = told.source() {
        let (above, below) = (told.to_string(), source.to_string());
        assert!(!above.contains(&below), "{above:?} has {below:?} in it");
        told = source;
    }
}

/// The result of connecting to a URL.
pub async fn connecting(url: &str, request_timeout: Duration) -> Result<LockManager, LockError> {
    let config = Config::from_url(url)?.request_timeout(request_timeout);
    within(HANG, LockManager::connect(config)).await
}
