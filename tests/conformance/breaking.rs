//! Breaking a lock and taking out a waiter: who is notified, who gets the lock next, and who is
//! not affected.
//!
//! A broken holder learns of it at its next renewal, so its ttl is short. If the machine stands
//! still, its lease may end before it is broken: such a test is begun again, in a namespace of its
//! own.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock::backend::{HolderInfo, Released, WaiterInfo};
use dlock::{FencingToken, LockError, LockGuard, LockManager, LockRequest, TOKENS_PER_GRANT};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::{PASSED_OVER, ShownTokens, Store, connect, free, had, nothing_left, process, queued};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    self, all_served, held, is_busy, is_done, is_lost, is_unsupported, says, served, shown,
};
use crate::support::polls::poll_once;
use crate::support::wait::{HANG, eventually, until, within};

/// A process of this attempt at a test.
async fn process_of(store: &dyn Store, attempt: usize) -> LockManager {
    connect(super::config(store).namespace(format!("attempt-{attempt}"))).await
}

/// Breaks the lock, whoever holds it.
async fn broken(manager: &LockManager, token: Option<FencingToken>) -> Option<HolderInfo> {
    let broken = within(HANG, manager.break_lock("key", token)).await;
    broken.expect("an answer")
}

/// Breaks the lease of this owner.
async fn broken_by_owner(manager: &LockManager, owner: &str) -> Option<HolderInfo> {
    let broken = within(HANG, manager.break_holder("key", owner)).await;
    broken.expect("an answer")
}

/// Whether waiters can be taken out of the queue.
fn lets_out(store: &dyn Store, manager: &LockManager) -> bool {
    manager.capabilities().fair && store.lets_waiters_out()
}

/// Takes a waiter out, on a store that can do so.
async fn taken_out(manager: &LockManager, owner: &str) -> Option<WaiterInfo> {
    let taken_out = within(HANG, manager.break_waiter("key", owner)).await;
    taken_out.expect("an answer")
}

/// Checks that the store refuses to take a waiter out.
async fn is_refused(manager: &LockManager, owner: &str) {
    let refused = within(HANG, manager.break_waiter("key", owner)).await;
    says(
        &is_unsupported(refused),
        &["`key`", "queue", "end the process"],
    );
}

fn is_taken_out<T>(answer: Result<T, LockError>) {
    says(
        &locks::is_taken_out(answer),
        &["`key`", "taken", "ask again"],
    );
}

async fn only_owner(manager: &LockManager) -> String {
    let shown = shown(manager, "key").await;
    let [holder] = &shown.holders[..] else {
        panic!("one holder, not {shown:?}")
    };
    holder.owner.clone()
}

/// Waits in a spawned task. Returns when the request is in the queue, if there is one. It fails at
/// once if the lock is had instead.
async fn waits(
    store: &dyn Store,
    manager: &LockManager,
    request: LockRequest,
    before: usize,
) -> JoinHandle<Result<LockGuard, LockError>> {
    let waiting = tokio::spawn(request.acquire());
    if manager.capabilities().fair {
        let seen = async || {
            let is_over = waiting.is_finished();
            (store.waiters(manager, "key").await, is_over)
        };
        let is_clear = |&(waiters, is_over): &(usize, bool)| waiters == before + 1 || is_over;
        let (waiters, _) = until("it waits, or is served", seen, is_clear).await;
        assert_eq!(waiters, before + 1, "it did not have to wait");
    }
    waiting
}

pub(crate) async fn a_break_lets_the_next_in_at_once(store: &mut dyn Store) {
    let (holder, next, operator) = (
        process(store).await,
        process(store).await,
        process(store).await,
    );
    let guard = held(holder.lock("key")).await;
    let owner = only_owner(&operator).await;
    let waiting = waits(store, &operator, next.lock("key"), 0).await;
    let was = broken(&operator, None).await.expect("it was held");
    assert_eq!(was.owner, owner);
    // No lease here ends within the test.
    let next = served(waiting).await;
    assert_ne!(only_owner(&operator).await, owner);
    // Whatever the broken holder knows, it does not give back another's lease.
    let _ = within(HANG, guard.release()).await;
    is_busy(holder.lock("key").try_acquire().await);
    assert!(next.is_held());
    next.release().await.expect("its own lease");
    nothing_left(&operator).await;
}

pub(crate) async fn a_broken_holder_is_told(store: &mut dyn Store) {
    let mut attempt = 0;
    unless_it_stands_still(store.short_ttl() / 4, async || {
        attempt += 1;
        is_told(store, attempt).await;
    })
    .await;
}

async fn is_told(store: &dyn Store, attempt: usize) {
    let (holder, next, operator) = (
        process_of(store, attempt).await,
        process_of(store, attempt).await,
        process_of(store, attempt).await,
    );
    let guard = held(holder.lock("key").ttl(store.short_ttl())).await;
    let body = holder.lock("other").ttl(store.short_ttl());
    let body = tokio::spawn(body.run(std::future::pending::<()>()));
    eventually("the body runs", async || {
        operator.inspect("other").await.expect("inspect")
    })
    .await;
    let waiting = waits(store, &operator, next.lock("key"), 0).await;
    broken(&operator, None).await.expect("it was held");
    let next = served(waiting).await;
    let owner = only_owner(&operator).await;
    within(HANG, guard.lost()).await;
    assert!(!guard.is_held());
    is_lost(guard.release().await);
    assert_eq!(only_owner(&operator).await, owner);
    // A body ends when its lock is broken; other locks are not affected.
    let other = within(HANG, operator.break_lock("other", None)).await;
    assert!(other.expect("an answer").is_some());
    is_lost(within(HANG, body).await.expect("no panic"));
    assert!(next.is_held());
    next.release().await.expect("its own lease");
    had(&holder, "key").await;
    nothing_left(&operator).await;
}

pub(crate) async fn a_wrong_token_breaks_nothing(store: &mut dyn Store) {
    let mut attempt = 0;
    unless_it_stands_still(RENEWED / 4, async || {
        attempt += 1;
        wrong_tokens_break_nothing(store, attempt).await;
    })
    .await;
}

/// The ttl of a lease whose token the store shows once it was renewed: within a second.
const RENEWED: Duration = Duration::from_secs(3);

/// A lock whose token becomes known within the test, if it ever does.
fn soon_known(store: &dyn Store, manager: &LockManager) -> LockRequest {
    match store.shows_tokens() {
        ShownTokens::OfThoseWhoRenewed => manager.lock("key").ttl(RENEWED),
        _ => manager.lock("key"),
    }
}

/// The tokens of the holders, as far as they are shown.
async fn tokens(manager: &LockManager) -> BTreeSet<Option<FencingToken>> {
    let holders = shown(manager, "key").await.holders.into_iter();
    holders.map(|holder| holder.token).collect()
}

/// The tokens of the holders, once all have renewed, if the store has to learn them by that.
async fn known_tokens(
    store: &dyn Store,
    manager: &LockManager,
    guard: &LockGuard,
) -> BTreeSet<Option<FencingToken>> {
    if store.shows_tokens() == ShownTokens::OfThoseWhoRenewed {
        let all_known = async || tokens(manager).await;
        until("all have renewed", all_known, |seen| !seen.contains(&None)).await;
        let listed = manager.list("key").await.expect("list").remove(0);
        let listed = listed.holders.iter().map(|holder| holder.token);
        assert!(listed.into_iter().any(|token| token == Some(guard.token())));
    }
    tokens(manager).await
}

async fn wrong_tokens_break_nothing(store: &dyn Store, attempt: usize) {
    let (holder, operator) = (
        process_of(store, attempt).await,
        process_of(store, attempt).await,
    );
    let guard = held(soon_known(store, &holder)).await;
    let token = u64::from(guard.token());
    if store.shows_tokens() == ShownTokens::OfThoseWhoRenewed {
        assert_eq!(tokens(&operator).await, BTreeSet::from([None]));
        let early = within(HANG, operator.break_lock("key", Some(guard.token()))).await;
        let to_say = ["`key`", "token", "not yet", "break_holder"];
        says(&is_unsupported(early), &to_say);
    }
    let known = known_tokens(store, &operator, &guard).await;
    let expected = match store.shows_tokens() {
        ShownTokens::OfAll | ShownTokens::OfTheLast | ShownTokens::OfThoseWhoRenewed => {
            Some(guard.token())
        }
        ShownTokens::OfNone => None,
    };
    assert_eq!(known, BTreeSet::from([expected]));
    let known = expected;
    let wrong = [0, token.wrapping_sub(1), token + 64, u64::MAX];
    for wrong in wrong.into_iter().filter(|wrong| *wrong != token) {
        let answer = within(HANG, operator.break_lock("key", Some(wrong.into()))).await;
        match known {
            Some(_) => assert!(answer.expect("an answer").is_none(), "{wrong}"),
            None => says(&is_unsupported(answer), &["`key`", "token", "break_holder"]),
        }
    }
    let kept = within(HANG, operator.break_holder("key", "somebody else")).await;
    assert!(kept.expect("an answer").is_none());
    let owner = only_owner(&operator).await;
    is_busy(operator.lock("key").try_acquire().await);
    let was = match known {
        Some(known) => broken(&operator, Some(known)).await,
        None => broken_by_owner(&operator, &owner).await,
    };
    assert_eq!(was.expect("it was held").owner, owner);
    free(&operator, "key").await;
    let _ = guard.release().await;
    nothing_left(&operator).await;
}

pub(crate) async fn one_of_several_holders_is_broken(store: &mut dyn Store) {
    let capabilities = process(store).await.capabilities();
    let shared: [(bool, Share); 2] = [
        (capabilities.read_write, LockRequest::read),
        (capabilities.permits, |request| request.permits(2)),
    ];
    let mut attempt = 0;
    for (_, share) in shared.into_iter().filter(|(known, _)| *known) {
        unless_it_stands_still(store.short_ttl() / 4, async || {
            attempt += 1;
            one_of_two_is_broken(store, attempt, share).await;
        })
        .await;
    }
}

type Share = fn(LockRequest) -> LockRequest;

async fn one_of_two_is_broken(store: &dyn Store, attempt: usize, share: Share) {
    let (one, other, operator) = (
        process_of(store, attempt).await,
        process_of(store, attempt).await,
        process_of(store, attempt).await,
    );
    let broken_one = held(share(one.lock("key")).ttl(store.short_ttl())).await;
    let owner = only_owner(&operator).await;
    let stays = held(share(other.lock("key"))).await;
    let refused = within(HANG, operator.break_lock("key", None)).await;
    says(&is_unsupported(refused), &["`key`", "2 hold it", "token"]);
    assert_eq!(shown(&operator, "key").await.holders.len(), 2);
    // The writer gets the lock when both have gone.
    let writer = waits(store, &operator, operator.lock("key"), 0).await;
    let was = broken_by_owner(&operator, &owner).await;
    assert_eq!(was.expect("it was held").owner, owner);
    within(HANG, broken_one.lost()).await;
    is_lost(broken_one.release().await);
    assert_ne!(only_owner(&operator).await, owner);
    assert!(stays.is_held() && !writer.is_finished());
    stays.release().await.expect("its own lease");
    served(writer).await.release().await.expect("the release");
    nothing_left(&operator).await;
}

pub(crate) async fn one_of_several_holders_is_broken_by_its_token(store: &mut dyn Store) {
    if !process(store).await.capabilities().read_write {
        return;
    }
    let mut attempt = 0;
    unless_it_stands_still(RENEWED / 4, async || {
        attempt += 1;
        one_is_broken_by_its_token(store, attempt).await;
    })
    .await;
}

async fn one_is_broken_by_its_token(store: &dyn Store, attempt: usize) {
    let (one, other, operator) = (
        process_of(store, attempt).await,
        process_of(store, attempt).await,
        process_of(store, attempt).await,
    );
    let stays = held(soon_known(store, &one).read()).await;
    let kept = only_owner(&operator).await;
    let breaks = held(soon_known(store, &other).read()).await;
    // If tokens are kept at all, at least the last holder's is shown.
    let known = known_tokens(store, &operator, &breaks).await;
    let expected = match store.shows_tokens() {
        ShownTokens::OfAll | ShownTokens::OfThoseWhoRenewed => {
            [Some(stays.token()), Some(breaks.token())]
        }
        ShownTokens::OfTheLast => [None, Some(breaks.token())],
        ShownTokens::OfNone => [None, None],
    };
    assert_eq!(known, BTreeSet::from(expected));
    let answer = within(HANG, operator.break_lock("key", Some(breaks.token()))).await;
    // Readers on a quorum may have the same.
    let after_the_other = u64::from(breaks.token()).checked_sub(stays.token().into());
    let is_apart = after_the_other.is_none_or(|numbers| numbers >= TOKENS_PER_GRANT);
    if store.shows_tokens() == ShownTokens::OfNone || !is_apart {
        says(&is_unsupported(answer), &["`key`", "break_holder"]);
        assert_eq!(shown(&operator, "key").await.holders.len(), 2);
        breaks.release().await.expect("its own lease");
    } else {
        let was = answer.expect("an answer").expect("it was held");
        assert_eq!(was.token, Some(breaks.token()));
        let _ = breaks.release().await;
    }
    assert_eq!(only_owner(&operator).await, kept);
    stays.release().await.expect("its own lease");
    nothing_left(&operator).await;
}

/// Between the look at the lock and the step that ends the lease, the lock has gone to another
/// holder: the store compares the owner in that step.
pub(crate) async fn who_has_the_lock_since_is_not_broken(store: &mut dyn Store) {
    let (holder, next) = (process(store).await, process(store).await);
    let operator = super::config(store)
        .into_backend()
        .expect("a configuration");
    within(HANG, operator.start()).await.expect("a connection");
    let guard = held(holder.lock("key")).await;
    let mut seen = shown(&next, "key").await.holders;
    guard.release().await.expect("its own lease");
    let mut guard = held(next.lock("key")).await;
    seen.extend(shown(&holder, "key").await.holders);
    let [before, now] = &seen[..] else {
        panic!("one holder after the other, not {seen:?}")
    };
    let broken = async |holder| within(HANG, operator.break_lock("key", holder)).await;
    assert_eq!(broken(before).await.expect("an answer"), Released::NotHeld);
    assert_eq!(only_owner(&holder).await, now.owner);
    is_busy(holder.lock("key").try_acquire().await);
    assert!(guard.is_held());
    // The same with a lease that has no holder any more.
    guard.release().await.expect("its own lease");
    assert_eq!(broken(now).await.expect("an answer"), Released::NotHeld);
    guard = held(next.lock("key")).await;
    let now = shown(&holder, "key").await.holders;
    assert_eq!(
        broken(&now[0]).await.expect("an answer"),
        Released::Released
    );
    nothing_left(&holder).await;
    drop(guard);
    within(HANG, operator.stop()).await;
}

pub(crate) async fn who_is_not_there_is_not_broken(store: &mut dyn Store) {
    let (manager, operator) = (process(store).await, process(store).await);
    assert!(broken(&operator, None).await.is_none());
    assert!(broken(&operator, Some(7.into())).await.is_none());
    assert!(broken_by_owner(&operator, "0.0").await.is_none());
    match lets_out(store, &operator) {
        true => assert!(taken_out(&operator, "0.0").await.is_none()),
        false => is_refused(&operator, "0.0").await,
    }
    // A later holder has another owner.
    let guard = held(manager.lock("key")).await;
    let owner = only_owner(&operator).await;
    guard.release().await.expect("the release");
    let guard = held(manager.lock("key")).await;
    assert!(broken_by_owner(&operator, &owner).await.is_none());
    is_busy(operator.lock("key").try_acquire().await);
    guard.release().await.expect("its own lease");
    let several = within(HANG, operator.break_lock(["key", "other"], None)).await;
    assert!(matches!(several, Err(LockError::InvalidKey { .. })));
    nothing_left(&operator).await;
}

pub(crate) async fn what_was_done_is_not_broken(store: &mut dyn Store) {
    let manager = process(store).await;
    if !manager.capabilities().once {
        return;
    }
    let done = manager.lock("key").once(Duration::from_secs(3600));
    let done = within(HANG, done.run(async { Ok::<_, ()>(()) })).await;
    done.expect("the lock").expect("done");
    let owner = shown(&manager, "key").await.done.expect("it is done").owner;
    assert!(broken(&manager, None).await.is_none());
    assert!(broken_by_owner(&manager, &owner).await.is_none());
    is_done(within(HANG, manager.lock("key").try_acquire()).await);
    assert!(manager.forget("key").await.expect("an answer"));
    free(&manager, "key").await;
}

/// All tasks that wait in the process of the broken holder are served in turn.
pub(crate) async fn a_broken_process_queues_again(store: &mut dyn Store) {
    let mut attempt = 0;
    unless_it_stands_still(store.short_ttl() / 4, async || {
        attempt += 1;
        queues_again(store, attempt).await;
    })
    .await;
}

async fn queues_again(store: &dyn Store, attempt: usize) {
    let (process_of_many, other, operator) = (
        process_of(store, attempt).await,
        process_of(store, attempt).await,
        process_of(store, attempt).await,
    );
    let guard = held(process_of_many.lock("key").ttl(store.short_ttl())).await;
    let waiting = waits(store, &operator, other.lock("key"), 0).await;
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let manager = process_of_many.clone();
        tasks.spawn(async move { manager.lock("key").run(tokio::task::yield_now()).await });
    }
    broken(&operator, None).await.expect("it was held");
    let next = served(waiting).await;
    within(HANG, guard.lost()).await;
    assert!(next.is_held());
    next.release().await.expect("its own lease");
    all_served(tasks).await;
    is_lost(guard.release().await);
    nothing_left(&operator).await;
}

pub(crate) async fn a_waiter_is_taken_out_and_the_others_keep_their_order(store: &mut dyn Store) {
    if !process(store).await.capabilities().fair {
        // `who_is_not_there_is_not_broken` checks that it refuses.
        return;
    }
    let mut attempt = 0;
    unless_it_stands_still(PASSED_OVER / 3, async || {
        attempt += 1;
        the_others_keep_their_order(store, attempt).await;
    })
    .await;
}

async fn the_others_keep_their_order(store: &dyn Store, attempt: usize) {
    let operator = process_of(store, attempt).await;
    let guard = held(operator.lock("key")).await;
    let served_in = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..4 {
        let manager = process_of(store, attempt).await;
        let served_in = Arc::clone(&served_in);
        let body = async move { served_in.lock().expect("the order").push(number) };
        waiters.push(tokio::spawn(manager.lock("key").run(body)));
        queued(store, &operator, "key", number + 1).await;
    }
    let queue = shown(&operator, "key").await.queue;
    let holder = only_owner(&operator).await;
    let lets_out = lets_out(store, &operator);
    if lets_out {
        let owner = queue[1].owner.clone();
        let was = taken_out(&operator, &owner).await;
        assert_eq!(was.map(|waiter| waiter.owner), Some(owner.clone()));
        is_taken_out(within(HANG, waiters.remove(1)).await.expect("no panic"));
        queued(store, &operator, "key", 3).await;
        // A second break finds nothing, and takes out nobody else.
        assert!(taken_out(&operator, &owner).await.is_none());
        assert_eq!(shown(&operator, "key").await.queue.len(), 3);
        // A holder is not a waiter.
        assert!(taken_out(&operator, &holder).await.is_none());
    } else {
        // In another library's layout, only the number of places is visible.
        let owner = queue.get(1).map_or("0.0", |waiter| &waiter.owner);
        is_refused(&operator, owner).await;
        is_refused(&operator, &holder).await;
    }
    guard.release().await.expect("its own lease");
    for waiter in waiters {
        served(waiter).await;
    }
    let expected = match lets_out {
        true => &[0, 2, 3][..],
        false => &[0, 1, 2, 3],
    };
    assert_eq!(*served_in.lock().expect("the order"), expected);
    nothing_left(&operator).await;
}

/// The place belongs to all tasks of the process.
pub(crate) async fn the_tasks_of_a_place_are_taken_out_together(store: &mut dyn Store) {
    let (many, operator) = (process(store).await, process(store).await);
    if !operator.capabilities().fair {
        return;
    }
    let guard = held(operator.lock("key")).await;
    let first = waits(store, &operator, many.lock("key"), 0).await;
    // The second task waits in its process, which the store does not see.
    let mut second = Box::pin(many.lock("key").acquire());
    poll_once(&mut second).await;
    let second = tokio::spawn(second);
    if lets_out(store, &operator) {
        let queue = shown(&operator, "key").await.queue;
        let waiter = taken_out(&operator, &queue[0].owner).await;
        assert!(waiter.is_some(), "{queue:?}");
        is_taken_out(within(HANG, first).await.expect("no panic"));
        is_taken_out(within(HANG, second).await.expect("no panic"));
        queued(store, &operator, "key", 0).await;
        // A request that asks again gets a place again.
        let again = waits(store, &operator, many.lock("key"), 0).await;
        guard.release().await.expect("its own lease");
        served(again).await.release().await.expect("the release");
    } else {
        guard.release().await.expect("its own lease");
        drop(served(first).await);
        drop(served(second).await);
    }
    nothing_left(&operator).await;
}

/// A writer that waits keeps the readers behind it out. When it is taken out, they share.
pub(crate) async fn who_waited_behind_one_that_is_taken_out_is_let_in(store: &mut dyn Store) {
    let (writes, reads, operator) = (
        process(store).await,
        process(store).await,
        process(store).await,
    );
    let capabilities = operator.capabilities();
    if !capabilities.fair || !capabilities.read_write {
        return;
    }
    let guard = held(operator.lock("key").read()).await;
    let writer = waits(store, &operator, writes.lock("key"), 0).await;
    let reader = waits(store, &operator, reads.lock("key").read(), 1).await;
    if lets_out(store, &operator) {
        let queue = shown(&operator, "key").await.queue;
        let waiter = taken_out(&operator, &queue[0].owner).await;
        assert!(waiter.is_some(), "{queue:?}");
        let beside = served(reader).await;
        assert!(guard.is_held());
        is_taken_out(within(HANG, writer).await.expect("no panic"));
        drop(beside);
        guard.release().await.expect("its own lease");
    } else {
        guard.release().await.expect("its own lease");
        drop(served(writer).await);
        drop(served(reader).await);
    }
    nothing_left(&operator).await;
}

/// The break is sent again, and a later holder keeps the lock.
pub(crate) async fn a_break_whose_answer_was_lost_breaks_nobody_else(store: &mut dyn Store) {
    let Some(past) = store.past_proxies() else {
        return;
    };
    let operator = connect(super::config(store).request_timeout(HANG / 2)).await;
    let there = connect(past.ttl(20 * HANG).request_timeout(HANG / 2)).await;
    // With at least one of these delays, the answer is lost after the look and before the break
    // is answered.
    for delay in [0, 1, 2, 3, 5, 8, 13, 20] {
        let guard = held(there.lock("key")).await;
        let owner = only_owner(&there).await;
        let breaking = operator.clone();
        let breaking = tokio::spawn(async move { breaking.break_lock("key", None).await });
        sleep(Duration::from_millis(delay)).await;
        let replies = |swallow| {
            let proxies = store.proxies().iter();
            proxies.for_each(|proxy| proxy.swallow_replies(swallow));
        };
        replies(true);
        let gone = eventually("it is broken", async || {
            let seen = there.inspect("key").await.expect("inspect");
            seen.is_none().then_some(())
        });
        let _ = timeout(Duration::from_millis(200), gone).await;
        // The old holder does not wait for the answer.
        let _ = within(HANG, guard.release()).await;
        let next = held(there.lock("key")).await;
        let after = only_owner(&there).await;
        replies(false);
        store.proxies().iter().for_each(super::Proxy::cut);
        let answer = within(HANG, breaking).await.expect("no panic");
        if let Some(was) = answer.expect("an answer") {
            // The break may have looked only now.
            assert!([&owner, &after].contains(&&was.owner), "{was:?}");
            if was.owner == owner {
                assert_eq!(only_owner(&there).await, after);
            }
        }
        let _ = next.release().await;
    }
    nothing_left(&there).await;
}
