//! What tests do with locks, in a word each. None of it waits for ever.

use std::time::Duration;

use dlock::backend::LockInfo;
use dlock::{Config, LockError, LockGuard, LockKey, LockManager, LockRequest};
use tokio::task::{JoinHandle, JoinSet};

use super::calm::unless_it_stands_still;
use super::wait::{HANG, eventually, until, within};

/// Leads to a store of the test's own, with leases that outlast every test: what
/// comes free was given back.
pub fn config(url: &str) -> Config {
    Config::from_url(url).expect("a valid URL").ttl(20 * HANG)
}

/// A manager of the test's own store. It has its request timeout to connect, which is
/// short in many tests.
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

/// A machine that does so in one place does so in others, such as a server.
const STANDS_STILL: Duration = Duration::from_millis(100);

/// A manager that soon takes silence for an outage. On a busy machine, its first
/// connection may take it several attempts.
pub async fn impatient(config: impl Fn() -> Config) -> LockManager {
    eventually("it connects in its short time", async || {
        LockManager::connect(config()).await.ok()
    })
    .await
}

/// To read, or to write.
pub fn wants(request: LockRequest, read: bool) -> LockRequest {
    if read { request.read() } else { request }
}

/// Waits for the lock.
#[track_caller]
pub fn held<R: Send + 'static>(request: LockRequest<R>) -> impl Future<Output = LockGuard> {
    let acquired = within(HANG, request.acquire());
    async move { acquired.await.expect("the lock") }
}

/// The same of a manager that may take a busy machine for an outage.
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

/// What a task has that waited, once it is done.
#[track_caller]
pub fn served<T>(waiting: JoinHandle<Result<T, LockError>>) -> impl Future<Output = T> {
    let done = within(HANG, waiting);
    async move { done.await.expect("no panic").expect("the lock") }
}

/// The same of many. Those who are served may wait for one who was refused, which is told
/// at once.
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

/// What each of these has, in tasks that begin together.
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

/// What the store shows of a lock that somebody holds.
#[track_caller]
pub fn shown(manager: &LockManager, key: &str) -> impl Future<Output = LockInfo> {
    let shown = within(HANG, manager.inspect(key));
    async move { shown.await.expect("inspect").expect("a holder") }
}

/// Waits until so many requests wait for `key`, as the store says.
pub async fn queued(manager: &LockManager, key: &str, count: usize) {
    // In a failover it may not answer.
    let waiters = async || {
        let lock = manager.inspect(key).await.ok().flatten();
        lock.and_then(|lock| lock.waiters).unwrap_or(0)
    };
    let what = format!("{count} requests wait for `{key}`");
    until(&what, waiters, |&waiters| waiters == count).await;
}

/// Waits until the store knows of no lock on `key`.
pub async fn free(manager: &LockManager, key: &str) {
    let inspect = async || manager.inspect(key).await.expect("inspect");
    until(&format!("`{key}` is free"), inspect, Option::is_none).await;
}

/// Waits until the store knows of no lock at all. It may be long in saying so.
pub async fn nothing_left(manager: &LockManager) {
    let list = async || match manager.list("").await {
        Err(LockError::Unavailable { .. }) => None,
        list => Some(list.expect("list")),
    };
    let none = |list: &Option<Vec<_>>| list.as_ref().is_some_and(Vec::is_empty);
    until("no lock is left", list, none).await;
}

/// Asks until the store serves the manager again; no other error than that of an
/// outage.
pub async fn healed(manager: &LockManager) {
    healed_at(manager, "healed").await;
}

/// The same where it depends on the key who serves it.
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
    /// An operator has taken it out of the queue.
    is_taken_out: TakenOut;
    /// The store does not answer.
    is_unavailable: Unavailable;
    /// The lease has ended.
    is_lost: Lost;
    /// A setting is wrong.
    is_misconfigured: Config;
    /// The store has no such thing.
    is_unsupported: Unsupported;
    /// The time to wait was over.
    is_late: Timeout;
    /// It would wait for itself.
    would_deadlock: WouldDeadlock;
    /// The manager serves nobody any more.
    is_shut_down: ShutDown;
    /// What was given is no key.
    is_no_key: InvalidKey;
    /// There is no manager.
    has_no_manager: NotInitialized;
}

/// An error says all of these.
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

/// A report of the whole chain, such as `{:#}` of `anyhow`, tells nothing twice.
pub fn says_each_cause_once(error: &LockError) {
    let mut told: &dyn std::error::Error = error;
    while let Some(source) = told.source() {
        let (above, below) = (told.to_string(), source.to_string());
        assert!(!above.contains(&below), "{above:?} has {below:?} in it");
        told = source;
    }
}

/// What comes of connecting to a URL.
pub async fn connecting(url: &str, request_timeout: Duration) -> Result<LockManager, LockError> {
    let config = Config::from_url(url)?.request_timeout(request_timeout);
    within(HANG, LockManager::connect(config)).await
}
