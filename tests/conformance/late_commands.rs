//! Guarantees 5 and 8 over a network that fails: a command without an answer may be run at once,
//! later, or never, and must not leave a key locked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use dlock::{LockError, LockGuard, LockManager};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{Store, connect, free, had, held, nothing_left, process, queued};
use crate::support::calm::unless_it_stands_still;
use crate::support::critical::Section;
use crate::support::locks::{
    self, given_back, healed, healed_at, held_at_last, is_busy, is_unavailable, served, shown,
};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, until, within};

/// Long enough to send something, and for the store to see it.
const MOMENT: Duration = Duration::from_millis(50);

/// A manager whose calls give up early when the store does not answer.
async fn impatient(store: &dyn Store) -> LockManager {
    let timeout = 2 * store.request_timeout();
    let manager = locks::impatient(|| super::config(store).request_timeout(timeout)).await;
    // This opens the connection.
    healed_at(&manager, "key").await;
    manager
}

/// A manager whose calls have time for another attempt.
async fn patient(store: &dyn Store) -> LockManager {
    let manager = connect(super::config(store).request_timeout(HANG / 2)).await;
    had(&manager, "key").await;
    manager
}

fn all(store: &dyn Store, fault: impl Fn(&Proxy)) {
    store.proxies().iter().for_each(fault);
}

async fn ask(manager: &LockManager, waits: bool) -> Result<LockGuard, LockError> {
    let lock = manager.lock("key");
    match waits {
        true => within(HANG, lock.acquire()).await,
        false => within(HANG, lock.try_acquire()).await,
    }
}

/// The lock is free and stays free.
async fn is_nobodys(judge: &LockManager) {
    free(judge, "key").await;
    had(judge, "key").await;
}

/// Observes what arrives at the store while the network fails: over another way, or by the number
/// of records.
struct Witness {
    manager: Option<LockManager>,
    records: Option<usize>,
}

impl Witness {
    async fn of(store: &dyn Store) -> Self {
        let mut manager = None;
        if let Some(config) = store.past_proxies() {
            manager = Some(connect(config.request_timeout(HANG / 2)).await);
        }
        let records = store.records().await;
        assert!(
            manager.is_some() || records.is_some(),
            "a store with `proxies` must provide `past_proxies` or `records`"
        );
        Self { manager, records }
    }

    /// Waits until somebody holds `key` and `waiters` requests wait for it.
    async fn sees(&self, store: &dyn Store, key: &str, waiters: usize) {
        if let Some(manager) = &self.manager {
            let inspect = async || manager.inspect(key).await.expect("inspect");
            let lock = until("it arrives", inspect, |lock| {
                lock.as_ref()
                    .is_some_and(|lock| lock.waiters.unwrap_or(0) >= waiters)
            });
            lock.await;
        } else {
            let records = async || store.records().await;
            until("it arrives", records, |&now| now > self.records).await;
        }
    }

    /// Like `sees`, with a short limit: some stores send another request first, and without its
    /// answer the lock never arrives.
    async fn may_see(&self, store: &dyn Store, key: &str) {
        let _ = timeout(2 * store.request_timeout(), self.sees(store, key, 0)).await;
    }

    /// Waits until nobody holds `key` any more.
    async fn misses(&self, store: &dyn Store, key: &str) {
        if let Some(manager) = &self.manager {
            free(manager, key).await;
        } else {
            let records = async || store.records().await;
            until("it is done", records, |&now| now < self.records).await;
        }
    }
}

pub(crate) async fn a_request_that_arrives_late_leaves_nothing(store: &mut dyn Store) {
    let judge = process(store).await;
    let manager = impatient(store).await;
    for waits in [false, true] {
        // What is sent now reaches the server when the silence ends.
        store.set_silence(true).await;
        is_unavailable(ask(&manager, waits).await);
        store.set_silence(false).await;
        healed(&manager).await;
        is_nobodys(&judge).await;
        healed_at(&manager, "key").await;
    }
    // Also when the request asks for a place in the queue.
    let guard = held(judge.lock("key")).await;
    store.set_silence(true).await;
    is_unavailable(ask(&manager, true).await);
    store.set_silence(false).await;
    healed(&manager).await;
    queued(store, &judge, "key", 0).await;
    guard.release().await.expect("it was held to the end");
    nothing_left(&judge).await;
}

pub(crate) async fn a_dropped_call_that_arrives_late_leaves_nothing(store: &mut dyn Store) {
    let judge = process(store).await;
    let manager = impatient(store).await;
    for waits in [false, true] {
        store.set_silence(true).await;
        let dropped = timeout(MOMENT, ask(&manager, waits)).await;
        dropped.map(drop).expect_err("nothing is answered");
        store.set_silence(false).await;
        healed(&manager).await;
        is_nobodys(&judge).await;
    }
    nothing_left(&judge).await;
}

/// The answer is lost forever: the store has granted the lock, and nobody knows it.
pub(crate) async fn a_lock_that_was_had_unheard_is_given_back(store: &mut dyn Store) {
    let judge = process(store).await;
    let manager = impatient(store).await;
    let kept = held_at_last(|| manager.lock("kept")).await;
    for waits in [false, true] {
        let witness = Witness::of(store).await;
        all(store, |proxy| proxy.swallow_replies(true));
        let seen = witness.may_see(store, "key");
        let (answer, ()) = tokio::join!(ask(&manager, waits), seen);
        is_unavailable(answer);
        all(store, |proxy| proxy.swallow_replies(false));
        healed(&manager).await;
        is_nobodys(&judge).await;
    }
    given_back(kept).await;
    nothing_left(&judge).await;
}

/// There is time to ask again, and the lock is recognized as its own.
pub(crate) async fn a_lock_whose_answer_was_lost_is_had(store: &mut dyn Store) {
    let (judge, manager) = (process(store).await, patient(store).await);
    let kept = held(manager.lock("kept")).await;
    for waits in [false, true] {
        let witness = Witness::of(store).await;
        all(store, |proxy| proxy.swallow_replies(true));
        let heard = async {
            witness.may_see(store, "key").await;
            all(store, |proxy| proxy.swallow_replies(false));
        };
        let (guard, ()) = tokio::join!(ask(&manager, waits), heard);
        let guard = guard.expect("its own lock");
        healed(&judge).await;
        is_busy(judge.lock("key").try_acquire().await);
        guard.release().await.expect("the release");
        is_nobodys(&judge).await;
    }
    kept.release().await.expect("it was held to the end");
}

/// When the release is repeated, the store has already done it, and answers that nobody holds the
/// lock.
pub(crate) async fn a_release_whose_answer_was_lost_is_one(store: &mut dyn Store) {
    let manager = patient(store).await;
    let guard = held(manager.lock("key")).await;
    let witness = Witness::of(store).await;
    all(store, |proxy| proxy.swallow_replies(true));
    let releasing = tokio::spawn(guard.release());
    witness.misses(store, "key").await;
    all(store, |proxy| proxy.swallow_replies(false));
    served(releasing).await;
    nothing_left(&manager).await;
}

/// Beside another permit. The store has granted a permit, but the answer is lost or late; and a
/// permit is given back, but the answer is lost and the release is repeated.
pub(crate) async fn a_permit_whose_answer_was_lost_is_one_of_two(store: &mut dyn Store) {
    let judge = process(store).await;
    if !judge.capabilities().permits {
        return;
    }
    let (hasty, calm) = (impatient(store).await, patient(store).await);
    let permit = |manager: &LockManager| manager.lock("key").permits(2);
    let first = held(permit(&judge)).await;
    let witness = match store.past_proxies() {
        Some(config) => Some(connect(config.request_timeout(HANG / 2)).await),
        None => None,
    };
    // Some stores send another request first, whose answer is then lost.
    let may_be = async |count: usize| {
        let limit = 2 * store.request_timeout();
        let Some(witness) = &witness else {
            // Nobody sees this store past its proxies.
            return sleep(limit).await;
        };
        let inside = async || shown(witness, "key").await.holders.len();
        let _ = timeout(limit, until("it arrives", inside, |&now| now == count)).await;
    };
    let one_of_two_is_free = async || {
        let second = held(permit(&judge)).await;
        is_busy(permit(&calm).try_acquire().await);
        assert_eq!(shown(&judge, "key").await.holders.len(), 2);
        second.release().await.expect("the release");
    };

    all(store, |proxy| proxy.swallow_replies(true));
    let asks = within(HANG, permit(&hasty).acquire());
    let (answer, ()) = tokio::join!(asks, may_be(2));
    is_unavailable(answer);
    all(store, |proxy| proxy.swallow_replies(false));
    healed(&judge).await;
    one_of_two_is_free().await;

    all(store, |proxy| proxy.swallow_replies(true));
    let heard = async {
        may_be(2).await;
        all(store, |proxy| proxy.swallow_replies(false));
    };
    let (second, ()) = tokio::join!(within(HANG, permit(&calm).acquire()), heard);
    let second = second.expect("its own permit");
    healed(&judge).await;
    is_busy(permit(&judge).try_acquire().await);
    assert_eq!(shown(&judge, "key").await.holders.len(), 2);

    all(store, |proxy| proxy.swallow_replies(true));
    let releasing = tokio::spawn(second.release());
    may_be(1).await;
    all(store, |proxy| proxy.swallow_replies(false));
    served(releasing).await;
    healed(&judge).await;
    one_of_two_is_free().await;
    first.release().await.expect("it was held to the end");
    nothing_left(&judge).await;
}

/// After a shutdown the process may end, and then nobody would give back what was dropped before.
pub(crate) async fn a_shutdown_waits_for_what_was_dropped(store: &mut dyn Store) {
    let judge = process(store).await;
    had(&judge, "key").await;
    let guard = held(judge.lock("held")).await;
    // Waiters leave something at the store only if it has a queue.
    let keys = match judge.capabilities().fair {
        true => &["key", "held"][..],
        false => &["key"],
    };
    for &key in keys {
        let manager = patient(store).await;
        let mut delay = MOMENT;
        loop {
            let witness = Witness::of(store).await;
            all(store, |proxy| proxy.delay(Some(delay)));
            tokio::select! {
                biased;
                () = witness.sees(store, key, usize::from(key == "held")) => break,
                // On a busy machine, the answer may come before the look.
                answer = manager.lock(key).acquire() => drop(answer.expect("the lock")),
            }
            assert!(delay < HANG / 10, "it was never seen");
            delay *= 4;
            all(store, |proxy| proxy.delay(None));
            free(&judge, key).await;
        }
        within(HANG, manager.shutdown()).await;
        all(store, |proxy| proxy.delay(None));
        // Checked at once, without waiting.
        let left = judge.inspect(key).await.expect("inspect");
        let nobody_waits = store.counts_waiters().then_some(0);
        let expected = (key == "held").then_some(nobody_waits);
        assert_eq!(left.map(|lock| lock.waiters), expected);
    }
    guard.release().await.expect("the release");
}

/// Calls may be told of the outage, but nothing overlaps, hangs or is left behind. A waiter that
/// missed a release is woken.
pub(crate) async fn cut_connections_keep_nobody_waiting(store: &mut dyn Store) {
    let (holder, other) = (patient(store).await, patient(store).await);
    for _ in 0..3 {
        let guard = held(holder.lock("key")).await;
        let waiting = tokio::spawn(other.lock("key").run(async {}));
        queued(store, &holder, "key", 1).await;
        all(store, Proxy::cut);
        guard.release().await.expect("the release");
        served(waiting).await;
    }

    let room = Arc::new(RwLock::new(()));
    let permits = Arc::new(Section::default());
    let bodies = Arc::new(AtomicUsize::new(0));
    let can = holder.capabilities();
    let mut players = JoinSet::new();
    for number in 0..8 {
        let manager = [&holder, &other][number % 2].clone();
        let (room, permits, bodies) = (room.clone(), permits.clone(), bodies.clone());
        players.spawn(async move {
            let mut left = 15;
            while left > 0 {
                let lock = manager.lock("key");
                let (lock, writes, takes_one) = match number / 2 {
                    0 if can.read_write => (lock.read(), false, false),
                    1 if can.permits => (lock.permits(2), false, true),
                    _ => (lock, true, false),
                };
                let body = async {
                    let _alone = writes.then(|| room.try_write().expect("nobody is inside"));
                    let _beside = (!writes).then(|| room.try_read().expect("no writer is inside"));
                    let stays = sleep(Duration::from_millis(2));
                    match takes_one {
                        true => permits.during(stays).await,
                        false => stays.await,
                    }
                };
                match lock.run(body).await {
                    Ok(()) => {
                        left -= 1;
                        bodies.fetch_add(1, Relaxed);
                    }
                    Err(LockError::Unavailable { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
    }
    let begun = Instant::now();
    let cuts = async {
        // On a slow machine, most of the bodies come after the cuts.
        while begun.elapsed() < HANG / 4 {
            // On a busy machine nobody may be connected again that soon: after every third cut,
            // this waits until some task was served.
            let before = bodies.load(Relaxed);
            for _ in 0..3 {
                sleep(Duration::from_millis(60)).await;
                all(store, Proxy::cut);
            }
            let served = async || bodies.load(Relaxed);
            until("somebody is served", served, |&now| now > before).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = within(HANG, players.join_all()) => {}
        () = cuts => {}
    }
    assert!(permits.most() <= 2, "{} of two permits", permits.most());
    healed(&holder).await;
    nothing_left(&holder).await;
}

/// Dead connections are open but carry nothing, as after a firewall has dropped them. This costs
/// no call, no waiter and no lease.
pub(crate) async fn dead_connections_are_replaced(store: &mut dyn Store) {
    if !store.leaves_dead_connections() {
        return;
    }
    let limit = 4 * store.request_timeout();
    unless_it_stands_still(limit / 20, async || are_replaced(store, limit).await).await;
}

async fn are_replaced(store: &dyn Store, limit: Duration) {
    let manager = async || {
        let manager = locks::impatient(|| super::config(store).request_timeout(limit)).await;
        had(&manager, "used").await;
        manager
    };
    let (holder, other) = (manager().await, manager().await);
    let ttl = 4 * store.short_ttl();
    let own = held(other.lock("own").ttl(ttl)).await;
    let guard = held(holder.lock("key")).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    queued(store, &holder, "key", 1).await;
    all(store, Proxy::freeze);
    had(&other, "other").await;
    guard.release().await.expect("the release");
    served(waiting).await.release().await.expect("the release");
    all(store, Proxy::freeze);
    sleep(ttl).await;
    assert!(own.is_held(), "it is renewed over another one");
    own.release().await.expect("the release");
}
