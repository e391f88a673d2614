//! The engine over a store that a test scripts, on paused time: any answer may be lost, late or
//! doubled, and a caller may leave at any instant.

mod executor;
mod quorum;
mod scripted;

use std::any::TypeId;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::executor::Executor;
use self::scripted::{
    Fate, Hasty, LISTS, LONGEST, Lasting, Number, ONE_WAY, OnManager, Proof, Scripted, Session,
    Sim, Tried, foreign,
};
use super::bare::{self, Said};
use super::events::Events;
use super::{Engine, Time};
use crate::backend::{
    Backend, BackendError, BackendErrorKind, Finding, Grant, HolderInfo, Level, Mode, Owner,
    Protocol, Released, Renewed, Request, Servers, TokenTier,
};
use crate::simulated::Simulated;
use crate::store::{Looks, Opening};

const TTL: Duration = Duration::from_secs(60);
const ROUND_TRIP: Duration = Duration::from_millis(2);
/// Less than any difference that a test checks.
const MOMENT: Duration = Duration::from_micros(10);

fn paused<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    executor::draw_as_ever();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    // Boxed, as tokio's part of it is compiled again for each type of future.
    let test: LocalBoxFuture<'_, ()> = Box::pin(test());
    runtime.expect("a runtime").block_on(test);
}

async fn start<P: Proof>() -> (Arc<Sim>, Engine<Scripted<P>>) {
    let sim = Sim::new();
    let engine = engine(&sim).await;
    (sim, engine)
}

async fn engine<P: Proof>(sim: &Arc<Sim>) -> Engine<Scripted<P>> {
    engine_on(&Executor::new(), sim).await
}

async fn engine_on<P: Proof>(manager: &Arc<Executor>, sim: &Arc<Sim>) -> Engine<Scripted<P>> {
    let engine = Engine::new(Arc::clone(sim));
    let time = Time::simulated(Arc::clone(manager) as _);
    engine.open(time).await.expect("it opens");
    // Opens the connections.
    let request = request();
    let grant = engine.try_acquire(&request).await.expect("an answer");
    assert!(grant.is_some(), "the lock is free");
    engine.release(&request).await.expect("an answer");
    sim.forget_history();
    engine
}

fn request() -> Request {
    Request::new("key", Mode::Write, TTL)
}

async fn granted<P: Proof>(engine: &Engine<Scripted<P>>, request: &Request) -> Grant {
    let limit = Duration::from_secs(600);
    let granted = timeout(limit, engine.acquire(request)).await;
    granted.expect("in time").expect("the lock")
}

/// Gives the lock to another owner, without the engine.
fn held_by_another(sim: &Sim) -> Owner {
    let other = Owner::unique();
    sim.take_away(other, TTL);
    other
}

/// A request that has the lock, and had a place in its queue before.
async fn granted_after_a_wait<P: Proof>(sim: &Sim, engine: &Engine<Scripted<P>>) -> Request {
    let other = held_by_another(sim);
    let request = request();
    let release = async {
        sleep(Duration::from_millis(500)).await;
        sim.release(other);
    };
    let (_, ()) = tokio::join!(granted(engine, &request), release);
    request
}

/// One test for each of these kinds of stores.
macro_rules! of_kinds {
    ($($kind:ident: $proof:ty),*) => {$(
        #[test]
        fn $kind() {
            paused(test::<$proof>);
        }
    )*};
}

macro_rules! every_store {
    () => {
        of_kinds! {
            without_a_record: (),
            in_haste: Hasty,
            with_a_session: Session,
            with_leases_that_last: Lasting,
            on_manager: OnManager,
            without_a_queue: Number
        }
    };
}

macro_rules! every_queue {
    () => {
        of_kinds! {
            without_a_record: (),
            in_haste: Hasty,
            with_a_session: Session,
            on_manager: OnManager
        }
    };
}

macro_rules! for_each {
    ($kinds:ident:
        $($(#[$attribute:meta])* async fn $name:ident<P: Proof>() $body:block)*) => {$(
        mod $name {
            use super::*;

            $(#[$attribute])*
            async fn test<P: Proof>() $body

            $kinds!();
        }
    )*};
}

for_each! { every_store:
    async fn a_free_lock_takes_two_round_trips<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let (request, start) = (request(), Instant::now());
        granted(&engine, &request).await;
        assert_eq!(engine.release(&request).await.expect("an answer"), Released::Released);
        assert!(start.elapsed() <= 2 * ROUND_TRIP + MOMENT, "{:?}", start.elapsed());
        assert_eq!(sim.sent(), [P::FIRST, "release"]);
        assert!(sim.is_free());
    }

    /// Whatever happened to the first command, the next one names its owner.
    async fn what_cannot_be_repeated_is_sent_once<P: Proof>() {
        let fates = [
            Fate::RequestLost,
            Fate::AnswerLost,
            Fate::Refused,
            Fate::Late(Duration::from_millis(5)),
            Fate::Slow(Duration::from_millis(5)),
            Fate::Twice,
        ];
        for fate in fates {
            let (sim, engine) = start::<P>().await;
            sim.next([fate]);
            let request = request();
            granted(&engine, &request).await;
            assert_eq!(sim.holder(), Some(request.owner), "{fate:?}");
            let firsts = sim.sent().iter().filter(|sent| **sent == "first").count();
            let opens_with_it = P::OPENING == Opening::First;
            assert_eq!(firsts, usize::from(opens_with_it), "{fate:?}: {:?}", sim.sent());
        }
    }

    /// Its second run finds the lock held, by its first. Then nobody can be asked more.
    async fn what_was_run_twice_is_given_back<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.next([Fate::Twice]);
        sim.next(vec![Fate::NotReached; 1_000]);
        let asked = engine.acquire(&request()).await;
        assert_eq!(asked.is_err(), P::OPENING == Opening::First, "others name their owner");
        assert!(!sim.is_free());
        sim.forget_fates();
        if asked.is_err() {
            sleep(Duration::from_secs(1)).await;
            assert!(sim.is_free());
        }
    }

    /// A redirected command is sent again at once, but not for ever: two servers may redirect it to
    /// each other.
    async fn what_was_sent_on_follows_at_once<P: Proof>() {
        let first = usize::from(P::OPENING == Opening::First);
        for moved in [1, 4, 5, 12] {
            let (sim, engine) = start::<P>().await;
            sim.next(vec![Fate::Moved; moved]);
            let (request, start) = (request(), Instant::now());
            granted(&engine, &request).await;
            let trips = u32::try_from(moved + 1).expect("a few");
            let pauses = start.elapsed().saturating_sub(trips * ROUND_TRIP);
            assert_eq!(pauses > MOMENT, moved > 4, "{pauses:?}");
            assert_eq!(sim.sent().len(), moved + 1);
            let again = sim.sent().iter().skip(first).filter(|sent| **sent == "ask").count();
            assert_eq!(again, moved + 1 - first);
        }
    }

    /// The store's earlier answer says more than the fact that it could not be reached in the end.
    async fn the_cause_is_what_the_store_has_said<P: Proof>() {
        for (first, said) in [(Fate::Refused, "cannot just now"), (Fate::NotReached, "no connection")] {
            let (sim, engine) = start::<P>().await;
            sim.next([first]);
            sim.next(vec![Fate::NotReached; 1_000]);
            let error = engine.acquire(&request()).await.expect_err("nobody can ask it");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    /// The answer was an error, but the command took effect.
    async fn what_was_run_in_part_is_given_back<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.next([Fate::Half]);
        // The caller leaves in the pause before the next attempt.
        let left = timeout(2 * ROUND_TRIP, engine.acquire(&request())).await;
        assert!(left.is_err(), "it was answered with an error");
        sleep(ROUND_TRIP + MOMENT).await;
        assert!(sim.is_free());
    }

    /// A grant counts, and its lease starts, when it is confirmed.
    async fn a_grant_is_confirmed<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().confirms = true;
        sim.next([Fate::Fine, Fate::Refused, Fate::Fine, Fate::AnswerLost]);
        let (request, start) = (request(), Instant::now());
        let grant = granted(&engine, &request).await;
        let confirmed = [P::FIRST, "confirm", "ask", "confirm", "ask", "confirm"];
        assert_eq!(sim.sent(), confirmed);
        assert!(grant.sent_at >= start + 5 * ROUND_TRIP, "when the last was sent");
        let ends = sim.ends().expect("it is held");
        assert_eq!(grant.sent_at + TTL + ONE_WAY, ends);
    }

    /// A grant that is gone before it is confirmed does not count.
    async fn a_grant_that_is_gone_is_asked_for_again<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().confirms = true;
        sim.state().loses_grant = true;
        let request = request();
        granted(&engine, &request).await;
        assert_eq!(sim.sent(), [P::FIRST, "confirm", "ask", "confirm"]);
        assert_eq!(sim.holder(), Some(request.owner));
    }

    /// The request is repeated while the call has time. After that, the lock does not stay held.
    async fn a_grant_that_is_not_confirmed_goes_back<P: Proof>() {
        for step in (0..40).chain([100_000]) {
            let (sim, engine) = start::<P>().await;
            sim.state().confirms = true;
            sim.next([Fate::Fine, Fate::Refused].repeat(1_000));
            let (request, start) = (request(), Instant::now());
            let answer = timeout(step * ONE_WAY / 2, engine.acquire(&request)).await;
            let took = start.elapsed();
            if let Ok(answer) = answer {
                answer.expect_err("nobody confirms it");
                assert!(took <= sim.request_timeout() && took >= sim.request_timeout() / 2, "{took:?}");
            }
            sleep(2 * ROUND_TRIP + MOMENT).await;
            assert!(sim.is_free(), "ended after {took:?}");
        }
    }

    /// At each instant of an acquisition, of a free and of a held lock: while the connection lives,
    /// nothing is left a round trip after the caller has gone.
    async fn a_caller_that_leaves_leaves_nothing<P: Proof>() {
        for busy in [false, true] {
            for step in 0..40 {
                let (sim, engine) = start::<P>().await;
                let other = busy.then(|| held_by_another(&sim));
                let request = request();
                let after = step * ONE_WAY / 4;
                // A caller that has the lock by then has not left.
                let acquiring = timeout(after, engine.acquire(&request)).await;
                if acquiring.is_ok() {
                    continue;
                }
                sleep(2 * ROUND_TRIP + MOMENT).await;
                assert_eq!(sim.holder(), other, "left after {after:?}, busy: {busy}");
                assert_eq!(sim.waiting(), 0, "left after {after:?}, busy: {busy}");
                timeout(ROUND_TRIP, engine.settle()).await.expect("it is told");
            }
        }
    }

    /// During an outage, only callers that have sent something leave something to clean up.
    async fn who_has_sent_nothing_leaves_nothing<P: Proof>() {
        let sim = Sim::new();
        let engine = Engine::<Scripted<P>>::new(Arc::clone(&sim));
        let time = Time::simulated(Executor::new() as _);
        engine.open(time).await.expect("it opens");
        sim.set_gone(true);
        let left = timeout(Duration::from_secs(1), engine.acquire(&request())).await;
        assert!(left.is_err(), "it waits for a connection");
        let nothing = timeout(ROUND_TRIP, engine.settle()).await;
        nothing.expect("there is nothing to give back");
    }

    /// The caller of a slow command leaves while the connection lives. No release may overtake the
    /// command.
    async fn what_is_on_its_way_is_followed<P: Proof>() {
        for slow in [10, 200, 300, 1_900, 4_000] {
            let (sim, engine) = start::<P>().await;
            let slow = Duration::from_millis(slow);
            sim.next([Fate::Slow(slow)]);
            let (request, start) = (request(), Instant::now());
            let left = timeout(5 * ONE_WAY, engine.acquire(&request)).await;
            assert!(left.is_err(), "no answer has come");
            // If no release can be queued after the command, one is sent after its answer.
            let trips = if P::LOOKS == Looks::Each { 2 } else { 1 };
            sleep_until(start + slow + trips * ROUND_TRIP).await;
            assert!(sim.is_free(), "run after {slow:?}");
            assert!(sim.ran(request.owner, P::FIRST), "it was run");
        }
    }

    /// The caller leaves at the moment at which the lock is passed on to it.
    async fn a_grant_that_crosses_with_a_leave_goes_back<P: Proof>() {
        for step in 0..24 {
            let (sim, engine) = start::<P>().await;
            let other = held_by_another(&sim);
            let request = request();
            {
                let mut acquiring = pin!(engine.acquire(&request));
                let queued = timeout(Duration::from_millis(20), &mut acquiring).await;
                assert!(queued.is_err(), "somebody has it");
                sim.release(other);
                let after = step * ONE_WAY / 4;
                if timeout(after, &mut acquiring).await.is_ok() {
                    continue;
                }
            }
            sleep(2 * ROUND_TRIP + MOMENT).await;
            assert!(sim.is_free(), "left after {step} quarters of a way");
        }
    }

    /// A caller that is not polled for a long time, and then leaves.
    async fn a_caller_that_is_not_polled_leaves_nothing<P: Proof>() {
        for step in 1..12 {
            let (sim, engine) = start::<P>().await;
            let other = held_by_another(&sim);
            let request = request();
            {
                let mut acquiring = pin!(engine.acquire(&request));
                let _ = timeout(step * ONE_WAY / 2, &mut acquiring).await;
                sim.release(other);
                sleep(Duration::from_secs(20)).await;
            }
            sleep(2 * ROUND_TRIP + MOMENT).await;
            assert!(sim.is_free(), "left after {step} halves of a way");
            let running = engine.running().expect("it runs");
            assert!(!running.events.knows(request.owner, "key"), "it would be known for ever");
        }
    }

    /// The first command is run late, after its connection has broken, at any instant up to its
    /// ttl. The caller got the lock by another command, and holds it or has given it back. The lock
    /// never stays held for nobody for longer than a pause.
    async fn a_late_command_is_undone<P: Proof>() {
        for late in [3, 20, 300, 999, 1500, 4_000, 20_000, 59_000] {
            for held in [0, 10, 400, 10_000] {
                let (sim, engine) = start::<P>().await;
                let late = Duration::from_millis(late);
                sim.next([Fate::Late(late)]);
                let (request, start) = (request(), Instant::now());
                granted(&engine, &request).await;
                sleep(Duration::from_millis(held)).await;
                engine.release(&request).await.expect("an answer");
                let run = start + late + Duration::from_secs(7);
                sleep_until(run.max(Instant::now() + 2 * ROUND_TRIP)).await;
                assert!(sim.is_free(), "run after {late:?}, held for {held} ms");
            }
        }
    }

    /// The release is not answered, and its caller stops repeating it when the lease has ended. The
    /// late command may be run after that.
    async fn a_late_command_behind_an_unanswered_release_is_undone<P: Proof>() {
        for late in [3_000, 20_000, 59_000] {
            let (sim, engine) = start::<P>().await;
            let late = Duration::from_millis(late);
            sim.next([Fate::Late(late)]);
            let (request, start) = (request(), Instant::now());
            granted(&engine, &request).await;
            let mut ends = request.clone();
            ends.ttl = Duration::from_millis(200);
            let ended = engine.renew(std::slice::from_ref(&ends)).await;
            assert!(matches!(ended[..], [Ok(Renewed::Extended { .. })]), "{ended:?}");
            sim.set_gone(true);
            assert!(engine.release(&request).await.is_err(), "nobody answers");
            sim.set_gone(false);
            let run = start + late.max(sim.request_timeout()) + Duration::from_secs(7);
            sleep_until(run).await;
            assert!(sim.is_free(), "run after {late:?}");
        }
    }

    /// A late command whose caller has left.
    async fn a_late_command_of_one_who_left_is_undone<P: Proof>() {
        for late in [3, 20, 300, 999, 1500, 4_000, 20_000, 59_000] {
            let (sim, engine) = start::<P>().await;
            let late = Duration::from_millis(late);
            sim.next([Fate::Late(late)]);
            let (request, start) = (request(), Instant::now());
            // The caller has learned that its connection is gone, and nothing else.
            let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request)).await;
            assert!(left.is_err(), "the answer was lost");
            sleep_until(start + late + Duration::from_secs(7)).await;
            assert!(sim.is_free(), "run after {late:?}");
            assert!(sim.ran(request.owner, P::FIRST), "it was run");
        }
    }

    /// A command is sent long after its caller left, because the runtime of its connection stood
    /// still. It may be late from then on.
    async fn what_is_sent_after_its_caller_left_is_undone<P: Proof>() {
        for stuck in [100, 2_000, 70_000] {
            let (sim, engine) = start::<P>().await;
            let (stuck, late) = (Duration::from_millis(stuck), TTL - Duration::from_secs(1));
            sim.next([Fate::Stuck(stuck, late)]);
            let (request, start) = (request(), Instant::now());
            let left = timeout(5 * ONE_WAY, engine.acquire(&request)).await;
            assert!(left.is_err(), "nothing was sent");
            sleep_until(start + stuck + late + Duration::from_secs(7)).await;
            assert!(sim.ran(request.owner, P::FIRST), "it was run");
            assert!(sim.is_free(), "sent after {stuck:?}");
        }
    }

    /// The lock was held for so long that the late command cannot come any more, so one release is
    /// enough.
    async fn what_can_come_no_more_is_forgotten<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.next([Fate::AnswerLost]);
        let request = request();
        granted(&engine, &request).await;
        for _ in 0..3 {
            sleep(TTL / 2).await;
            let renewed = engine.renew(std::slice::from_ref(&request)).await;
            assert!(matches!(renewed[..], [Ok(Renewed::Extended { .. })]), "{renewed:?}");
        }
        sim.forget_history();
        assert_eq!(engine.release(&request).await.expect("an answer"), Released::Released);
        sleep(2 * TTL).await;
        assert_eq!(sim.sent(), ["release"]);
    }

    /// The answer to a release that is repeated.
    async fn a_release_is_told_what_it_did<P: Proof>() {
        let told = [
            (vec![], Released::Released),
            (vec![Fate::RequestLost], Released::Released),
            (vec![Fate::AnswerLost], Released::Released),
            (vec![Fate::AnswerLost, Fate::AnswerLost], Released::Released),
        ];
        for (fates, answer) in told {
            let (sim, engine) = start::<P>().await;
            let request = request();
            granted(&engine, &request).await;
            sim.next(fates.clone());
            assert_eq!(engine.release(&request).await.expect("an answer"), answer, "{fates:?}");
            assert_eq!(
                engine.release(&request).await.expect("an answer"),
                Released::NotHeld,
                "a second release, {fates:?}"
            );
        }
    }

    /// A waiter is told too, and what was done stays done.
    async fn what_was_done_is_told_to_all<P: Proof>() {
        for tells in [true, false] {
            let (sim, engine) = start::<P>().await;
            let (holder, waits, tries) = (request(), request(), request());
            granted(&engine, &holder).await;
            sim.state().tells_nothing = !tells;
            let waiting = async {
                let told = timeout(TTL / 2, engine.acquire(&waits)).await;
                told.expect("in time").expect_err("it is done").kind()
            };
            let done = async {
                sleep(Duration::from_millis(100)).await;
                engine.release(&holder.clone().done(Some(TTL))).await
            };
            let (told, done) = tokio::join!(waiting, done);
            assert_eq!(told, BackendErrorKind::Done);
            assert_eq!(done.expect("an answer"), Released::Released);
            let told = engine.try_acquire(&tries).await.expect_err("it is done");
            assert_eq!(told.kind(), BackendErrorKind::Done);
            sleep(2 * TTL).await;
            assert_eq!(sim.state().done, Some(holder.owner));
            assert!(sim.is_free(), "nothing is left");
        }
    }

    /// Whatever happens to the command, the lock is broken once and the waiter gets it. Neither a
    /// repeat nor the former holder takes it away again.
    async fn a_break_ends_one_lease<P: Proof>() {
        let fates = [
            vec![],
            vec![Fate::RequestLost],
            vec![Fate::AnswerLost],
            vec![Fate::Half],
            vec![Fate::Refused],
            vec![Fate::AnswerLost, Fate::AnswerLost],
            vec![Fate::Late(Duration::from_millis(300))],
            vec![Fate::SlowAnswer(Duration::from_millis(300))],
        ];
        for fates in fates {
            let (sim, engine) = start::<P>().await;
            let (broken, next) = (request(), request());
            granted(&engine, &broken).await;
            let shown = HolderInfo::new(broken.owner.to_string(), None);
            let breaking = async {
                sleep(Duration::from_millis(100)).await;
                sim.next(fates.clone());
                engine.break_lock("key", &shown).await
            };
            let waiting = timeout(TTL / 2, engine.acquire(&next));
            let (had, told) = tokio::join!(waiting, breaking);
            had.expect("in time").expect("the lock");
            assert_eq!(told.expect("an answer"), Released::Released, "{fates:?}");
            let again = engine.break_lock("key", &shown).await;
            assert_eq!(again.expect("an answer"), Released::NotHeld, "{fates:?}");
            let renewed = engine.renew(std::slice::from_ref(&broken)).await;
            assert!(matches!(renewed[..], [Ok(Renewed::Gone)]), "{fates:?}: {renewed:?}");
            let released = engine.release(&broken).await.expect("an answer");
            assert_eq!(released, Released::NotHeld, "{fates:?}");
            sleep(Duration::from_secs(2)).await;
            assert_eq!(sim.holder(), Some(next.owner), "{fates:?}");
        }
    }

    /// Whatever happens to the command, the mark is set, and the owner that did the work is told
    /// so.
    async fn a_mark_is_told_what_it_did<P: Proof>() {
        let fates = [
            vec![],
            vec![Fate::RequestLost],
            vec![Fate::AnswerLost],
            vec![Fate::Refused, Fate::Twice],
            vec![Fate::AnswerLost, Fate::AnswerLost],
            vec![Fate::Late(Duration::from_millis(300))],
        ];
        for fates in fates {
            let (sim, engine) = start::<P>().await;
            let request = request();
            granted(&engine, &request).await;
            sim.next(fates.clone());
            let done = request.clone().done(Some(TTL));
            let told = engine.release(&done).await.expect("an answer");
            assert_eq!(told, Released::Released, "{fates:?}");
            sleep(2 * TTL).await;
            assert_eq!(sim.state().done, Some(request.owner), "{fates:?}");
        }
    }

    /// If an answer was lost after the mark was removed, the repeated command finds no mark. This
    /// still counts as forgotten.
    async fn what_is_forgotten_is_told<P: Proof>() {
        let fates = [
            vec![],
            vec![Fate::RequestLost],
            vec![Fate::AnswerLost],
            vec![Fate::Refused, Fate::AnswerLost],
        ];
        for fates in fates {
            let (sim, engine) = start::<P>().await;
            sim.state().done = Some(Owner::unique());
            sim.next(fates.clone());
            let forgotten = engine.forget("key").await;
            assert_eq!(forgotten.ok(), Some(true), "{fates:?}");
            assert_eq!(sim.state().done, None, "{fates:?}");
            let again = engine.forget("key").await;
            assert_eq!(again.ok(), Some(false), "{fates:?}");
        }
    }

    /// Somebody else holds the lock by now, and repeating the command does not succeed.
    async fn a_mark_of_a_lost_lock_says_so<P: Proof>() {
        for fates in [vec![], vec![Fate::AnswerLost]] {
            let (sim, engine) = start::<P>().await;
            let request = request();
            granted(&engine, &request).await;
            let other = held_by_another(&sim);
            sim.next(fates);
            let told = engine.release(&request.done(Some(TTL))).await;
            assert_eq!(told.expect("an answer"), Released::NotHeld);
            assert_eq!((sim.holder(), sim.state().done), (Some(other), None));
        }
    }

    /// The end of a lease whose release nobody repeats, and the cleanup of a late command, must not
    /// free the lock without its mark.
    async fn no_cleanup_comes_before_the_mark<P: Proof>() {
        for unknown in [false, true] {
            let (sim, engine) = start::<P>().await;
            sim.next(unknown.then_some(Fate::Late(Duration::from_secs(20))));
            let request = request();
            granted(&engine, &request).await;
            sim.set_gone(true);
            let done = request.clone().done(Some(TTL));
            engine.release(&done).await.expect_err("nobody answers");
            sleep(Duration::from_secs(3)).await;
            sim.set_gone(false);
            sleep(Duration::from_secs(15)).await;
            let freed = sim.is_free() && sim.state().done.is_none();
            assert!(!freed, "its body would be run again, unknown: {unknown}");
            let told = engine.release(&done).await.expect("an answer");
            let marked = sim.state().done == Some(request.owner);
            assert_eq!((told == Released::Released) || marked, marked);
            assert!(marked, "unknown: {unknown}");
        }
    }

    /// Somebody else holds the lock, so the release of the former holder has no effect.
    async fn a_release_of_a_lost_lock_says_so<P: Proof>() {
        // A command that was refused or sent on has released nothing.
        for fate in [Fate::Fine, Fate::Refused, Fate::NotReached, Fate::Moved] {
            let (sim, engine) = start::<P>().await;
            let request = request();
            granted(&engine, &request).await;
            let other = held_by_another(&sim);
            sim.next([fate]);
            let told = engine.release(&request).await.expect("an answer");
            assert_eq!(told, Released::NotHeld, "{fate:?}");
            assert_eq!(sim.holder(), Some(other));
        }
    }

    /// On an open connection, the release is sent at the first poll.
    async fn a_release_is_on_its_way_when_polled_once<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let (this, next) = (request(), request());
        granted(&engine, &this).await;
        sim.forget_history();
        let start = Instant::now();
        let mut releasing = engine.release(&this);
        let once = poll_fn(|context| Poll::Ready(releasing.as_mut().poll(context)));
        assert!(once.await.is_pending());
        // The release is not polled while the next request is sent after it.
        granted(&engine, &next).await;
        assert!(start.elapsed() <= ROUND_TRIP + MOMENT, "{:?}", start.elapsed());
        assert_eq!(sim.sent(), ["release", P::FIRST]);
        assert_eq!(releasing.await.expect("an answer"), Released::Released);
        assert_eq!(sim.holder(), Some(next.owner));
    }

    /// When a caller that has waited for a long time reports an outage.
    async fn an_outage_counts_from_what_was_last_response_at<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        let request = request();
        let outage = async {
            sleep(Duration::from_secs(20)).await;
            sim.set_gone(true);
            Instant::now()
        };
        let acquiring = timeout(Duration::from_secs(600), engine.acquire(&request));
        let (answer, began) = tokio::join!(acquiring, outage);
        let answer = answer.expect("in time");
        let took = began.elapsed();
        assert!(answer.is_err(), "nobody answers");
        let limit = sim.request_timeout() + Duration::from_secs(2);
        assert!(took <= limit, "told after {took:?}");
    }

    /// A caller has left, and its late command may still come. The repeated cleanup does not touch
    /// the next request of the same process for the same key.
    async fn a_cleanup_spares_the_next_request<P: Proof>() {
        for late in [20, 1500, 4_000, 20_000, 59_000] {
            let (sim, engine) = start::<P>().await;
            let late = Duration::from_millis(late);
            sim.next([Fate::Late(late)]);
            let (this, next) = (request(), request());
            let start = Instant::now();
            let left = timeout(ONE_WAY + MOMENT, engine.acquire(&this)).await;
            assert!(left.is_err(), "the answer was lost");
            let grant = granted(&engine, &next).await;
            for _ in 0..7 {
                sleep(Duration::from_secs(10)).await;
                assert_eq!(sim.holder(), Some(next.owner), "{:?}", start.elapsed());
                let renewed = engine.renew(std::slice::from_ref(&next)).await;
                assert!(matches!(renewed[..], [Ok(Renewed::Extended { .. })]), "{renewed:?}");
            }
            assert!(start.elapsed() > TTL, "nothing comes any more");
            assert!(grant.sent_at >= start);
            assert_eq!(engine.release(&next).await.expect("an answer"), Released::Released);
            assert!(sim.is_free());
        }
    }

    /// On a store where no command is late, one answered release is enough, whether the lock was
    /// held or its caller left.
    async fn where_nothing_is_late_one_release_is_enough<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().never_late = true;
        sim.next([Fate::AnswerLost]);
        let request = request();
        granted(&engine, &request).await;
        sim.forget_history();
        engine.release(&request).await.expect("an answer");
        timeout(2 * TTL, engine.settle()).await.expect("it is told");
        sleep(2 * TTL).await;
        assert_eq!(sim.sent(), ["release"]);

        sim.next([Fate::AnswerLost]);
        let next = self::request();
        let left = timeout(ONE_WAY + MOMENT, engine.acquire(&next)).await;
        assert!(left.is_err(), "the answer was lost");
        sim.forget_history();
        timeout(2 * TTL, engine.settle()).await.expect("it is told");
        sleep(2 * TTL).await;
        assert_eq!(sim.sent(), ["release"]);
        assert!(sim.is_free());
    }

    /// The lock is gone without a release, so a repeated release does not succeed.
    async fn a_release_after_a_restart_is_no_success<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let request = request();
        granted(&engine, &request).await;
        sim.lose_all();
        sim.next([Fate::AnswerLost]);
        assert_eq!(engine.release(&request).await.expect("an answer"), Released::NotHeld);
    }

    /// If a record only saves a question, the store is asked without one. Otherwise there is no
    /// lock without a record.
    async fn what_has_no_record_is_asked_for_if_that_helps<P: Proof>() {
        let sim = Sim::new();
        let (engine, another) = (engine::<P>(&sim).await, engine::<P>(&sim).await);
        let request = request();
        granted(&engine, &request).await;
        let asks = TypeId::of::<P>() == TypeId::of::<()>() || P::forgotten().is_some();
        let renewed = another.renew(std::slice::from_ref(&request)).await;
        assert_eq!(matches!(renewed[..], [Ok(Renewed::Extended { .. })]), asks, "{renewed:?}");
        assert_eq!(another.has_ended(request.owner), !asks);
        let released = another.release(&request).await.expect("an answer");
        assert_eq!(released == Released::Released, asks);
        assert_eq!(sim.is_free(), asks);
    }

    /// Failed renewals are repeated, and the others are not.
    async fn a_renewal_is_repeated_until_it_is_answered<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let (held, foreign) = (request(), request());
        granted(&engine, &held).await;
        for fate in [Fate::RequestLost, Fate::AnswerLost, Fate::Refused, Fate::Twice] {
            sim.next([fate]);
            sim.forget_history();
            let answers = engine.renew(&[held.clone(), foreign.clone()]).await;
            let [Ok(Renewed::Extended { sent_at }), Ok(Renewed::Gone)] = answers[..] else {
                panic!("{fate:?}: {answers:?}");
            };
            let ends = sim.ends().expect("it is held");
            assert!(sent_at + TTL <= ends, "{fate:?}: it ends before it is thought to");
        }
    }

    /// The caller's runtime stands still, at each step, for less and for more than the time to
    /// claim a lock. It gets the lock in the end, and its lease ends here before it ends at the
    /// store.
    async fn a_caller_that_stands_still_gets_the_lock<P: Proof>() {
        for busy in [false, true] {
            for step in 0..16 {
                for stall in [1, 20] {
                    let (sim, engine) = start::<P>().await;
                    let caller = Executor::new();
                    let other = busy.then(|| held_by_another(&sim));
                    let request = request();
                    let stalling = async {
                        sleep(step * ONE_WAY / 2).await;
                        caller.stall();
                        if let Some(other) = other {
                            sim.release(other);
                        }
                        sleep(Duration::from_secs(stall)).await;
                        caller.go_on();
                        Instant::now()
                    };
                    let acquiring = async {
                        let grant = caller.run(granted(&engine, &request)).await;
                        (grant, Instant::now())
                    };
                    let ((grant, at), awake) = tokio::join!(acquiring, stalling);
                    let said = format!("stalled at {step} for {stall} s, busy: {busy}");
                    assert!(at <= awake + Duration::from_secs(2), "{said}");
                    if at < awake {
                        continue;
                    }
                    assert_eq!(sim.holder(), Some(request.owner), "{said}");
                    let ends = sim.ends().expect("it is held");
                    assert!(grant.sent_at + TTL <= ends, "{said}");
                }
            }
        }
    }

    /// The manager's thread stands still. Callers do not need it, unless all operations run there.
    /// It cleans up after those who left when it runs again.
    async fn a_manager_that_stands_still_gives_back_later<P: Proof>() {
        if P::ON_MANAGER {
            return;
        }
        for step in 0..16 {
            let (sim, manager) = (Sim::new(), Executor::new());
            let engine = engine_on::<P>(&manager, &sim).await;
            manager.stall();
            let (this, next) = (request(), request());
            let left = timeout(step * ONE_WAY / 4, engine.acquire(&this)).await;
            if left.is_ok() {
                engine.release(&this).await.expect("an answer");
            } else {
                sleep(Duration::from_secs(20)).await;
                manager.go_on();
                sleep(2 * ROUND_TRIP + MOMENT).await;
                assert!(sim.is_free(), "left after {step} quarters of a way");
                manager.stall();
            }
            let start = Instant::now();
            granted(&engine, &next).await;
            engine.release(&next).await.expect("an answer");
            assert!(start.elapsed() <= 2 * ROUND_TRIP + MOMENT, "{:?}", start.elapsed());
        }
    }

    /// A call that does not wait asks a few times, and then takes the lock for held.
    async fn ties_are_broken_by_pauses<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        // The first command knows no ties.
        let (busy, longest) = (request(), P::PAUSES.1);
        let ties = 5 * sim.request_timeout().div_duration_f64(longest) as u32;
        sim.next([Fate::Refused]);
        sim.state().ties = ties;
        assert!(engine.try_acquire(&busy).await.expect("an answer").is_none());
        assert!(sim.is_free());
        // However long the ties last, the store has answered.
        let (request, start) = (request(), Instant::now());
        sim.next([Fate::Refused]);
        sim.state().ties = ties;
        granted(&engine, &request).await;
        assert!(start.elapsed() > sim.request_timeout(), "{:?}", start.elapsed());
        assert_eq!(sim.holder(), Some(request.owner));
    }

    /// Each tie may take a good part of a request timeout, as in an election with a silent voter.
    async fn slow_ties_do_not_add_up<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let (request, start) = (request(), Instant::now());
        let timeout = sim.request_timeout();
        sim.next([Fate::Refused]);
        sim.next([Fate::Slow(timeout.mul_f64(0.4)); 10]);
        sim.state().ties = u32::MAX;
        assert!(engine.try_acquire(&request).await.expect("an answer").is_none());
        assert!(start.elapsed() <= 2 * timeout, "{:?}", start.elapsed());
        assert!(sim.is_free());
    }

    /// The pause is neither a question nor silence of the store.
    async fn who_is_held_back_asks_later<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let (this, next) = (request(), request());
        let pause = Duration::from_secs(20);
        sim.state().hold_back = Some(pause);
        let begun = Instant::now();
        let left = timeout(pause / 2, engine.acquire(&this)).await;
        assert!(left.is_err(), "it waits for others");
        let told = this.progress().outage(begun, pause / 8, pause / 4, Instant::now());
        assert!(told.is_none(), "{told:?}");
        sleep(ROUND_TRIP + MOMENT).await;
        assert!(sim.sent().is_empty(), "{:?}", sim.sent());
        sim.state().hold_back = Some(pause);
        let start = Instant::now();
        granted(&engine, &next).await;
        assert!(start.elapsed() >= pause, "{:?}", start.elapsed());
        assert_eq!(sim.sent(), [P::FIRST]);
    }

    /// The caller's runtime stands still while the answer lies there unread. It says nothing about
    /// the store to a caller that comes when the runtime runs again.
    async fn an_answer_says_how_it_was_when_it_was_asked_for<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        let (caller, this) = (Executor::new(), request());
        let later = async {
            sleep(MOMENT).await;
            caller.stall();
            sleep(Duration::from_secs(4)).await;
            let came = Instant::now();
            caller.go_on();
            sleep(MOMENT).await;
            assert!(this.progress().heard().is_some(), "it is read now");
            assert!(!this.progress().heard_since(came), "it was asked for before");
            sleep(2 * ROUND_TRIP).await;
            if P::LOOKS == Looks::Together && P::OPENING != Opening::Place && !P::ON_MANAGER {
                assert!(this.progress().heard_since(came), "it has asked for a place");
            }
        };
        let acquiring = caller.run(engine.acquire(&this));
        tokio::select! {
            answer = acquiring => panic!("somebody has it: {answer:?}"),
            () = later => {}
        }
    }

    /// No waiter will ever get the lock, and all are told so.
    async fn what_is_no_lock_is_waited_for_by_nobody<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        sim.state().foreign = true;
        let (this, next) = (request(), request());
        let both = async { tokio::join!(engine.acquire(&this), engine.acquire(&next)) };
        let both = timeout(Duration::from_secs(5), both).await.expect("they are told");
        for answer in [both.0, both.1] {
            let error = answer.expect_err("no lock");
            assert_eq!(error.to_string(), foreign().to_string());
        }
    }

    /// Any use before the start or after the stop is refused, but not as an outage.
    async fn it_is_used_between_its_start_and_its_stop<P: Proof>() {
        let sim = Sim::new();
        let manager = Executor::new();
        let time = || Time::simulated(Arc::clone(&manager) as _);
        let engine = Engine::<Scripted<P>>::new(Arc::clone(&sim));
        let unused = async |engine: &Engine<Scripted<P>>| {
            let error = engine.try_acquire(&request()).await.expect_err("no use");
            assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{error}");
        };
        unused(&engine).await;
        engine.open(time()).await.expect("it opens");
        let twice = engine.open(time()).await.expect_err("it is open");
        assert_eq!(twice.kind(), BackendErrorKind::Unsupported, "{twice}");
        granted(&engine, &request()).await;
        engine.stop().await;
        unused(&engine).await;
    }

    /// A stop ends the wait of all callers, and leaves nothing behind.
    async fn a_stop_ends_all_waiting<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        let request = request();
        let stop = async {
            sleep(Duration::from_secs(3)).await;
            engine.stop().await;
        };
        let acquiring = timeout(Duration::from_secs(4), engine.acquire(&request));
        let (answer, ()) = tokio::join!(acquiring, stop);
        let error = answer.expect("it is told").expect_err("it has stopped");
        assert!(error.to_string().contains("has stopped"), "{error}");
        assert_eq!((sim.waiting(), sim.holder()), (0, Some(other)));
    }

    /// A stop also ends callers that have no place yet because of ties.
    async fn a_stop_ends_all_ties<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().ties = u32::MAX;
        sim.next([Fate::Refused]);
        let request = request();
        let stop = async {
            sleep(Duration::from_secs(3)).await;
            engine.stop().await;
        };
        let acquiring = timeout(Duration::from_secs(4), engine.acquire(&request));
        let (answer, ()) = tokio::join!(acquiring, stop);
        let error = answer.expect("it is told").expect_err("it has stopped");
        assert!(error.to_string().contains("has stopped"), "{error}");
        assert!(sim.is_free());
    }

    /// However many waiters and keys there are, the store is asked once for all of them.
    async fn a_look_is_for_all_who_wait<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        let looks_for = async |waiters: u32| {
            let come_and_wait = |number: u32| {
                let engine = &engine;
                Box::pin(async move {
                    sleep(number * Duration::from_millis(23)).await;
                    let key = format!("key:{number}");
                    let request = Request::new(key, Mode::Write, TTL);
                    let answer = engine.acquire(&request).await;
                    panic!("somebody has it: {answer:?}");
                })
            };
            let mut waiting: Vec<_> = (0..waiters).map(come_and_wait).collect();
            let all = poll_fn(|context| {
                for one in &mut waiting {
                    let polled: Poll<()> = one.as_mut().poll(context);
                    assert!(polled.is_pending());
                }
                Poll::<()>::Pending
            });
            sim.forget_history();
            let _ = timeout(TTL / 2, all).await;
            sim.looks()
        };
        let (one, many) = (looks_for(1).await, looks_for(100).await);
        let most = match P::LOOKS {
            Looks::Together => one + 5,
            Looks::Each => 4 * one,
        };
        assert!(many <= most, "{many} looks for 100 waiters, {one} for one");
        sleep(Duration::from_secs(10)).await;
        sim.forget_history();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(sim.looks(), 0, "nobody waits");
    }

    /// A command may take as long as its server stands still. A shutdown waits no longer than a ttl
    /// for what its caller left behind.
    async fn a_shutdown_waits_for_a_ttl_at_most<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.next([Fate::Slow(3 * TTL)]);
        let left = timeout(2 * ONE_WAY, engine.acquire(&request())).await;
        assert!(left.is_err(), "no answer has come");
        let settled = timeout(2 * TTL, engine.settle()).await;
        settled.expect("its ttl has passed");
        sleep(3 * TTL).await;
        assert!(sim.is_free(), "it is followed all the same");
    }

    /// A store is told to settle after everything was given back.
    async fn a_store_rests_when_nothing_is_left<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.next([Fate::SlowAnswer(Duration::from_secs(1))]);
        let left = timeout(2 * ONE_WAY, engine.acquire(&request())).await;
        assert!(left.is_err() && !sim.is_free(), "it was run, and not answered");
        engine.settle().await;
        assert_eq!(sim.state().rests, [true]);
    }

    /// Nobody else holds its lock.
    async fn a_try_waits_for_what_this_process_left<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let left = held_by_another(&sim);
        let remains = engine.running().expect("it runs").leave("key");
        let cleanup = async {
            sleep(10 * ROUND_TRIP).await;
            sim.release(left);
            drop(remains);
        };
        let request = request();
        let (tried, ()) = tokio::join!(engine.try_acquire(&request), cleanup);
        assert!(tried.expect("an answer").is_some());
        assert_eq!(sim.holder(), Some(request.owner));
    }

    /// There is always something of a lock that many calls wait for.
    async fn a_try_does_not_wait_for_what_is_left_later<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        let running = engine.running().expect("it runs");
        let start = Instant::now();
        let mut remains = running.leave("key");
        let leaves = async {
            for _ in 0..100 {
                sleep(10 * ROUND_TRIP).await;
                remains = running.leave("key");
            }
        };
        let request = request();
        tokio::select! {
            tried = engine.try_acquire(&request) => assert!(tried.expect("an answer").is_none()),
            () = leaves => panic!("it waits for ever"),
        }
        assert!(start.elapsed() < 50 * ROUND_TRIP, "{:?}", start.elapsed());
        drop(remains);
        assert!(running.remains("key").is_none(), "nothing is kept of it");
    }

    /// A part of the request timeout, and for no other lock.
    async fn a_try_does_not_wait_for_long<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        let running = engine.running().expect("it runs");
        for (key, longest) in [("other", 4 * ROUND_TRIP), ("key", sim.request_timeout())] {
            let _remains = running.leave(key);
            let start = Instant::now();
            let tried = engine.try_acquire(&request()).await.expect("an answer");
            assert!(tried.is_none());
            assert!(start.elapsed() < longest, "{key}: {:?}", start.elapsed());
        }
        assert!(running.remains("key").is_none(), "nothing is kept of it");
    }

    async fn the_next_attempt_is_as_soon_as_the_store_says<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.next([Fate::Refused]);
        let start = Instant::now();
        granted(&engine, &request()).await;
        let pause = start.elapsed() - 2 * ROUND_TRIP;
        let (first, _) = P::PAUSES;
        assert!(pause >= first * 3 / 4, "{pause:?}");
        assert!(pause <= first * 5 / 4 + 2 * ONE_WAY, "{pause:?}");
        if P::OPENING == Opening::Cheap {
            assert!(!sim.state().asked_for_a_place);
        }
    }

    async fn wrong_settings_open_nothing<P: Proof>() {
        let sim = Sim::new();
        sim.state().has_wrong_config = true;
        let engine = Engine::<Scripted<P>>::new(Arc::clone(&sim));
        let time = Time::simulated(Executor::new() as _);
        let error = engine.open(time).await.expect_err("what is wrong");
        assert_eq!(error.to_string(), foreign().to_string());
        assert!(sim.state().events.is_none());
    }

    /// The guarantee for tokens may change while the store is open.
    async fn tokens_are_worth_what_the_store_says<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let by_itself = engine.capabilities().tokens;
        for tier in [TokenTier::Strict, TokenTier::BestEffort] {
            sim.gives_tokens(tier);
            assert_eq!(engine.capabilities().tokens, tier);
        }
        assert_eq!(engine.clone().capabilities().tokens, by_itself, "not yet started");
    }

    /// A caller has left, and its command may still come. A stop tells the store, but does not wait
    /// for the command.
    async fn a_stop_does_not_wait_for_what_may_come<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.next([Fate::Late(TTL / 2)]);
        let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request())).await;
        assert!(left.is_err(), "the answer was lost");
        sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        engine.stop().await;
        assert!(start.elapsed() <= 2 * ROUND_TRIP + MOMENT, "{:?}", start.elapsed());
    }

    async fn a_long_list_has_more_time<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let start = Instant::now();
        let list = engine.list("").await.expect("a list");
        assert!(list.is_empty());
        assert!(start.elapsed() > sim.request_timeout(), "in {LISTS} questions");
        assert!(engine.inspect("key").await.expect("an answer").is_none());
    }

    /// Its settings are what an error or a log line has of it.
    async fn an_engine_shows_its_settings<P: Proof>() {
        let limit = Duration::from_secs(7);
        let engine = Engine::<Scripted<P>>::new(Sim::new()).request_timeout(limit);
        let shown = format!("{engine:?}");
        assert!(shown.contains("config: Sim, request_timeout: 7s"), "{shown}");
        // The answers of a store at home arrive elsewhere than at the caller.
        let told = Backend::request_timeout(&engine);
        assert_eq!(told, (!P::ON_MANAGER).then_some(limit));
    }

    async fn the_first_label_counts<P: Proof>() {
        let sim = Sim::new();
        let engine = Engine::<Scripted<P>>::new(Arc::clone(&sim));
        engine.call_yourself("this");
        engine.call_yourself("another");
        let time = Time::simulated(Executor::new() as _);
        engine.open(time).await.expect("it opens");
        assert_eq!(sim.state().label.as_deref(), Some("this"));
    }

    /// The servers of the settings may know of others.
    async fn the_servers_are_those_that_were_found<P: Proof>() {
        let servers = |host: &str| Some(Servers::new(Protocol::Other, [host.to_owned()]));
        let (sim, engine) = start::<P>().await;
        sim.state().servers = servers("given");
        assert_eq!(engine.servers(), servers("given"));
        sim.state().located = servers("found");
        assert_eq!(engine.servers(), servers("found"));
        assert_eq!(engine.clone().servers(), servers("given"), "not yet started");
    }

    /// An examination ends with the time limit of a request.
    async fn an_examination_tells_what_was_found<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let found = vec![Finding::new(Level::Warn, "server", "it forgets")];
        sim.state().findings = found.clone();
        assert_eq!(engine.examine().await, found);
        assert!(engine.clone().examine().await.is_empty(), "not yet started");
        sim.state().examined_for = 2 * sim.request_timeout();
        let start = Instant::now();
        assert!(engine.examine().await.is_empty(), "it does not answer");
        assert!(start.elapsed() <= sim.request_timeout() + ONE_WAY, "{:?}", start.elapsed());
    }

    /// It is done even if its caller leaves, and an error says that it was not.
    async fn tokens_are_raised_above_the_floor<P: Proof>() {
        let mut floor = 1_000;
        for fate in [Fate::Fine, Fate::Refused, Fate::RequestLost, Fate::AnswerLost] {
            let (sim, engine) = start::<P>().await;
            sim.next([fate]);
            engine.raise_tokens(floor).await.expect("an answer");
            let grant = granted(&engine, &request()).await;
            assert!(u64::from(grant.token) > floor, "{fate:?}: {:?}", grant.token);
        }
        let (sim, engine) = start::<P>().await;
        floor *= 2;
        {
            let mut raising = engine.raise_tokens(floor);
            let once = poll_fn(|context| Poll::Ready(raising.as_mut().poll(context)));
            assert!(once.await.is_pending());
        }
        sleep(ROUND_TRIP).await;
        assert!(sim.counter() >= floor);
        sim.set_gone(true);
        engine.raise_tokens(2 * floor).await.expect_err("nobody answers");
    }

    async fn an_owner_is_told_from_another<P: Proof>() {
        let (_, engine) = start::<P>().await;
        let shown = HolderInfo::new(request().owner.to_string(), None);
        let owner = request();
        assert!(!engine.is_owner(&shown, owner.owner));
        let shown = HolderInfo::new(owner.owner.to_string(), None);
        assert!(engine.is_owner(&shown, owner.owner));
    }

    /// A try needs the manager's runtime only if all operations run there.
    async fn who_tries_asks_from_where_it_is<P: Proof>() {
        let (sim, manager) = (Sim::new(), Executor::new());
        let engine = engine_on::<P>(&manager, &sim).await;
        manager.stall();
        let tried = timeout(Duration::from_secs(1), engine.try_acquire(&request())).await;
        assert_eq!(tried.is_err(), P::ON_MANAGER);
    }

    /// Its tasks would keep the connections open, and would ask the store for ever.
    async fn an_engine_that_is_dropped_leaves_no_task<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        let left = timeout(Duration::from_millis(100), engine.acquire(&request())).await;
        assert!(left.is_err(), "somebody has it");
        drop(engine);
        sleep(10 * ROUND_TRIP).await;
        assert_eq!(Arc::strong_count(&sim), 1);
    }

    /// The store has answered each recheck, so its silence begins when a waiter asks.
    async fn who_has_waited_long_has_time_to_ask_again<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        let request = request();
        let refused = async {
            sleep(Duration::from_secs(20)).await;
            sim.next(vec![Fate::Refused; 10_000]);
            sim.tell(request.owner);
            sleep(sim.request_timeout() / 2).await;
            sim.forget_fates();
            sim.release(other);
        };
        let _ = tokio::join!(granted(&engine, &request), refused);
    }

    /// From the first wait on, and for as long as it lasts.
    async fn a_lock_is_looked_at_as_often_as_the_store_says<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        let left = timeout(P::PACE * 3 / 4, engine.acquire(&request())).await;
        assert!(left.is_err(), "somebody has it");
        assert_eq!(sim.looks(), 0, "it has just asked");
        sleep(Duration::from_secs(10)).await;
        sim.forget_history();
        let waits = TTL / 2;
        let left = timeout(waits, engine.acquire(&request())).await;
        assert!(left.is_err(), "somebody has it");
        let (looks, most) = (sim.looks(), waits.div_duration_f64(P::PACE) as usize);
        assert!(looks >= most / 2 && looks <= most + 1, "{looks} of {most}");
    }

    /// The answer says more than a look would.
    async fn who_asks_is_not_looked_at<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        let request = request();
        let asks = async {
            sleep(Duration::from_millis(500)).await;
            sim.next([Fate::SlowAnswer(Duration::from_secs(2))]);
            sim.tell(request.owner);
            sleep(2 * ROUND_TRIP).await;
            sim.state().rechecked.clear();
            sleep(Duration::from_millis(1_900)).await;
            let looked: Vec<_> = sim.state().rechecked.concat();
            assert!(looked.is_empty(), "{looked:?}");
        };
        tokio::select! {
            () = asks => {}
            answer = engine.acquire(&request) => panic!("somebody has it: {answer:?}"),
        }
    }

    /// Its first command may still come when what followed has been settled.
    async fn an_earlier_command_of_one_who_left_is_undone<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let late = Duration::from_secs(20);
        sim.next([Fate::Late(late), Fate::Slow(Duration::from_secs(1))]);
        let (request, start) = (request(), Instant::now());
        let left = timeout(Duration::from_millis(100), engine.acquire(&request)).await;
        assert!(left.is_err(), "the second has no answer");
        assert_eq!(sim.sent().len(), 2, "{:?}", sim.sent());
        sleep_until(start + late + Duration::from_secs(7)).await;
        assert!(sim.ran(request.owner, P::FIRST), "it was run");
        assert!(sim.is_free());
    }

    /// The last moment at which a late command may come does not depend on how long the lock was
    /// held.
    async fn the_latest_command_is_undone_at_once<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.next([Fate::Late(TTL - 5 * ROUND_TRIP)]);
        let (request, start) = (request(), Instant::now());
        granted(&engine, &request).await;
        sleep(TTL / 2).await;
        engine.release(&request).await.expect("an answer");
        sleep_until(start + TTL + 3 * ROUND_TRIP).await;
        assert!(sim.ran(request.owner, P::FIRST), "it was run");
        assert!(sim.is_free());
    }

    /// Two owners may each have a command that is late.
    async fn late_commands_of_several_are_undone<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let (this, next, start) = (request(), request(), Instant::now());
        sim.next([Fate::Late(TTL / 3)]);
        granted(&engine, &this).await;
        sim.release(this.owner);
        sim.next([Fate::Late(2 * TTL / 3)]);
        granted(&engine, &next).await;
        engine.release(&this).await.expect("an answer");
        engine.release(&next).await.expect("an answer");
        for late in [TTL / 3, 2 * TTL / 3] {
            sleep_until(start + late + Duration::from_secs(7)).await;
            assert!(sim.is_free(), "run after {late:?}");
        }
    }

    /// Nobody gives back a lease that was lost, and the late command cannot come any more.
    async fn late_commands_of_lost_leases_are_forgotten<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let (lost, next) = (request(), request());
        for request in [&lost, &next] {
            sim.next([Fate::AnswerLost]);
            granted(&engine, request).await;
            let running = engine.running().expect("it runs");
            assert!(running.unknown.get(request.owner).is_some());
            sim.release(request.owner);
            sleep(2 * TTL).await;
        }
        let running = engine.running().expect("it runs");
        assert!(running.unknown.get(lost.owner).is_none());
    }

    /// It is repeated only while there is something that a later release could undo.
    async fn what_is_refused_for_good_is_not_given_back_again<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().never_late = true;
        sim.state().refuses_releases = Some(foreign());
        sim.next([Fate::AnswerLost]);
        let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request())).await;
        assert!(left.is_err(), "the answer was lost");
        sim.forget_history();
        timeout(TTL, engine.settle()).await.expect("it is refused");
        sleep(2 * TTL).await;
        assert_eq!(sim.sent(), ["release"]);

        let (sim, engine) = start::<P>().await;
        sim.state().refuses_releases = Some(foreign());
        let (late, start) = (TTL / 3, Instant::now());
        sim.next([Fate::Late(late)]);
        let request = request();
        let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request)).await;
        assert!(left.is_err(), "the answer was lost");
        sleep(late / 2).await;
        sim.state().refuses_releases = None;
        sleep_until(start + late + Duration::from_secs(7)).await;
        assert!(sim.ran(request.owner, P::FIRST), "it was run");
        assert!(sim.is_free());
    }

    /// A store that refuses at once for now is asked less and less often.
    async fn what_is_refused_for_now_is_given_back_later<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().never_late = true;
        sim.state().refuses_releases = Some(BackendError::unavailable("not now"));
        sim.next([Fate::AnswerLost]);
        let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request())).await;
        assert!(left.is_err(), "the answer was lost");
        sleep(TTL / 2).await;
        assert!(sim.sent().len() <= 20, "{} commands", sim.sent().len());
        sim.state().refuses_releases = None;
        sleep(Duration::from_secs(7)).await;
        assert!(sim.is_free());

        let (sim, engine) = start::<P>().await;
        sim.state().refuses_releases = Some(BackendError::unavailable("not now"));
        sim.next([Fate::AnswerLost]);
        let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request())).await;
        assert!(left.is_err(), "the answer was lost");
        sleep(3 * TTL).await;
        sim.forget_history();
        sleep(10 * TTL).await;
        let has_ended = <Scripted<P> as crate::store::Store>::EXPIRES;
        assert_eq!(sim.sent().is_empty(), has_ended, "{:?}", sim.sent());

        // No command comes any more, but the lock is still held.
        let (sim, engine) = start::<P>().await;
        sim.state().late_for = Some(TTL / 6);
        sim.state().refuses_releases = Some(BackendError::unavailable("not now"));
        sim.next([Fate::AnswerLost]);
        let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request())).await;
        assert!(left.is_err(), "the answer was lost");
        sleep(TTL / 2).await;
        sim.state().refuses_releases = None;
        sleep(Duration::from_secs(7)).await;
        assert!(sim.is_free());
    }

    /// A `try` that was told that the lock is held, and asks once more, has no answer yet.
    async fn a_try_that_asks_again_has_not_heard<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        sim.next([Fate::Fine, Fate::Slow(TTL)]);
        let request = request();
        let tried = timeout(2 * ROUND_TRIP, engine.try_acquire(&request)).await;
        assert_eq!(request.progress().heard_last(), tried.is_ok());
    }

    /// Nothing was forgotten by a command that was refused or sent on.
    async fn what_was_not_there_is_not_forgotten<P: Proof>() {
        for fate in [Fate::Refused, Fate::NotReached, Fate::Moved] {
            let (sim, engine) = start::<P>().await;
            sim.next([fate]);
            assert_eq!(engine.forget("key").await.ok(), Some(false), "{fate:?}");
        }
    }
}

for_each! { every_queue:
    /// A waiter that cannot be notified is passed over, so it subscribes first, and only once.
    async fn who_waits_listens_first<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        sim.listens_for(sim.request_timeout() / 2);
        let request = request();
        let release = async {
            sleep(3 * sim.request_timeout()).await;
            sim.release(other);
        };
        let (_, ()) = tokio::join!(granted(&engine, &request), release);
        let mut asked: Vec<_> = sim.sent();
        if P::OPENING != Opening::Place {
            assert_eq!(asked.remove(0), P::FIRST);
        }
        assert_eq!(asked, ["listen", "ask", "ask"]);
    }

    /// A server that has taken over still knows waiters that had their lock long ago. The others
    /// lose only one command of that process.
    async fn places_of_those_who_have_gone_are_undone<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().names_places = true;
        let other = held_by_another(&sim);
        let request = request();
        let failover = async {
            sleep(Duration::from_millis(500)).await;
            assert_eq!(sim.waiting(), 1, "it has its place");
            let gone = [(); 50].map(|()| Owner::unique());
            let places: Vec<_> = gone.into_iter().chain([request.owner]).collect();
            sim.fails_over(other, &places);
            // The first attempt fails.
            sim.next([Fate::Refused]);
            let start = Instant::now();
            sim.release(other);
            start
        };
        let (_, start) = tokio::join!(granted(&engine, &request), failover);
        assert!(start.elapsed() <= 20 * ROUND_TRIP, "{:?}", start.elapsed());
        engine.release(&request).await.expect("an answer");
        assert!(sim.is_free());
    }

    /// The server that has taken over may also grant the place of the holder. Then the holder keeps
    /// the lock, and after its release the grant belongs to nobody.
    async fn a_holder_that_is_granted_its_own_lock_keeps_it<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().names_places = true;
        let request = granted_after_a_wait(&sim, &engine).await;
        sim.fails_over(request.owner, &[]);
        sim.next([Fate::Refused]);
        sim.tell_place(request.owner);
        sleep(Duration::from_millis(50)).await;
        let ends = sim.ends().expect("it is held");
        assert!(ends > Instant::now() + TTL / 2, "it was renewed at once");
        engine.release(&request).await.expect("an answer");
        sim.fails_over(request.owner, &[]);
        sim.tell_place(request.owner);
        sleep(Duration::from_millis(50)).await;
        assert!(sim.is_free(), "it was undone");
    }

    /// The server that takes over has a place of it, from before it had the lock.
    async fn a_holder_that_has_lost_its_lock_does_not_take_it_again<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().names_places = true;
        let request = granted_after_a_wait(&sim, &engine).await;
        held_by_another(&sim);
        let renewed = engine.renew(std::slice::from_ref(&request)).await;
        assert!(matches!(renewed[..], [Ok(Renewed::Gone)]), "{renewed:?}");
        sim.fails_over(request.owner, &[]);
        sim.tell_place(request.owner);
        sleep(Duration::from_millis(50)).await;
        assert!(sim.is_free(), "it was undone");
    }

    /// The notification of the grant comes before the answer that the lock is held.
    async fn a_wake_up_before_the_answer_counts<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        let (request, start) = (request(), Instant::now());
        // The first question is answered. The answer to the question for a place is slow.
        let first = matches!(P::OPENING, Opening::First | Opening::Cheap).then_some(Fate::Fine);
        sim.next(first.into_iter().chain([Fate::SlowAnswer(Duration::from_millis(50))]));
        let release = async {
            sleep(Duration::from_millis(20)).await;
            sim.release(other);
        };
        let (_, ()) = tokio::join!(granted(&engine, &request), release);
        assert!(start.elapsed() < Duration::from_millis(80), "{:?}", start.elapsed());
    }

    /// The recheck finds the free lock a second later.
    async fn a_lost_wake_up_costs_a_second<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        sim.state().tells_nothing = true;
        let (request, start) = (request(), Instant::now());
        let release = async {
            sleep(Duration::from_millis(100)).await;
            sim.release(other);
        };
        let (_, ()) = tokio::join!(granted(&engine, &request), release);
        let waited = start.elapsed();
        assert!(waited < Duration::from_millis(2_200), "{waited:?}");
    }

    /// It need not be the lock that has changed.
    async fn a_change_that_the_store_notices_is_cause_to_look<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        sim.state().tells_nothing = true;
        let (request, start) = (request(), Instant::now());
        let changes = async {
            sleep(Duration::from_millis(100)).await;
            let changed = Arc::clone(&sim.state().changed);
            changed.notify_one();
            sleep(Duration::from_millis(100)).await;
            sim.release(other);
            changed.notify_one();
        };
        let (_, ()) = tokio::join!(granted(&engine, &request), changes);
        let waited = start.elapsed();
        assert!(waited < Duration::from_millis(210), "{waited:?}");
    }

    /// The store may notice a change before it can be seen.
    async fn a_change_that_is_noticed_too_early_puts_off_no_look<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        sim.state().tells_nothing = true;
        let (request, start) = (request(), Instant::now());
        let changes = async {
            // Shortly before the next look.
            sleep(P::PACE * 19 / 10).await;
            Arc::clone(&sim.state().changed).notify_one();
            sleep(2 * ROUND_TRIP).await;
            sim.release(other);
        };
        let (_, ()) = tokio::join!(granted(&engine, &request), changes);
        let waited = start.elapsed();
        assert!(waited < P::PACE * 5 / 2 + 4 * ROUND_TRIP, "{waited:?}");
    }

    /// It does not matter what the inspection was for. A caller that gives up inspects the lock,
    /// for example.
    async fn a_look_that_finds_the_lock_free_is_cause_to_ask<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        sim.state().tells_nothing = true;
        let (request, start) = (request(), Instant::now());
        let look = async {
            sleep(Duration::from_millis(100)).await;
            sim.release(other);
            engine.inspect("key").await.expect("an answer");
        };
        let (_, ()) = tokio::join!(granted(&engine, &request), look);
        let waited = start.elapsed();
        assert!(waited < Duration::from_millis(110), "{waited:?}");
    }

    /// Wrong, doubled and early notifications cost a question each.
    async fn a_wake_up_without_a_cause_costs_a_question<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        let request = request();
        let wakes = async {
            for _ in 0..5 {
                sleep(Duration::from_millis(10)).await;
                sim.tell(request.owner);
                sim.tell(Owner::unique());
            }
            assert_eq!(sim.waiting(), 1, "it keeps one place");
            sim.release(other);
        };
        let (_, ()) = tokio::join!(granted(&engine, &request), wakes);
        assert!(sim.sent().len() <= 2 + 5 + 1, "{:?}", sim.sent());
    }

    /// After the outage, nothing is left.
    async fn what_an_outage_left_is_given_back<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        let request = request();
        let waiting = timeout(Duration::from_millis(20), engine.acquire(&request));
        let gone = async {
            sleep(Duration::from_millis(19)).await;
            sim.set_gone(true);
        };
        let _ = tokio::join!(waiting, gone);
        assert_eq!(sim.waiting(), 1, "nobody has told the store");
        sleep(Duration::from_secs(30)).await;
        sim.set_gone(false);
        sleep(Duration::from_secs(8)).await;
        assert_eq!((sim.waiting(), sim.holder()), (0, Some(other)));
    }

    /// The waiter is notified only by what it watches.
    async fn who_is_behind_another_watches_it<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().watches = true;
        let other = held_by_another(&sim);
        let (this, next) = (request(), request());
        let released = async {
            sleep(Duration::from_millis(1_500)).await;
            let start = Instant::now();
            sim.release(other);
            start
        };
        let both = async {
            let acquiring = async {
                granted(&engine, &this).await;
                let had = Instant::now();
                engine.release(&this).await.expect("an answer");
                had
            };
            let behind = async {
                sleep(Duration::from_millis(50)).await;
                granted(&engine, &next).await;
                Instant::now()
            };
            tokio::join!(acquiring, behind)
        };
        let ((first, second), start) = tokio::join!(both, released);
        let moment = 2 * ROUND_TRIP + MOMENT;
        assert!(first.duration_since(start) <= moment, "{:?}", first.duration_since(start));
        assert!(second.duration_since(first) <= moment, "{:?}", second.duration_since(first));
        assert_eq!(sim.holder(), Some(next.owner));
    }

    /// The end of the watched place is not reported. The recheck, under its name, finds it.
    async fn a_watch_that_misses_costs_a_second<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().watches = true;
        let other = held_by_another(&sim);
        sim.state().tells_nothing = true;
        let (request, start) = (request(), Instant::now());
        let release = async {
            sleep(Duration::from_millis(100)).await;
            sim.release(other);
        };
        let (_, ()) = tokio::join!(granted(&engine, &request), release);
        assert!(start.elapsed() < Duration::from_millis(2_200), "{:?}", start.elapsed());
    }

    /// The store is asked again, and a new watch is set.
    async fn a_watch_that_fails_is_set_again<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().watches = true;
        sim.state().watch_fails = true;
        let other = held_by_another(&sim);
        let request = request();
        let release = async {
            sleep(Duration::from_millis(500)).await;
            assert_eq!(sim.waiting(), 1, "it keeps its place");
            let start = Instant::now();
            sim.release(other);
            start
        };
        let (_, start) = tokio::join!(granted(&engine, &request), release);
        assert!(start.elapsed() <= 2 * ROUND_TRIP + MOMENT, "{:?}", start.elapsed());
    }

    /// The store answers but allows no watch: an error is returned, and the attempts end.
    async fn a_watch_that_fails_again_and_again_is_told<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().watches = true;
        sim.state().watches_fail = true;
        held_by_another(&sim);
        let (request, start) = (request(), Instant::now());
        let answer = timeout(3 * sim.request_timeout(), engine.acquire(&request)).await;
        answer.expect("it is told").expect_err("no watch");
        assert!(start.elapsed() >= sim.request_timeout() / 2, "{:?}", start.elapsed());
        let most = 3 * sim.request_timeout().div_duration_f64(P::PAUSES.1) as usize;
        assert!(sim.sent().len() <= most, "{} questions", sim.sent().len());
    }

    /// A caller that leaves while it watches leaves nothing.
    async fn who_leaves_a_watch_leaves_its_place<P: Proof>() {
        for step in 0..24 {
            let (sim, engine) = start::<P>().await;
            sim.state().watches = true;
            let other = held_by_another(&sim);
            let left = timeout(step * ONE_WAY / 2, engine.acquire(&request())).await;
            assert!(left.is_err(), "somebody has it");
            sleep(2 * ROUND_TRIP + MOMENT).await;
            assert_eq!((sim.waiting(), sim.holder()), (0, Some(other)), "step {step}");
        }
    }

    /// A late command takes a place for a caller that has left. When that place is granted, the
    /// store is told at once that nobody waits.
    async fn a_grant_to_one_who_left_goes_back<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        let late = Duration::from_secs(10);
        let first = matches!(P::OPENING, Opening::First | Opening::Cheap).then_some(Fate::Fine);
        sim.next(first.into_iter().chain([Fate::Late(late)]));
        let (request, start) = (request(), Instant::now());
        let left = timeout(5 * ONE_WAY, engine.acquire(&request)).await;
        assert!(left.is_err(), "somebody has it");
        while sim.waiting() == 0 {
            sleep(ONE_WAY / 4).await;
            assert!(start.elapsed() < 2 * late, "it takes a place");
        }
        sim.release(other);
        sleep(2 * ROUND_TRIP + MOMENT).await;
        assert!(sim.is_free(), "{:?}", start.elapsed());
    }

    /// The store reports that a lock is free, but not for whom.
    async fn all_who_wait_for_a_key_ask_when_it_is_freed<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        sim.state().tells_nothing = true;
        let (request, start) = (request(), Instant::now());
        let release = async {
            sleep(Duration::from_millis(100)).await;
            sim.release(other);
            sim.events().freed("another");
            sim.events().freed("key");
        };
        let (_, ()) = tokio::join!(granted(&engine, &request), release);
        let waited = start.elapsed();
        assert!(waited < Duration::from_millis(110), "{waited:?}");
    }

    /// Waiters whose places may have been void for a while ask for new ones. A gap that nobody
    /// noticed costs no question.
    async fn who_may_have_been_taken_for_dead_asks_again<P: Proof>() {
        let quarter = P::DEAD_AFTER / 4;
        for (gap, asks) in [(quarter, false), (4 * quarter, true)] {
            let (sim, manager) = (Sim::new(), Executor::new());
            let engine = engine_on::<P>(&manager, &sim).await;
            held_by_another(&sim);
            let request = request();
            let stalling = async {
                sleep(Duration::from_secs(5)).await;
                sim.forget_history();
                manager.stall();
                sleep(gap).await;
                manager.go_on();
                sleep(Duration::from_secs(1)).await;
            };
            tokio::select! {
                () = stalling => {}
                answer = engine.acquire(&request) => panic!("somebody has it: {answer:?}"),
            }
            assert_eq!(!sim.sent().is_empty(), asks, "after {gap:?}");
        }
    }

    /// Waiters that arrive in quick succession do not delay the recheck.
    async fn arrivals_put_no_look_off<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        let mut waiting: Vec<_> = (0..100)
            .map(|number| {
                let engine = &engine;
                Box::pin(async move {
                    sleep(number * P::PACE.min(Duration::from_millis(90)) * 3 / 4).await;
                    engine.acquire(&request()).await
                })
            })
            .collect();
        let all = poll_fn(|context| {
            for one in &mut waiting {
                assert!(one.as_mut().poll(context).is_pending(), "somebody has it");
            }
            Poll::<()>::Pending
        });
        sim.forget_history();
        let _ = timeout(Duration::from_secs(9), all).await;
        let looks = sim.looks();
        let most = 9_000 / P::PACE.as_millis() as usize;
        assert!(looks >= most.min(1_000) * 3 / 4, "{looks} looks in 9 s");
    }

    /// The engine knows such owners, so a store can tell an abandoned place from one that is being
    /// requested.
    async fn who_waits_or_leaves_is_known<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        let other = held_by_another(&sim);
        let (request, events) = (request(), sim.events());
        let knows = || events.knows(request.owner, "key");
        assert!(!knows());
        let seen = async {
            sleep(20 * ROUND_TRIP).await;
            assert!(knows(), "it waits");
            sim.set_gone(true);
        };
        tokio::select! {
            () = seen => {}
            answer = engine.acquire(&request) => panic!("somebody has it: {answer:?}"),
        }
        sleep(Duration::from_secs(8)).await;
        assert!(knows(), "its place is being given back");
        assert!(!events.knows(Owner::unique(), "key"));
        sim.set_gone(false);
        sim.release(other);
        sleep(Duration::from_secs(20)).await;
        assert!(sim.is_free() && !knows(), "nothing is left");
    }

    /// Others take this process for alive as long as it has waiters. They are told when it has none
    /// any more, also when the engine stops.
    async fn a_process_that_waits_is_alive<P: Proof>() {
        for stops in [false, true] {
            let (sim, engine) = start::<P>().await;
            held_by_another(&sim);
            let start = Instant::now();
            let left = timeout(Duration::from_secs(20), engine.acquire(&request())).await;
            assert!(left.is_err(), "somebody has it");
            let end = Instant::now();
            if stops {
                engine.stop().await;
            }
            sleep(Duration::from_secs(10)).await;
            let beats = sim.state().beats.clone();
            let first = beats.first().copied().expect("a beat");
            assert!(first.duration_since(start) <= ROUND_TRIP * 2, "with the place");
            for pair in beats.windows(2) {
                let gap = pair[1].duration_since(pair[0]);
                assert!(gap <= Duration::from_millis(1_300), "{gap:?}");
            }
            let last = beats.last().copied().expect("a beat");
            assert!(last + Duration::from_millis(1_300) >= end);
            assert!(last <= end + Duration::from_secs(3), "nobody waits");
            assert!(beats.len() <= 30, "{} beats in 20 s", beats.len());
            assert_eq!(sim.state().farewells, 1, "stops: {stops}");
        }
    }

    /// The farewell takes effect after the beat of a new waiter, and takes that beat back. Others
    /// would take the new waiter for dead, and pass over its place.
    async fn who_comes_with_a_farewell_is_alive<P: Proof>() {
        for after in [2 * ROUND_TRIP, 8 * ROUND_TRIP + ROUND_TRIP / 4] {
            let (sim, engine) = start::<P>().await;
            held_by_another(&sim);
            let left = timeout(Duration::from_secs(1), engine.acquire(&request())).await;
            assert!(left.is_err(), "somebody has it");
            let takes = 10 * ROUND_TRIP;
            sim.state().farewell_takes = takes;
            while sim.state().farewells == 0 {
                sleep(MOMENT).await;
            }
            sleep(after).await;
            let comes = timeout(takes + 5 * ROUND_TRIP, engine.acquire(&request())).await;
            assert!(comes.is_err(), "somebody has it");
            let state = sim.state();
            let (beats, said) = (&state.beats, state.said_farewell);
            assert!(said.is_some() && beats.last().copied() >= said, "{after:?}: {beats:?}, {said:?}");
        }
    }

    /// A new waiter says that the process is alive only if nobody has said so lately. The manager
    /// may stand still.
    async fn who_comes_is_known_to_be_alive<P: Proof>() {
        let (sim, manager) = (Sim::new(), Executor::new());
        let engine = engine_on::<P>(&manager, &sim).await;
        held_by_another(&sim);
        sleep(Duration::from_secs(20)).await;
        sim.state().beats.clear();
        let comes = async || {
            let waits = timeout(10 * ROUND_TRIP, engine.acquire(&request())).await;
            assert!(waits.is_err(), "somebody has it");
            sim.state().beats.clone()
        };
        let this = request();
        let others = async {
            sleep(10 * ROUND_TRIP).await;
            assert_eq!(comes().await.len(), 1, "with the first place");
            if P::ON_MANAGER {
                return;
            }
            sleep(Duration::from_secs(5)).await;
            manager.stall();
            sleep(P::DEAD_AFTER * 5 / 8).await;
            let (came, beats) = (Instant::now(), comes().await);
            assert!(beats.last().is_some_and(|last| *last >= came), "{beats:?}");
            manager.go_on();
        };
        tokio::select! {
            () = others => {}
            answer = engine.acquire(&this) => panic!("somebody has it: {answer:?}"),
        }
    }

    /// The process stays known between waits that follow each other closely.
    async fn who_waits_again_soon_says_no_farewell<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        held_by_another(&sim);
        for _ in 0..3 {
            let left = timeout(Duration::from_millis(1_500), engine.acquire(&request())).await;
            assert!(left.is_err(), "somebody has it");
            sleep(Duration::from_millis(1_900)).await;
            assert_eq!(sim.state().farewells, 0);
        }
        sleep(Duration::from_secs(2)).await;
        assert_eq!(sim.state().farewells, 1);
    }

    /// Each of many short watches is answered, so the store is not silent.
    async fn short_watches_do_not_add_up<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().watches = true;
        let other = held_by_another(&sim);
        let request = request();
        let wakes = async {
            for _ in 0..100 {
                sleep(sim.request_timeout() / 50).await;
                sim.events().wake(request.owner, &format!("before {other}"));
            }
            sleep(10 * ROUND_TRIP).await;
            sim.release(other);
        };
        let _ = tokio::join!(granted(&engine, &request), wakes);
    }

    /// There is time to set another, however long the first has lasted.
    async fn a_watch_that_fails_late_is_set_again<P: Proof>() {
        let (sim, engine) = start::<P>().await;
        sim.state().watches = true;
        sim.state().watch_fails = true;
        sim.state().watch_fails_after = 2 * sim.request_timeout();
        let other = held_by_another(&sim);
        let request = request();
        let release = async {
            sleep(3 * sim.request_timeout()).await;
            sim.release(other);
        };
        let _ = tokio::join!(granted(&engine, &request), release);
    }

    /// However long the outage was, the store is told as soon as it can be reached.
    async fn what_a_long_outage_left_is_given_back_at_its_end<P: Proof>() {
        for more in 0..12 {
            let (sim, engine) = start::<P>().await;
            sim.state().never_late = true;
            let other = Owner::unique();
            sim.take_away(other, 10 * TTL);
            let request = request();
            let waiting = timeout(Duration::from_millis(20), engine.acquire(&request));
            let gone = async {
                sleep(Duration::from_millis(19)).await;
                sim.set_gone(true);
            };
            let _ = tokio::join!(waiting, gone);
            assert_eq!(sim.waiting(), 1, "nobody has told the store");
            sleep(2 * TTL + more * Duration::from_secs(1)).await;
            sim.set_gone(false);
            sleep(Duration::from_millis(300)).await;
            assert_eq!((sim.waiting(), sim.holder()), (0, Some(other)), "{more} s more");
        }
    }
}

/// A command may be run for as long as its session lasts. It is undone until then, whoever held the
/// lock meanwhile. After that, nothing is asked or kept.
#[test]
fn what_may_come_until_the_session_ends_is_undone_until_then() {
    for leaves in [false, true] {
        paused(|| async move {
            let (sim, engine) = start::<Session>().await;
            sim.state().late_in_session = true;
            let late = 10 * TTL;
            sim.next([Fate::Late(late)]);
            let (request, start) = (request(), Instant::now());
            if leaves {
                let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request)).await;
                assert!(left.is_err(), "the answer was lost");
            } else {
                granted(&engine, &request).await;
                engine.release(&request).await.expect("an answer");
                assert_eq!(sim.records(), 1, "it may be needed");
            }
            timeout(MOMENT + 2 * ROUND_TRIP, engine.settle())
                .await
                .expect("it is told");
            sleep_until(start + late + TTL / 2).await;
            assert!(sim.ran(request.owner, "ask"), "it was run");
            assert!(sim.is_free());
            let releases = sim.sent().len();
            assert!(
                releases <= 60,
                "{releases} commands in {:?}",
                start.elapsed()
            );
            sim.forget_history();
            sim.end_the_session();
            sleep(MOMENT).await;
            assert_eq!(sim.records(), 0, "leaves: {leaves}");
            sleep(10 * TTL).await;
            assert!(sim.sent().is_empty(), "{:?}", sim.sent());
        });
    }
}

/// A late command is undone also when nobody extended or gave back the lease, so that this process
/// ended it.
#[test]
fn what_may_come_after_a_lease_that_ended_here_is_undone() {
    paused(|| async {
        let (sim, engine) = start::<Lasting>().await;
        sim.state().late_in_session = true;
        let late = 3 * TTL;
        sim.next([Fate::Late(late)]);
        let (request, start) = (request(), Instant::now());
        granted(&engine, &request).await;
        sleep_until(start + late + TTL / 2).await;
        assert!(sim.ran(request.owner, "ask"), "it was run");
        assert!(sim.is_free());
        sim.end_the_session();
        sleep(MOMENT).await;
        sim.forget_history();
        sleep(10 * TTL).await;
        assert!(sim.sent().is_empty(), "{:?}", sim.sent());
    });
}

/// A command may come for as long as its session lasts. After that nothing of it is kept, even if
/// its release has failed.
#[test]
fn what_may_come_in_a_session_is_forgotten_with_it() {
    paused(|| async {
        let (sim, engine) = start::<Session>().await;
        sim.state().late_in_session = true;
        sim.next([Fate::AnswerLost]);
        let request = request();
        granted(&engine, &request).await;
        sim.set_gone(true);
        assert!(engine.release(&request).await.is_err(), "nobody answers");
        assert_eq!(sim.end_the_session(), 0, "it was given back");
        let running = engine.running().expect("it runs");
        assert!(running.unknown.remove(request.owner).is_none());
        // The cleanup, if one is running, notices it too.
        sleep(sim.request_timeout()).await;
        assert_eq!(sim.records(), 0);
    });
}

/// What follows undoes a grant that comes late: a mark that was set again would last for longer
/// than was asked.
#[test]
fn what_may_come_in_a_session_is_marked_once() {
    paused(|| async {
        let (sim, engine) = start::<Session>().await;
        sim.state().late_in_session = true;
        sim.next([Fate::AnswerLost]);
        let request = request();
        granted(&engine, &request).await;
        sim.set_gone(true);
        let done = request.clone().done(Some(TTL));
        engine.release(&done).await.expect_err("nobody answers");
        sim.set_gone(false);
        sleep(sim.request_timeout()).await;
        assert_eq!(sim.state().done, Some(request.owner), "by the cleanup");
        sim.forget_history();
        sleep(5 * TTL).await;
        let sent = sim.sent();
        assert!(
            sent.len() > 1 && sent.iter().all(|&command| command == "release"),
            "{sent:?}"
        );
    });
}

/// The lock that a cleanup would give back ends with its session, and then the store need not be
/// told.
#[test]
fn what_has_ended_is_not_given_back() {
    paused(|| async {
        let (sim, engine) = start::<Session>().await;
        sim.state().late_in_session = true;
        sim.next([Fate::Late(10 * TTL)]);
        let request = request();
        granted(&engine, &request).await;
        sim.end_the_session();
        sim.forget_history();
        assert_eq!(
            engine.release(&request).await.expect("an answer"),
            Released::NotHeld
        );
        sleep(5 * TTL).await;
        assert!(sim.sent().is_empty(), "{:?}", sim.sent());
        assert_eq!(sim.records(), 0);
    });
}

/// A caller that has lost its place asks for another at once. The rest of the lost place is given
/// back with its own record, not with that of the next.
#[test]
fn who_has_lost_its_place_takes_another() {
    for (leaves_something, sent) in [
        (false, vec!["ask", "ask"]),
        (true, vec!["ask", "ask", "release"]),
    ] {
        for waits in [false, true] {
            let mut sent = sent.clone();
            paused(|| async move {
                let (sim, engine) = start::<Session>().await;
                sim.state().places_lost.push_back(leaves_something);
                let (request, start) = (request(), Instant::now());
                let grant = if waits {
                    Some(engine.acquire(&request).await.expect("an answer"))
                } else {
                    engine.try_acquire(&request).await.expect("an answer")
                };
                assert!(grant.is_some());
                assert!(
                    start.elapsed() <= 2 * ROUND_TRIP + MOMENT,
                    "{:?}",
                    start.elapsed()
                );
                sleep(TTL / 2).await;
                assert_eq!(sim.holder(), Some(request.owner));
                let mut told = sim.sent();
                told.sort_unstable();
                sent.sort_unstable();
                assert_eq!(told, sent, "waits: {waits}");
                assert_eq!(sim.records(), 1, "that of the lease");
            });
        }
    }
}

/// A store that takes back all that it gives, as soon as it has given it, is not asked for ever.
#[test]
fn who_loses_each_place_at_once_is_told() {
    for waits in [false, true] {
        paused(|| async move {
            let (sim, engine) = start::<Session>().await;
            sim.state().places_lost.extend([false; 10_000]);
            let (request, start) = (request(), Instant::now());
            let told = if waits {
                engine.acquire(&request).await
            } else {
                let tried = engine.try_acquire(&request).await;
                tried.map(|grant| grant.expect("nobody else has it"))
            };
            let error = told.expect_err("no place of it lasts");
            assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("ended at once"), "{error}");
            let limit = sim.request_timeout() + ROUND_TRIP;
            assert!(start.elapsed() <= limit, "{:?}", start.elapsed());
            let asked = sim.sent().len();
            assert!(asked < 500, "it pauses between its questions: {asked}");
        });
    }
}

/// A runtime stands still when the lock is passed on to it. The lock is held for its ttl, and then
/// others get it.
#[test]
fn a_caller_that_stands_still_holds_up_nobody_on_the_manager() {
    paused(|| async {
        let (sim, engine) = start::<OnManager>().await;
        let other = held_by_another(&sim);
        let (this, next) = (request(), request());
        let caller = Executor::new();
        let stalled = caller.run(engine.acquire(&this));
        let mut stalled = pin!(stalled);
        let queued = timeout(Duration::from_millis(20), &mut stalled).await;
        assert!(queued.is_err(), "somebody has it");
        caller.stall();
        sim.release(other);
        let start = Instant::now();
        granted(&engine, &next).await;
        let waited = start.elapsed();
        assert!(waited <= TTL + Duration::from_secs(1), "{waited:?}");
        caller.go_on();
        let grant = stalled.await.expect("it was had");
        assert!(grant.sent_at + TTL <= Instant::now() && engine.has_ended(this.owner));
        assert_eq!(sim.holder(), Some(next.owner));
    });
}

/// The caller leaves before it hears of the grant.
#[test]
fn what_nobody_heard_of_goes_back_on_the_manager() {
    paused(|| async {
        for waits in [false, true] {
            let (sim, engine) = start::<OnManager>().await;
            let request = request();
            {
                let asking = async {
                    match waits {
                        true => engine.acquire(&request).await.map(Some),
                        false => engine.try_acquire(&request).await,
                    }
                };
                let mut asking = pin!(asking);
                let once = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context)));
                assert!(once.await.is_pending());
                sleep(2 * ROUND_TRIP).await;
                assert_eq!(sim.holder(), Some(request.owner));
            }
            timeout(2 * ROUND_TRIP, engine.settle())
                .await
                .expect("it is told");
            assert!(sim.is_free());
            assert!(engine.has_ended(request.owner));
        }
    });
}

/// A flight that ends by itself: no release is sent beside it.
#[test]
fn what_lands_by_itself_is_waited_for() {
    paused(|| async {
        for slow in [Duration::from_secs(3), 2 * TTL] {
            let (sim, engine) = start::<Session>().await;
            sim.next([Fate::Slow(slow)]);
            let left = timeout(5 * ONE_WAY, engine.acquire(&request())).await;
            assert!(left.is_err(), "no answer has come");
            sleep(slow + Duration::from_secs(1)).await;
            assert!(sim.is_free());
            assert_eq!(sim.sent(), ["ask", "release"], "the one behind it");
        }
    });
}

/// The session ends after the grant, but before this process has recorded it.
#[test]
fn a_session_that_ends_before_its_grant_is_noted_is_no_lease() {
    paused(|| async {
        let (sim, engine) = start::<Session>().await;
        sim.state().ends_session = true;
        let request = request();
        granted(&engine, &request).await;
        assert!(!engine.has_ended(request.owner), "the second one lasts");
        assert_eq!(sim.sent(), ["ask", "ask"]);
        let told = timeout(Duration::from_secs(1), engine.next_losses()).await;
        assert!(told.is_err(), "nobody had what was lost: {told:?}");
    });
}

/// If the session ends after the grant was recorded, the loss is reported.
#[test]
fn a_session_that_ends_later_is_told() {
    paused(|| async {
        let (sim, engine) = start::<Session>().await;
        let request = request();
        granted(&engine, &request).await;
        assert_eq!(sim.end_the_session(), 1);
        let told = timeout(Duration::from_secs(1), engine.next_losses()).await;
        assert_eq!(told.expect("it is told"), [request.owner]);
        assert!(engine.has_ended(request.owner));
        assert_eq!(
            engine.release(&request).await.expect("an answer"),
            Released::NotHeld
        );
    });
}

/// Nobody gives the lease back, and the store keeps it. This process ends it, but not before its
/// holder knows of the end.
#[test]
fn a_lease_that_the_store_does_not_end_ends_from_here() {
    paused(|| async {
        let (sim, engine) = start::<Lasting>().await;
        let request = request();
        let grant = granted(&engine, &request).await;
        let mut ends = grant.sent_at + TTL;
        // A renewal postpones the end, and one with another ttl sets it.
        for ttl in [TTL, TTL / 4] {
            sleep_until(ends - TTL / 10).await;
            let mut another = request.clone();
            another.ttl = ttl;
            let renewed = engine.renew(&[another]).await;
            let [Ok(Renewed::Extended { sent_at })] = renewed[..] else {
                panic!("{renewed:?}");
            };
            ends = sent_at + ttl;
        }
        sleep_until(ends - MOMENT).await;
        assert!(!engine.has_ended(request.owner));
        assert_eq!(sim.holder(), Some(request.owner));
        sleep(ROUND_TRIP + MOMENT).await;
        assert!(sim.is_free());
        assert!(engine.has_ended(request.owner));
        let renewed = engine.renew(std::slice::from_ref(&request)).await;
        assert!(matches!(renewed[..], [Ok(Renewed::Gone)]), "{renewed:?}");
        let released = engine.release(&request).await.expect("an answer");
        assert_eq!(released, Released::NotHeld);
    });
}

/// No lease is longer, whatever ttl was requested.
#[test]
fn a_lease_lasts_as_long_as_the_store_is_sure_of() {
    paused(|| async {
        let (sim, engine) = start::<Lasting>().await;
        let request = Request::new("key", Mode::Write, 2 * LONGEST);
        let grant = granted(&engine, &request).await;
        assert_eq!(grant.ttl, Some(LONGEST));
        sleep_until(grant.sent_at + LONGEST - MOMENT).await;
        assert_eq!(sim.holder(), Some(request.owner));
        sleep(ROUND_TRIP + MOMENT).await;
        assert!(sim.is_free());
    });
}

/// A renewal that is answered after the lease has ended does not revive it.
#[test]
fn a_renewal_that_is_late_brings_no_lease_back() {
    paused(|| async {
        let (sim, engine) = start::<Lasting>().await;
        let request = request();
        let grant = granted(&engine, &request).await;
        sleep_until(grant.sent_at + TTL - Duration::from_secs(1)).await;
        sim.next([Fate::SlowAnswer(Duration::from_secs(2))]);
        let renewed = engine.renew(std::slice::from_ref(&request)).await;
        assert!(matches!(renewed[..], [Ok(Renewed::Gone)]), "{renewed:?}");
        assert!(sim.is_free());
    });
}

/// The release failed, or its caller's runtime polls it no more. The store is told nevertheless,
/// before the lease would have ended.
#[test]
fn a_release_that_did_not_arrive_is_made_up_for() {
    paused(|| async {
        let (sim, engine) = start::<Lasting>().await;
        // At once, and when this process has long been set to end the lease with its ttl.
        for held in [Duration::ZERO, TTL / 4] {
            let this = request();
            granted(&engine, &this).await;
            sleep(held).await;
            sim.set_gone(true);
            assert!(engine.release(&this).await.is_err(), "nobody answers");
            sim.set_gone(false);
            sleep(Duration::from_secs(8)).await;
            assert!(sim.is_free(), "held for {held:?}");
        }

        let next = request();
        granted(&engine, &next).await;
        sim.next([Fate::RequestLost]);
        let mut releasing = engine.release(&next);
        let once = poll_fn(|context| Poll::Ready(releasing.as_mut().poll(context)));
        assert!(once.await.is_pending());
        sleep(sim.request_timeout() - ROUND_TRIP).await;
        assert_eq!(sim.holder(), Some(next.owner), "there is time to ask again");
        sleep(3 * ROUND_TRIP + MOMENT).await;
        assert!(sim.is_free());
    });
}

/// A shutdown waits for those who left during an outage until the store was told, but no longer
/// than their ttl.
#[test]
fn a_shutdown_waits_until_the_store_was_told() {
    paused(|| async {
        for outage in [TTL / 3, 2 * TTL] {
            let (sim, engine) = start::<Lasting>().await;
            sim.state().never_late = true;
            held_by_another(&sim);
            let left = timeout(5 * ONE_WAY, engine.acquire(&request())).await;
            assert!(left.is_err(), "somebody has it");
            sim.set_gone(true);
            let start = Instant::now();
            let back = async {
                sleep(outage).await;
                sim.set_gone(false);
            };
            let settled = async {
                engine.settle().await;
                start.elapsed()
            };
            let (settled, ()) = tokio::join!(settled, back);
            let limit = outage.min(TTL);
            assert!(settled >= limit - Duration::from_secs(1), "{settled:?}");
            assert!(settled <= limit + 2 * sim.request_timeout(), "{settled:?}");
        }
    });
}

/// The store is told whether it may end the session of its leases.
#[test]
fn a_stop_says_whether_a_lease_is_to_outlast_it() {
    paused(|| async {
        for held in [false, true] {
            let (sim, engine) = start::<Lasting>().await;
            let request = request();
            granted(&engine, &request).await;
            if !held {
                engine.release(&request).await.expect("an answer");
            }
            engine.stop().await;
            assert_eq!(sim.state().shut_down, Some(held));
        }
    });
}

/// Places do not depend on beats here, so the process sends none.
#[test]
fn a_place_that_lasts_needs_no_beats() {
    paused(|| async {
        let (sim, engine) = start::<Lasting>().await;
        sim.state().tells_nothing = true;
        held_by_another(&sim);
        let left = timeout(TTL / 2, engine.acquire(&request())).await;
        assert!(left.is_err(), "somebody has it");
        let beats = sim.state().beats.clone();
        assert!(beats.is_empty(), "{beats:?}");
        assert!(sim.looks() > 10, "it is looked at: {}", sim.looks());
        sleep(ROUND_TRIP + MOMENT).await;
        sim.forget_history();
        sleep(TTL).await;
        assert_eq!((sim.looks(), sim.state().farewells), (0, 0));
    });
}

/// After a tie in the first try, a caller that waits does not ask for a place at once either.
#[test]
fn a_tie_of_those_who_try_first_is_waited_out() {
    paused(|| async {
        let (sim, engine) = start::<Tried>().await;
        let (runs, mut pauses) = (50, Duration::ZERO);
        for _ in 0..runs {
            sim.state().ties = 1;
            let (request, start) = (request(), Instant::now());
            granted(&engine, &request).await;
            pauses += start.elapsed() - 2 * ROUND_TRIP;
            engine.release(&request).await.expect("an answer");
        }
        // Drawn from the whole of the first window; each pause is rounded up to a millisecond.
        let mean = pauses / runs;
        let few = Duration::from_micros(1_200)..Duration::from_micros(2_800);
        assert!(few.contains(&mean), "{mean:?}");
    });
}

/// It has no place to ask for, so its first question is enough.
#[test]
fn where_there_is_no_queue_a_held_lock_costs_one_question() {
    paused(|| async {
        let (sim, engine) = start::<Number>().await;
        held_by_another(&sim);
        let left = timeout(4 * ROUND_TRIP, engine.acquire(&request())).await;
        assert!(left.is_err(), "somebody has it");
        assert_eq!(sim.sent(), ["ask"]);
    });
}

/// A renewal may change the record, and the next command needs the new one.
#[test]
fn a_renewal_keeps_its_record() {
    paused(|| async {
        let (_, engine) = start::<Number>().await;
        let request = request();
        granted(&engine, &request).await;
        let running = engine.running().expect("it runs");
        let number = || {
            running
                .table
                .record(request.owner)
                .and_then(|record| record.0)
        };
        let before = number().expect("a number");
        for renewals in 1..3 {
            engine.renew(std::slice::from_ref(&request)).await;
            assert_eq!(number(), Some(before + renewals));
        }
    });
}

/// Each key is looked at when it is due. One that is almost due goes along.
#[test]
fn a_look_takes_along_what_is_almost_due() {
    paused(|| async {
        let both = vec!["first", "second"];
        for (gap, looked) in [
            (1, [both.clone(), both]),
            (3, [vec!["first"], vec!["second"]]),
        ] {
            let (sim, engine) = start::<Number>().await;
            held_by_another(&sim);
            let [first, second] =
                ["first", "second"].map(|key| Request::new(key, Mode::Write, TTL));
            let later = async {
                sleep(Duration::from_millis(gap)).await;
                engine.acquire(&second).await
            };
            let waiting = async { tokio::join!(engine.acquire(&first), later) };
            let left = timeout(Duration::from_millis(22), waiting).await;
            assert!(left.is_err(), "somebody has it");
            let mut rechecked = sim.state().rechecked.clone();
            rechecked.iter_mut().for_each(|keys| keys.sort_unstable());
            assert_eq!(
                rechecked.get(..2),
                Some(&looked.map(strings)[..]),
                "{rechecked:?}"
            );
        }
    });
}

fn strings(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// Tests of a store's protocol rely on it.
#[test]
fn a_store_without_its_engine_is_heard() {
    paused(|| async {
        let sim = Sim::new();
        let Ok(mut bare) = bare::open(Engine::<Scripted<()>>::new(Arc::clone(&sim))).await else {
            panic!("it opens");
        };
        let (request, events) = (request(), sim.events());
        let knows = || events.knows(request.owner, "key");
        bare.knows(&request);
        assert!(knows());
        bare.forgets(request.owner);
        assert!(!knows());
        let key = || String::from("key");
        events.freed("key");
        events.granted(request.owner, "key", "place");
        events.missed();
        let place = String::from("place");
        for said in [
            Said::Freed { key: key() },
            Said::Granted { key: key(), place },
            Said::Missed,
        ] {
            assert_eq!(bare.says(Duration::ZERO).await, Some(said));
        }
        assert_eq!(bare.says(Duration::ZERO).await, None);
        assert_eq!(sim.end_the_session(), 0, "nothing is held by it");
        drop(bare);
        assert!(sim.state().closed);
    });
}

/// The number of waits in the stream below.
const STREAM: usize = 2_000;

/// While this is asked for the time, further waits begin, each for a key of its own: so many
/// callers come on other threads.
#[derive(Debug)]
struct Crowded {
    runtime: Handle,
    events: OnceLock<&'static Events>,
    waits: AtomicUsize,
}

impl Simulated for Crowded {
    fn runtime(&self) -> &Handle {
        &self.runtime
    }

    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.runtime.spawn(work);
    }

    fn draw(&self) -> f64 {
        0.5
    }

    fn now(&self) -> std::time::Instant {
        let now = Instant::now().into_std();
        if let Some(events) = self.events.get() {
            let number = self.waits.fetch_add(1, Ordering::Relaxed);
            if number < STREAM {
                let request = Request::new(format!("key:{number}"), Mode::Write, TTL);
                let waiting = Box::leak(Box::new(events.waiters().enter(&request)));
                let mut woken = Box::pin(waiting.woken(now));
                let context = &mut Context::from_waker(Waker::noop());
                assert!(woken.as_mut().poll(context).is_pending());
                // It waits for ever.
                std::mem::forget(woken);
            }
        }
        now
    }
}

/// Renewals run on the same thread. And all of those keys are looked at.
#[test]
fn who_comes_and_waits_leaves_time_for_others() {
    paused(|| async {
        let sim = Sim::new();
        let time = Arc::new(Crowded {
            runtime: Handle::current(),
            events: OnceLock::new(),
            waits: AtomicUsize::new(0),
        });
        let engine = Engine::<Scripted<()>>::new(Arc::clone(&sim));
        let opened = engine.open(Time::simulated(Arc::clone(&time) as _));
        opened.await.expect("it opens");
        held_by_another(&sim);
        yield_now().await;
        let events: &'static Events = Box::leak(Box::new(sim.events()));
        time.events.set(events).expect("not yet");
        let (mut before, mut most) = (0, 0);
        while before < STREAM {
            time.now();
            yield_now().await;
            let waits = time.waits.load(Ordering::Relaxed).min(STREAM);
            most = most.max(waits - before);
            before = waits;
        }
        assert!(
            most < STREAM / 2,
            "{most} waits while nobody else could run"
        );
        sleep(Duration::from_secs(3)).await;
        let looked = sim.state().rechecked.last().map(Vec::len);
        assert_eq!(looked, Some(STREAM));
    });
}
