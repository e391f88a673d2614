//! What a loss or an outage does to those who hold, wait or nest.

use std::future::{Future as _, pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{LockError, LossReason, OnLost, current, lock};
use tokio::time::{Instant, sleep, timeout};

use crate::support::locks::{had, held, is_busy, is_late, is_lost, is_unavailable, served, wants};
use crate::support::log::Log;
use crate::support::over_memory::Otherwise;
use crate::support::wait::{HANG, within};
use crate::{connect, manager, seconds as s, settle, waits};

#[tokio::test(start_paused = true)]
async fn a_lost_guard_does_not_keep_local_waiters_out() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let guard = held(here.lock("k").ttl(s(3)).max_hold(s(5))).await;
    guard.lost().await;
    sleep(s(10)).await;
    // Free in the store: another process has it at once.
    let other = there.lock("k").try_acquire().await.expect("free");
    other.release().await.unwrap();
    had(&here, "k").await;
    drop(guard);
}

/// It is told how, and every time it is asked.
#[tokio::test(start_paused = true)]
async fn a_guard_says_how_its_lease_was_lost() {
    use LossReason::{Expired, Gone, MaxHold, Overran};
    let (memory, here) = manager().await;
    let lock = || here.lock("k").ttl(s(3));
    for (request, reason) in [
        (lock(), Gone),
        (lock().renew(false), Overran),
        (lock().max_hold(s(5)), MaxHold),
        (lock(), Expired),
        // Long before `max_hold` would have ended it.
        (lock().max_hold(s(3600)), Expired),
    ] {
        let guard = held(request).await;
        match reason {
            Gone => assert!(memory.faults().take_away("k")),
            Expired => memory.faults().set_unavailable(true),
            _ => {}
        }
        for _ in 0..2 {
            assert_eq!(guard.lost().await, reason);
        }
        memory.faults().set_unavailable(false);
        let LockError::Lost { reason: told, .. } = is_lost(guard.release().await) else {
            unreachable!("it is lost")
        };
        assert_eq!(told, reason);
    }
    let body = async {
        memory.faults().take_away("k");
        current().unwrap().lost().await
    };
    let body = here.lock("k").on_lost(OnLost::Continue).run(body).await;
    assert_eq!(body.expect("its own end"), Gone);
}

/// When its process goes on after a pause, a guard may be asked before anything else has run: the
/// keeper, or the timers.
#[tokio::test(start_paused = true)]
async fn a_guard_says_after_a_pause_that_its_time_is_over() {
    let (_memory, here) = manager().await;
    let guard = held(here.lock("k").ttl(s(3))).await;
    let (mut lost, mut soon) = (pin!(guard.lost()), pin!(guard.lost_within(s(1))));
    let mut pause = pin!(tokio::time::advance(s(10)));
    poll_fn(|cx| {
        assert!(lost.as_mut().poll(cx).is_pending());
        assert!(soon.as_mut().poll(cx).is_pending());
        assert!(pause.as_mut().poll(cx).is_pending(), "it lets others run");
        assert!(soon.as_mut().poll(cx).is_ready());
        assert_eq!(lost.as_mut().poll(cx), Poll::Ready(LossReason::Expired));
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_ran_out_is_not_busy() {
    let (_memory, here) = manager().await;
    let _guard = held(here.lock("k").ttl(s(3)).renew(false)).await;
    sleep(s(10)).await;
    assert!(here.inspect("k").await.unwrap().is_none());
    let again = here.lock("k").try_acquire().await;
    drop(again.expect("nobody holds it"));
}

/// Also when its process goes on after a pause, and nothing else has run yet.
#[tokio::test(start_paused = true)]
async fn a_lock_that_ran_out_in_a_pause_is_not_busy() {
    let (_memory, here) = manager().await;
    let _guard = held(here.lock("k").ttl(s(3)).renew(false)).await;
    let mut tries = pin!(here.lock("k").ttl(s(3)).try_acquire());
    let mut pause = pin!(tokio::time::advance(s(10)));
    poll_fn(|cx| {
        assert!(pause.as_mut().poll(cx).is_pending(), "it lets others run");
        let tried = tries.as_mut().poll(cx);
        assert!(matches!(tried, Poll::Ready(Ok(_))), "{tried:?}");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_after_a_loss_does_not_wait_for_itself() {
    let (memory, here) = manager().await;
    let body = async {
        memory.faults().take_away("k");
        current().unwrap().lost().await;
        lock("k").run(async {}).await
    };
    let outer = lock("k").on_lost(OnLost::Continue).run(body);
    let ended = timeout(s(3600), here.scope(outer)).await;
    assert!(ended.is_ok(), "deadlock with itself");
}

/// It is somebody else's by then: what is inside of the body waits like anyone.
#[tokio::test(start_paused = true)]
async fn a_nested_call_after_a_loss_takes_the_lock_anew() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let body = async {
        memory.faults().take_away("k");
        current().unwrap().lost().await;
        let other = held(there.lock("k")).await;
        let nested = timeout(s(60), lock("k").run(async {})).await;
        assert!(nested.is_err(), "it is not had: {nested:?}");
        other.release().await.expect("it was held to the end");
        had(&here, "k").await;
    };
    let outer = lock("k").on_lost(OnLost::Continue).run(body);
    here.scope(outer).await.expect("its loss ends no body");
}

#[tokio::test(start_paused = true)]
async fn min_hold_ends_with_a_loss() {
    let (memory, here) = manager().await;
    let body = async {
        memory.faults().take_away("k");
        pending::<()>().await
    };
    is_lost(here.lock("k").min_hold(s(3600)).run(body).await);
    had(&here, "k").await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_while_another_is_awaited_is_taken_again() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let b = there.lock("b").acquire().await.unwrap();
    let mut both = Box::pin(here.lock(["a", "b"]).acquire());
    assert!(waits(&mut both).await);
    memory.faults().take_away("a");
    let a = there.lock("a").acquire().await.unwrap();
    settle().await;
    b.release().await.unwrap();
    let guard = timeout(s(100), both).await;
    assert!(guard.is_err(), "`a` is held by {}", a.token());
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_retries_of_a_renewal() {
    let (memory, here) = manager().await;
    let start = Instant::now();
    // ttl 30, max_hold 15: the only renewal is due at ~8..10 s.
    let body = async {
        sleep(s(5)).await;
        memory.faults().set_unavailable(true);
        sleep(s(20)).await; // 25: max_hold is long past
        memory.faults().set_unavailable(false);
        pending::<()>().await;
    };
    is_lost(here.lock("k").ttl(s(30)).max_hold(s(15)).run(body).await);
    let lasted = start.elapsed();
    assert!(lasted <= s(31), "renewed after max_hold: held {lasted:?}");
}

/// Does what it is asked, but renews nothing for so many times.
#[derive(Debug)]
struct RenewsLater {
    memory: Memory,
    failures: AtomicU32,
}

#[async_trait::async_trait]
impl Otherwise for RenewsLater {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let fails = |left: u32| left.checked_sub(1);
        let failures = &self.failures;
        let failed = failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails);
        match failed {
            Ok(_) => r
                .iter()
                .map(|_| Err(BackendError::unavailable("no")))
                .collect(),
            Err(_) => self.memory.renew(r).await,
        }
    }
}

/// Who holds the lock holds it until it gives it back, or its time is over.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_leaves_the_lock_as_it_is() {
    let memory = Memory::new();
    let there = connect(&memory).await;
    let failures = AtomicU32::new(3);
    let here = RenewsLater { memory, failures }.manager().await;
    let guard = held(here.lock("k").ttl(s(30))).await;
    for _ in 0..100 {
        sleep(s(1)).await;
        assert!(guard.is_held());
        is_busy(there.lock("k").try_acquire().await);
    }
    guard.release().await.expect("it was held to the end");
}

#[tokio::test(start_paused = true)]
async fn an_ended_body_does_not_hear_of_the_next_ones_loss() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let start = there.lock("k").acquire().await.unwrap();
    let first = tokio::spawn(here.lock("k").run(async { current().unwrap() }));
    settle().await;
    let second = tokio::spawn(here.lock("k").run(pending::<()>()));
    settle().await;
    start.release().await.unwrap();
    let held = first.await.unwrap().unwrap();
    settle().await;
    memory.faults().take_away("k");
    assert!(second.await.unwrap().is_err());
    // Never, as the lock was released first.
    let told = timeout(s(1), held.lost()).await;
    assert!(told.is_err());
}

#[tokio::test]
async fn a_lost_lease_never_comes_back() {
    for _ in 0..3 {
        let (memory, here) = manager().await;
        let t0 = std::time::Instant::now();
        let guard = held(here.lock("k").ttl(s(1))).await;
        memory.faults().set_unavailable(true);
        memory.faults().set_delay(Some(Duration::from_millis(60)));
        // Renewals fail meanwhile. Just before the end, one that will be answered is
        // under way, and the runtime stands still until that has passed.
        sleep(Duration::from_millis(930).saturating_sub(t0.elapsed())).await;
        while guard.is_held() {
            std::thread::sleep(Duration::from_micros(100));
        }
        memory.faults().set_unavailable(false);
        for _ in 0..50 {
            tokio::task::yield_now().await;
            assert!(!guard.is_held(), "false, then true again");
        }
    }
}

/// Ends each lease, and tells, before its caller has taken the grant.
#[derive(Debug, Default)]
struct Hasty {
    memory: Memory,
    ended: std::sync::Mutex<Vec<Owner>>,
    told: tokio::sync::watch::Sender<bool>,
}

#[async_trait::async_trait]
impl Otherwise for Hasty {
    fn memory(&self) -> &Memory {
        &self.memory
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.acquire(r).await.map(Some)
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        let grant = self.memory.acquire(r).await?;
        self.memory.faults().take_away(&r.key);
        self.ended.lock().unwrap().push(r.owner);
        // The keeper looks for the lease, and does not find it.
        self.told.send_replace(true);
        settle().await;
        Ok(grant)
    }
    async fn next_losses(&self) -> Vec<Owner> {
        let mut told = self.told.subscribe();
        let _ = told.wait_for(|&told| told).await;
        self.told.send_replace(false);
        self.ended.lock().unwrap().clone()
    }
    fn has_ended(&self, owner: Owner) -> bool {
        self.ended.lock().unwrap().contains(&owner)
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_does_not_begin_under_a_lease_that_is_known_to_have_ended() {
    let here = Hasty::default().manager().await;
    is_unavailable(here.lock("k").acquire().await);
    is_unavailable(here.lock("k").try_acquire().await);
}

#[derive(Debug, Default)]
struct Forgetful(Memory);

#[async_trait::async_trait]
impl Otherwise for Forgetful {
    fn memory(&self) -> &Memory {
        &self.0
    }
    async fn release(&self, _: &Request) -> Result<Released, BackendError> {
        Ok(Released::NotHeld)
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_gone_at_release_is_told() {
    let (warnings, _guard) = Log::of_this_thread();
    let here = Forgetful::default().manager().await;
    let ran = here.lock("k").run(async {}).await;
    let told = ran.is_err() || !warnings.text().is_empty();
    assert!(told, "Ok, and not even a warning");
}

/// A store that has not answered is not somebody who holds the lock.
#[tokio::test]
async fn a_timeout_in_an_outage_is_told_as_one() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let limit = Duration::from_millis(100);
    memory.faults().set_delay(Some(s(3600)));
    let mut asked = Vec::new();
    for read in [false, false, true] {
        let request = wants(here.lock("k"), read);
        asked.push(tokio::spawn(request.acquire_within(limit)));
    }
    for answer in asked {
        is_unavailable(answer.await.unwrap());
    }
    memory.faults().set_delay(None);
    let held = there.lock("k").acquire().await.unwrap();
    for read in [false, true] {
        is_late(wants(here.lock("k"), read).acquire_within(limit).await);
    }
    held.release().await.unwrap();
}

/// However long it lasts, and again when there is another one.
#[tokio::test(start_paused = true)]
async fn an_outage_of_renewals_is_told_once() {
    let (warnings, _guard) = Log::of_this_thread();
    let (memory, here) = manager().await;
    let guard = held(here.lock("k").ttl(s(30))).await;
    for outage in 1..=2 {
        sleep(s(60)).await;
        memory.faults().set_unavailable(true);
        sleep(s(15)).await;
        memory.faults().set_unavailable(false);
        let told = warnings.lines_with("renewal failed; trying again");
        assert_eq!(told.len(), outage, "{told:?}");
    }
    guard.release().await.expect("it was held to the end");
}

/// The lease of a second would be over before a second attempt, if that came after a second.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_repeated_within_a_short_lease() {
    let memory = Memory::new();
    let failures = AtomicU32::new(3);
    let here = RenewsLater { memory, failures }.manager().await;
    let guard = held(here.lock("k").ttl(s(1))).await;
    sleep(s(60)).await;
    guard.release().await.expect("it was held to the end");
}

/// Before it fails, and so early that somebody can still do something.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_not_answered_is_told_the_sooner_the_shorter_the_lease() {
    for (ttl, told) in [(s(1), "250ms"), (s(3), "500ms"), (s(30), "1s")] {
        let (warnings, _guard) = Log::of_this_thread();
        let (memory, here) = manager().await;
        let guard = held(here.lock("k").ttl(ttl)).await;
        memory.faults().set_delay(Some(s(3600)));
        guard.lost().await;
        let silent = format!("the store has not answered for {told}");
        let lines = warnings.lines_with(&silent);
        assert_eq!(lines.len(), 1, "{ttl:?}: {}", warnings.text());
        memory.faults().set_delay(None);
    }
}

/// A body that has ended has lost nothing afterwards; what it lost before stays as it was.
#[tokio::test(start_paused = true)]
async fn what_is_asked_of_a_lock_that_went_back_changes_nothing() {
    let (warnings, _guard) = Log::of_this_thread();
    let (_memory, here) = manager().await;
    let ended = here.lock("k").ttl(s(3)).run(async { current().unwrap() });
    let ended = ended.await.expect("free");
    sleep(s(10)).await;
    assert!(!ended.is_held());
    assert!(timeout(s(3600), ended.lost()).await.is_err());
    assert_eq!(warnings.text(), "");

    let body = async {
        let held = current().unwrap();
        assert_eq!(held.lost().await, LossReason::Overran);
        held
    };
    let lock = here.lock("k").ttl(s(3)).renew(false);
    let ended = lock.on_lost(OnLost::Continue).run(body).await;
    let ended = ended.expect("its own end");
    assert_eq!(ended.lost().await, LossReason::Overran);
}

/// A subscriber that panics at each event of these targets, as `tracing_subscriber::fmt` does when
/// it cannot write to stderr.
struct Panics(&'static [&'static str]);

impl tracing::Subscriber for Panics {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn event(&self, event: &tracing::Event<'_>) {
        let target = event.metadata().target();
        assert!(!self.0.contains(&target));
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// The code that hears of a loss is not ours, and must not keep the keeper from its work.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_changes_nothing() {
    let (_log, _guard) = Log::of_this_thread();
    let (memory, here) = manager().await;
    let ttl = s(10);
    let renewed = held(here.lock("renewed").ttl(3 * ttl)).await;
    let mut lost = Vec::new();
    for key in ["a", "b"] {
        let guard = held(here.lock(key).ttl(ttl).renew(false)).await;
        lost.push(tokio::spawn(async move { guard.lost().await }));
    }
    let gone = held(here.lock("gone").ttl(9 * ttl)).await;
    settle().await;
    let _panics = tracing::subscriber::set_default(Panics(&["dlock::loss", "dlock::renewal"]));
    // The keeper sees at one look that some have ended, and that another is to be renewed.
    tokio::time::advance(ttl).await;
    for task in lost {
        let told = within(HANG, task).await.expect("no panic");
        assert_eq!(told, LossReason::Overran);
    }
    sleep(6 * ttl).await;
    assert!(renewed.is_held(), "it is renewed");
    memory.faults().take_away("gone");
    assert_eq!(within(ttl, gone.lost()).await, LossReason::Gone);
    within(ttl, renewed.release()).await.expect("it was held");
    within(ttl, here.shutdown()).await;
}

/// It hears of a lease in the middle of its hand-over, and of a call that has just queued.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_keeps_nobody_from_a_turn() {
    for target in ["dlock::handover", "dlock::wait"] {
        let (_log, _guard) = Log::of_this_thread();
        let (memory, here) = manager().await;
        let start = held(connect(&memory).await.lock("k")).await;
        let targets = Box::leak(Box::new([target]));
        let _panics = tracing::subscriber::set_default(Panics(targets));
        let waiters = [(); 3].map(|()| tokio::spawn(here.lock("k").run(async {})));
        settle().await;
        start.release().await.expect("it was held");
        for one in waiters {
            within(s(1), served(one)).await;
        }
    }
}
