//! Since when a lock is held that was waited for: its key says so once it was renewed.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dlock::LockManager;
use dlock::backend::etcd::Etcd;
use dlock::backend::{Backend, HolderInfo, Mode, Released, Request};
use dlock_conformance::Store as _;
use tokio::time::sleep;

use crate::harness::{connect, lease_of, places};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{free, held, nothing_left, queued, served, shown};
use crate::support::wait::{HANG, eventually, until, within};
use crate::{EtcdStore, SHORT_TTL};

/// What is longer than the clocks of one machine are apart.
const A_WHILE: Duration = Duration::from_millis(1_500);

async fn holder(manager: &LockManager) -> HolderInfo {
    shown(manager, "key").await.holders.remove(0)
}

async fn says_since(manager: &LockManager) -> HolderInfo {
    let seen = async || holder(manager).await;
    until("it says since when", seen, |holder| holder.since.is_some()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waited_says_since_when_it_holds_the_lock() {
    unless_it_stands_still(SHORT_TTL / 4, who_waited_says_since_when).await;
}

async fn who_waited_says_since_when() {
    let store = EtcdStore::start().await;
    let (one, next) = (connect(&store.url()).await, connect(&store.url()).await);
    let operator = connect(&store.url()).await;
    let guard = held(one.lock("key").ttl(SHORT_TTL)).await;
    let waiting = tokio::spawn(next.lock("key").ttl(SHORT_TTL).acquire());
    queued(&operator, "key", 1).await;
    // It is renewed meanwhile, and has not waited.
    sleep(A_WHILE).await;
    assert!(holder(&operator).await.since.is_none());
    let given_back = SystemTime::now();
    guard.release().await.expect("the release");
    let guard = served(waiting).await;
    let had = SystemTime::now();
    let place = places(&store, "key").await.remove(0);
    let lease = lease_of(&store.server, &place).await;

    // One who waits behind it is not let in by what is written there.
    let behind = tokio::spawn(one.lock("key").acquire());
    queued(&operator, "key", 1).await;
    let seen = says_since(&operator).await;
    let since = seen.since.expect("it says so");
    // To the millisecond.
    let granted = given_back - Duration::from_millis(1)..=had;
    assert!(granted.contains(&since), "{since:?} not in {granted:?}");
    assert!(seen.since_by_holder);
    assert_eq!(seen.token, Some(guard.token()));
    assert_eq!(lease_of(&store.server, &place).await, lease);
    let value = store
        .server
        .control(&["get", &place, "--print-value-only"])
        .await;
    let ms = since.duration_since(SystemTime::UNIX_EPOCH).expect("now");
    let written = format!("{};{}\n", seen.owner, ms.as_millis());
    assert_eq!(value, written);
    assert!(guard.is_held() && !behind.is_finished());

    // It is broken by its owner, as that was shown before too.
    let broken = within(HANG, operator.break_holder("key", &seen.owner)).await;
    assert!(broken.expect("an answer").is_some());
    served(behind).await.release().await.expect("the release");
    let _ = guard.release().await;
    nothing_left(&operator).await;
    assert!(places(&store, "key").await.is_empty());
}

/// It is not the value by which it is known any more, and others keep its lease alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_not_renewed_any_more_leaves_nothing() {
    let ttl = Duration::from_secs(3);
    unless_it_stands_still(ttl / 4, async || is_not_renewed_any_more(ttl).await).await;
}

async fn is_not_renewed_any_more(ttl: Duration) {
    let store = EtcdStore::start().await;
    let operator = connect(&store.url()).await;
    let backend = Arc::new(Etcd::from_url(&store.url()).expect("a valid URL"));
    within(HANG, backend.start()).await.expect("a connection");
    let beside = Request::new("beside", Mode::Write, ttl);
    within(HANG, backend.acquire(&beside))
        .await
        .expect("the lock");
    let guard = held(operator.lock("key")).await;
    let request = Request::new("key", Mode::Write, ttl);
    let waiting = {
        let (backend, request) = (Arc::clone(&backend), request.clone());
        tokio::spawn(async move { backend.acquire(&request).await })
    };
    queued(&operator, "key", 1).await;
    guard.release().await.expect("the release");
    let granted = within(HANG, waiting).await.expect("no panic");
    granted.expect("the lock");
    for renewed in backend.renew(&[request, beside.clone()]).await {
        renewed.expect("an answer");
    }
    says_since(&operator).await;
    // From here on, only the other one is renewed.
    eventually("it has ended", async || {
        for renewed in backend.renew(std::slice::from_ref(&beside)).await {
            renewed.expect("an answer");
        }
        operator
            .inspect("key")
            .await
            .expect("inspect")
            .is_none()
            .then_some(())
    })
    .await;
    free(&operator, "key").await;
    let released = within(HANG, backend.release(&beside)).await;
    assert_eq!(released.expect("an answer"), Released::Released);
    within(HANG, backend.stop()).await;
}
