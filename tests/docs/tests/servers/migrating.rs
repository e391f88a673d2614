//! `docs/migrating.md`: which locks of other libraries exclude which, on Redis.

use std::time::Duration;

use dlock::{Config, LockError};
use redis::aio::ConnectionLike;
use rslock::LockManager as Before;

use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{connect, held};
use crate::support::redis::RedisServer;

const NAME: &str = "stock:mug";
/// Longer than a test takes.
const TTL: Duration = Duration::from_secs(60);

/// What redsync sends for `TryLock`.
async fn redsync(connection: &mut impl ConnectionLike) -> bool {
    let mut set = redis::cmd("SET");
    set.arg(NAME).arg("a value").arg("PX").arg(8000).arg("NX");
    let answer: Option<String> = set.query_async(connection).await.expect("SET");
    answer.is_some()
}

#[tokio::test]
async fn both_locks_keep_both_versions_out() {
    // The other library waits half a second for an answer, and takes none for a refusal.
    unless_it_stands_still(Duration::from_millis(250), both_locks).await;
}

async fn both_locks() {
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    let config = || Config::from_url(&server.url()).expect("a valid URL");
    let (after, other) = (connect(config()).await, connect(config()).await);
    let mut before = Before::new(vec![server.url()]);
    before.set_retry(1, Duration::from_millis(1));

    // Alone, neither knows of the other.
    let old = before.acquire(NAME, TTL).await.expect("a free lock");
    let new = held(after.lock(NAME)).await;
    assert!(!redsync(&mut connection).await, "the same key as rslock's");
    old.release().await;
    new.release().await.expect("the release");

    let inside = before.using(NAME.as_bytes(), TTL, async || {
        let old = before.lock(NAME, TTL).await;
        assert!(matches!(old, Err(rslock::LockError::Unavailable)));
        let new = other.lock(NAME).try_acquire().await;
        assert!(matches!(new, Err(LockError::Busy { .. })), "{new:?}");
        assert!(!redsync(&mut connection).await);
    });
    let both = after.lock(NAME).run(inside).await;
    both.expect("dlock's").expect("rslock's");

    assert!(redsync(&mut connection).await, "given back");
    let old = before.lock(NAME, TTL).await;
    assert!(matches!(old, Err(rslock::LockError::Unavailable)));
}
