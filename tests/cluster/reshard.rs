//! Slots that move while their locks are held, waited for and asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock::{LockError, LockGuard, LockManager};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::harness::{config, connect, lock_name, nothing_left, patient};
use crate::support::calm::unless_it_stands_still;
use crate::support::cluster::{Cluster, LONG, may_move, url};
use crate::support::critical::{Section, Tokens};
use crate::support::lent::Lent;
use crate::support::locks::{
    self, had, held, impatient, is_busy, is_unavailable, queued, says, served,
};
use crate::support::wait::{HANG, eventually, until, within};

const KEY: &str = "key";

const TTL: Duration = Duration::from_secs(3);

type Waiting = JoinHandle<Result<LockGuard, LockError>>;

async fn contend(manager: LockManager, seen: Arc<(Section, Tokens)>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        let guard = held(manager.lock(KEY)).await;
        let (section, tokens) = &*seen;
        tokens.note(guard.token());
        let moment = Duration::from_micros(fastrand::u64(..500));
        section.during(sleep(moment)).await;
        guard.release().await.expect("the release");
    }
}

/// Where the slots of the lock are, one after the other.
async fn slots(cluster: &Cluster, more: &str) -> Vec<usize> {
    if more.is_empty() {
        return vec![cluster.slot(&lock_name(KEY)).await];
    }
    let name = "dlock:voters";
    let voters: String = cluster.owner(name).await.command(&["GET", name]).await;
    let mut slots = Vec::new();
    for tag in voters.split(' ') {
        slots.push(cluster.slot(&format!("{{{tag}}}")).await);
    }
    slots
}

/// The slot of the lock is on its way from now on.
async fn begins(cluster: &Cluster) -> [usize; 3] {
    let [slot, from, to] = may_move(cluster.slot(&lock_name(KEY)).await);
    cluster.open_slot(slot, from, to).await;
    [slot, from, to]
}

/// How many milliseconds the lease has left, at the node where the lock of this name is.
async fn lease_of_a_lock_on_its_way(cluster: &Cluster, name: &str, from: usize, to: usize) -> i64 {
    let words = ["PTTL", name];
    if let Some(left) = cluster.servers[from].try_command(&words).await {
        return left;
    }
    // It has gone ahead, and is shown only to who asks for it.
    let mut target = cluster.servers[to].connection().await;
    let mut asked = redis::pipe();
    asked.cmd("ASKING").ignore().cmd("PTTL").arg(name);
    let (left,) = asked.query_async(&mut target).await.expect("an answer");
    left
}

/// Every key of the slot moves, the lock and its queue among them, again and
/// again, under contention of several processes. Nobody notices but by the time
/// it takes.
async fn a_slot_moves_under_load(more: &str) {
    let cluster = Cluster::start(LONG).await;
    let (seen, stop) = (Arc::<(Section, Tokens)>::default(), Arc::default());
    let mut contenders = JoinSet::new();
    let judge = connect(&cluster.url(more)).await;
    had(&judge, KEY).await;
    for _ in 0..3 {
        let manager = patient(&cluster.url(more)).await;
        for _ in 0..3 {
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            contenders.spawn(contend(manager.clone(), seen, stop));
        }
    }
    let goes_on = async || {
        let count = async || seen.0.entries();
        let before = count().await;
        until("they go on", count, |&now| now >= before + 30).await;
    };
    for slot in slots(&cluster, more).await {
        let [_, mut from, mut to] = may_move(slot);
        for _ in 0..6 {
            goes_on().await;
            cluster.move_slot(slot, from, to).await;
            (from, to) = (to, (to + 1) % 3);
        }
    }
    goes_on().await;
    stop.store(true, Ordering::SeqCst);
    within(HANG, contenders.join_all()).await;
    let (section, tokens) = &*seen;
    assert_eq!(section.most(), 1, "two were inside");
    tokens.check(section.entries());
    nothing_left(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves() {
    a_slot_moves_under_load("").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_votes_moves() {
    a_slot_moves_under_load("?quorum=masters").await;
}

/// So do a lease that is shared, and the writer who waits for its end.
#[tokio::test]
async fn readers_and_their_waiters_go_along() {
    unless_it_stands_still(TTL / 4, readers_go_along).await;
}

async fn readers_go_along() {
    let cluster = Cluster::start(LONG).await;
    let url = cluster.url("");
    let (holder, other) = (connect(&url).await, connect(&url).await);
    let ttl = TTL;
    let read = || holder.lock(KEY).ttl(ttl).read();
    let guards = [read().acquire().await, read().acquire().await];
    let guards = guards.map(|guard| guard.expect("the lock"));
    let writing = tokio::spawn(other.lock(KEY).acquire());
    queued(&holder, KEY, 1).await;
    // Behind the writer.
    let reading = tokio::spawn(other.lock(KEY).read().acquire());
    queued(&holder, KEY, 2).await;

    let [slot, from, to] = may_move(cluster.slot(&lock_name(KEY)).await);
    cluster.move_slot(slot, from, to).await;
    let channels = async || -> Vec<String> {
        let words = ["PUBSUB", "SHARDCHANNELS", "dlock:wake:*"];
        cluster.servers[to].command(&words).await
    };
    until("they listen over there", channels, |all| !all.is_empty()).await;
    // They are renewed over there.
    sleep(4 * ttl / 3).await;
    for guard in guards {
        assert!(guard.is_held());
        assert!(!writing.is_finished() && !reading.is_finished());
        guard.release().await.expect("the release");
    }
    let next = served(writing).await;
    queued(&holder, KEY, 1).await;
    next.release().await.expect("the release");
    let last = served(reading).await;
    last.release().await.expect("the release");
    nothing_left(&cluster).await;
}

/// While a slot is on its way and some of a lock's keys have gone ahead: a writer
/// keeps its lease wherever it is, and nothing else is done by halves.
#[tokio::test]
async fn a_slot_that_is_on_its_way() {
    unless_it_stands_still(TTL / 4, is_on_its_way).await;
}

async fn is_on_its_way() {
    let cluster = Cluster::start(LONG).await;
    let url = cluster.url("");
    let (holder, waiter) = (connect(&url).await, connect(&url).await);
    let ttl = TTL;
    let lock = holder.lock(KEY).ttl(ttl);
    let guard = lock.acquire().await.expect("the lock");
    let waiting = tokio::spawn(waiter.lock(KEY).acquire());
    queued(&holder, KEY, 1).await;
    let [slot, from, to] = begins(&cluster).await;
    let impatient = impatient(|| config(&url).request_timeout(Duration::from_millis(300))).await;
    loop {
        let mut before = i64::MAX;
        let is_renewed = async || {
            assert!(guard.is_held(), "it is not renewed in time");
            let left = lease_of_a_lock_on_its_way(&cluster, &lock_name(KEY), from, to).await;
            let rises = left > before;
            before = left;
            rises.then_some(())
        };
        eventually("it is renewed", is_renewed).await;
        match impatient.lock(KEY).try_acquire().await {
            Err(LockError::Busy { .. } | LockError::Unavailable { .. }) => {}
            other => panic!("{other:?}"),
        }
        let words = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()];
        if cluster.servers[from].command::<usize>(&words).await == 0 {
            break;
        }
        cluster.move_keys(slot, from, to, 1).await;
    }
    cluster.move_slot(slot, from, to).await;
    assert!(!waiting.is_finished());
    guard.release().await.expect("the release");
    served(waiting).await.release().await.expect("the release");
    nothing_left(&cluster).await;
}

/// Most of the votes are in slots that are on their way, and have gone ahead: the
/// lease is renewed and given back over there, over new connections too.
#[tokio::test]
async fn votes_that_have_gone_ahead() {
    unless_it_stands_still(TTL / 4, votes_go_ahead).await;
}

async fn votes_go_ahead() {
    let cluster = Cluster::start(LONG).await;
    let more = "?quorum=masters";
    let holder = connect(&cluster.url(more)).await;
    let ttl = TTL;
    let guard = held(holder.lock(KEY).ttl(ttl)).await;
    let slots = slots(&cluster, more).await;
    let moves = [may_move(slots[0]), may_move(slots[1])];
    for [slot, from, to] in moves {
        cluster.open_slot(slot, from, to).await;
        cluster.move_keys(slot, from, to, usize::MAX).await;
    }
    sleep(4 * ttl / 3).await;
    assert!(guard.is_held(), "it is renewed over there");
    for server in cluster.masters() {
        let words = ["CLIENT", "KILL", "TYPE", "normal"];
        server.command::<u32>(&words).await;
    }
    sleep(4 * ttl / 3).await;
    assert!(guard.is_held(), "it is renewed over new connections");
    guard.release().await.expect("the release");
    nothing_left(&cluster).await;
    for [slot, from, to] in moves {
        cluster.move_slot(slot, from, to).await;
    }
    had(&holder, KEY).await;
}

/// The lock has gone ahead, and the key that has its token has not. A renewal must not write that
/// one down a second time: the first could not move then, and the slot would stay open.
#[tokio::test]
async fn a_token_that_comes_later() {
    for more in ["", "?quorum=masters"] {
        unless_it_stands_still(TTL / 4, async || token_comes_later(more).await).await;
    }
}

async fn token_comes_later(more: &str) {
    let cluster = Cluster::start(LONG).await;
    let holder = connect(&cluster.url(more)).await;
    let guard = held(holder.lock(KEY).ttl(TTL)).await;
    let [slot, from, to] = may_move(slots(&cluster, more).await[0]);
    let in_slot = async || -> Vec<String> {
        let words = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"];
        cluster.servers[from].command(&words).await
    };
    let is_token = |key: &String| key.starts_with("dlock:fencing:");
    let keys = until("it is renewed", in_slot, |keys| keys.iter().any(is_token)).await;
    let is_lock = |key: &str| key.ends_with(&format!("{{{KEY}}}"));
    let lock = keys.iter().find(|key| is_lock(key)).expect("the lock");
    cluster.open_slot(slot, from, to).await;
    assert_eq!(cluster.go_ahead([slot, from, to], is_lock).await, 1);
    let is_renewed = async |name: &str| {
        let mut before = i64::MAX;
        eventually("it is renewed over there", async || {
            let left = lease_of_a_lock_on_its_way(&cluster, name, from, to).await;
            let rises = left > before;
            before = left;
            rises.then_some(())
        })
        .await;
    };
    is_renewed(lock).await;
    cluster.move_slot(slot, from, to).await;
    // The next renewal has its token again.
    is_renewed(keys.iter().find(|key| is_token(key)).expect("its token")).await;
    assert!(guard.is_held());
    guard.release().await.expect("the release");
    nothing_left(&cluster).await;
}

/// The lock has gone ahead, and the key that lists its readers has not: they are not gone for a
/// writer that asks there, gets no majority, and gives back what it has.
#[tokio::test]
async fn readers_that_come_later() {
    let cluster = Cluster::start(LONG).await;
    let more = "?quorum=masters";
    let (holder, other) = (
        connect(&cluster.url(more)).await,
        connect(&cluster.url(more)).await,
    );
    let guard = held(holder.lock(KEY).read().ttl(20 * HANG)).await;
    let [slot, from, to] = may_move(slots(&cluster, more).await[0]);
    cluster.open_slot(slot, from, to).await;
    let is_lock = |key: &str| key.ends_with(&format!("{{{KEY}}}"));
    assert_eq!(cluster.go_ahead([slot, from, to], is_lock).await, 1);
    for _ in 0..3 {
        is_busy(within(HANG, other.lock(KEY).try_acquire()).await);
    }
    nothing_to_give_back(&other).await;
    cluster.move_slot(slot, from, to).await;
    let words = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"];
    let keys: Vec<String> = cluster.servers[to].command(&words).await;
    assert!(keys.iter().any(|key| is_lock(key)), "{keys:?}");
    guard.release().await.expect("the release");
}

/// Its shutdown waits for that.
async fn nothing_to_give_back(manager: &LockManager) {
    within(HANG, manager.shutdown()).await;
}

/// The lock and its counter have gone ahead, and the queue has not: who comes, and
/// who goes, must wait for it. A second queue would stop the first one from moving,
/// and a release would pass over it.
#[tokio::test]
async fn a_queue_that_comes_later() {
    let cluster = Cluster::start(LONG).await;
    let url = cluster.url("");
    let (holder, first) = (patient(&url).await, patient(&url).await);
    let second = patient(&url).await;
    let guard = held(holder.lock(KEY)).await;
    let waiting = tokio::spawn(first.lock(KEY).acquire());
    queued(&holder, KEY, 1).await;
    let [slot, from, to] = begins(&cluster).await;
    let ahead = |key: &str| key == lock_name(KEY) || key.starts_with("dlock:token");
    assert_eq!(cluster.go_ahead([slot, from, to], ahead).await, 2);

    let coming = tokio::spawn(second.lock(KEY).acquire());
    both_wait_for_the_slot(&cluster, guard, [slot, from, to]).await;
    both_have_it(&holder, [waiting, coming]).await;
    nothing_left(&cluster).await;
}

/// Who comes is told to try again, and so is who goes, until the slot has arrived.
async fn both_wait_for_the_slot(cluster: &Cluster, guard: LockGuard, [slot, from, to]: [usize; 3]) {
    let refused = async || cluster.told_to_try_again().await;
    until("it is told to try again", refused, |&count| count > 0).await;
    let before = refused().await;
    let releasing = tokio::spawn(guard.release());
    until("both are", refused, |&count| count > before + 2).await;
    cluster.move_slot(slot, from, to).await;
    let released = within(HANG, releasing).await.expect("no panic");
    released.expect("it was held to the end");
}

/// Each of two waiters gets the lock, one after the other. Who was first may be
/// overtaken until it listens at the new node.
async fn both_have_it(judge: &LockManager, waiting: [Waiting; 2]) {
    let mut waiting = JoinSet::from_iter(waiting.map(served));
    for others in [1, 0] {
        let next = waiting.join_next().await;
        let next = next.expect("a waiter").expect("no panic");
        queued(judge, KEY, others).await;
        next.release().await.expect("the release");
    }
}

/// The lock, its queue and its readers are together, and by which key a waiter is
/// alive is not with them: nobody may look for it before the slot has arrived. At
/// the old node that would fail halfway, and at the new one the waiter would be
/// taken for dead, or be written down a second time.
async fn what_says_that_a_waiter_lives(goes_ahead: bool) {
    let cluster = Cluster::start(LONG).await;
    let url = cluster.url("");
    let (holder, waiter) = (patient(&url).await, patient(&url).await);
    let guard = held(holder.lock(KEY).read()).await;
    let waiting = tokio::spawn(waiter.lock(KEY).acquire());
    queued(&holder, KEY, 1).await;
    let [slot, from, to] = begins(&cluster).await;
    let ahead = |key: &str| key.starts_with("dlock:alive:") == goes_ahead;
    let count = if goes_ahead { 1 } else { 4 };
    assert_eq!(cluster.go_ahead([slot, from, to], ahead).await, count);

    // It has a place in the queue beside the writer's.
    let coming = tokio::spawn(waiter.lock(KEY).read().acquire());
    both_wait_for_the_slot(&cluster, guard, [slot, from, to]).await;
    both_have_it(&holder, [waiting, coming]).await;
    nothing_left(&cluster).await;
}

#[tokio::test]
async fn a_sign_of_life_that_goes_ahead() {
    what_says_that_a_waiter_lives(true).await;
}

#[tokio::test]
async fn a_sign_of_life_that_comes_later() {
    what_says_that_a_waiter_lives(false).await;
}

/// A slot that stays open is an outage of its own locks only, which is said. It
/// ends with the move, or when that is given up.
#[tokio::test]
async fn a_slot_that_stays_open_is_told() {
    let timeout = Duration::from_secs(3);
    unless_it_stands_still(timeout / 4, async || stays_open(timeout).await).await;
}

async fn stays_open(timeout: Duration) {
    let cluster = Cluster::start(LONG).await;
    let config = config(&cluster.url("")).request_timeout(timeout);
    let manager = locks::connect(config).await;
    had(&manager, KEY).await;
    let [slot, from, to] = begins(&cluster).await;
    let error = is_unavailable(within(HANG, manager.lock(KEY).acquire()).await);
    says(&error, &["on its way", KEY]);
    for number in 0..20 {
        had(&manager, &format!("other:{number}")).await;
    }
    for server in [from, to] {
        let words = ["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"];
        cluster.servers[server].command::<()>(&words).await;
    }
    had(&manager, KEY).await;
    cluster.move_slot(slot, from, to).await;
    had(&manager, KEY).await;
}

/// Nodes of which the URL knows nothing are found, and one that is in the URL
/// need not have slots.
#[tokio::test]
async fn one_node_in_the_url_is_enough() {
    let lent = Lent::<Cluster>::empty().await;
    let cluster: &Cluster = &lent;
    for proxy in &cluster.proxies {
        let manager = connect(&url(&[proxy.port()], "")).await;
        for number in 0..10 {
            had(&manager, &format!("key:{number}")).await;
        }
    }
}
