//! Where the keys of a lock are.

use std::collections::HashSet;

use crate::harness::{connect, key_on, lock_name, nothing_left};
use crate::support::cluster::{Cluster, MASTERS};
use crate::support::lent::Lent;
use crate::support::locks::{self, config, had, held, is_busy, queued, served};
use crate::support::wait::HANG;

/// Locks on each of the masters, one by one and as one; what one process holds,
/// another waits for.
#[tokio::test]
async fn locks_are_on_all_masters() {
    let lent = Lent::<Cluster>::empty().await;
    let cluster: &Cluster = &lent;
    let url = cluster.url("");
    let (manager, other) = (connect(&url).await, connect(&url).await);
    let mut keys = Vec::new();
    for master in 0..MASTERS {
        keys.push(key_on(cluster, master).await);
    }
    let mut guards = Vec::new();
    for (master, key) in keys.iter().enumerate() {
        guards.push(held(manager.lock(key.as_str())).await);
        let words = ["EXISTS", &lock_name(key)];
        let there: u32 = cluster.servers[master].command(&words).await;
        assert_eq!(there, 1, "{key} is not on master {master}");
        is_busy(other.lock(key.as_str()).try_acquire().await);
    }
    assert_eq!(other.list("key:").await.expect("list").len(), MASTERS);
    let all = tokio::spawn(other.lock(keys.clone()).acquire());
    for (key, guard) in keys.iter().zip(guards) {
        queued(&manager, key, 1).await;
        guard.release().await.expect("the release");
    }
    let guard = served(all).await;
    assert_eq!(guard.tokens().len(), MASTERS);
    for key in &keys {
        is_busy(manager.lock(key.as_str()).try_acquire().await);
    }
    guard.release().await.expect("the release");
    nothing_left(cluster).await;
}

/// Those to each master, as it lists them. So too where its slots vote.
#[tokio::test]
async fn connections_bear_the_label() {
    for more in ["", "?quorum=masters"] {
        let lent = Lent::<Cluster>::empty().await;
        let cluster: &Cluster = &lent;
        let named = config(&cluster.url(more)).label("orders");
        let manager = locks::connect(named.request_timeout(HANG)).await;
        for master in 0..MASTERS {
            let key = key_on(cluster, master).await;
            let _guard = held(manager.lock(key.as_str())).await;
            let master = &cluster.servers[master];
            let clients: String = master.command(&["CLIENT", "LIST"]).await;
            assert!(clients.contains(" name=orders "), "{more}: {clients}");
        }
    }
}

/// What the clocks have passed costs nothing. Else each slot has its counter, which also
/// those draw from who do not know of the floor.
#[tokio::test]
async fn a_floor_is_in_every_slot_unless_the_clocks_have_passed_it() {
    const FAR: u64 = 5_000_000_000_000_000;
    let lent = Lent::<Cluster>::empty().await;
    let cluster: &Cluster = &lent;
    let manager = connect(&cluster.url("")).await;
    for (floor, expected) in [(1_000_000, 0), (FAR, 16_384)] {
        // So many are written before it is connected.
        let naming = config(&cluster.url("")).token_floor(floor);
        drop(locks::connect(naming.request_timeout(HANG)).await);
        let mut counters = 0;
        for master in &cluster.servers[..MASTERS] {
            let found: Vec<String> = master.command(&["KEYS", "dlock:token:*"]).await;
            counters += found.len();
        }
        assert_eq!(counters, expected);
    }
    for number in 0..100 {
        let guard = held(manager.lock(format!("key:{number}"))).await;
        assert!(u64::from(guard.token()) > FAR, "{}", guard.token());
    }
}

/// Braces in a key mean nothing: the slot is dlock's own choice.
#[tokio::test]
async fn keys_with_braces_are_keys() {
    let lent = Lent::<Cluster>::empty().await;
    let cluster: &Cluster = &lent;
    for more in ["", "?quorum=masters"] {
        let manager = connect(&cluster.url(more)).await;
        let other = connect(&cluster.url(more)).await;
        for key in ["}", "{}", "{{}", "}{", "a}b", "{a}b", "{a}c"] {
            let guard = held(manager.lock(key)).await;
            is_busy(other.lock(key).try_acquire().await);
            let listed = other.list(key).await.expect("list");
            let listed: Vec<_> = listed.iter().map(|lock| lock.key.as_str()).collect();
            assert_eq!(listed, [key]);
            let waiting = tokio::spawn(other.lock(key).acquire());
            queued(&manager, key, 1).await;
            guard.release().await.expect("the release");
            drop(served(waiting).await);
            let readers = tokio::join!(
                manager.lock(key).read().run(async {}),
                other.lock(key).read().run(async {})
            );
            readers.0.and(readers.1).expect("the locks");
        }
        nothing_left(cluster).await;
    }
}

/// What grows with the keys is bounded by the slots.
#[tokio::test]
async fn a_slot_has_one_token_counter() {
    let lent = Lent::<Cluster>::empty().await;
    let cluster: &Cluster = &lent;
    let manager = connect(&cluster.url("")).await;
    let mut slots = HashSet::new();
    let mut tokens = HashSet::new();
    // A closing brace ends what the slot depends on.
    for number in 0..50 {
        for key in [format!("key:{number}"), format!("same}}{number}")] {
            slots.insert(cluster.slot(&lock_name(&key)).await);
            let guard = held(manager.lock(key.as_str())).await;
            assert!(tokens.insert(guard.token()) || !key.starts_with("same"));
            guard.release().await.expect("the release");
        }
    }
    let mut counters = Vec::new();
    for master in cluster.masters() {
        counters.extend(master.keys().await);
    }
    let counts = |key: &String| key.starts_with("dlock:token:{");
    assert!(counters.iter().all(counts), "{counters:?}");
    assert_eq!(counters.len(), slots.len());
}

/// A counter that is lost, and one that is ahead of every clock.
#[tokio::test]
async fn tokens_rise_whatever_becomes_of_the_counter() {
    let lent = Lent::<Cluster>::empty().await;
    let cluster: &Cluster = &lent;
    let manager = connect(&cluster.url("")).await;
    let owner = cluster.owner(&lock_name("key")).await;
    let counter = async || -> String {
        let mut keys = owner.keys().await.into_iter();
        let counter = keys.find(|key| key.starts_with("dlock:token"));
        counter.expect("a counter")
    };
    let draw = async || {
        let guard = held(manager.lock("key")).await;
        let token = guard.token();
        guard.release().await.expect("the release");
        token
    };
    let first = draw().await;
    owner.command::<u32>(&["DEL", &counter().await]).await;
    let second = draw().await;
    assert!(second > first, "{second} after {first}");
    let ahead = u64::from(second) + 3_600_000_000;
    let words = ["SET", &counter().await, &ahead.to_string()];
    owner.command::<()>(&words).await;
    let third = draw().await;
    assert!(u64::from(third) > ahead);
    // This process has seen it.
    owner.command::<u32>(&["DEL", &counter().await]).await;
    let fourth = draw().await;
    assert!(fourth > third, "{fourth} after {third}");
    had(&manager, "key").await;
}
