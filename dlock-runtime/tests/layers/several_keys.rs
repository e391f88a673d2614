//! Several keys that are one lock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{LockError, LockManager, OnLost, current, lock};
use tokio::time::{Instant, sleep, timeout};

use crate::support::locks::{held, is_lost, is_unavailable, served};
use crate::support::over_memory::Otherwise;
use crate::support::polls::poll_once;
use crate::{connect, manager, seconds as s, settle};

#[tokio::test(start_paused = true)]
async fn reentering_one_of_several_keys_shows_that_one() {
    let (_memory, here) = manager().await;
    let body = async {
        let outer = current().unwrap().tokens();
        let inner = lock("b").run(async { current().unwrap() });
        let inner = inner.await.unwrap();
        (outer, inner.key().to_string(), inner.token())
    };
    let (outer, key, token) = here.scope(lock(["a", "b"]).run(body)).await.unwrap();
    assert_eq!((key.as_str(), token), ("b", outer[1]), "outer {outer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_handed_over_is_renewed_while_another_key_is_awaited() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let b = there.lock("b").acquire().await.unwrap();
    let start = there.lock("a").ttl(s(3)).acquire().await.unwrap();
    // It leads, with a waiter behind it when the grant comes.
    let first = here.lock("a").ttl(s(3)).renew(false);
    let first = tokio::spawn(first.run(async {}));
    settle().await;
    let both = tokio::spawn(here.lock(["a", "b"]).ttl(s(3)).run(async {}));
    settle().await;
    start.release().await.unwrap();
    served(first).await;
    sleep(s(10)).await;
    b.release().await.unwrap();
    // Renewed like any; else the body would never even have run.
    served(both).await;
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_of_several_keys_lasts_its_ttl() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let b = there.lock("b").acquire().await.unwrap();
    let both = here.lock(["a", "b"]).ttl(s(30)).renew(false);
    let both = tokio::spawn(both.run(async { sleep(s(25)).await }));
    sleep(s(7)).await;
    b.release().await.unwrap();
    // A body of 25 s within a ttl of 30 s.
    served(both).await;
}

/// Counts what is asked to be renewed.
#[derive(Debug)]
struct Renewing {
    memory: Memory,
    asked: &'static AtomicUsize,
}

#[async_trait::async_trait]
impl Otherwise for Renewing {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.asked.fetch_add(r.len(), Ordering::SeqCst);
        self.memory.renew(r).await
    }
}

/// The answer to a renewal comes at this time after it was asked for, and may be an error.
#[derive(Debug)]
struct LateRenewals {
    memory: Memory,
    late: std::time::Duration,
    fails: &'static AtomicBool,
    asked: &'static AtomicUsize,
}

#[async_trait::async_trait]
impl Otherwise for LateRenewals {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let fails = self.fails.load(Ordering::SeqCst);
        sleep(self.late).await;
        if fails {
            let down = || Err(BackendError::unavailable("the server is silent"));
            return r.iter().map(|_| down()).collect();
        }
        self.memory.renew(r).await
    }
}

/// Each lease is gone when it is to be renewed.
#[derive(Debug)]
struct Forgetful {
    memory: Memory,
    asked: &'static AtomicUsize,
}

#[async_trait::async_trait]
impl Otherwise for Forgetful {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        r.iter().map(|_| Ok(Renewed::Gone)).collect()
    }
}

/// A `try` is told so; who waits asks less and less often.
#[tokio::test(start_paused = true)]
async fn several_keys_are_not_taken_for_ever_where_each_time_one_is_lost() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let memory = Memory::new();
    memory.start().await.unwrap();
    let asked = &ASKED;
    let manager = Forgetful { memory, asked }.manager().await;
    let both = || manager.lock(["a", "b"]).renew(false);
    let minute = std::time::Duration::from_secs(60);
    let tried = timeout(minute, both().try_acquire()).await;
    let error = tried.expect("it ends").expect_err("one is lost each time");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error}");
    ASKED.store(0, Ordering::SeqCst);
    let waited = both().acquire_within(minute).await;
    waited.expect_err("one is lost each time");
    let asked = ASKED.load(Ordering::SeqCst);
    assert!((10..100).contains(&asked), "{asked}");
    // In a pause, the store has answered all.
    for limit in [600, 1_200, 2_500] {
        let limit = std::time::Duration::from_millis(limit);
        let error = both().acquire_within(limit).await.expect_err("the same");
        assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    }
}

/// Locks that are renewed so late, and others of the same store.
async fn renewed_late(
    late: std::time::Duration,
    fails: &'static AtomicBool,
    asked: &'static AtomicUsize,
) -> (LockManager, LockManager) {
    let memory = Memory::new();
    memory.start().await.unwrap();
    let there = connect(&memory).await;
    let store = LateRenewals {
        memory,
        late,
        fails,
        asked,
    };
    (store.manager().await, there)
}

/// As what it has of several keys while it waits for another one.
#[tokio::test(start_paused = true)]
async fn what_a_sleeper_has_is_passed_on_while_it_is_extended() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static FAILS: AtomicBool = AtomicBool::new(false);
    let (here, there) = renewed_late(s(1), &FAILS, &ASKED).await;
    let mut call = Box::pin(here.lock(["a", "b"]).ttl(s(600)).renew(false).acquire());
    while ASKED.load(Ordering::SeqCst) == 0 {
        poll_once(&mut call).await;
        settle().await;
    }
    // Nobody polls it.
    for key in ["a", "b"] {
        drop(timeout(s(10), held(there.lock(key))).await.expect(key));
    }
    let again = timeout(s(10), call).await.expect("it ends");
    drop(again.expect("the locks"));
}

/// It was not renewed while it was to be extended for another call.
#[tokio::test(start_paused = true)]
async fn a_lease_that_could_not_be_extended_is_renewed_for_the_next_task() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static FAILS: AtomicBool = AtomicBool::new(true);
    let (here, there) = renewed_late(s(5), &FAILS, &ASKED).await;
    let (a, b) = (held(there.lock("a")).await, held(there.lock("b")).await);
    let both = here.lock(["a", "b"]).ttl(s(30)).renew(false);
    let both = tokio::spawn(both.run(async {}));
    settle().await;
    let next = here.lock("a").ttl(s(30));
    let next = tokio::spawn(next.run(async { sleep(s(100)).await }));
    settle().await;
    a.release().await.unwrap();
    // The lease is about to be renewed by its time, which is after 7.7 seconds at the earliest.
    sleep(s(7)).await;
    b.release().await.unwrap();
    sleep(s(4)).await;
    FAILS.store(false, Ordering::SeqCst);
    is_unavailable(both.await.expect("no panic"));
    served(next).await;
}

/// It has all of its locks by then, so nobody else has kept it waiting.
#[tokio::test(start_paused = true)]
async fn who_is_not_told_whether_its_leases_are_extended_is_told_of_an_outage() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static FAILS: AtomicBool = AtomicBool::new(false);
    let (here, _there) = renewed_late(s(3600), &FAILS, &ASKED).await;
    let both = here.lock(["a", "b"]).renew(false);
    is_unavailable(both.acquire_within(s(2)).await);
    assert_eq!(ASKED.load(Ordering::SeqCst), 1);
}

/// It is for those that waited: others have all of their time, or are renewed anyway.
#[tokio::test(start_paused = true)]
async fn only_fixed_leases_of_several_keys_are_renewed_at_the_start() {
    let keys: &[&[&str]] = &[&["a"], &["a", "a"], &["a", "b"], &["a", "b", "c"]];
    for (keys, fixed, renewed) in [
        (keys[0], true, 0),
        // One lock, whose name was written twice.
        (keys[1], true, 0),
        (keys[2], false, 0),
        (keys[2], true, 2),
        (keys[3], true, 3),
    ] {
        let asked: &'static AtomicUsize = Box::leak(Box::default());
        let memory = Memory::new();
        let here = Renewing { memory, asked }.manager().await;
        let request = here.lock(keys).renew(!fixed);
        let guard = held(request).await;
        settle().await;
        assert_eq!(asked.load(Ordering::SeqCst), renewed, "{keys:?}, {fixed}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn losing_one_key_leaves_the_other_enterable() {
    let (memory, here) = manager().await;
    let body = async {
        memory.faults().take_away("c");
        current().unwrap().lost().await;
        lock("d").run(async {}).await
    };
    let both = lock(["c", "d"]).on_lost(OnLost::Continue).run(body);
    let ended = timeout(s(3600), here.scope(both)).await;
    assert!(ended.is_ok(), "`d` is still ours, and renewed for ever");
}

#[tokio::test(start_paused = true)]
async fn who_lost_one_of_several_keys_hands_none_over() {
    let (memory, here) = manager().await;
    let first = here.lock("d").acquire().await.unwrap();
    let body = async move {
        memory.faults().take_away("c");
        let held = current().unwrap();
        held.lost().await;
        held.tokens()[1]
    };
    let both = here.lock(["c", "d"]).on_lost(OnLost::Continue);
    let both = tokio::spawn(both.run(body));
    settle().await;
    let behind = here.lock("d").run(async { current().unwrap().token() });
    let behind = tokio::spawn(behind);
    settle().await;
    first.release().await.unwrap();
    let (both, behind) = (served(both).await, served(behind).await);
    assert!(
        u64::from(behind) >= u64::from(both) + dlock_runtime::TOKENS_PER_GRANT,
        "handed over: {both}, then {behind}"
    );
}

/// What the store takes its time for is waited for once, and not once for every key.
#[tokio::test(start_paused = true)]
async fn several_keys_go_back_side_by_side() {
    let (memory, here) = manager().await;
    let keys = ["a", "b", "c", "d"];
    let guard = held(here.lock(keys)).await;
    memory.faults().set_delay(Some(s(1)));
    let start = Instant::now();
    guard.release().await.unwrap();
    assert!(start.elapsed() < s(2), "{:?}", start.elapsed());
}

/// Panics when `d` is given back for the first time.
#[derive(Debug)]
struct Panics {
    memory: Memory,
    panicked: AtomicBool,
}

#[async_trait::async_trait]
impl Otherwise for Panics {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        let first = &*r.key == "d" && !self.panicked.swap(true, Ordering::SeqCst);
        assert!(!first, "it panics");
        self.memory.release(r).await
    }
    async fn next_losses(&self) -> Vec<Owner> {
        self.memory.next_losses().await
    }
}

/// The rest goes back to the store, as after any body that lost a lock.
#[tokio::test(start_paused = true)]
async fn who_lost_one_of_several_keys_hands_none_over_when_the_store_panics_either() {
    let memory = Memory::new();
    let store = Panics {
        memory: memory.clone(),
        panicked: AtomicBool::new(false),
    };
    memory.start().await.unwrap();
    let here = store.manager().await;
    let first = here.lock("c").acquire().await.unwrap();
    let (inside, is_inside) = tokio::sync::oneshot::channel();
    let both = here.lock(["c", "d"]).on_lost(OnLost::Continue);
    let both = tokio::spawn(both.run(async move {
        let held = current().unwrap();
        inside.send(held.tokens()[0]).unwrap();
        memory.faults().take_away("d");
        held.lost().await;
    }));
    settle().await;
    let behind = here.lock("c").run(async { current().unwrap().token() });
    let behind = tokio::spawn(behind);
    settle().await;
    first.release().await.unwrap();
    let both_had = is_inside.await.unwrap();
    let behind = served(behind).await;
    assert!(both.await.unwrap_err().is_panic());
    assert!(
        u64::from(behind) >= u64::from(both_had) + dlock_runtime::TOKENS_PER_GRANT,
        "handed over: {both_had}, then {behind}"
    );
}

/// Does not have one of the locks any more, or does not answer for it.
#[derive(Debug)]
struct One {
    memory: Memory,
    answer: fn() -> Result<Released, BackendError>,
}

#[async_trait::async_trait]
impl Otherwise for One {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        let released = self.memory.release(r).await;
        match &*r.key {
            "b" => (self.answer)(),
            _ => released,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_gives_several_keys_back_is_told_of_the_one_that_failed() {
    let guard = async |answer| {
        let memory = Memory::new();
        let here = One { memory, answer }.manager().await;
        held(here.lock(["a", "b", "c"])).await
    };
    is_lost(guard(|| Ok(Released::NotHeld)).await.release().await);
    let silent = || Err(BackendError::unavailable("silence"));
    is_unavailable(guard(silent).await.release().await);
}

/// Without I/O, as with one key: in an outage, and after a shutdown has begun.
#[tokio::test(start_paused = true)]
async fn all_of_several_keys_are_entered_once_more_whatever_the_store_does() {
    let (memory, here) = manager().await;
    let manager = here.clone();
    let body = async {
        memory.faults().set_unavailable(true);
        for keys in [&["a", "b"][..], &["b", "a"], &["b", "c"], &["a", "b", "c"]] {
            let again = lock(keys).renew(false).run(async { current().unwrap() });
            let again = again.await.expect("they are held");
            assert!(
                again.tokens().len() == keys.len() && again.key().names().eq(keys.iter().copied()),
                "{again:?}"
            );
        }
        let _ends = tokio::spawn(async move { manager.shutdown().await });
        settle().await;
        let transfer = lock(["a", "b"]).run(async {}).await;
        transfer.expect("they are held");
        // One that is not held is refused.
        let more = lock(["a", "d"]).try_acquire().await;
        assert!(matches!(more, Err(LockError::ShutDown { .. })), "{more:?}");
        memory.faults().set_unavailable(false);
    };
    let outer = lock(["a", "b"]).run(lock("c").run(body));
    here.scope(outer).await.unwrap().unwrap();
}

/// At once: while it waits for the first, the holder of the first may wait for the other.
#[tokio::test(start_paused = true)]
async fn a_deadlock_with_the_second_of_several_keys_is_told_before_the_first_is_awaited() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let first = there.lock("a").acquire().await.unwrap();
    let body = async { timeout(s(60), lock(["a", "b"]).acquire()).await };
    let told = here.scope(lock("b").read().run(body)).await.unwrap();
    let told = told.expect("at once");
    assert!(
        matches!(told, Err(LockError::WouldDeadlock { .. })),
        "{told:?}"
    );
    first.release().await.unwrap();
}

/// Only what the call has taken itself is extended: the lease around it ends when it is to end.
#[tokio::test(start_paused = true)]
async fn entering_several_keys_extends_no_lease_around_them() {
    let (_memory, here) = manager().await;
    let fixed = |keys: &[&str]| lock(keys).ttl(s(3)).renew(false);
    let body = async {
        sleep(s(2)).await;
        let both = fixed(&["a", "b"]).run(async {}).await;
        both.expect("one is held, and one is free");
        sleep(s(2)).await;
        current().unwrap().is_held()
    };
    let outer = fixed(&["a"]).on_lost(OnLost::Continue).run(body);
    assert!(!here.scope(outer).await.expect("it goes on"));
}

/// Counts the renewals of `a` that are in flight, each of which takes two seconds.
#[derive(Debug)]
struct Renews {
    memory: Memory,
    in_flight: &'static AtomicUsize,
    most: &'static AtomicUsize,
}

#[async_trait::async_trait]
impl Otherwise for Renews {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let of_a = r.iter().filter(|r| r.key.ends_with('a')).count();
        let now = self.in_flight.fetch_add(of_a, Ordering::SeqCst) + of_a;
        self.most.fetch_max(now, Ordering::SeqCst);
        sleep(s(2)).await;
        let answers = self.memory.renew(r).await;
        self.in_flight.fetch_sub(of_a, Ordering::SeqCst);
        answers
    }
}

/// A store may go by that there is one request of an owner at a time.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_at_the_start_is_not_renewed_twice_at_once() {
    for waits in 8..14 {
        let [in_flight, most] = [(); 2].map(|()| &*Box::leak(Box::<AtomicUsize>::default()));
        let memory = Memory::new();
        let store = Renews {
            memory: memory.clone(),
            in_flight,
            most,
        };
        memory.start().await.unwrap();
        let here = store.manager().await;
        let there = connect(&memory).await;
        let b = there.lock("b").acquire().await.unwrap();
        let both = tokio::spawn(here.lock(["a", "b"]).ttl(s(30)).renew(false).run(async {}));
        sleep(s(waits)).await;
        b.release().await.unwrap();
        served(both).await;
        assert_eq!(most.load(Ordering::SeqCst), 1, "after {waits} s");
    }
}

/// The section around it has lost nothing, but a body in it has not ended well.
#[tokio::test(start_paused = true)]
async fn who_lost_one_of_several_keys_inside_another_hands_that_over_to_nobody() {
    let (memory, here) = manager().await;
    let manager = here.clone();
    let outer = here.lock("d").run(async move {
        let token = current().unwrap().token();
        let body = async move {
            memory.faults().take_away("c");
            current().unwrap().lost().await;
        };
        let both = manager.lock(["c", "d"]).on_lost(OnLost::Continue).run(body);
        both.await.expect("it goes on");
        settle().await;
        token
    });
    let outer = tokio::spawn(outer);
    settle().await;
    let behind = tokio::spawn(here.lock("d").run(async { current().unwrap().token() }));
    let (outer, behind) = (served(outer).await, served(behind).await);
    assert!(
        u64::from(behind) >= u64::from(outer) + dlock_runtime::TOKENS_PER_GRANT,
        "handed over: {outer}, then {behind}"
    );
}
