use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::{Backend, BackendError, Grant, Owner, Renewed, Request};
use dlock_runtime::{LockError, LockGuard, LockManager, LockRequest, LossReason, OnLost, current};
use tokio::time::{Instant, sleep, timeout};
use tracing::level_filters::LevelFilter;

use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{had, held, is_done, is_lost, is_shut_down};
use crate::support::log::Log;
use crate::support::over_memory::Otherwise;
use crate::support::wait::HANG;
use crate::{connect, current_thread, manager, seconds, settle};

/// Of a body that would not end, while this goes wrong.
async fn reason(request: LockRequest, goes_wrong: impl FnOnce()) -> LossReason {
    let body = async {
        goes_wrong();
        pending::<()>().await;
    };
    match request.run(body).await {
        Err(LockError::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn each_way_to_lose_has_its_reason() {
    let (memory, manager) = manager().await;
    let faults = memory.faults();
    let lock = || manager.lock("k").ttl(seconds(3));
    let fixed = reason(lock().renew(false), || {}).await;
    assert_eq!(fixed, LossReason::Overran);

    let start = Instant::now();
    let limited = reason(lock().max_hold(seconds(60)), || {}).await;
    assert_eq!(limited, LossReason::MaxHold);
    let lasted = start.elapsed();
    assert!(lasted > seconds(57) && lasted < seconds(63), "{lasted:?}");

    let start = Instant::now();
    let taken = reason(lock(), || assert!(faults.take_away("k"))).await;
    assert_eq!(taken, LossReason::Gone);
    assert!(start.elapsed() < seconds(1), "the store says so at once");

    let outage = reason(lock(), || faults.set_unavailable(true)).await;
    assert_eq!(outage, LossReason::Expired);
    faults.set_unavailable(false);
    had(&manager, "k").await;
}

/// Says nothing of its own accord when a lease has ended.
#[derive(Debug, Default)]
struct Quiet(Memory);

#[async_trait::async_trait]
impl Otherwise for Quiet {
    fn memory(&self) -> &Memory {
        &self.0
    }
    async fn next_losses(&self) -> Vec<Owner> {
        pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_finds_the_lease_gone_ends_it() {
    let memory = Memory::new();
    let here = Quiet(memory.clone()).manager().await;
    let taken = reason(here.lock("k"), || assert!(memory.faults().take_away("k")));
    let taken = timeout(seconds(3600), taken).await;
    assert_eq!(taken.expect("a renewal is due"), LossReason::Gone);
}

/// Clocks may drift apart by 1% during a ttl, and the holder's may be the slow
/// one.
#[tokio::test(start_paused = true)]
async fn a_lease_ends_here_before_it_ends_in_the_store() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    for ttl in [seconds(1), seconds(100)] {
        let guard = held(here.lock("k").ttl(ttl).renew(false)).await;
        guard.lost().await;
        let left = there.inspect("k").await.expect("answers").expect("held");
        let left = left.holders[0].expires_in.expect("memory says so");
        assert!(left >= ttl / 100, "{left:?} before the end of {ttl:?}");
        had(&there, "k").await;
    }
}

/// Nobody else can have it at that moment, but the holder does not know: by another clock, it
/// was over before.
#[tokio::test(start_paused = true)]
async fn what_ends_after_its_lease_is_not_remembered() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let ttl = seconds(100);
    for (late, done) in [(false, true), (true, false)] {
        let lock = here.lock("k").once(10 * ttl).ttl(ttl).renew(false);
        let body = async {
            if late {
                sleep(ttl - Duration::from_millis(100)).await;
            }
            let shown = there.inspect("k").await.expect("answers").expect("held");
            assert_eq!(shown.holders.len(), 1);
            assert_eq!(current().expect("inside").is_held(), done);
            Ok::<_, ()>(())
        };
        let ran = lock.on_lost(OnLost::Continue).run(body).await;
        ran.expect("free").expect("it goes on");
        let remembered = there.forget("k").await.expect("answers");
        assert_eq!(remembered, done);
    }
}

/// The store hears of it when the lease has ended there: the guard is told, and so is whoever
/// reads the log, though its work was done in time.
#[tokio::test(start_paused = true)]
async fn what_the_store_hears_too_late_is_told_as_not_remembered() {
    let (warnings, _guard) = Log::of_this_thread();
    let (memory, here) = manager().await;
    let ttl = seconds(10);
    let guard = held(here.lock("k").once(10 * ttl).ttl(ttl).renew(false)).await;
    sleep(ttl / 2).await;
    memory.faults().set_delay(Some(ttl));
    is_lost(guard.release_done().await);
    memory.faults().set_delay(None);
    let told = warnings.text();
    assert!(told.contains("could not be remembered"), "{told}");
    had(&here, "k").await;
}

/// Beyond the ttl of the lock, by the manager that lives on or by the store alone.
#[tokio::test(start_paused = true)]
async fn min_hold_is_kept_and_ends_with_a_shutdown_and_without() {
    for shut_down in [false, true] {
        let (memory, here) = manager().await;
        let there = connect(&memory).await;
        let start = Instant::now();
        let kept = here.lock("k").ttl(seconds(3)).min_hold(seconds(50));
        kept.run(async {}).await.expect("free");
        if shut_down {
            here.shutdown().await;
        }
        let took = start.elapsed();
        assert!(took < seconds(1), "neither waits for it");
        had(&there, "k").await;
        let lasted = start.elapsed();
        assert!(lasted >= seconds(49) && lasted < seconds(52), "{lasted:?}");
        if shut_down {
            is_shut_down(here.lock("k").try_acquire().await);
        } else {
            had(&here, "k").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_guard_says_so_when_it_is_released() {
    let (memory, manager) = manager().await;
    let guard = held(manager.lock("k")).await;
    memory.faults().take_away("k");
    let other = manager.lock("k").ttl(seconds(7)).try_acquire().await;
    let other = other.expect("free");
    is_lost(guard.release().await);
    assert!(other.is_held(), "a foreign release changes nothing");
    other.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_leases_are_kept_by_one_keeper() {
    let (_, manager) = manager().await;
    let mut guards = Vec::new();
    for number in 0..10_000 {
        let request = manager.lock(format!("k{number}")).ttl(seconds(3));
        guards.push(request.try_acquire().await.expect("free"));
    }
    sleep(seconds(60)).await;
    assert!(guards.iter().all(LockGuard::is_held));
    for guard in guards {
        guard.release().await.expect("held");
    }
    assert!(manager.list("").await.expect("answers").is_empty());
}

/// A keeper that sleeps until a long lease is due is woken for one that is due earlier.
#[tokio::test(start_paused = true)]
async fn a_short_lease_is_renewed_beside_a_long_one() {
    let (_, manager) = manager().await;
    let long = held(manager.lock("long").ttl(seconds(3_000))).await;
    // The keeper has looked, and sleeps.
    sleep(seconds(1)).await;
    let short = held(manager.lock("short").ttl(seconds(3))).await;
    sleep(seconds(60)).await;
    assert!(short.is_held() && long.is_held());
}

/// Says again and again that no lease has ended.
#[derive(Debug, Default)]
struct Talkative(Memory);

#[async_trait::async_trait]
impl Otherwise for Talkative {
    fn memory(&self) -> &Memory {
        &self.0
    }
    async fn next_losses(&self) -> Vec<Owner> {
        Vec::new()
    }
}

#[test]
fn a_store_that_tells_of_no_losses_keeps_nobody_from_renewal() {
    let (done, is_done) = std::sync::mpsc::channel();
    // A thread that nobody waits for, since it may hang.
    std::thread::spawn(move || {
        let ttl = seconds(2);
        let is_renewed = async || {
            let here = Talkative::default().manager().await;
            let ran = here.lock("k").ttl(ttl).run(sleep(2 * ttl)).await;
            ran.expect("it is renewed");
        };
        current_thread().block_on(unless_it_stands_still(ttl / 4, is_renewed));
        done.send(())
    });
    let renewed = is_done.recv_timeout(HANG);
    renewed.expect("it is renewed, and the keeper does not hang");
}

/// The time until which a lock is held moves on with each renewal, and is never later than
/// the store's.
#[tokio::test(start_paused = true)]
async fn the_deadline_moves_on_with_each_renewal() {
    let (memory, manager) = manager().await;
    let ttl = seconds(30);
    let guard = held(manager.lock("k").ttl(ttl)).await;
    let mut last = guard.deadline().expect("held");
    for _ in 0..10 {
        sleep(ttl).await;
        let next = guard.deadline().expect("renewed");
        let left = manager.inspect("k").await.expect("answers").expect("held");
        let left = left.holders[0].expires_in.expect("memory says so");
        assert!(last < next && next <= Instant::now() + left);
        last = next;
    }
    memory.faults().take_away("k");
    guard.lost().await;
    assert_eq!(guard.deadline(), None);
}

/// Grants no more than this, whatever is asked for.
const MOST: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
struct Capped(Memory);

#[async_trait::async_trait]
impl Otherwise for Capped {
    fn memory(&self) -> &Memory {
        &self.0
    }
    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        let grant = self.0.try_acquire(request).await?;
        Ok(grant.map(|grant| grant.at_most(MOST)))
    }
    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        Ok(self.0.acquire(request).await?.at_most(MOST))
    }
}

/// What a holder goes by is what it was given, also behind others of its process, and inside
/// of a lease that it re-enters.
#[tokio::test(start_paused = true)]
async fn the_ttl_is_the_one_granted() {
    let manager = Capped::default().manager().await;
    let lock = |ttl| manager.lock("k").ttl(ttl);
    let guard = held(lock(seconds(30))).await;
    assert_eq!(guard.ttl(), MOST);
    let left = guard.deadline().expect("held") - Instant::now();
    assert!(left <= MOST, "{left:?}");
    sleep(10 * MOST).await;
    assert!(guard.is_held(), "renewed");
    let (behind, ()) = tokio::join!(lock(seconds(30)).acquire(), async {
        sleep(seconds(1)).await;
        guard.release().await.expect("held");
    });
    let behind = behind.expect("handed over");
    assert_eq!(behind.ttl(), MOST);
    behind.release().await.expect("held");

    let body = async {
        let inside = current().expect("inside");
        let both = held(manager.lock(["k", "l"]).ttl(seconds(3))).await;
        (inside.ttl(), both.ttl())
    };
    let ttls = lock(seconds(2)).run(body).await.expect("free");
    assert_eq!(
        ttls,
        (seconds(2), seconds(2)),
        "what is re-entered is shorter"
    );
}

/// Of several keys, the first that ends counts; of a body that has ended, none.
#[tokio::test(start_paused = true)]
async fn the_deadline_of_several_keys_is_the_first() {
    let (_, manager) = manager().await;
    let body = async {
        let inside = current().expect("inside");
        let outer = inside.deadline().expect("held");
        sleep(seconds(1)).await;
        let both = held(manager.lock(["a", "b"]).ttl(seconds(30))).await;
        assert_eq!(
            both.deadline(),
            Some(outer),
            "what is re-entered ends first"
        );
        inside
    };
    let scope = manager.lock("a").ttl(seconds(20)).renew(false).run(body);
    let ended = scope.await.expect("free");
    assert_eq!(ended.deadline(), None);
}

#[tokio::test(start_paused = true)]
async fn a_warning_comes_before_the_end_when_renewals_fail() {
    let (memory, manager) = manager().await;
    let (ttl, early) = (seconds(30), seconds(5));
    let guard = held(manager.lock("k").ttl(ttl)).await;
    let warned = timeout(20 * ttl, guard.lost_within(early)).await;
    assert!(warned.is_err(), "it is renewed");

    memory.faults().set_unavailable(true);
    guard.lost_within(early).await;
    let deadline = guard.deadline().expect("not yet");
    let left = deadline - Instant::now();
    assert!(left <= early && left > early - seconds(1), "{left:?}");
    // What is heard again in time is put off again.
    memory.faults().set_unavailable(false);
    sleep(early).await;
    assert!(guard.is_held());
    let warned = timeout(20 * ttl, guard.lost_within(early)).await;
    assert!(warned.is_err(), "it is renewed again");

    memory.faults().set_unavailable(true);
    guard.lost_within(Duration::ZERO).await;
    assert!(!guard.is_held(), "with no time left, it is lost");
    guard.lost_within(early).await;
}

#[tokio::test(start_paused = true)]
async fn a_warning_comes_before_the_last_lease_ends() {
    let (_, manager) = manager().await;
    let lock = |key| manager.lock(key).ttl(seconds(30));
    for guard in [
        held(lock("fixed").renew(false)).await,
        held(lock("limited").max_hold(seconds(60))).await,
    ] {
        guard.lost_within(seconds(5)).await;
        let left = guard.deadline().expect("not yet") - Instant::now();
        assert!(left <= seconds(5) && left > seconds(4), "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_loses_or_gives_back_is_warned_at_once_or_never() {
    let (memory, manager) = manager().await;
    let guard = held(manager.lock("k").ttl(seconds(30))).await;
    memory.faults().take_away("k");
    let start = Instant::now();
    guard.lost_within(seconds(5)).await;
    assert!(start.elapsed() < seconds(1), "the store says so at once");
    drop(guard);

    let ended = manager.lock("k").run(async { current().expect("inside") });
    let ended = ended.await.expect("free");
    let warned = timeout(seconds(3600), ended.lost_within(seconds(5))).await;
    assert!(warned.is_err(), "it was given back");
}

/// By whatever its body ended.
#[tokio::test(start_paused = true)]
async fn min_hold_is_kept_by_who_is_cancelled() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let (ttl, least) = (seconds(3), seconds(50));
    for is_guard in [false, true] {
        let start = Instant::now();
        let kept = here.lock("k").ttl(ttl).min_hold(least);
        if is_guard {
            drop(held(kept).await);
        } else {
            let cancelled = timeout(seconds(1), kept.run(pending::<()>())).await;
            cancelled.expect_err("it would not end");
        }
        had(&there, "k").await;
        let lasted = start.elapsed();
        assert!(
            lasted >= least - seconds(1) && lasted < least + seconds(2),
            "{lasted:?}"
        );
    }
}

/// The store does not hear of it at first: then the lease is renewed until it does not matter.
#[tokio::test(start_paused = true)]
async fn min_hold_is_kept_when_the_store_was_not_told() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let (ttl, least) = (seconds(10), seconds(50));
    let start = Instant::now();
    let kept = here.lock("k").ttl(ttl).min_hold(least);
    let ran = kept.run(async { memory.faults().set_unavailable(true) });
    ran.await.expect("free");
    sleep(seconds(1)).await;
    memory.faults().set_unavailable(false);
    had(&there, "k").await;
    let lasted = start.elapsed();
    assert!(
        lasted >= least - seconds(1) && lasted < least + seconds(2),
        "{lasted:?}"
    );
}

/// After a shutdown nobody renews it.
#[tokio::test(start_paused = true)]
async fn a_shutdown_tells_of_a_min_hold_that_the_store_was_not_told_of() {
    for is_silent in [false, true] {
        let (warnings, _guard) = Log::of_this_thread();
        let (memory, here) = manager().await;
        let kept = here.lock("stock").ttl(seconds(10)).min_hold(seconds(50));
        let ran = kept.run(async { memory.faults().set_unavailable(is_silent) });
        ran.await.expect("free");
        here.shutdown().await;
        settle().await;
        let told = warnings.lines_with("was not told when min_hold ends");
        assert_eq!(told.len(), usize::from(is_silent), "{}", warnings.text());
        assert!(
            told.iter().all(|line| line.contains("key=stock")),
            "{told:?}"
        );
        memory.faults().set_unavailable(false);
    }
}

/// Its body has ended in time, and nothing is lost when the store cannot be told to keep it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_only_min_hold_keeps_is_not_told_as_lost_in_an_outage() {
    for is_silent in [true, false] {
        let (warnings, _guard) = Log::of_this_thread();
        let (memory, here) = manager().await;
        let locked = here.lock("k").ttl(seconds(3)).min_hold(seconds(60));
        let ends = locked.run(async move {
            match is_silent {
                true => memory.faults().set_delay(Some(seconds(3600))),
                false => memory.faults().set_unavailable(true),
            }
        });
        let ended = tokio::spawn(ends);
        sleep(seconds(30)).await;
        let told = warnings.lines_with("dlock::loss");
        assert!(told.is_empty(), "{is_silent}: {told:?}");
        if !is_silent {
            let told = warnings.lines_with("was not told when min_hold ends");
            assert_eq!(told.len(), 1, "{}", warnings.text());
        }
        ended.abort();
        settle().await;
    }
}

/// An operator has taken it away, and the store says so only when it is asked.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_gone_when_min_hold_begins_is_told_as_lost() {
    let (warnings, _guard) = Log::of_this_thread();
    let memory = Memory::new();
    let here = Quiet(memory.clone()).manager().await;
    let guard = held(here.lock("k").min_hold(seconds(50))).await;
    memory.faults().take_away("k");
    is_lost(guard.release().await);
    let told = warnings.lines_with("dlock::loss");
    assert_eq!(told.len(), 1, "{}", warnings.text());
}

/// The mark keeps others out for as long, and they need not wait to hear of it.
#[tokio::test(start_paused = true)]
async fn what_is_done_is_remembered_until_min_hold_ends() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let least = seconds(50);
    let once = |manager: &LockManager| manager.lock("k").once(seconds(5));
    let done = once(&here).min_hold(least);
    let done = done.run(async { Ok::<_, ()>(()) }).await;
    done.expect("free").expect("done");
    for _ in 0..2 {
        is_done(once(&there).try_acquire().await);
        sleep(least / 2 - seconds(1)).await;
    }
    sleep(seconds(3)).await;
    drop(once(&there).try_acquire().await.expect("forgotten"));
}

/// Renews all but one, whose server is silent for so long first.
#[derive(Debug)]
struct AllButOne {
    memory: Memory,
    fails: Arc<AtomicBool>,
    silent: Duration,
}

#[async_trait::async_trait]
impl Otherwise for AllButOne {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let mut answers = self.memory.renew(r).await;
        for (request, answer) in r.iter().zip(&mut answers) {
            if request.key.ends_with("far") && self.fails.load(Ordering::Relaxed) {
                sleep(self.silent).await;
                *answer = Err(BackendError::unavailable("its server is down"));
            }
        }
        answers
    }
}

/// One server of several is down. The leases of the others say nothing of it.
#[tokio::test(start_paused = true)]
async fn an_outage_of_some_leases_is_told_once() {
    for silent in [0, 5].map(seconds) {
        let (told, _guard) = Log::of_this_thread_from(LevelFilter::INFO);
        let (memory, fails) = (Memory::new(), Arc::new(AtomicBool::new(true)));
        let store = AllButOne {
            memory: memory.clone(),
            fails: Arc::clone(&fails),
            silent,
        };
        memory.start().await.unwrap();
        let here = store.manager().await;
        let far = held(here.lock("far").ttl(seconds(300))).await;
        let mut near = Vec::new();
        for number in 0..5 {
            near.push(held(here.lock(format!("near:{number}")).ttl(seconds(3))).await);
        }
        let lines = || told.lines_with("dlock::renewal");
        sleep(seconds(200)).await;
        assert_eq!(lines().len(), 1, "{:?}", lines());
        fails.store(false, Ordering::Relaxed);
        sleep(seconds(15)).await;
        assert_eq!(lines().len(), 2, "{:?}", lines());
        far.release().await.expect("it was renewed");
        drop(near);
    }
}

/// That the lease on the server that is down has ended does not say that the server is back.
#[tokio::test(start_paused = true)]
async fn a_loss_is_not_told_as_the_end_of_an_outage() {
    let (told, _guard) = Log::of_this_thread_from(LevelFilter::INFO);
    let memory = Memory::new();
    let store = AllButOne {
        memory: memory.clone(),
        fails: Arc::new(AtomicBool::new(true)),
        silent: Duration::ZERO,
    };
    memory.start().await.unwrap();
    let here = store.manager().await;
    let far = held(here.lock("far").ttl(seconds(3))).await;
    let near = held(here.lock("near").ttl(seconds(3))).await;
    sleep(seconds(20)).await;
    is_lost(far.release().await);
    let lines = || told.lines_with("dlock::renewal");
    assert_eq!(lines().len(), 1, "{:?}", lines());
    // One that was taken since may be of that server.
    let later = held(here.lock("later").ttl(seconds(3))).await;
    sleep(seconds(2)).await;
    assert_eq!(lines().len(), 2, "{:?}", lines());
    drop((near, later));
}
