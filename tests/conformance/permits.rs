//! Permits: no more bodies than the number at once, in one queue with readers and writers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::Mode;
use dlock::{Config, LockError, LockGuard, LockManager, LockRequest};
use tokio::sync::{Barrier, RwLock};
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::sleep;

use super::policies::{PATIENCE, timed_out};
use super::queues::lets_others_in;
use super::release::{dies, ends_with_its_ttl};
use super::{PASSED_OVER, Store, free, held, nothing_left, queued};
use crate::support::calm::unless_it_stands_still;
use crate::support::critical::{Section, Tokens};
use crate::support::locks::{all_served, connect, is_busy, says, served, shown, would_deadlock};
use crate::support::log::Log;
use crate::support::polls::poll_once;
use crate::support::wait::{HANG, until, within};

/// This many processes, if the store has permits.
async fn processes<const COUNT: usize>(store: &dyn Store) -> Option<[LockManager; COUNT]> {
    connected(|| super::config(store)).await
}

/// The same with a long request timeout: many requests at once keep the store busy for a while.
async fn patient<const COUNT: usize>(store: &dyn Store) -> Option<[LockManager; COUNT]> {
    connected(|| super::config(store).request_timeout(HANG)).await
}

async fn connected<const COUNT: usize>(
    config: impl Fn() -> Config,
) -> Option<[LockManager; COUNT]> {
    let mut all = Vec::new();
    for _ in 0..COUNT {
        all.push(connect(config()).await);
    }
    let all: [_; COUNT] = all.try_into().expect("so many");
    all[0].capabilities().permits.then_some(all)
}

pub(crate) fn permits(manager: &LockManager, most: u32) -> LockRequest {
    manager.lock("key").permits(most)
}

/// 29 times seven bodies, and each waits inside for six others. If ever fewer than seven were
/// inside while more want to enter, they would wait forever.
pub(crate) async fn all_permits_are_in_use_and_no_more(store: &mut dyn Store) {
    let Some(managers) = patient::<3>(store).await else {
        return;
    };
    let (inside, full) = (Arc::new(Section::default()), Arc::new(Barrier::new(7)));
    let mut contenders = JoinSet::new();
    for number in 0..29 * 7 {
        let lock = permits(&managers[number % 3], 7);
        let (inside, full) = (Arc::clone(&inside), Arc::clone(&full));
        let stays = async move {
            full.wait().await;
            // Time for one too many to enter.
            sleep(Duration::from_millis(5)).await;
        };
        contenders.spawn(lock.run(async move { inside.during(stays).await }));
    }
    all_served(contenders).await;
    assert_eq!((inside.entries(), inside.most()), (29 * 7, 7));
    nothing_left(&managers[0]).await;
}

/// The same with a place for each of them in the store's queue, and not only in that of its
/// process.
pub(crate) async fn a_queue_of_two_hundred_is_let_in_seven_at_a_time(store: &mut dyn Store) {
    let Some([holder, managers @ ..]) = patient::<4>(store).await else {
        return;
    };
    let mut held_by = Vec::new();
    for _ in 0..7 {
        held_by.push(held(permits(&holder, 7)).await);
    }
    let (inside, full) = (Arc::new(Section::default()), Arc::new(Barrier::new(7)));
    let mut contenders = JoinSet::new();
    for number in 0..29 * 7 {
        // Those of one ttl queue in their process.
        let ttl = 20 * HANG - Duration::from_millis(number as u64);
        let lock = permits(&managers[number % 3], 7).ttl(ttl);
        let (inside, full) = (Arc::clone(&inside), Arc::clone(&full));
        let stays = async move {
            full.wait().await;
        };
        contenders.spawn(lock.run(async move { inside.during(stays).await }));
    }
    queued_if_fair(store, &holder, 29 * 7).await;
    assert_eq!(inside.entries(), 0, "there was no room");
    for guard in held_by {
        guard.release().await.expect("the release");
    }
    all_served(contenders).await;
    assert_eq!((inside.entries(), inside.most()), (29 * 7, 7));
    nothing_left(&holder).await;
}

pub(crate) async fn readers_take_permits_and_writers_all_of_them(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let reader = held(one.lock("key").read()).await;
    is_busy(permits(&other, 1).try_acquire().await);
    let permit = held(permits(&other, 2)).await;
    is_busy(permits(&one, 2).try_acquire().await);
    is_busy(one.lock("key").try_acquire().await);
    let beside = held(one.lock("key").read()).await;
    let seen = shown(&one, "key").await;
    assert_eq!((seen.mode, seen.holders.len()), (Mode::Permits(2), 3));
    let listed = other.list("ke").await.expect("list");
    let listed: Vec<_> = listed.iter().map(|lock| (&*lock.key, lock.mode)).collect();
    assert_eq!(listed, [("key", Mode::Permits(2))]);
    let listed = other.list("").await.expect("list");
    assert_eq!(listed[0].holders.len(), 3, "{listed:?}");
    // There is room: three are inside, and the number is four.
    let fourth = held(permits(&one, 4)).await;
    for guard in [reader, permit, beside, fourth] {
        guard.release().await.expect("the release");
    }
    let writer = held(one.lock("key")).await;
    is_busy(permits(&other, 100).try_acquire().await);
    writer.release().await.expect("the release");
    free(&one, "key").await;
}

/// Each request goes by its own number, and one that does not fit is not overtaken by one that
/// would.
pub(crate) async fn who_waits_for_a_permit_is_let_in_as_it_came(store: &mut dyn Store) {
    unless_it_stands_still(PASSED_OVER / 3, async || let_in_as_it_came(store).await).await;
}

async fn let_in_as_it_came(store: &dyn Store) {
    let Some([holder, first, second, third]) = processes(store).await else {
        return;
    };
    let mut held_by = Vec::new();
    for _ in 0..2 {
        held_by.push(held(permits(&holder, 2)).await);
    }
    let one = tokio::spawn(permits(&first, 1).acquire());
    queued_if_fair(store, &holder, 1).await;
    if holder.capabilities().fair {
        // There would be room for the second and the third.
        let two = tokio::spawn(permits(&second, 3).acquire());
        queued(store, &holder, "key", 2).await;
        let three = tokio::spawn(third.lock("key").read().acquire());
        queued(store, &holder, "key", 3).await;
        is_busy(permits(&holder, 9).try_acquire().await);
        let leaves = held_by.pop().expect("two");
        leaves.release().await.expect("the release");
        assert!(!one.is_finished() && !two.is_finished() && !three.is_finished());
        let last = held_by.pop().expect("one");
        last.release().await.expect("the release");
        let one = served(one).await;
        // They fit beside the first, and came after it.
        let beside = [served(two).await, served(three).await];
        assert_eq!(shown(&holder, "key").await.holders.len(), 3);
        drop((one, beside));
    } else {
        drop(held_by);
        drop(served(one).await);
    }
    nothing_left(&holder).await;
}

/// It waits until all have left, is alone, and after it the next that fit get the lock.
pub(crate) async fn a_writer_among_permits_waits_its_turn(store: &mut dyn Store) {
    unless_it_stands_still(PASSED_OVER / 3, async || waits_its_turn(store).await).await;
}

async fn waits_its_turn(store: &dyn Store) {
    let Some([holder, writes, second, third]) = processes(store).await else {
        return;
    };
    let before = [
        held(permits(&holder, 2)).await,
        held(permits(&holder, 2)).await,
    ];
    let writer = tokio::spawn(writes.lock("key").acquire());
    queued_if_fair(store, &holder, 1).await;
    let mut behind = Vec::new();
    for manager in [&second, &third, &second] {
        behind.push(tokio::spawn(permits(manager, 2).acquire()));
        queued_if_fair(store, &holder, 1 + behind.len()).await;
    }
    for guard in before {
        is_busy(permits(&holder, 9).try_acquire().await);
        guard.release().await.expect("the release");
    }
    let writer = served(writer).await;
    let inside = shown(&holder, "key").await;
    assert_eq!((inside.mode, inside.holders.len()), (Mode::Write, 1));
    assert!(behind.iter().all(|waiting| !waiting.is_finished()));
    writer.release().await.expect("the release");
    let last = behind.pop().expect("three");
    let mut both = Vec::new();
    for waiting in behind {
        both.push(served(waiting).await);
    }
    assert!(!last.is_finished());
    drop(both.pop());
    both.push(served(last).await);
    assert_eq!(shown(&holder, "key").await.holders.len(), 2);
    drop(both);
    nothing_left(&holder).await;
}

/// All modes in one queue: each request is served, and a writer is alone.
pub(crate) async fn readers_writers_and_permits_are_all_served(store: &mut dyn Store) {
    let Some(managers) = patient::<3>(store).await else {
        return;
    };
    let resource = Arc::new(RwLock::new(()));
    let mut contenders = JoinSet::new();
    for number in 0..96 {
        let lock = managers[number % 3].lock("key");
        let (lock, writes) = match number % 4 {
            0 => (lock, true),
            1 => (lock.read(), false),
            2 => (lock.permits(2), false),
            _ => (lock.permits(1), false),
        };
        let resource = Arc::clone(&resource);
        contenders.spawn(lock.run(async move {
            if writes {
                let _alone = resource.try_write().expect("nobody else is inside");
                yield_now().await;
            } else {
                let _shared = resource.try_read().expect("no writer is inside");
                yield_now().await;
            }
        }));
    }
    assert_eq!(all_served(contenders).await.len(), 96);
    nothing_left(&managers[0]).await;
}

/// One holder leaves, and the next gets the lock beside those that stay.
pub(crate) async fn a_permit_that_is_given_back_is_the_next_ones(store: &mut dyn Store) {
    let Some([holder, other]) = processes(store).await else {
        return;
    };
    let stays = held(permits(&holder, 2)).await;
    let leaves = held(permits(&holder, 2)).await;
    let [gone, next] = [(); 2].map(|()| tokio::spawn(permits(&other, 2).acquire()));
    queued_if_fair(store, &holder, 2).await;
    gone.abort();
    queued_if_fair(store, &holder, 1).await;
    leaves.release().await.expect("the release");
    let next = either(gone, next).await;
    assert!(stays.is_held());
    is_busy(permits(&other, 2).try_acquire().await);
    drop((stays, next));
    nothing_left(&holder).await;
}

/// A waiter that does not fit no longer blocks those behind it when it gives up, in its own
/// process and in others, although no holder has left.
pub(crate) async fn who_waits_behind_one_that_gives_up_is_let_in(store: &mut dyn Store) {
    let Some([holder, here, there]) = processes(store).await else {
        return;
    };
    let stays = [
        held(permits(&holder, 2)).await,
        held(permits(&holder, 2)).await,
    ];
    for gives_up in [permits(&here, 1), permits(&here, 2), here.lock("key")] {
        let gives_up = tokio::spawn(gives_up.acquire());
        queued_if_fair(store, &holder, 1).await;
        let mut waiting = Vec::new();
        for (number, manager) in [&here, &there, &here, &there].into_iter().enumerate() {
            let request = match number {
                0 | 3 => manager.lock("key").read(),
                _ => permits(manager, 8),
            };
            waiting.push(tokio::spawn(request.acquire()));
            queued_if_fair(store, &holder, number + 2).await;
        }
        gives_up.abort();
        let mut beside = Vec::new();
        for waiting in waiting {
            beside.push(served(waiting).await);
        }
        assert_eq!(shown(&holder, "key").await.holders.len(), 6);
        for guard in beside {
            guard.release().await.expect("the release");
        }
    }
    drop(stays);
    nothing_left(&holder).await;
}

async fn queued_if_fair(store: &dyn Store, manager: &LockManager, count: usize) {
    if manager.capabilities().fair {
        queued(store, manager, "key", count).await;
    }
}

/// Like [`queued_if_fair`], while a lease that `first` waits for is about to end: on a slow machine
/// it ends before they all wait.
async fn queued_unless_served(
    store: &dyn Store,
    manager: &LockManager,
    count: usize,
    first: &JoinHandle<Result<LockGuard, LockError>>,
) {
    if manager.capabilities().fair {
        until(
            &format!("{count} requests wait for `key`, or the first has it"),
            async || (store.waiters(manager, "key").await, first.is_finished()),
            |&(waiting, is_served)| waiting == count || is_served,
        )
        .await;
    }
}

/// The guard of the second task; the first was aborted.
async fn either(
    aborted: JoinHandle<Result<LockGuard, LockError>>,
    next: JoinHandle<Result<LockGuard, LockError>>,
) -> LockGuard {
    assert!(aborted.await.is_err_and(|error| error.is_cancelled()));
    served(next).await
}

/// The store is asked for no more permits than there are. Other tasks wait in their process, and
/// continue with the permit of a body that has ended.
pub(crate) async fn a_permit_goes_from_task_to_task(store: &mut dyn Store) {
    let Some([holder, manager]) = processes(store).await else {
        return;
    };
    let before = [
        held(permits(&holder, 2)).await,
        held(permits(&holder, 2)).await,
    ];
    let (inside, both) = (Arc::new(Section::default()), Arc::new(Barrier::new(2)));
    let body = || {
        let (inside, both) = (Arc::clone(&inside), Arc::clone(&both));
        permits(&manager, 2).run(async move {
            inside.during(both.wait()).await;
            u64::from(dlock::current().expect("inside").token())
        })
    };
    let mut contenders = JoinSet::new();
    for count in 1..=2 {
        contenders.spawn(body());
        queued_if_fair(store, &holder, count).await;
    }
    for _ in 0..4 {
        let mut waits = Box::pin(body());
        poll_once(&mut waits).await;
        contenders.spawn(waits);
    }
    queued_if_fair(store, &holder, 2).await;
    drop(before);
    let tokens: BTreeSet<u64> = all_served(contenders).await.into_iter().collect();
    let grants = tokens.iter().map(|token| token / dlock::TOKENS_PER_GRANT);
    let grants: BTreeSet<_> = grants.collect();
    assert_eq!((inside.entries(), inside.most()), (6, 2));
    assert!(tokens.len() == 6 && grants.len() < 6, "{tokens:?}");
    nothing_left(&manager).await;
}

/// Each place of a process belongs to one task. The tasks that wait behind it are not affected.
pub(crate) async fn a_place_that_is_taken_out_is_that_of_one_task(store: &mut dyn Store) {
    let Some([holder, manager]) = processes(store).await else {
        return;
    };
    let before = [
        held(permits(&holder, 2)).await,
        held(permits(&holder, 2)).await,
    ];
    let mut waiting = JoinSet::new();
    for count in 1..=2 {
        waiting.spawn(permits(&manager, 2).run(async {}));
        queued_if_fair(store, &holder, count).await;
    }
    let mut behind = Box::pin(permits(&manager, 2).run(async {}));
    poll_once(&mut behind).await;
    waiting.spawn(behind);
    if let Some(first) = shown(&holder, "key").await.queue.first()
        && let Ok(gone) = holder.break_waiter("key", &first.owner).await
    {
        assert!(gone.is_some());
        let told = within(HANG, waiting.join_next()).await.expect("a waiter");
        let told = told.expect("no panic");
        assert!(matches!(told, Err(LockError::TakenOut { .. })), "{told:?}");
        queued(store, &holder, "key", 2).await;
    }
    drop(before);
    all_served(waiting).await;
    nothing_left(&manager).await;
}

/// A process whose tasks never stop wanting permits lets another one in.
pub(crate) async fn a_process_with_many_tasks_leaves_permits_to_others(store: &mut dyn Store) {
    let Some([greedy, other]) = processes(store).await else {
        return;
    };
    if greedy.capabilities().fair {
        lets_others_in(greedy, other, |manager| permits(manager, 2)).await;
    }
}

/// As during the rollout of a new version. Each process notices it in answers of the store that
/// it gets anyway.
pub(crate) async fn processes_that_name_different_numbers_are_told(store: &mut dyn Store) {
    let warnings = Log::warnings();
    let Some([old, new]) = processes(store).await else {
        return;
    };
    let drawn = fastrand::u64(..);
    for waits in [false, true] {
        let key = format!("rollout:{drawn:x}:{waits}");
        let told = || {
            let mut lines = warnings.lines_with(&format!("`{key}`"));
            lines.retain(|line| line.contains("dlock::permits"));
            lines
        };
        let lock = |manager: &LockManager, most| manager.lock(&*key).permits(most);
        let mut inside = Vec::new();
        for _ in 0..3 {
            inside.push(held(lock(&old, 3)).await);
        }
        is_busy(lock(&old, 3).try_acquire().await);
        assert_eq!(told(), [""; 0], "they name the same");
        if waits {
            let waiting = tokio::spawn(lock(&new, 2).acquire());
            let lines = async || told().len();
            until("it is told", lines, |&lines| lines > 0).await;
            waiting.abort();
        } else {
            is_busy(lock(&new, 2).try_acquire().await);
        }
        is_busy(lock(&new, 2).try_acquire().await);
        let told = told();
        assert_eq!(told.len(), 1, "once: {told:?}");
        for words in ["WARN", "one of 2 permits", "for one of 3"] {
            assert!(told[0].contains(words), "{told:?}");
        }
    }
    nothing_left(&old).await;
}

pub(crate) async fn a_wait_for_a_permit_ends_at_its_timeout(store: &mut dyn Store) {
    let Some([holder, other]) = processes(store).await else {
        return;
    };
    let guards = [
        held(permits(&holder, 2)).await,
        held(permits(&holder, 2)).await,
    ];
    for manager in [&holder, &other] {
        let waits = async || permits(manager, 2).acquire_within(PATIENCE).await;
        says(&timed_out(waits).await, &["`key`"]);
    }
    assert!(guards.iter().all(LockGuard::is_held));
    drop(guards);
    nothing_left(&holder).await;
}

/// Also with bodies that overlap, from process to process and through hand-overs.
pub(crate) async fn tokens_of_permits_rise_from_grant_to_grant(store: &mut dyn Store) {
    let Some(managers) = processes::<2>(store).await else {
        return;
    };
    let tokens = Tokens::default();
    let mut before = held(permits(&managers[0], 2)).await;
    tokens.note(before.token());
    for round in 1..40 {
        // In an irregular order.
        let next = held(permits(&managers[(round / 3) % 2], 2)).await;
        tokens.note(next.token());
        before.release().await.expect("the release");
        before = next;
    }
    drop(before);
    tokens.check(40);
}

/// Nothing announces that a holder has died: its lease ends, while others go on.
pub(crate) async fn a_permit_of_the_dead_comes_free(store: &mut dyn Store) {
    let Some([living, other]) = processes(store).await else {
        return;
    };
    let stays = held(permits(&living, 2)).await;
    let ttl = store.short_ttl();
    dies(permits(&living, 2).ttl(ttl)).await;
    ends_with_its_ttl(&other, ttl, 1).await;
    let next = held(permits(&other, 2)).await;
    assert!(stays.is_held());
    drop((stays, next));
    nothing_left(&living).await;
}

/// For some waiters of one process there would be room, for others not yet.
pub(crate) async fn a_permit_of_the_dead_is_for_whom_there_is_room(store: &mut dyn Store) {
    let Some([living, other]) = processes(store).await else {
        return;
    };
    let stays = [
        held(permits(&living, 3)).await,
        held(permits(&living, 3)).await,
    ];
    let dead = permits(&living, 3).ttl(store.short_ttl()).renew(false);
    let dead = held(dead).await;
    let first = tokio::spawn(permits(&other, 3).acquire());
    queued_unless_served(store, &living, 1, &first).await;
    // Each gives its own back, in any order. With the same ttl they would queue in their process.
    let others = [1, 2, 3, 4, 5, 6, 7, 8].map(|number| {
        let ttl = Duration::from_secs(30 + number);
        tokio::spawn(permits(&other, 1).ttl(ttl).run(async {}))
    });
    queued_unless_served(store, &living, 9, &first).await;
    let first = served(first).await;
    assert!(stays.iter().all(LockGuard::is_held) && !dead.is_held());
    drop((stays, dead, first));
    for one in others {
        served(one).await;
    }
    nothing_left(&living).await;
}

/// A renewed permit outlasts its ttl.
pub(crate) async fn a_permit_is_renewed(store: &mut dyn Store) {
    let Some([manager, other]) = processes(store).await else {
        return;
    };
    let renewed = connect(store.config().ttl(store.short_ttl())).await;
    unless_it_stands_still(store.short_ttl() / 4, async || {
        let guard = held(permits(&renewed, 1)).await;
        let started = std::time::Instant::now();
        until(
            "twice its ttl has passed",
            async || started.elapsed(),
            |&passed| passed > 2 * store.short_ttl(),
        )
        .await;
        assert!(guard.is_held());
        is_busy(permits(&other, 1).try_acquire().await);
        guard.release().await.expect("the release");
    })
    .await;
    free(&manager, "key").await;
}

pub(crate) async fn re_entry_costs_no_permit(store: &mut dyn Store) {
    let Some([manager, other]) = processes(store).await else {
        return;
    };
    let body = async {
        let again = permits(&manager, 1).run(async {
            let reads = manager.lock("key").read().run(async {}).await;
            reads.expect("re-entry by a reader");
            shown(&other, "key").await.holders.len()
        });
        let holders = within(HANG, again).await.expect("re-entry");
        let wrote = within(HANG, manager.lock("key").acquire()).await;
        (holders, would_deadlock(wrote))
    };
    let (holders, error) = permits(&manager, 1).run(body).await.expect("the lock");
    assert_eq!(holders, 1);
    says(&error, &["`key`", "permit", "writing"]);
    let inside_a_read = manager
        .lock("key")
        .read()
        .run(async { within(HANG, permits(&manager, 9).acquire()).await.map(drop) });
    let error = would_deadlock(inside_a_read.await.expect("the lock"));
    says(&error, &["`key`", "permit", "reading"]);
    let inside_a_write = manager
        .lock("key")
        .run(async { within(HANG, permits(&manager, 1).acquire()).await.map(drop) });
    inside_a_write.await.expect("the lock").expect("re-entry");
    nothing_left(&manager).await;
}

pub(crate) async fn permits_of_several_keys_are_had_together(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let keys = || ["key", "other"];
    let first = held(one.lock(keys()).permits(2)).await;
    let second = held(other.lock(keys()).permits(2)).await;
    is_busy(other.lock(keys()).permits(2).try_acquire().await);
    let alone = tokio::spawn(other.lock(keys()).acquire());
    queued_if_fair(store, &one, 1).await;
    drop((first, second));
    drop(served(alone).await);
    nothing_left(&one).await;
}
