use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{
    Config, FencingToken, LockError, LockManager, TOKENS_PER_GRANT, current, lock,
};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::support::locks::{
    all_served, had, held, is_busy, is_done, is_late, is_lost, is_taken_out, is_unavailable,
    served, shown,
};
use crate::support::over_memory::Otherwise;
use crate::{connect, manager, seconds, settle, waits};

/// The place in the store's queue belongs to the gate: when the task that
/// waits in it gives up, the next one goes on from there.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_passes_its_place_on() {
    let (memory, here) = manager().await;
    let (holder, later) = (connect(&memory).await, connect(&memory).await);
    let guard = held(holder.lock("k")).await;
    let mut leader = Box::pin(here.lock("k").acquire());
    let mut second = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut leader).await && waits(&mut second).await);
    let mut elsewhere = Box::pin(later.lock("k").acquire());
    assert!(waits(&mut elsewhere).await);
    drop(leader);
    guard.release().await.expect("held");
    assert!(
        waits(&mut elsewhere).await,
        "it came after the place of `here`"
    );
    let guard = second.await.expect("the place was kept");
    guard.release().await.expect("held");
    let guard = elsewhere.await.expect("its turn");
    guard.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn the_last_waiter_to_leave_leaves_the_queue() {
    let (memory, here) = manager().await;
    let holder = connect(&memory).await;
    let guard = held(holder.lock("k")).await;
    let mut one = Box::pin(here.lock("k").acquire());
    let mut two = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut one).await && waits(&mut two).await);
    let waiters = async || {
        let lock = holder.inspect("k").await.expect("answers");
        lock.expect("held").waiters
    };
    // Two tasks of one process are one request.
    assert_eq!(waiters().await, Some(1));
    drop(two);
    assert_eq!(waiters().await, Some(1));
    drop(one);
    assert_eq!(waiters().await, Some(0));
    guard.release().await.expect("held");
}

/// Whoever is let in has time to begin, also where a renewal is late.
#[tokio::test(start_paused = true)]
async fn a_lease_is_handed_over_while_there_is_time_left() {
    for (lasts, is_handed_over) in [(5, true), (25, false)] {
        let (memory, here) = manager().await;
        let there = connect(&memory).await;
        let owner = |after| {
            let there = there.clone();
            async move {
                sleep(seconds(after)).await;
                shown(&there, "k").await.holders[0].owner.clone()
            }
        };
        let start = held(there.lock("k")).await;
        let lock = || here.lock("k").ttl(seconds(30));
        let first = tokio::spawn(lock().renew(false).run(owner(lasts)));
        settle().await;
        let second = tokio::spawn(lock().run(owner(0)));
        settle().await;
        start.release().await.expect("held");
        let owners = [served(first).await, served(second).await];
        assert_eq!(owners[0] == owners[1], is_handed_over, "after {lasts} s");
    }
}

/// It is never renewed, and its body may need all of its time.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_one_of_its_own() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let start = held(there.lock("k")).await;
    let lock = || here.lock("k").ttl(seconds(30));
    let body = |lasts| async move {
        sleep(seconds(lasts)).await;
        current().expect("inside").token()
    };
    let first = tokio::spawn(lock().run(body(5)));
    settle().await;
    let fixed = tokio::spawn(lock().renew(false).run(body(28)));
    settle().await;
    start.release().await.expect("held");
    let (first, fixed) = (served(first).await, served(fixed).await);
    assert!(u64::from(fixed) >= u64::from(first) + TOKENS_PER_GRANT);
}

#[tokio::test(start_paused = true)]
async fn no_more_hand_overs_in_a_row_than_the_limit() {
    let memory = Memory::new();
    let config = |handoff| Config::with_backend(memory.clone()).handoff(handoff);
    let here = LockManager::connect(config(2)).await.expect("connects");
    let there = LockManager::connect(config(0)).await.expect("connects");
    let order = Arc::new(Mutex::new(String::new()));
    let guard = held(here.lock("k")).await;
    let mut tasks = JoinSet::new();
    for (manager, name) in [(&here, "h"); 8].into_iter().chain([(&there, "t"); 2]) {
        let order = Arc::clone(&order);
        let body = async move { order.lock().expect("no panic").push_str(name) };
        tasks.spawn(manager.lock("k").run(body));
        settle().await;
    }
    guard.release().await.expect("held");
    all_served(tasks).await;
    // The guard's turn came before anybody queued, so it handed over to none;
    // then a turn and two hand-overs at most while somebody waits elsewhere.
    assert_eq!(*order.lock().expect("no panic"), "thhhthhhhh");
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_told_to_all_who_wait() {
    let (memory, here) = manager().await;
    let holder = connect(&memory).await;
    let guard = held(holder.lock("k")).await;
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        tasks.spawn(here.lock("k").acquire());
    }
    settle().await;
    memory.faults().set_unavailable(true);
    for answer in tasks.join_all().await {
        is_unavailable(answer);
    }
    memory.faults().set_unavailable(false);
    guard.release().await.expect("held");
    had(&here, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_timeout_leaves_the_others_in_line() {
    let (_, manager) = manager().await;
    let guard = held(manager.lock("k")).await;
    let hasty = manager.lock("k").acquire_within(seconds(1));
    let patient = manager.lock("k").acquire_within(seconds(100));
    let (hasty, patient, ()) = tokio::join!(hasty, patient, async {
        sleep(seconds(2)).await;
        guard.release().await.expect("held");
    });
    is_late(hasty);
    patient.expect("its turn").release().await.expect("held");
}

/// A grant that crosses with the drop of its waiter goes to the next one.
#[tokio::test(start_paused = true)]
async fn a_turn_that_crosses_with_a_drop_is_passed_on() {
    let (_, manager) = manager().await;
    let guard = held(manager.lock("k")).await;
    let mut one = Box::pin(manager.lock("k").acquire());
    let mut two = Box::pin(manager.lock("k").acquire());
    assert!(waits(&mut one).await && waits(&mut two).await);
    guard.release().await.expect("held");
    // It has been given the lead, and does not know it yet.
    drop(one);
    two.await.expect("passed on").release().await.expect("held");
    assert!(manager.list("").await.expect("answers").is_empty());
}

/// By which grant a body was let in.
fn grant(token: FencingToken) -> u64 {
    u64::from(token) / TOKENS_PER_GRANT
}

/// Of each grant of a permit, and not of all of them together.
#[tokio::test(start_paused = true)]
async fn a_permit_is_handed_over_up_to_the_limit() {
    for limit in [0, 1, 3] {
        let memory = Memory::new();
        let config = Config::with_backend(memory.clone()).handoff(limit);
        let here = LockManager::connect(config).await.expect("connects");
        let there = connect(&memory).await;
        let permit = |manager: &LockManager| manager.lock("k").permits(2);
        let before = [held(permit(&there)).await, held(permit(&there)).await];
        let mut tasks = JoinSet::new();
        for _ in 0..12 {
            tasks.spawn(permit(&here).run(async {
                settle().await;
                current().expect("inside").token()
            }));
            settle().await;
        }
        drop(before);
        let tokens: BTreeSet<_> = all_served(tasks).await.into_iter().collect();
        assert_eq!(tokens.len(), 12, "each has one of its own");
        let mut bodies = BTreeMap::<u64, u32>::new();
        for token in tokens {
            *bodies.entry(grant(token)).or_default() += 1;
        }
        let most = bodies.values().max().copied();
        assert_eq!(most, Some(limit + 1), "bodies of a grant: {bodies:?}");
    }
}

/// It goes back instead, and the next asks for one of its own.
#[tokio::test(start_paused = true)]
async fn a_permit_is_handed_over_after_a_body_that_ended_and_no_other() {
    for ending in ["ends", "panics", "is cancelled", "loses it"] {
        let (memory, here) = manager().await;
        let there = connect(&memory).await;
        let permit = |manager: &LockManager| manager.lock("k").permits(2);
        // With both in use here, who comes next waits in memory.
        let _stays = held(permit(&here)).await;
        let before = held(permit(&there)).await;
        let (inside, is_inside) = oneshot::channel();
        let (end, ends) = oneshot::channel::<()>();
        let first = tokio::spawn(permit(&here).run(async move {
            let token = current().expect("inside").token();
            inside.send(token).expect("the test waits");
            match ending {
                "is cancelled" | "loses it" => pending().await,
                _ => ends.await.expect("the test says so"),
            }
            assert_eq!(ending, "ends", "it panics");
        }));
        settle().await;
        let next = permit(&here).run(async { current().expect("inside").token() });
        let next = tokio::spawn(next);
        settle().await;
        before.release().await.expect("held");
        let token = is_inside.await.expect("it is let in");
        match ending {
            "is cancelled" => first.abort(),
            "loses it" => assert!(memory.faults().take_away("k")),
            _ => end.send(()).expect("it waits"),
        }
        let next = served(next).await;
        let is_handed_over = grant(next) == grant(token);
        assert_eq!(is_handed_over, ending == "ends", "after one that {ending}");
        assert!(next > token);
        match first.await {
            Ok(ended) if ending == "loses it" => drop(is_lost(ended)),
            Ok(ended) => ended.expect("the lock"),
            Err(error) => assert_eq!(error.is_panic(), ending == "panics"),
        }
    }
}

/// As of a lock: it is never renewed, and its body may need all of its time.
#[tokio::test(start_paused = true)]
async fn a_fixed_permit_is_one_of_its_own() {
    for renewed in [true, false] {
        let (memory, here) = manager().await;
        let there = connect(&memory).await;
        let lock = |manager: &LockManager| manager.lock("k").permits(2).ttl(seconds(30));
        let _stays = held(lock(&here)).await;
        let before = held(lock(&there)).await;
        let body = |lasts| async move {
            sleep(seconds(lasts)).await;
            current().expect("inside").token()
        };
        let first = tokio::spawn(lock(&here).run(body(5)));
        settle().await;
        let second = tokio::spawn(lock(&here).renew(renewed).run(body(28)));
        settle().await;
        before.release().await.expect("held");
        let (first, second) = (served(first).await, served(second).await);
        assert_eq!(grant(first) == grant(second), renewed);
    }
}

/// No body has begun under it, so there is no reason to ask the store.
#[tokio::test(start_paused = true)]
async fn what_a_call_of_several_keys_had_when_it_left_is_handed_over() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let [a, _k] = [held(there.lock("a")).await, held(there.lock("k")).await];
    let mut both = Box::pin(here.lock(["a", "k"]).acquire());
    assert!(waits(&mut both).await);
    let mut next = Box::pin(here.lock("a").acquire());
    assert!(waits(&mut next).await);
    let mut elsewhere = Box::pin(there.lock("a").acquire());
    assert!(waits(&mut elsewhere).await);
    a.release().await.expect("held");
    assert!(waits(&mut both).await, "it has `a`, and not `k`");
    drop(both);
    assert!(waits(&mut elsewhere).await, "it did not go back");
    let guard = next.await.expect("handed over");
    guard.release().await.expect("held");
    drop(elsewhere.await.expect("its turn"));
}

/// A body behind others.
fn tells_its_token(here: &LockManager) -> JoinHandle<Result<FencingToken, LockError>> {
    let body = async { current().expect("inside").token() };
    tokio::spawn(here.lock("a").run(body))
}

/// What it had entered again by then was entered by no body.
#[tokio::test(start_paused = true)]
async fn a_call_of_several_keys_that_leaves_spoils_no_hand_over_of_the_lock_around_it() {
    for leaves in ["is refused", "is dropped"] {
        let (memory, here) = manager().await;
        let there = connect(&memory).await;
        let [start, b] = [held(there.lock("a")).await, held(there.lock("b")).await];
        let body = async move {
            let both = lock(["a", "b"]);
            match leaves {
                "is refused" => drop(is_busy(both.try_acquire().await)),
                _ => drop(timeout(seconds(1), both.acquire()).await.expect_err("held")),
            }
            current().expect("inside").token()
        };
        let first = here.scope(here.lock("a").run(body));
        let first = tokio::spawn(first);
        settle().await;
        let second = tells_its_token(&here);
        settle().await;
        start.release().await.expect("held");
        let (first, second) = (served(first).await, served(second).await);
        assert_eq!(grant(first), grant(second), "after one that {leaves}");
        b.release().await.expect("held");
    }
}

/// A body that began under it counts as ever.
#[tokio::test(start_paused = true)]
async fn a_body_of_several_keys_that_is_cancelled_leaves_the_lock_around_it_to_nobody() {
    let (memory, here) = manager().await;
    let start = held(connect(&memory).await.lock("a")).await;
    let body = async move {
        let both = lock(["a", "b"]).run(pending::<()>());
        timeout(seconds(1), both).await.expect_err("it never ends");
        current().expect("inside").token()
    };
    let first = tokio::spawn(here.scope(here.lock("a").run(body)));
    settle().await;
    let second = tells_its_token(&here);
    settle().await;
    start.release().await.expect("held");
    let (first, second) = (served(first).await, served(second).await);
    assert_ne!(grant(first), grant(second));
}

/// `min_hold` is over by then, so the lock need not be kept for it.
#[tokio::test(start_paused = true)]
async fn a_body_that_lasts_as_long_as_min_hold_hands_over() {
    for lasts in [1, 2] {
        let (memory, here) = manager().await;
        let there = connect(&memory).await;
        let start = held(there.lock("k")).await;
        let lock = || here.lock("k").min_hold(seconds(1));
        let body = || async move {
            sleep(seconds(lasts)).await;
            current().expect("inside").token()
        };
        let first = tokio::spawn(lock().run(body()));
        settle().await;
        let second = tokio::spawn(lock().run(body()));
        settle().await;
        start.release().await.expect("held");
        let (first, second) = (served(first).await, served(second).await);
        assert_eq!(grant(first), grant(second), "after {lasts} s");
    }
}

/// However its work ended, nobody else begins sooner.
#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_for_min_hold_after_a_body_that_did_not_end_normally() {
    for ending in ["a guard is dropped", "is cancelled", "panics"] {
        let (memory, here) = manager().await;
        let there = connect(&memory).await;
        let lock = || here.lock("k").min_hold(seconds(5));
        match ending {
            "a guard is dropped" => drop(held(lock()).await),
            _ => {
                let body = tokio::spawn(lock().run(async move {
                    assert_eq!(ending, "is cancelled", "it panics");
                    pending::<()>().await;
                }));
                settle().await;
                body.abort();
            }
        }
        sleep(Duration::from_millis(4_900)).await;
        is_busy(there.lock("k").try_acquire().await);
        sleep(Duration::from_millis(200)).await;
        let next = there.lock("k").try_acquire().await;
        drop(next.expect("it has been kept for long enough"));
    }
}

/// They wait behind one request, which is all that an operator sees of them. Calls for permits have
/// several, of which one is taken out.
#[tokio::test(start_paused = true)]
async fn those_who_wait_behind_a_request_are_taken_out_with_it() {
    for permits in [1, 2] {
        let (memory, here) = manager().await;
        let there = connect(&memory).await;
        let lock = |manager: &LockManager| manager.lock("k").permits(permits);
        let mut before = Vec::new();
        for _ in 0..permits {
            before.push(held(lock(&there)).await);
        }
        let mut calls = Vec::new();
        for _ in 0..4 {
            calls.push(tokio::spawn(lock(&here).run(async {})));
            settle().await;
        }
        let queue = shown(&there, "k").await.queue;
        assert_eq!(queue.len(), permits as usize);
        let broken = there.break_waiter("k", &queue[0].owner).await;
        broken.expect("memory has a queue");
        settle().await;
        let others = calls.split_off(if permits == 1 { 4 } else { 1 });
        for call in calls {
            assert!(call.is_finished(), "told at once");
            is_taken_out(call.await.expect("no panic"));
        }
        drop(before);
        for other in others {
            served(other).await;
        }
    }
}

/// Counts the requests that wait in the store.
#[derive(Debug)]
struct Asked {
    memory: Memory,
    asked: Arc<AtomicUsize>,
}

#[async_trait::async_trait]
impl Otherwise for Asked {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.memory.acquire(r).await
    }
}

/// One of them asks. The others would only be told the same, one after the other.
#[tokio::test(start_paused = true)]
async fn what_was_done_is_told_to_all_who_waited_when_the_store_was_asked() {
    let (memory, asked) = (Memory::new(), Arc::new(AtomicUsize::new(0)));
    let store = Asked {
        memory,
        asked: Arc::clone(&asked),
    };
    let here = store.manager().await;
    let once = || here.lock("k").once(seconds(3600));
    let (end, ends) = oneshot::channel::<()>();
    let first = tokio::spawn(once().run(ends));
    settle().await;
    let mut behind = Vec::new();
    for _ in 0..5 {
        behind.push(tokio::spawn(once().run(async { Err::<(), _>("again") })));
        settle().await;
    }
    end.send(()).expect("it waits");
    served(first).await.expect("the test says so");
    for one in behind {
        is_done(one.await.expect("no panic"));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}
