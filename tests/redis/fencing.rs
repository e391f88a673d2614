//! The token of a holder: a key has it once the lease was renewed, and ends with the lease. No lock
//! depends on that key.

use std::collections::BTreeMap;
use std::time::Duration;

use dlock::backend::redis::Redis;
use dlock::backend::{Backend, Mode, Renewed, Request};
use dlock::{LockGuard, LockManager, LockRequest};

use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{config, connect, free, held, queued, served, shown};
use crate::support::polls::join_all;
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, eventually, until, within};

/// Renewed within a second.
const TTL: Duration = Duration::from_secs(3);

/// The keys that have tokens, as the server has them.
async fn kept(server: &RedisServer) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for key in server.keys().await {
        if key.starts_with("dlock:fencing:") {
            let token: Option<String> = server.command(&["GET", &key]).await;
            kept.insert(key, token.unwrap_or_default());
        }
    }
    kept
}

/// What the server is to keep of these leases. Other owners have other keys.
async fn expected(manager: &LockManager, guards: &[&LockGuard]) -> BTreeMap<String, String> {
    let mut holders = shown(manager, "key").await.holders;
    holders.sort_by_key(|holder| holder.token);
    let mut tokens: Vec<_> = guards.iter().map(|guard| guard.token()).collect();
    tokens.sort();
    assert_eq!(holders.len(), tokens.len(), "{holders:?}");
    let both = holders.iter().zip(tokens);
    let kept = both.map(|(holder, token)| {
        assert_eq!(holder.token, Some(token));
        let (numbers, _) = holder.owner.split_once('@').expect("a signed owner");
        (
            format!("dlock:fencing:{{key}}:{numbers}"),
            token.to_string(),
        )
    });
    kept.collect()
}

/// Waits until this many tokens are kept.
async fn renewed(server: &RedisServer, count: usize) -> BTreeMap<String, String> {
    let kept = async || kept(server).await;
    until("all have renewed", kept, |kept| kept.len() == count).await
}

async fn value(server: &RedisServer) -> String {
    server.command(&["GET", "dlock:{key}"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_kept_from_the_first_renewal_to_the_end_of_the_lease() {
    type Ask = fn(LockRequest) -> LockRequest;
    let asks: [Ask; 3] = [
        |request| request,
        LockRequest::read,
        |request| request.permits(5),
    ];
    let all = asks.into_iter().flat_map(|ask| {
        [false, true].map(|waits| {
            let kept = async move || kept_with_the_lease(ask, waits).await;
            unless_it_stands_still(TTL / 4, kept)
        })
    });
    join_all(all).await;
}

async fn kept_with_the_lease(ask: impl Fn(LockRequest) -> LockRequest, waits: bool) {
    let server = RedisServer::start().await;
    let (manager, other) = (
        connect(config(&server.url())).await,
        connect(config(&server.url())).await,
    );
    let guard = match waits {
        false => held(ask(manager.lock("key").ttl(TTL))).await,
        true => {
            let before = held(other.lock("key")).await;
            let waiting = tokio::spawn(ask(manager.lock("key").ttl(TTL)).acquire());
            queued(&other, "key", 1).await;
            before.release().await.expect("the release");
            served(waiting).await
        }
    };
    assert!(kept(&server).await.is_empty(), "nothing was renewed yet");
    assert!(shown(&other, "key").await.holders[0].token.is_none());
    let first = renewed(&server, 1).await;
    assert_eq!(first, expected(&other, &[&guard]).await);
    for key in first.keys() {
        let left: i64 = server.command(&["PTTL", key]).await;
        assert!((1..=3_000).contains(&left), "{left}");
    }
    // Only a renewal makes what is left of them longer.
    for key in first.keys() {
        let mut before = i64::MAX;
        let renewed_again = async || {
            let left: i64 = server.command(&["PTTL", key]).await;
            let rises = left > before;
            before = left;
            rises.then_some(())
        };
        eventually("it is renewed again", renewed_again).await;
    }
    assert_eq!(kept(&server).await, first);
    assert!(guard.is_held());
    guard.release().await.expect("the release");
    let mut left = server.keys().await;
    left.retain(|key| !key.starts_with("dlock:alive:"));
    assert_eq!(left, ["dlock:token"]);
}

/// What a process of the version before reads: as if somebody might wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_value_of_the_lock_has_no_new_form() {
    unless_it_stands_still(TTL / 4, async || {
        let server = RedisServer::start().await;
        let manager = connect(config(&server.url())).await;
        let guard = held(manager.lock("key").ttl(TTL)).await;
        let owner = shown(&manager, "key").await.holders[0].owner.clone();
        assert_eq!(value(&server).await, format!("w:{owner}"));
        renewed(&server, 1).await;
        assert_eq!(value(&server).await, format!("w:{owner}+"));
        guard.release().await.expect("the release");
    })
    .await;
}

/// A lease that is handed on in its process is broken by the token of each task that had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_that_of_the_grant_whichever_task_has_the_lease() {
    unless_it_stands_still(TTL / 4, async || {
        let server = RedisServer::start().await;
        let (manager, operator) = (
            connect(config(&server.url())).await,
            connect(config(&server.url())).await,
        );
        // Who waits when the lease is granted may have it next.
        let before = held(operator.lock("key")).await;
        let tasks = [(); 2].map(|()| tokio::spawn(manager.lock("key").ttl(TTL).acquire()));
        queued(&operator, "key", 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        before.release().await.expect("the release");
        let [one, other] = tasks;
        let is_first = async || (one.is_finished(), other.is_finished());
        let (is_first, _) = until("one has it", is_first, |has| has.0 || has.1).await;
        let (first, next) = if is_first { (one, other) } else { (other, one) };
        let first = served(first).await;
        let granted = first.token();
        renewed(&server, 1).await;
        first.release().await.expect("the release");
        let next = served(next).await;
        assert_eq!(u64::from(next.token()), u64::from(granted) + 1);
        assert_eq!(
            shown(&operator, "key").await.holders[0].token,
            Some(granted)
        );
        let broken = within(HANG, operator.break_lock("key", Some(next.token()))).await;
        assert_eq!(broken.expect("an answer").expect("it").token, Some(granted));
        within(HANG, next.lost()).await;
        assert!(kept(&server).await.is_empty());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_died_leaves_nothing() {
    unless_it_stands_still(TTL / 4, async || {
        let server = RedisServer::start().await;
        let operator = connect(config(&server.url())).await;
        let backend = Redis::from_url(&server.url()).expect("a valid URL");
        within(HANG, backend.start()).await.expect("a connection");
        let request = Request::new("key", Mode::Write, TTL);
        let granted = within(HANG, backend.try_acquire(&request)).await;
        let granted = granted.expect("an answer").expect("the lock");
        let request = request.with_token(granted.token);
        let renewal = within(HANG, backend.renew(std::slice::from_ref(&request))).await;
        assert!(matches!(renewal[..], [Ok(Renewed::Extended { .. })]));
        let token = shown(&operator, "key").await.holders[0].token;
        assert_eq!(token, Some(granted.token));
        // It is not renewed again.
        free(&operator, "key").await;
        renewed(&server, 0).await;
        within(HANG, backend.stop()).await;
    })
    .await;
}

/// Without the key (a server that is full has evicted it, or a replica has taken over), or with
/// what somebody else has put there: it is as if it was not known, until the next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_depends_on_it() {
    let others = [
        None,
        Some(["RPUSH", "x"]),
        Some(["SET", "soon"]),
        Some(["SET", "0"]),
    ];
    let all = others.into_iter().flat_map(|others| {
        [LockRequest::read, |request| request].map(|ask| {
            let without = async move || without_it(ask, others).await;
            unless_it_stands_still(TTL / 4, without)
        })
    });
    join_all(all).await;
}

async fn without_it(ask: fn(LockRequest) -> LockRequest, others: Option<[&str; 2]>) {
    let server = RedisServer::start().await;
    let manager = connect(config(&server.url())).await;
    let guard = held(ask(manager.lock("key").ttl(TTL))).await;
    let keys = renewed(&server, 1).await;
    // The next renewal is nearly a second away.
    for key in keys.keys() {
        let _: u64 = server.command(&["DEL", key]).await;
        if let Some([command, value]) = others {
            let _: redis::Value = server.command(&[command, key, value]).await;
        }
    }
    assert!(shown(&manager, "key").await.holders[0].token.is_none());
    let token = async || shown(&manager, "key").await.holders[0].token;
    let token = until("it was renewed", token, Option::is_some).await;
    assert_eq!(token, Some(guard.token()));
    for key in keys.keys() {
        let _: u64 = server.command(&["DEL", key]).await;
        if let Some([command, value]) = others {
            let _: redis::Value = server.command(&[command, key, value]).await;
        }
    }
    guard.release().await.expect("the release");
    free(&manager, "key").await;
    assert!(kept(&server).await.is_empty(), "{others:?}");
}
