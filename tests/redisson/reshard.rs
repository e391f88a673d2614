//! Slots of a cluster that move while their locks are held, waited for and given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dlock::LockManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::heard::{JAVA, heard_on, told};
use crate::support::cluster::{Cluster, LONG, may_move};
use crate::support::locks::{config, connect, held, wants};
use crate::support::wait::{HANG, until, within};
use crate::url;

/// One that waits for a slot that is on its way, however long a slow machine takes to move it.
async fn in_cluster(cluster: &Cluster, recipe: &str) -> LockManager {
    let config = config(&url(&cluster.url(""), recipe));
    connect(config.request_timeout(HANG)).await
}

/// A release in between is not done by halves: it is refused until the slot has arrived.
/// Else the lock would be free, and nobody would be told.
async fn is_given_back_on_its_way(cluster: &Cluster, recipe: &str, read: bool) {
    let (manager, other) = tokio::join!(in_cluster(cluster, recipe), in_cluster(cluster, recipe));
    let key = format!("{recipe}:{read}");
    let channel = match recipe {
        "read-write" => format!("redisson_rwlock:{{{key}}}"),
        "fair" => format!("redisson_lock__channel:{{{key}}}:{JAVA}"),
        _ => format!("redisson_lock__channel:{{{key}}}"),
    };
    let guard = held(wants(manager.lock(&*key), read)).await;
    let moves = may_move(cluster.slot(&key).await);
    let [slot, from, to] = moves;
    let source = &cluster.servers[from];
    let mut heard = heard_on(source, &channel).await;
    let before = source.keys().await;
    let beside = match read {
        true => Some(held(other.lock(&*key).read()).await),
        false => None,
    };
    if recipe == "fair" {
        // A thread in Java waits.
        let queue = format!("redisson_lock_queue:{{{key}}}");
        source.command::<()>(&["RPUSH", &queue, JAVA]).await;
        let timeouts = format!("redisson_lock_timeout:{{{key}}}");
        let never = ["ZADD", &timeouts, "9999999999999", JAVA];
        source.command::<()>(&never).await;
    }
    cluster.open_slot(slot, from, to).await;
    if read {
        // When the other reader's lease ends is known over there alone.
        let is_its =
            |name: &str| name.contains("rwlock_timeout") && !before.iter().any(|old| old == name);
        assert_eq!(cluster.go_ahead(moves, is_its).await, 1);
    }

    let tried = cluster.told_to_try_again().await;
    let releasing = tokio::spawn(guard.release());
    let is_refused = async || releasing.is_finished() || cluster.told_to_try_again().await > tried;
    until("the release is refused", is_refused, |refused| *refused).await;
    cluster.move_slot(slot, from, to).await;
    let released = within(HANG, releasing).await.expect("no panic");
    released.expect("it was held to the end");
    if let Some(beside) = beside {
        assert!(heard.try_recv().is_err(), "the other reads yet");
        beside.release().await.expect("the release");
    }
    told(&mut heard).await;
    let target = &cluster.servers[to];
    let is_there: bool = target.command(&["EXISTS", &key]).await;
    assert!(!is_there, "{key}");
}

#[tokio::test]
async fn a_release_in_a_slot_that_is_on_its_way() {
    let cluster = Cluster::start(LONG).await;
    for recipe in ["lock", "fenced", "fair"] {
        is_given_back_on_its_way(&cluster, recipe, false).await;
    }
    for read in [false, true] {
        is_given_back_on_its_way(&cluster, "read-write", read).await;
    }
}

/// Who is in a lock, whichever class has it.
#[derive(Default)]
struct Inside {
    writes: AtomicBool,
    reads: AtomicUsize,
    entries: AtomicUsize,
}

impl Inside {
    async fn visit(&self, read: bool) {
        let pause = || sleep(Duration::from_micros(fastrand::u64(..500)));
        if read {
            self.reads.fetch_add(1, Ordering::SeqCst);
            assert!(!self.writes.load(Ordering::SeqCst), "a writer is inside");
            pause().await;
            assert!(!self.writes.load(Ordering::SeqCst), "a writer came in");
            self.reads.fetch_sub(1, Ordering::SeqCst);
        } else {
            assert!(!self.writes.swap(true, Ordering::SeqCst), "two write");
            assert_eq!(self.reads.load(Ordering::SeqCst), 0, "readers are inside");
            pause().await;
            assert!(self.writes.swap(false, Ordering::SeqCst));
        }
        self.entries.fetch_add(1, Ordering::SeqCst);
    }
}

/// All that locks of each class have in a cluster moves, again and again, while processes
/// contend for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_under_load() {
    let cluster = Cluster::start(LONG).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut contenders, mut all) = (JoinSet::new(), Vec::new());
    for recipe in ["lock", "fenced", "fair", "read-write"] {
        let key = format!("{{slot}}:{recipe}");
        let inside = Arc::new(Inside::default());
        for _ in 0..2 {
            let manager = in_cluster(&cluster, recipe).await;
            for read in [false, recipe == "read-write"] {
                let (manager, key, stop) = (manager.clone(), key.clone(), Arc::clone(&stop));
                let inside = Arc::clone(&inside);
                contenders.spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let guard = held(wants(manager.lock(&*key), read)).await;
                        inside.visit(read).await;
                        guard.release().await.expect("it was held to the end");
                    }
                });
            }
        }
        all.push(inside);
    }
    let they_go_on = async || {
        for inside in &all {
            let entries = async || inside.entries.load(Ordering::SeqCst);
            let before = entries().await;
            until("they go on", entries, |&now| now >= before + 20).await;
        }
    };
    let [slot, mut from, mut to] = may_move(cluster.slot("{slot}").await);
    for _ in 0..4 {
        they_go_on().await;
        cluster.move_slot(slot, from, to).await;
        (from, to) = (to, (to + 1) % 3);
    }
    they_go_on().await;
    stop.store(true, Ordering::SeqCst);
    within(HANG, contenders.join_all()).await;
    let keys = async || crate::records(&cluster.keys().await);
    until("nothing is left", keys, |&left| left == 0).await;
}
