//! Since when one who shares a lock holds it: a key says so that ends with its lease, and no lock
//! depends on that key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock::backend::redis::Redis;
use dlock::backend::{Backend, HolderInfo, Mode, Request};
use dlock::{LockGuard, LockManager};

use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{config, connect, free, held, queued, served, shown};
use crate::support::polls::join_all;
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, until, within};

/// For each that holds the lock: since when, as the server has it.
async fn kept(server: &RedisServer) -> Vec<String> {
    let mut keys = server.keys().await;
    keys.retain(|key| key.starts_with("dlock:since:"));
    keys.sort();
    keys
}

/// Where the server has it of this holder.
fn key_of(holder: &HolderInfo) -> String {
    let (numbers, _) = holder.owner.split_once('@').expect("a signed owner");
    format!("dlock:since:{{key}}:{numbers}")
}

async fn holders(manager: &LockManager) -> Vec<HolderInfo> {
    shown(manager, "key").await.holders
}

/// A lock that `managers` have after they waited for it, and the two moments between which it was
/// given to them.
async fn waited_for(
    server: &RedisServer,
    managers: &[LockManager],
    ttl: Duration,
    mode: Mode,
) -> (Vec<LockGuard>, [SystemTime; 2]) {
    let first = connect(config(&server.url())).await;
    let guard = held(first.lock("key")).await;
    let mut waiting = Vec::new();
    for (number, manager) in managers.iter().enumerate() {
        let request = manager.lock("key").ttl(ttl);
        let request = match mode {
            Mode::Permits(most) => request.permits(most),
            _ => request.read(),
        };
        waiting.push(tokio::spawn(request.acquire()));
        queued(&first, "key", number + 1).await;
    }
    // To the millisecond.
    let from = SystemTime::now() - Duration::from_millis(1);
    guard.release().await.expect("the release");
    let mut guards = Vec::new();
    for waiting in waiting {
        guards.push(served(waiting).await);
    }
    (guards, [from, SystemTime::now()])
}

async fn two(server: &RedisServer) -> Vec<LockManager> {
    let url = server.url();
    vec![connect(config(&url)).await, connect(config(&url)).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_kept_for_as_long_as_the_lease() {
    let ttl = Duration::from_secs(3);
    let all = [Mode::Read, Mode::Permits(5)].map(|mode| {
        let kept = async move || kept_with_the_lease(ttl, mode).await;
        unless_it_stands_still(ttl / 4, kept)
    });
    join_all(all).await;
}

async fn kept_with_the_lease(ttl: Duration, mode: Mode) {
    let server = RedisServer::start().await;
    let managers = two(&server).await;
    let (mut guards, [from, to]) = waited_for(&server, &managers, ttl, mode).await;
    let seen = holders(&managers[0]).await;
    let mut keys: Vec<_> = seen.iter().map(key_of).collect();
    keys.sort();
    assert_eq!(kept(&server).await, keys);
    for holder in &seen {
        let since = holder.since.expect("it is known");
        assert!(from <= since && since <= to, "{from:?} {since:?} {to:?}");
        assert!(!holder.since_by_holder);
        let ms = since.duration_since(UNIX_EPOCH).expect("now").as_millis();
        let value: String = server.command(&["GET", &key_of(holder)]).await;
        assert_eq!(value, ms.to_string());
        let left: i64 = server.command(&["PTTL", &key_of(holder)]).await;
        assert!((1..=3_000).contains(&left), "{left}");
    }

    // Renewed, and with the same answer.
    tokio::time::sleep(ttl * 3 / 2).await;
    let later = holders(&managers[0]).await;
    // They stand in the order in which their leases end.
    let since = |seen: &[HolderInfo]| {
        let each = seen.iter().map(|one| (key_of(one), one.since));
        each.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(since(&later), since(&seen));

    // One leaves, and the other stays.
    guards.pop().expect("two").release().await.expect("a reply");
    let stays = holders(&managers[0]).await;
    let stays: Vec<_> = stays.iter().map(key_of).collect();
    assert_eq!((stays.len(), kept(&server).await), (1, stays));
    guards.pop().expect("one").release().await.expect("a reply");
    assert_eq!(kept(&server).await, [""; 0]);
}

/// It needs no other to tidy up after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_died_leaves_nothing() {
    let ttl = Duration::from_secs(3);
    unless_it_stands_still(ttl / 4, async || died(ttl).await).await;
}

async fn died(ttl: Duration) {
    let server = RedisServer::start().await;
    let operator = connect(config(&server.url())).await;
    let backend = Arc::new(Redis::from_url(&server.url()).expect("a valid URL"));
    within(HANG, backend.start()).await.expect("a connection");
    let guard = held(operator.lock("key")).await;
    let request = Request::new("key", Mode::Read, ttl);
    let waiting = {
        let (backend, request) = (Arc::clone(&backend), request.clone());
        tokio::spawn(async move { backend.acquire(&request).await })
    };
    queued(&operator, "key", 1).await;
    guard.release().await.expect("the release");
    let granted = within(HANG, waiting).await.expect("no panic");
    granted.expect("the lock");
    assert_eq!(kept(&server).await.len(), 1);
    // It is not renewed.
    free(&operator, "key").await;
    until(
        "it has ended",
        async || kept(&server).await,
        |kept| kept.is_empty(),
    )
    .await;
    within(HANG, backend.stop()).await;
}

/// Without the key (a process of a version before has let it in, or a replica has taken over),
/// or with what somebody else has put there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_depends_on_it() {
    let ttl = Duration::from_secs(3);
    let others = [None, Some(["RPUSH", "x"]), Some(["SET", "soon"])];
    let all = others.map(|others| {
        let without = async move || without_it(ttl, others).await;
        unless_it_stands_still(ttl / 4, without)
    });
    join_all(all).await;
}

async fn without_it(ttl: Duration, others: Option<[&str; 2]>) {
    let server = RedisServer::start().await;
    let managers = two(&server).await;
    let (guards, _) = waited_for(&server, &managers, ttl, Mode::Read).await;
    for key in kept(&server).await {
        let _: u64 = server.command(&["DEL", &key]).await;
        if let Some([command, value]) = others {
            let _: redis::Value = server.command(&[command, &key, value]).await;
        }
    }
    let seen = holders(&managers[0]).await;
    assert!(seen.len() == 2 && seen.iter().all(|one| one.since.is_none()));
    // Renewed all the same.
    tokio::time::sleep(ttl * 3 / 2).await;
    assert_eq!(holders(&managers[0]).await.len(), 2);
    for guard in guards {
        guard.release().await.expect("the release");
    }
    free(&managers[0], "key").await;
    assert_eq!(kept(&server).await, [""; 0], "{others:?}");
}
