//! Calls that are not polled while their turn comes: an arm of a `select!` whose
//! other arm runs long, one of many in `buffer_unordered`. They hold up nobody
//! for more than a few seconds, and queue again when they are polled.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{LockError, LockGuard, LockManager};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::locks::{is_busy, is_late};
use crate::support::over_memory::Otherwise;
use crate::{connect, seconds, settle, waits};

/// Three seconds to come, and what a look more may take.
const SOON: Duration = Duration::from_secs(4);

/// Two processes of one store, the second of which holds `k`.
async fn held_elsewhere() -> (Memory, LockManager, LockManager, LockGuard) {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let guard = there.lock("k").acquire().await.expect("free");
    (memory, here, there, guard)
}

/// A call in a task of its own, which is polled whenever it is woken.
async fn awake(manager: &LockManager) -> JoinHandle<Result<LockGuard, LockError>> {
    let task = tokio::spawn(manager.lock("k").acquire());
    settle().await;
    task
}

async fn soon(task: JoinHandle<Result<LockGuard, LockError>>) -> LockGuard {
    let had = timeout(SOON, task).await;
    had.expect("within seconds")
        .expect("no panic")
        .expect("the lock")
}

/// It was not polled meanwhile, and is served like any other afterwards.
async fn queues_again(
    mut sleepy: impl Future<Output = Result<LockGuard, LockError>> + Unpin,
    holder: LockGuard,
) {
    let token = holder.token();
    assert!(waits(&mut sleepy).await, "somebody else holds the lock");
    holder.release().await.expect("held");
    let guard = timeout(SOON, sleepy).await.expect("its turn comes");
    let guard = guard.expect("the lock");
    assert!(guard.token() > token);
    guard.release().await.expect("held");
}

/// A lease handed over to a call that is not polled.
async fn handed_over(
    here: &LockManager,
    elsewhere: LockGuard,
) -> impl Future<Output = Result<LockGuard, LockError>> + Unpin + use<> {
    let first = tokio::spawn(here.lock("k").run(async {}));
    settle().await;
    let mut sleepy = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut sleepy).await);
    elsewhere.release().await.expect("held");
    first.await.expect("no panic").expect("the lock");
    sleepy
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_is_waited_for_in_a_try() {
    let (_memory, here, _there, guard) = held_elsewhere().await;
    let sleepy = handed_over(&here, guard).await;
    is_busy(here.lock("k").try_acquire().await);
    sleep(SOON).await;
    let other = here.lock("k").try_acquire().await.expect("free by now");
    queues_again(sleepy, other).await;
}

/// The right to speak to the store, with a place in its queue.
#[tokio::test(start_paused = true)]
async fn a_lead_that_nobody_comes_for_goes_to_another_task() {
    let (_memory, here, _there, guard) = held_elsewhere().await;
    let leader = awake(&here).await;
    let mut sleepy = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut sleepy).await);
    let other = awake(&here).await;
    leader.abort();
    settle().await;
    guard.release().await.expect("held");
    queues_again(sleepy, soon(other).await).await;
}

/// Of permits, one that nobody comes for is not out of use.
#[tokio::test(start_paused = true)]
async fn a_permit_that_nobody_comes_for_is_passed_on() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let permit = |manager: &LockManager| manager.lock("k").permits(2);
    // With both in use here, who comes next waits in memory.
    let _stays = permit(&here).acquire().await.expect("free");
    let guard = permit(&there).acquire().await.expect("free");
    let first = tokio::spawn(permit(&here).run(async {}));
    settle().await;
    let mut sleepy = Box::pin(permit(&here).acquire());
    assert!(waits(&mut sleepy).await);
    let other = tokio::spawn(permit(&there).acquire());
    settle().await;
    guard.release().await.expect("held");
    // It is handed over to one who is not polled.
    first.await.expect("no panic").expect("the lock");
    queues_again(sleepy, soon(other).await).await;
}

/// Places in the store's queue, of as many calls as there are permits.
#[tokio::test(start_paused = true)]
async fn places_for_permits_that_nobody_comes_for_go_to_other_tasks() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let permit = |manager: &LockManager| manager.lock("k").permits(2);
    let before = [
        permit(&there).acquire().await.expect("free"),
        permit(&there).acquire().await.expect("free"),
    ];
    let mut sleepy = [(); 2].map(|()| Box::pin(permit(&here).acquire()));
    for one in &mut sleepy {
        assert!(waits(one).await);
    }
    let behind = [(); 2].map(|()| tokio::spawn(permit(&here).acquire()));
    settle().await;
    drop(before);
    for awake in behind {
        soon(awake).await.release().await.expect("held");
    }
    for one in sleepy {
        let guard = timeout(SOON, one).await.expect("its turn comes");
        guard.expect("a permit").release().await.expect("held");
    }
    assert!(here.list("").await.expect("answers").is_empty());
}

/// All of one `buffer_unordered`, say: each of them would have its time.
#[tokio::test(start_paused = true)]
async fn many_that_do_not_come_take_no_longer_than_one() {
    let (_memory, here, there, guard) = held_elsewhere().await;
    let mut sleepy: Vec<_> = (0..100)
        .map(|_| Box::pin(here.lock("k").acquire()))
        .collect();
    for one in &mut sleepy {
        assert!(waits(one).await);
    }
    let (local, elsewhere) = (awake(&here).await, awake(&there).await);
    guard.release().await.expect("held");
    soon(local).await.release().await.expect("held");
    soon(elsewhere).await.release().await.expect("held");
    for one in sleepy {
        let guard = timeout(SOON, one).await.expect("its turn comes");
        guard.expect("the lock").release().await.expect("held");
    }
    assert!(here.list("").await.expect("answers").is_empty());
}

/// Has these polled over and over, the last first, until one of them has the lock. Says
/// which.
async fn first_of(
    calls: &mut [impl Future<Output = Result<LockGuard, LockError>> + Unpin],
) -> (usize, LockGuard) {
    let start = Instant::now();
    while start.elapsed() < 10 * SOON {
        for (number, call) in calls.iter_mut().enumerate().rev() {
            let had = tokio::select! {
                biased;
                had = call => had,
                () = settle() => continue,
            };
            return (number, had.expect("the lock"));
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("nobody has the lock");
}

/// In whatever order their runtime polls them.
#[tokio::test(start_paused = true)]
async fn those_who_come_are_served_in_order() {
    let (_memory, here, _there, guard) = held_elsewhere().await;
    let mut calls: Vec<_> = (0..5).map(|_| Box::pin(here.lock("k").acquire())).collect();
    for one in &mut calls {
        assert!(waits(one).await);
    }
    guard.release().await.expect("held");
    // The first two are not polled.
    while calls.len() > 2 {
        let (first, guard) = first_of(&mut calls[2..]).await;
        assert_eq!(first, 0, "of {}", calls.len() - 2);
        drop(calls.remove(2));
        guard.release().await.expect("held");
    }
}

/// It had one of its keys, which takes long to go back. Who comes meanwhile is polled,
/// and not in doubt.
#[tokio::test(start_paused = true)]
async fn who_comes_behind_one_who_did_not_is_served_in_order() {
    #[derive(Debug)]
    struct GoesBackLate(Memory);
    #[async_trait::async_trait]
    impl Otherwise for GoesBackLate {
        fn memory(&self) -> &Memory {
            &self.0
        }
        fn request_timeout(&self) -> Option<Duration> {
            Some(4 * LINGER)
        }
        async fn release(&self, request: &Request) -> Result<Released, BackendError> {
            sleep(LINGER).await;
            self.0.release(request).await
        }
    }
    let memory = Memory::new();
    let there = connect(&memory).await;
    let elsewhere = there.lock("z").acquire().await.expect("free");
    let here = GoesBackLate(memory).manager().await;
    let mut sleepy = Box::pin(here.lock(["k", "z"]).acquire());
    assert!(waits(&mut sleepy).await, "it has `k`");
    sleep(SOON).await;
    let mut calls = [(); 3].map(|()| Box::pin(here.lock("k").acquire()));
    for one in &mut calls {
        assert!(waits(one).await, "`k` is on its way back");
    }
    let (first, _guard) = first_of(&mut calls).await;
    assert_eq!(first, 0);
    drop(elsewhere);
}

/// Called when the first did not come, and not polled since: it is given the lock later,
/// when all is quiet.
#[tokio::test(start_paused = true)]
async fn who_did_not_come_when_it_was_called_does_not_come_for_a_hand_over_either() {
    let (_memory, here, there, guard) = held_elsewhere().await;
    let mut sleepy = [(); 2].map(|()| Box::pin(here.lock("k").acquire()));
    for one in &mut sleepy {
        assert!(waits(one).await);
    }
    let (first, second) = (awake(&here).await, awake(&here).await);
    guard.release().await.expect("held");
    let first = soon(first).await;
    sleep(10 * SOON).await;
    first.release().await.expect("held");
    soon(second).await.release().await.expect("held");
    let other = soon(awake(&there).await).await;
    other.release().await.expect("held");
}

/// Nobody is left who would come: the queue of the process is still open to
/// those who come later, and to those in it once they are polled.
#[tokio::test(start_paused = true)]
async fn a_queue_of_those_who_do_not_come_lets_others_in() {
    let (_memory, here, there, guard) = held_elsewhere().await;
    let mut one = Box::pin(here.lock("k").acquire());
    let mut two = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut one).await && waits(&mut two).await);
    guard.release().await.expect("held");
    sleep(10 * SOON).await;
    let other = there.lock("k").try_acquire().await.expect("given back");
    other.release().await.expect("held");
    let other = here.lock("k").try_acquire().await.expect("free");
    other.release().await.expect("held");
    for call in [two, one] {
        call.await.expect("free").release().await.expect("held");
    }
    assert!(here.list("").await.expect("answers").is_empty());
}

/// Exactly one of the call and those behind it gets the lock, at whatever moment
/// it comes.
#[tokio::test(start_paused = true)]
async fn who_comes_late_has_the_lock_or_queues_again() {
    for handover in [true, false] {
        let (mut had, mut late) = (0, 0);
        for moment in (2_000..4_000).step_by(50) {
            let (_memory, here, there, guard) = held_elsewhere().await;
            let mut sleepy: std::pin::Pin<Box<dyn Future<Output = _>>> = if handover {
                Box::pin(handed_over(&here, guard).await)
            } else {
                let mut sleepy = Box::pin(here.lock("k").acquire());
                assert!(waits(&mut sleepy).await);
                guard.release().await.expect("held");
                sleepy
            };
            let other = awake(&there).await;
            sleep(Duration::from_millis(moment)).await;
            if timeout(Duration::ZERO, &mut sleepy)
                .await
                .is_ok_and(|had| had.is_ok())
            {
                had += 1;
                soon(other).await.release().await.expect("held");
            } else {
                late += 1;
                queues_again(sleepy, soon(other).await).await;
            }
            assert!(here.list("").await.expect("answers").is_empty());
        }
        assert!(had > 0 && late > 0, "{had} came in time, {late} did not");
    }
}

/// Its own `timeout` is over by then.
#[tokio::test(start_paused = true)]
async fn who_comes_after_its_timeout_is_told_so() {
    let (_memory, here, there, guard) = held_elsewhere().await;
    let body = async { unreachable!("the lock is somebody else's") };
    let sleepy = here
        .lock("k")
        .patience(dlock_runtime::Patience::Within(seconds(2)));
    let mut sleepy = Box::pin(sleepy.run(body));
    assert!(waits(&mut sleepy).await);
    guard.release().await.expect("held");
    let other = soon(awake(&there).await).await;
    is_late::<()>(sleepy.await);
    other.release().await.expect("held");
}

/// Who is polled keeps its place for as long as it waits.
#[tokio::test(start_paused = true)]
async fn who_comes_keeps_its_place() {
    let (_memory, here, there, guard) = held_elsewhere().await;
    let first = awake(&here).await;
    let second = awake(&there).await;
    sleep(seconds(3600)).await;
    guard.release().await.expect("held");
    let guard = soon(first).await;
    assert!(!second.is_finished());
    guard.release().await.expect("held");
    soon(second).await.release().await.expect("held");
}

/// What a call of several keys has is not kept for it while it is not polled,
/// whether or not its turn comes for the rest.
#[tokio::test(start_paused = true)]
async fn what_a_call_has_of_several_keys_is_taken_back() {
    for fixed in [false, true] {
        let (_memory, here, there, guard) = held_elsewhere().await;
        let both = here.lock(["a", "k", "z"]).renew(!fixed);
        let mut sleepy = Box::pin(both.acquire());
        assert!(waits(&mut sleepy).await);
        is_busy(there.lock("a").try_acquire().await);
        let a = timeout(2 * SOON, there.lock("a").acquire()).await;
        let a = a.expect("within seconds").expect("the lock");
        guard.release().await.expect("held");
        assert!(waits(&mut sleepy).await);
        let held = tokio::spawn(sleepy);
        sleep(seconds(60)).await;
        assert!(!held.is_finished(), "`a` is held");
        a.release().await.expect("held");
        soon(held).await.release().await.expect("held");
        assert!(here.list("").await.expect("answers").is_empty());
    }
}

/// While it is polled, it is not.
#[tokio::test(start_paused = true)]
async fn what_a_call_has_of_several_keys_is_kept_while_it_waits() {
    let (_memory, here, there, guard) = held_elsewhere().await;
    let start = Instant::now();
    let both = tokio::spawn(here.lock(["a", "k"]).acquire());
    settle().await;
    let a = timeout(seconds(3600), there.lock("a").acquire()).await;
    assert!(a.is_err(), "after {:?}", start.elapsed());
    guard.release().await.expect("held");
    soon(both).await.release().await.expect("held");
}

/// What a try that was dropped has got goes back after a while.
#[derive(Debug)]
struct Lingers {
    memory: Memory,
    request_timeout: Option<Duration>,
    left: watch::Sender<usize>,
}

/// A second for the answer, and ten for what nobody wants; or so little, after the three until that
/// is taken back, that it is waited for even where the store does not say how long it may take.
const ANSWER: Duration = Duration::from_secs(1);
const LINGER: Duration = Duration::from_secs(10);
const LINGER_SHORTLY: Duration = Duration::from_millis(1_500);

#[async_trait::async_trait]
impl Otherwise for Lingers {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    fn request_timeout(&self) -> Option<Duration> {
        self.request_timeout
    }
    async fn settle(&self) {
        let mut left = self.left.subscribe();
        let none = left.wait_for(|&left| left == 0).await;
        none.expect("the store is there");
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        struct Left<'a>(&'a Lingers, &'a Request, bool);
        impl Drop for Left<'_> {
            fn drop(&mut self) {
                let Self(store, request, true) = *self else {
                    return;
                };
                let (memory, left, request) =
                    (store.memory.clone(), store.left.clone(), request.clone());
                left.send_modify(|left| *left += 1);
                let linger = match store.request_timeout {
                    Some(_) => LINGER,
                    None => LINGER_SHORTLY,
                };
                tokio::spawn(async move {
                    sleep(linger).await;
                    memory.release(&request).await.expect("an answer");
                    left.send_modify(|left| *left -= 1);
                });
            }
        }
        let grant = self.memory.try_acquire(r).await;
        let mut left = Left(self, r, true);
        sleep(ANSWER).await;
        left.2 = false;
        grant
    }
}

/// Its request is taken from one who only tries and does not come; when it comes
/// all the same, it does not find itself in the way.
#[tokio::test(start_paused = true)]
async fn a_try_that_comes_late_is_not_busy_with_itself() {
    for request_timeout in [Some(4 * LINGER), None] {
        let store = Lingers {
            memory: Memory::new(),
            request_timeout,
            left: watch::Sender::new(0),
        };
        let manager = store.manager().await;
        let mut sleepy = Box::pin(manager.lock("k").try_acquire());
        assert!(waits(&mut sleepy).await, "the answer takes a second");
        sleep(ANSWER + SOON).await;
        let guard = timeout(2 * LINGER, sleepy).await.expect("within seconds");
        let guard = guard.expect("nobody else has it");
        guard.release().await.expect("held");
    }
}

/// Each of the permits, and not only that of the last call.
#[tokio::test(start_paused = true)]
async fn all_permits_that_nobody_comes_for_are_passed_on() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let permit = |manager: &LockManager| manager.lock("k").permits(2);
    let before = [
        permit(&there).acquire().await.expect("free"),
        permit(&there).acquire().await.expect("free"),
    ];
    let mut sleepy = [(); 2].map(|()| Box::pin(permit(&here).acquire()));
    for one in &mut sleepy {
        assert!(waits(one).await);
    }
    let others = [(); 2].map(|()| tokio::spawn(permit(&there).acquire()));
    settle().await;
    drop(before);
    let [one, two] = others;
    let _both = (soon(one).await, soon(two).await);
    drop(sleepy);
}

/// Each of them has a queue of its own.
#[tokio::test(start_paused = true)]
async fn readers_that_do_not_come_are_in_nobodys_way() {
    let (_memory, here, there, guard) = held_elsewhere().await;
    let mut sleepy = [(); 3].map(|()| Box::pin(here.lock("k").read().acquire()));
    for one in &mut sleepy {
        assert!(waits(one).await);
    }
    let other = awake(&there).await;
    guard.release().await.expect("held");
    soon(other).await.release().await.expect("held");
    for one in sleepy {
        let guard = timeout(SOON, one).await.expect("its turn comes");
        guard.expect("the lock").release().await.expect("held");
    }
    assert!(here.list("").await.expect("answers").is_empty());
}

/// When nobody was there to be given the lead, the first that is polled takes it.
#[tokio::test(start_paused = true)]
async fn the_first_to_come_of_those_who_did_not_asks_for_all() {
    let (_memory, here, _there, guard) = held_elsewhere().await;
    let mut one = Box::pin(here.lock("k").acquire());
    let mut two = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut one).await && waits(&mut two).await);
    guard.release().await.expect("held");
    sleep(10 * SOON).await;
    for call in [two, one] {
        let guard = timeout(SOON, call).await.expect("nobody is before it");
        guard.expect("free").release().await.expect("held");
    }
    assert!(here.list("").await.expect("answers").is_empty());
}

/// A place in the store's queue that is kept for them goes with the last of them, and not only when
/// somebody looks.
#[tokio::test(start_paused = true)]
async fn those_who_did_not_come_leave_nothing_behind() {
    let (_memory, here, there, guard) = held_elsewhere().await;
    let mut one = Box::pin(here.lock("k").acquire());
    let mut two = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut one).await && waits(&mut two).await);
    guard.release().await.expect("held");
    // The first had its time, and nobody has looked since.
    sleep(Duration::from_millis(3_250)).await;
    is_busy(there.lock("k").try_acquire().await);
    drop(one);
    is_busy(there.lock("k").try_acquire().await);
    drop(two);
    let other = there.lock("k").try_acquire().await.expect("given back");
    other.release().await.expect("held");
}

/// A place that is given up goes at once to a call that has just been looked at: to one with
/// another ttl, which has a queue of its own.
#[tokio::test(start_paused = true)]
async fn who_is_given_the_place_of_those_who_did_not_come_has_to_come_too() {
    // Whichever of the two queues is looked at first.
    for ttl in 20..40 {
        let (_memory, here, there, guard) = held_elsewhere().await;
        let lock = |ttl| Box::pin(here.lock("k").ttl(seconds(ttl)).acquire());
        let mut sleepy = [lock(10), lock(10), lock(ttl)];
        for one in &mut sleepy {
            assert!(waits(one).await);
        }
        let other = awake(&there).await;
        guard.release().await.expect("held");
        let other = timeout(3 * SOON, other).await.expect("within seconds");
        drop(other.expect("no panic").expect("the lock"));
    }
}

/// Counts how often a waiting request is polled, and how often the store is asked who holds a lock.
#[derive(Debug)]
struct Counts {
    memory: Memory,
    polls: Arc<AtomicUsize>,
    looks: Arc<AtomicUsize>,
}

impl Counts {
    fn of(memory: &Memory) -> (Self, [impl Fn() -> usize + use<>; 2]) {
        let (polls, looks) = (Arc::default(), Arc::default());
        let read = |number: &Arc<AtomicUsize>| {
            let number = Arc::clone(number);
            move || number.load(Ordering::SeqCst)
        };
        let numbers = [read(&polls), read(&looks)];
        let memory = memory.clone();
        let store = Self {
            memory,
            polls,
            looks,
        };
        (store, numbers)
    }
}

#[async_trait::async_trait]
impl Otherwise for Counts {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        let mut waits = self.memory.acquire(r);
        let counted = poll_fn(|context| {
            self.polls.fetch_add(1, Ordering::SeqCst);
            waits.as_mut().poll(context)
        });
        counted.await
    }
    async fn before_a_look(&self) -> Result<(), BackendError> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// After it had half a second to read the answer for itself.
#[tokio::test(start_paused = true)]
async fn the_store_is_asked_once_whether_one_who_does_not_come_has_the_lock() {
    let memory = Memory::new();
    let there = connect(&memory).await;
    let (store, [_, looks]) = Counts::of(&memory);
    let here = store.manager().await;
    let guard = there.lock("k").acquire().await.expect("free");
    let mut sleepy = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut sleepy).await);
    guard.release().await.expect("held");
    for (after, asked) in [(750, 0), (500, 1), (10_000, 1)] {
        sleep(Duration::from_millis(after)).await;
        assert_eq!(looks(), asked);
    }
    drop(there.lock("k").try_acquire().await.expect("given back"));
    drop(sleepy);
}

/// While others wait behind it, it is woken now and then to see whether it comes.
#[tokio::test(start_paused = true)]
async fn who_waits_alone_is_not_woken() {
    let memory = Memory::new();
    let there = connect(&memory).await;
    let (store, [polls, _]) = Counts::of(&memory);
    let here = store.manager().await;
    let day = seconds(24 * 3600);
    let guard = there.lock("k").ttl(day).acquire().await.expect("free");
    let first = awake(&here).await;
    let second = awake(&here).await;
    let before = polls();
    sleep(seconds(10)).await;
    assert!(polls() > before, "somebody waits behind it");
    second.abort();
    sleep(seconds(10)).await;
    let before = polls();
    sleep(seconds(3600)).await;
    assert_eq!(polls(), before);
    guard.release().await.expect("held");
    soon(first).await.release().await.expect("held");
}

/// Its answers lie unread until the caller is polled for another reason, as where the runtime that
/// would read them is blocked.
#[derive(Debug)]
struct Unread(Memory);

#[async_trait::async_trait]
impl Otherwise for Unread {
    fn memory(&self) -> &Memory {
        &self.0
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        loop {
            if let Some(grant) = self.0.try_acquire(r).await? {
                return Ok(grant);
            }
            let mut polled = false;
            let again = poll_fn(|_| match std::mem::replace(&mut polled, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            });
            again.await;
        }
    }
}

/// Nothing wakes it, so it is looked at as soon as somebody waits behind it.
#[tokio::test(start_paused = true)]
async fn a_permit_whose_answer_nobody_reads_goes_to_another_task() {
    let memory = Memory::new();
    let here = Unread(memory.clone()).manager().await;
    let there = connect(&memory).await;
    let permit = |manager: &LockManager| manager.lock("k").permits(2);
    let _stays = permit(&here).acquire().await.expect("free");
    let guard = permit(&there).acquire().await.expect("free");
    let mut sleepy = Box::pin(permit(&here).acquire());
    assert!(waits(&mut sleepy).await);
    let other = tokio::spawn(permit(&here).acquire());
    settle().await;
    guard.release().await.expect("held");
    queues_again(sleepy, soon(other).await).await;
}

/// It has lost one of its keys meanwhile, and somebody else has taken its place: that one is looked
/// at, and not the call.
#[tokio::test(start_paused = true)]
async fn who_comes_for_a_key_that_it_has_lost_hides_nobody() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let start = there.lock("a").acquire().await.expect("free");
    let _z = there.lock("z").acquire().await.expect("free");
    let first = tokio::spawn(here.lock("a").run(async {}));
    settle().await;
    let mut call = Box::pin(here.lock(["a", "z"]).acquire());
    assert!(waits(&mut call).await);
    let mut leads = Box::pin(here.lock("a").acquire());
    assert!(waits(&mut leads).await);
    start.release().await.expect("held");
    first.await.expect("no panic").expect("the lock");
    assert!(memory.faults().take_away("a"), "it was handed over");
    let other = there.lock("a").try_acquire().await.expect("free");
    settle().await;
    assert!(waits(&mut leads).await, "it asks the store");
    assert!(waits(&mut call).await, "`z` is held");
    let behind = tokio::spawn(here.lock("a").acquire());
    settle().await;
    other.release().await.expect("held");
    let had = timeout(2 * SOON, behind).await.expect("within seconds");
    drop(had.expect("no panic").expect("the lock"));
}
