//! A store made of several voters, each of which a test scripts.

mod breaks;
mod elections;
mod late_votes;
mod looks;
mod renewals;
mod voters;

use super::*;
use std::collections::HashSet;

use futures_util::future::join_all;

use crate::backend::origin::Origin;
use crate::backend::{BackendError, BackendErrorKind};
use crate::quorum::{Quorum, Voters};

type Several = Engine<Quorum<Scripted<()>>>;

const VOTERS: usize = 5;
const MAJORITY: usize = 3;

/// How late a lost command may be run, plus a pause of its cleanup.
const WINDOW: Duration = Duration::from_secs(70);

fn voters(number: usize) -> Vec<Arc<Sim>> {
    (0..number).map(|_| Sim::new()).collect()
}

async fn opened(sims: &[Arc<Sim>]) -> Result<Several, BackendError> {
    let engine = Several::new(Voters {
        voters: sims.to_vec(),
        name: "several",
        strict_with: "",
        permits_with: "",
        once_with: "",
    });
    engine.open(Time::simulated(Executor::new() as _)).await?;
    Ok(engine)
}

async fn several(sims: &[Arc<Sim>]) -> Several {
    let engine = opened(sims).await.expect("it opens");
    // Opens the connections.
    let request = request();
    let had = engine.try_acquire(&request).await.expect("an answer");
    assert!(had.is_some(), "the lock is free");
    engine.release(&request).await.expect("an answer");
    sleep(ROUND_TRIP).await;
    sims.iter().for_each(|sim| sim.forget_history());
    engine
}

/// Five voters, and a process that uses them.
async fn scene() -> (Vec<Arc<Sim>>, Several) {
    let sims = voters(VOTERS);
    let engine = several(&sims).await;
    (sims, engine)
}

/// Five voters, and a process that holds a lock at them.
async fn held() -> (Vec<Arc<Sim>>, Several, Request) {
    let ((sims, engine), request) = (scene().await, request());
    had(&engine, &request).await;
    (sims, engine, request)
}

async fn had(engine: &Several, request: &Request) -> Grant {
    let granted = timeout(Duration::from_secs(600), engine.acquire(request)).await;
    granted.expect("in time").expect("the lock")
}

async fn released(engine: &Several, request: &Request) -> Released {
    engine.release(request).await.expect("an answer")
}

async fn renewed(engine: &Several, request: &Request) -> Result<Renewed, BackendError> {
    let mut answers = engine.renew(std::slice::from_ref(request)).await;
    answers.pop().expect("one answer")
}

async fn is_renewed(engine: &Several, request: &Request, said: &str) {
    let answer = renewed(engine, request).await;
    let is_extended = matches!(answer, Ok(Renewed::Extended { .. }));
    assert!(is_extended, "{said}: {answer:?}");
}

async fn is_given_back(engine: &Several, request: &Request, said: &str) {
    let told = released(engine, request).await;
    assert_eq!(told, Released::Released, "{said}");
}

fn took_at_most(start: Instant, limit: Duration, said: &str) {
    let took = start.elapsed();
    assert!(took <= limit, "{said}: {took:?}");
}

/// How many voters this owner has.
fn votes(sims: &[Arc<Sim>], owner: Owner) -> usize {
    let has = |sim: &&Arc<Sim>| sim.holder() == Some(owner);
    sims.iter().filter(has).count()
}

fn are_free(sims: &[Arc<Sim>], said: &str) {
    let held: Vec<_> = (0..sims.len())
        .filter(|&voter| !sims[voter].is_free())
        .collect();
    assert!(held.is_empty(), "{said}: held at {held:?}");
}

fn are_gone(sims: &[Arc<Sim>], gone: bool) {
    sims.iter().for_each(|sim| sim.set_gone(gone));
}

fn count(sims: &[Arc<Sim>], what: &str) -> usize {
    sims.iter().map(|sim| sim.count(what)).sum()
}

/// The owner that a majority has as the holder.
fn holder(sims: &[Arc<Sim>]) -> Option<Owner> {
    let holders = sims.iter().filter_map(|sim| sim.holder());
    holders
        .into_iter()
        .find(|owner| 2 * votes(sims, *owner) > sims.len())
}

fn is_unavailable<T: std::fmt::Debug>(answer: Result<T, BackendError>) -> String {
    let error = answer.expect_err("no majority answers");
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    error.to_string()
}

/// How long a voter may take to count: less than a quarter of the ttl.
const SOON_ENOUGH: Duration = Duration::from_millis(700);

const FATES: [Fate; 9] = [
    Fate::Refused,
    Fate::Half,
    Fate::RequestLost,
    Fate::AnswerLost,
    Fate::Late(Duration::from_millis(300)),
    Fate::Late(Duration::from_secs(40)),
    Fate::Slow(SOON_ENOUGH),
    Fate::SlowAnswer(SOON_ENOUGH),
    Fate::SlowAnswer(Duration::from_secs(30)),
];

/// A server in the settings may know others that vote in its place.
#[test]
fn who_votes_may_have_to_be_asked_for() {
    paused(|| async {
        let (sims, known) = (voters(VOTERS), Sim::new());
        known.knows_who_votes(&sims);
        let engine = several(&[Arc::clone(&known)]).await;
        let request = request();
        had(&engine, &request).await;
        sleep(ROUND_TRIP).await;
        let owner = holder(&sims).expect("a majority has it");
        assert!(votes(&sims, owner) >= MAJORITY);
        assert!(known.is_free());
        assert_eq!(released(&engine, &request).await, Released::Released);
    });
}

#[test]
fn a_free_lock_takes_two_round_trips() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let (request, start) = (request(), Instant::now());
        let grant = had(&engine, &request).await;
        assert!(u64::from(grant.token) > 0);
        assert_eq!(votes(&sims, request.owner), VOTERS);
        assert_eq!(released(&engine, &request).await, Released::Released);
        took_at_most(start, 2 * ROUND_TRIP + MOMENT, "");
        sleep(WINDOW).await;
        for sim in &sims {
            assert_eq!(sim.sent(), ["first", "release"]);
            assert!(sim.given() >= u64::from(grant.token));
        }
    });
}

/// Whatever happens to the votes of a minority, the lock is granted at once. After its release,
/// nothing is left, now or later.
#[test]
fn a_minority_that_fails_costs_nothing() {
    paused(|| async {
        for fate in FATES {
            for (one, two) in [(0, 1), (1, 4), (3, 4)] {
                let said = format!("{fate:?} at {one} and {two}");
                let (sims, engine) = scene().await;
                sims[one].next([fate]);
                sims[two].next([fate]);
                let (request, start) = (request(), Instant::now());
                had(&engine, &request).await;
                // One more round trip if counters must be raised.
                took_at_most(start, 2 * ROUND_TRIP + MOMENT, &said);
                assert!(votes(&sims, request.owner) >= MAJORITY, "{said}");
                sleep(Duration::from_secs(1)).await;
                is_given_back(&engine, &request, &said).await;
                if fate != Fate::Late(Duration::from_secs(40)) {
                    sleep(Duration::from_secs(8)).await;
                    are_free(&sims, &said);
                }
                sleep(WINDOW).await;
                are_free(&sims, &said);
                let next = self::request();
                had(&engine, &next).await;
                assert!(votes(&sims, next.owner) >= MAJORITY, "{said}");
            }
        }
    });
}

/// If a majority fails, another election is held. What is left of the first election is given back
/// and does not touch the second.
#[test]
fn a_majority_that_fails_is_asked_again() {
    paused(|| async {
        for fate in FATES {
            let said = format!("{fate:?}");
            let (sims, engine) = scene().await;
            for sim in &sims[..MAJORITY] {
                sim.next([fate]);
            }
            let (request, start) = (request(), Instant::now());
            let grant = had(&engine, &request).await;
            let holder = holder(&sims).expect("a majority");
            let is_first = matches!(fate, Fate::Slow(_) | Fate::SlowAnswer(SOON_ENOUGH));
            // Each election has an owner and a start of its own.
            assert_eq!(holder == request.owner, is_first, "{said}");
            assert_eq!(grant.sent_at == start, is_first, "{said}");
            for _ in 0..4 {
                sleep(TTL / 3).await;
                assert!(votes(&sims, holder) >= MAJORITY, "{said}");
                is_renewed(&engine, &request, &said).await;
            }
            is_given_back(&engine, &request, &said).await;
            sleep(ROUND_TRIP + MOMENT).await;
            are_free(&sims, &said);
        }
    });
}

/// A call that does not wait may need more than one election. Its first must not block its next.
#[test]
fn who_only_tries_is_not_in_its_own_way() {
    paused(|| async {
        // This answer comes while the next election is held.
        let late = Fate::Late(Duration::from_millis(5));
        for fate in [
            Fate::AnswerLost,
            Fate::SlowAnswer(Duration::from_secs(30)),
            late,
        ] {
            let (sims, engine) = scene().await;
            sims.iter().for_each(|sim| sim.next([fate]));
            let request = request();
            let tried = engine.try_acquire(&request).await.expect("an answer");
            assert!(tried.is_some(), "{fate:?}: nobody else has it");
            assert_eq!(released(&engine, &request).await, Released::Released);
        }
    });
}

/// What earlier requests have left is known to the engines of the voters.
#[test]
fn a_try_waits_for_what_this_process_left() {
    paused(|| async {
        for silent in [false, true] {
            let (sims, engine) = scene().await;
            let left = Owner::unique();
            sims.iter().for_each(|sim| sim.take_away(left, TTL));
            let store = &engine.running().expect("it runs").store;
            let mut remains: Vec<_> = (0..VOTERS).map(|at| store.remains_at(at, "key")).collect();
            // The quorum itself has nothing to tell.
            let nothing = engine.running().expect("it runs").leave("key");
            are_gone(&sims[4..], silent);
            let cleanup = async {
                sleep(ROUND_TRIP).await;
                drop(nothing);
                sleep(10 * ROUND_TRIP).await;
                sims[..4].iter().for_each(|sim| sim.release(left));
                remains.truncate(4 + usize::from(silent));
                remains.drain(..4);
            };
            let request = request();
            let (tried, ()) = tokio::join!(engine.try_acquire(&request), cleanup);
            assert!(tried.expect("an answer").is_some(), "silent: {silent}");
        }
    });
}

/// The others are enough for a grant.
#[test]
fn a_try_does_not_wait_for_what_is_left_at_a_minority() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let holder = Owner::unique();
        sims.iter().for_each(|sim| sim.take_away(holder, TTL));
        let store = &engine.running().expect("it runs").store;
        let _remains: Vec<_> = (MAJORITY..VOTERS)
            .map(|at| store.remains_at(at, "key"))
            .collect();
        let start = Instant::now();
        let tried = engine.try_acquire(&request()).await.expect("an answer");
        assert!(tried.is_none(), "others have it");
        took_at_most(start, 10 * ROUND_TRIP, "");
    });
}

/// A silent majority is reported within the request timeout, and recovers. Votes that others gave
/// meanwhile go back.
#[test]
fn a_silent_majority_is_an_outage() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let held = Request::new("held", Mode::Write, TTL);
        let limit = sims[0].request_timeout() + Duration::from_secs(1);
        are_gone(&sims[2..], true);
        let start = Instant::now();
        let said = is_unavailable(engine.acquire(&request()).await);
        assert!(said.contains("2 of 5 nodes answered and 3 must"), "{said}");
        is_unavailable(engine.try_acquire(&held).await);
        is_unavailable(engine.inspect("key").await);
        took_at_most(start, 3 * limit, "");
        are_gone(&sims[2..], false);
        let request = request();
        had(&engine, &request).await;
        released(&engine, &request).await;
        sleep(WINDOW).await;
        are_free(&sims, "it is back");
    });
}

/// A silent voter is left out, and is asked again once it answers.
#[test]
fn a_voter_that_does_not_answer_is_not_asked() {
    paused(|| async {
        let (sims, engine) = scene().await;
        are_gone(&sims[3..], true);
        let pair = async || {
            let (request, start) = (request(), Instant::now());
            had(&engine, &request).await;
            assert_eq!(released(&engine, &request).await, Released::Released);
            start.elapsed()
        };
        pair().await;
        sleep(Duration::from_secs(1)).await;
        sims.iter().for_each(|sim| sim.forget_history());
        for _ in 0..20 {
            let took = pair().await;
            assert!(took <= 3 * ROUND_TRIP + MOMENT, "{took:?}");
        }
        assert_eq!(count(&sims[3..], "first"), 0);
        are_gone(&sims[3..], false);
        sleep(Duration::from_secs(8)).await;
        pair().await;
        assert_eq!(count(&sims[3..], "first"), 2);
        sleep(WINDOW).await;
        are_free(&sims, "all answer");
    });
}

/// A connection dies while its voter is well. The connection is given up, and the voter can vote
/// again.
#[test]
fn a_connection_that_misses_an_answer_is_given_up() {
    paused(|| async {
        let (sims, engine) = scene().await;
        sims[0].next([Fate::Slow(TTL / 2)]);
        let (this, next) = (request(), request());
        had(&engine, &this).await;
        released(&engine, &this).await;
        sleep(Duration::from_secs(4)).await;
        had(&engine, &next).await;
        assert_eq!(votes(&sims, next.owner), VOTERS);
    });
}

/// The first lock of a runtime: the winner waits for the connections that are being made, but not
/// for long.
#[test]
fn the_first_lock_has_the_votes_of_all() {
    paused(|| async {
        for (dials, voted) in [(20, VOTERS), (10_000, MAJORITY)] {
            let sims = voters(VOTERS);
            let engine = opened(&sims).await.expect("it opens");
            for sim in &sims[MAJORITY..] {
                sim.dials_for(Duration::from_millis(dials));
            }
            let (request, start) = (request(), Instant::now());
            had(&engine, &request).await;
            took_at_most(start, Duration::from_millis(60), "");
            assert_eq!(votes(&sims, request.owner), voted);
        }
    });
}

/// A caller leaves at each instant of an acquisition, of a free and of a held lock, with one slow
/// voter and with one that loses its answers. Nothing is left when the engines have settled.
#[test]
fn a_caller_that_leaves_leaves_nothing() {
    paused(|| async {
        let slow = Fate::Slow(Duration::from_millis(5));
        for fate in [Fate::Fine, slow, Fate::AnswerLost] {
            for others in [Others::Nobody, Others::Hold, Others::SplitTheVote] {
                for step in 0..40 {
                    let said = format!("{fate:?} at one, {others:?}, left at {step}");
                    let (sims, engine) = scene().await;
                    sims[1].next([fate]);
                    let before = others.vote(&sims);
                    let request = request();
                    let acquiring = engine.acquire(&request);
                    if timeout(step * ONE_WAY / 4, acquiring).await.is_ok() {
                        continue;
                    }
                    timeout(WINDOW, engine.settle()).await.expect("it is told");
                    sleep(10 * ROUND_TRIP).await;
                    let after: Vec<_> = sims.iter().map(|sim| sim.holder()).collect();
                    assert_eq!(after, before, "{said}");
                }
            }
        }
    });
}

#[derive(Clone, Copy, Debug)]
enum Others {
    Nobody,
    Hold,
    SplitTheVote,
}

impl Others {
    /// Returns the holder at each voter.
    fn vote(self, sims: &[Arc<Sim>]) -> Vec<Option<Owner>> {
        let holder = Owner::unique();
        for sim in &sims[..MAJORITY] {
            match self {
                Self::Nobody => {}
                Self::Hold => sim.take_away(holder, TTL),
                Self::SplitTheVote => sim.take_away(Owner::unique(), TTL),
            }
        }
        sims.iter().map(|sim| sim.holder()).collect()
    }
}

/// While all voters answer, a caller that leaves is cleaned up within a round trip.
#[test]
fn a_caller_that_leaves_is_given_back_at_once() {
    paused(|| async {
        for step in 0..16 {
            let (sims, engine) = scene().await;
            let left = timeout(step * ONE_WAY / 8, engine.acquire(&request())).await;
            assert!(left.is_err(), "no answer has come");
            sleep(2 * ROUND_TRIP + MOMENT).await;
            are_free(&sims, &format!("left at {step}"));
        }
    });
}

/// A late vote, run at any time, for a caller that holds the lock, has given it back, or has left.
#[test]
fn a_late_vote_is_undone() {
    paused(|| async {
        for late in [3, 20, 300, 999, 1_500, 4_000, 20_000, 59_000] {
            for held in [None, Some(0), Some(10), Some(400), Some(10_000)] {
                let said = format!("run after {late} ms, held for {held:?} ms");
                let (sims, engine) = scene().await;
                let late = Duration::from_millis(late);
                sims[0].next([Fate::Late(late)]);
                sims[4].next([Fate::Late(late)]);
                let (request, start) = (request(), Instant::now());
                if let Some(held) = held {
                    had(&engine, &request).await;
                    sleep(Duration::from_millis(held)).await;
                    released(&engine, &request).await;
                } else {
                    let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request)).await;
                    assert!(left.is_err(), "{said}");
                }
                let run = start + late + Duration::from_secs(7);
                sleep_until(run.max(Instant::now() + 2 * ROUND_TRIP)).await;
                are_free(&sims, &said);
                assert!(sims[0].ran(request.owner, "first"), "{said}");
            }
        }
    });
}

/// A voter takes so long that its connection is given up. The vote is run after the release, which
/// came over another connection.
#[test]
fn a_slow_vote_is_undone() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let slow = Duration::from_secs(9);
        sims[0].next([Fate::Slow(slow)]);
        let (request, start) = (request(), Instant::now());
        had(&engine, &request).await;
        sleep(slow / 2).await;
        released(&engine, &request).await;
        sleep_until(start + slow + Duration::from_secs(7)).await;
        assert!(sims[0].ran(request.owner, "first"));
        are_free(&sims, "it was run late");
    });
}

/// Each of two callers is first at two of four voters, again and again. In the end one wins, and
/// then the other.
#[test]
fn contenders_who_split_the_votes_end() {
    paused(|| async {
        for _ in 0..20 {
            let sims = voters(4);
            let (one, two) = (several(&sims).await, several(&sims).await);
            let slow = Fate::Slow(5 * ONE_WAY);
            for (voter, sim) in sims.iter().enumerate() {
                let first_is_late = voter >= 2;
                let fates = match first_is_late {
                    true => [slow, Fate::Fine],
                    false => [Fate::Fine, slow],
                };
                sim.next(fates);
            }
            let pair = async |engine: &Several| {
                let request = request();
                had(engine, &request).await;
                assert!(votes(&sims, holder(&sims).expect("one has it")) > 2);
                released(engine, &request).await;
            };
            let start = Instant::now();
            tokio::join!(pair(&one), pair(&two));
            took_at_most(start, Duration::from_secs(2), "");
            // Each of them lost an election at least once.
            assert!(count(&sims, "first") >= 3 * 4);
            sleep(WINDOW).await;
            are_free(&sims, "both have had it");
        }
    });
}

/// For a while nobody has a majority: that is neither an outage nor a lock.
#[test]
fn a_split_vote_is_not_a_lock() {
    paused(|| async {
        let (sims, engine) = scene().await;
        for sim in &sims[..4] {
            sim.take_away(Owner::unique(), 3 * sims[0].request_timeout());
        }
        let request = request();
        assert!(
            engine
                .try_acquire(&request)
                .await
                .expect("an answer")
                .is_none()
        );
        assert!(request.progress().heard().is_some());
        assert!(sims[4].is_free());
        let start = Instant::now();
        had(&engine, &self::request()).await;
        assert!(start.elapsed() > sims[0].request_timeout());
    });
}

/// One voter is silent, and the others say yes and no. Its vote would decide, and is waited for. A
/// caller that gives up meanwhile was not kept by an outage.
#[test]
fn a_split_vote_is_known_before_the_last_voter_answers() {
    paused(|| async {
        let sims = voters(3);
        let engine = several(&sims).await;
        sims[0].take_away(Owner::unique(), sims[0].request_timeout());
        sims[2].set_gone(true);
        let request = request();
        let left = timeout(ROUND_TRIP + MOMENT, engine.acquire(&request)).await;
        assert!(left.is_err(), "one of three is no majority");
        assert!(request.progress().heard().is_some());
        sims[2].set_gone(false);
        sleep(WINDOW).await;
        are_free(&sims, "the caller has left");
    });
}

/// No majority answers, and the one voter that answers says no: this is still an outage.
#[test]
fn a_voter_alone_says_nothing_of_the_lock() {
    paused(|| async {
        let sims = voters(3);
        let engine = several(&sims).await;
        sims[0].take_away(Owner::unique(), sims[0].request_timeout());
        are_gone(&sims[1..], true);
        let request = request();
        let left = timeout(ROUND_TRIP + MOMENT, engine.acquire(&request)).await;
        assert!(left.is_err(), "nobody answers");
        assert!(request.progress().heard().is_none());
        are_gone(&sims, false);
    });
}

/// A voter whose counter is far ahead gives a token, and is gone when the others are asked for the
/// next.
#[test]
fn a_high_token_outlives_the_voter_that_gave_it() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let ahead = 3_600_000_000;
        sims[0].counts_from(ahead);
        are_gone(&sims[3..], true);
        let first = request();
        let high = had(&engine, &first).await.token;
        assert!(u64::from(high) > ahead);
        released(&engine, &first).await;
        sims[0].set_gone(true);
        are_gone(&sims[3..], false);
        sleep(Duration::from_secs(8)).await;
        // Also for a process that has never seen the token.
        for engine in [&engine, &opened(&sims).await.expect("it opens")] {
            let next = request();
            let token = had(engine, &next).await.token;
            assert!(token > high, "{token} after {high}");
            released(engine, &next).await;
        }
    });
}

/// Each majority gives a greater token than any majority before it, whatever the counters are.
#[test]
fn tokens_rise_through_each_majority() {
    paused(|| async {
        let sims = voters(VOTERS);
        let (one, two) = (several(&sims).await, several(&sims).await);
        let mut last = crate::token::FencingToken::NONE;
        for round in 0..300 {
            let engine = if round % 2 == 0 { &one } else { &two };
            // Locks of other keys draw tokens at some voters only.
            let sim = &sims[fastrand::usize(..VOTERS)];
            sim.counts_from(sim.counter() + 64 * fastrand::u64(..100));
            for _ in 0..fastrand::usize(..3) {
                sims[fastrand::usize(..VOTERS)].next([Fate::Refused]);
            }
            let request = request();
            let token = had(engine, &request).await.token;
            assert!(token > last, "{token} after {last}, round {round}");
            last = token;
            released(engine, &request).await;
            sleep(10 * ROUND_TRIP).await;
        }
    });
}

/// A vote that is given at a renewal counts once the voter's counter was raised, and not before.
#[test]
fn a_voter_that_forgets_its_counter_does_not_count_before_it_is_raised() {
    paused(|| async {
        let sims = voters(3);
        let engine = several(&sims).await;
        let request = request();
        let token = had(&engine, &request).await.token;
        sims[2].forgets();
        // The renewal, the vote, and the command that would raise the counter.
        sims[2].next([Fate::Fine, Fate::Fine, Fate::RequestLost]);
        is_renewed(&engine, &request, "").await;
        assert_eq!(votes(&sims, request.owner), 3, "it has voted again");
        assert!(sims[2].counter() < u64::from(token));
        // Its vote is needed for the majority now.
        sims[1].set_gone(true);
        is_renewed(&engine, &request, "").await;
        assert!(
            sims[2].counter() >= u64::from(token) + 63,
            "{}",
            sims[2].counter()
        );
    });
}

/// A lease survives voters that lose their state one after the other.
#[test]
fn a_lease_outlives_voters_that_go_one_after_the_other() {
    paused(|| async {
        let (sims, engine, request) = held().await;
        for _ in 0..3 {
            for sim in &sims {
                sim.forgets();
                sleep(TTL / 6).await;
                is_renewed(&engine, &request, "").await;
                assert_eq!(votes(&sims, request.owner), VOTERS);
            }
        }
        assert_eq!(released(&engine, &request).await, Released::Released);
        sleep(ROUND_TRIP).await;
        are_free(&sims, "it was given back");
    });
}

/// Losing a minority is not a loss. Losing a majority is reported with the next renewal, and the
/// remaining voters are not asked to vote again then.
#[test]
fn a_loss_is_told_when_the_majority_is_lost() {
    paused(|| async {
        for lost in 0..=VOTERS {
            let (sims, engine, request) = held().await;
            let other = Owner::unique();
            sims[..lost]
                .iter()
                .for_each(|sim| sim.take_away(other, TTL));
            let answer = renewed(&engine, &request).await.expect("an answer");
            let is_gone = matches!(answer, Renewed::Gone);
            assert_eq!(is_gone, lost >= MAJORITY, "{lost} lost: {answer:?}");
            assert_eq!(votes(&sims, other), lost);
            let told = released(&engine, &request).await;
            assert_eq!(
                told == Released::NotHeld,
                lost >= MAJORITY,
                "{lost} lost: {told:?}"
            );
            sleep(ROUND_TRIP).await;
            assert_eq!(votes(&sims, other), lost, "it is not ours");
        }
        // Somebody else may have held the lock in between, and given it back.
        for lost in MAJORITY..=VOTERS {
            let (sims, engine, request) = held().await;
            sims[..lost].iter().for_each(|sim| sim.forgets());
            let answer = renewed(&engine, &request).await.expect("an answer");
            assert!(matches!(answer, Renewed::Gone), "{lost} lost: {answer:?}");
            assert_eq!(votes(&sims, request.owner), VOTERS - lost);
        }
    });
}

/// The body may run for a long time, and others would lack these votes.
#[test]
fn what_is_left_of_a_lost_lease_goes_back_at_once() {
    paused(|| async {
        for fate in FATES {
            for lost in MAJORITY..=VOTERS {
                let said = format!("{lost} lost, {fate:?}");
                let (sims, engine) = scene().await;
                // For one of the remaining voters, its vote is unknown, or was unknown at first.
                sims[VOTERS - 1].next([fate]);
                let request = request();
                had(&engine, &request).await;
                sims[..lost].iter().for_each(|sim| sim.forgets());
                let answer = renewed(&engine, &request).await.expect("an answer");
                assert!(matches!(answer, Renewed::Gone), "{said}: {answer:?}");
                if fate != Fate::Late(Duration::from_secs(40)) {
                    sleep(Duration::from_secs(8)).await;
                    are_free(&sims, &said);
                }
                sleep(WINDOW).await;
                are_free(&sims, &said);
                assert_eq!(released(&engine, &request).await, Released::NotHeld);
            }
        }
    });
}

/// Renewals that reach only a minority extend its votes. Nobody can use them, so they go back when
/// the lease is over, whether its body has ended or not.
#[test]
fn what_is_left_of_a_lease_that_is_over_goes_back() {
    paused(|| async {
        let (sims, engine, request) = held().await;
        let start = Instant::now();
        let (silent, others) = sims.split_at(MAJORITY);
        are_gone(silent, true);
        for _ in 0..5 {
            sleep(TTL / 8).await;
            is_unavailable(renewed(&engine, &request).await);
        }
        assert_eq!(votes(others, request.owner), others.len());
        sleep_until(start + TTL + ROUND_TRIP).await;
        are_free(others, "it is over");
        are_gone(silent, false);
        sleep(WINDOW).await;
        are_free(&sims, "all answer");
    });
}

/// An election whose answers lie there unread says nothing to a caller that comes later.
#[test]
fn an_election_says_how_it_was_when_it_was_held() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let other = Owner::unique();
        sims.iter().for_each(|sim| sim.take_away(other, TTL));
        let (caller, this) = (Executor::new(), request());
        let later = async {
            sleep(MOMENT).await;
            caller.stall();
            sleep(Duration::from_secs(1)).await;
            let came = Instant::now();
            caller.go_on();
            sleep(MOMENT).await;
            assert!(this.progress().heard().is_some(), "it is read now");
            assert!(
                !this.progress().heard_since(came),
                "it was asked for before"
            );
            sleep(4 * ROUND_TRIP).await;
            assert!(this.progress().heard_since(came), "it has asked again");
        };
        let acquiring = caller.run(engine.acquire(&this));
        tokio::select! {
            answer = acquiring => panic!("somebody has it: {answer:?}"),
            () = later => {}
        }
    });
}

/// The renewal is tried again, and takes nothing away.
#[test]
fn a_renewal_that_reaches_a_minority_does_not_unlock() {
    paused(|| async {
        let (sims, engine, request) = held().await;
        are_gone(&sims[2..], true);
        let start = Instant::now();
        is_unavailable(renewed(&engine, &request).await);
        took_at_most(start, TTL / 4, "");
        assert_eq!(votes(&sims, request.owner), VOTERS);
        are_gone(&sims[2..], false);
        sleep(Duration::from_secs(8)).await;
        let start = Instant::now();
        let answer = renewed(&engine, &request).await;
        let Ok(Renewed::Extended { sent_at }) = answer else {
            panic!("{answer:?}");
        };
        assert!(sent_at >= start);
        for sim in &sims {
            assert!(sim.ends().expect("it is held") >= sent_at + TTL);
        }
    });
}

/// A renewal succeeds even if one voter loses its answers, is late or returns errors. Nothing of it
/// is left after the release.
#[test]
fn a_renewal_bears_what_becomes_of_its_commands() {
    paused(|| async {
        for fate in FATES {
            for voter in 0..VOTERS {
                let said = format!("{fate:?} at {voter}");
                let (sims, engine, request) = held().await;
                // It is asked to vote again, and that command has this fate too.
                sims[voter].forgets();
                sims[voter].next([Fate::Fine, fate, fate]);
                is_renewed(&engine, &request, &said).await;
                sims[voter].next([fate]);
                is_renewed(&engine, &request, &said).await;
                is_given_back(&engine, &request, &said).await;
                sleep(WINDOW).await;
                are_free(&sims, &said);
            }
        }
    });
}

/// The caller of a renewal leaves, at each instant. The votes that it had asked for are given back
/// with the lease.
#[test]
fn a_renewal_that_is_dropped_leaves_nothing() {
    paused(|| async {
        for fate in [
            Fate::Fine,
            Fate::Slow(Duration::from_secs(3)),
            Fate::AnswerLost,
        ] {
            for step in 0..40 {
                let (sims, engine, request) = held().await;
                sims[0].forgets();
                sims[0].next([Fate::Fine, fate]);
                let _ = timeout(step * ONE_WAY / 4, renewed(&engine, &request)).await;
                assert_eq!(released(&engine, &request).await, Released::Released);
                sleep(WINDOW).await;
                are_free(&sims, &format!("{fate:?}, dropped at {step}"));
            }
        }
    });
}

/// The connection over which the renewal asked for a vote is given up.
#[test]
fn a_slow_vote_of_a_renewal_is_undone() {
    paused(|| async {
        for dropped in [true, false] {
            let (sims, engine, request) = held().await;
            sims[0].forgets();
            let slow = Duration::from_secs(9);
            sims[0].next([Fate::Fine, Fate::Slow(slow)]);
            let (limit, start) = (if dropped { 3 * ONE_WAY } else { TTL }, Instant::now());
            let _ = timeout(limit, renewed(&engine, &request)).await;
            // This voter is also asked for another lock, and found silent.
            let other = Request::new("other", Mode::Write, TTL);
            let tried = engine.try_acquire(&other).await.expect("an answer");
            assert!(tried.is_none());
            sleep(slow / 2).await;
            released(&engine, &request).await;
            sleep_until(start + slow + Duration::from_secs(7)).await;
            assert_eq!(sims[0].count("first"), 3);
            are_free(&sims, &format!("dropped: {dropped}"));
        }
    });
}

/// The other voters are freed by their own engines once they answer.
#[test]
fn a_release_that_reaches_a_majority_is_one() {
    paused(|| async {
        for fate in FATES {
            let said = format!("{fate:?}");
            let (sims, engine) = scene().await;
            let (request, next) = (request(), request());
            had(&engine, &request).await;
            sims[0].next([fate]);
            sims[3].next([fate]);
            let start = Instant::now();
            is_given_back(&engine, &request, &said).await;
            took_at_most(start, ROUND_TRIP + MOMENT, &said);
            had(&engine, &next).await;
            assert!(votes(&sims, next.owner) >= MAJORITY, "{said}");
            released(&engine, &next).await;
            sleep(WINDOW).await;
            are_free(&sims, &said);
        }
        let (sims, engine, request) = held().await;
        are_gone(&sims[3..], true);
        assert_eq!(released(&engine, &request).await, Released::Released);
        assert_eq!(votes(&sims, request.owner), 2, "they do not know");
        // An engine does not wait for voters that do not answer.
        timeout(Duration::from_secs(3), engine.settle())
            .await
            .expect("the others are told");
        are_gone(&sims[3..], false);
        sleep(Duration::from_secs(8)).await;
        are_free(&sims, "they answer again");
    });
}

/// Such a release fails as an outage, and the lock is still held. A second release gives it back.
#[test]
fn a_release_that_reaches_a_minority_is_asked_again() {
    paused(|| async {
        let (sims, engine, request) = held().await;
        are_gone(&sims[2..], true);
        is_unavailable(engine.release(&request).await);
        are_gone(&sims[2..], false);
        assert_eq!(released(&engine, &request).await, Released::Released);
        assert_eq!(released(&engine, &request).await, Released::NotHeld);
        sleep(Duration::from_secs(8)).await;
        are_free(&sims, "they answer again");
    });
}

/// How long it takes from a release until a waiter has the lock. The release comes `after` the
/// waiter has begun to ask. `prepare` is called once the lock is held, and with `true` at the
/// release.
async fn handed_on(sims: &[Arc<Sim>], after: Duration, prepare: impl Fn(bool)) -> Duration {
    let (one, two) = (several(sims).await, several(sims).await);
    let (held, waits) = (request(), request());
    had(&one, &held).await;
    prepare(false);
    let release = async {
        sleep(after).await;
        sims.iter().for_each(|sim| sim.forget_history());
        prepare(true);
        released(&one, &held).await;
        Instant::now()
    };
    let (_, at) = tokio::join!(had(&two, &waits), release);
    at.elapsed()
}

/// Each process wants the lock again as soon as it has released it, and would be the first to ask.
#[test]
fn processes_take_turns() {
    paused(|| async {
        const PROCESSES: usize = 4;
        const SECTIONS: usize = 10;
        let (sims, turns) = (voters(VOTERS), std::sync::Mutex::new(Vec::new()));
        let mut engines = Vec::new();
        for _ in 0..PROCESSES {
            engines.push(several(&sims).await);
        }
        let wants = async |process: usize| {
            let engine = &engines[process];
            for _ in 0..SECTIONS {
                let origin = Origin::here(&format!("process-{process}"));
                let owner = Owner::draw(origin).expect("a random number");
                let wanted = request().granted_to(owner);
                had(engine, &wanted).await;
                turns.lock().expect("no panic").push(process);
                sleep(BETWEEN_LOOKS / 8).await;
                released(engine, &wanted).await;
            }
        };
        join_all((0..PROCESSES).map(wants)).await;
        let turns = turns.into_inner().expect("no panic");
        // Each has to be heard of once. At the end, not all of them want the lock any more.
        let counts = PROCESSES * 2..PROCESSES * (SECTIONS - 2);
        for round in turns[counts].chunks(PROCESSES) {
            let of_round: HashSet<_> = round.iter().collect();
            assert_eq!(of_round.len(), PROCESSES, "{turns:?}");
        }
    });
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// The first voter that is freed notifies the waiter, which then waits for the time that a release
/// takes to reach the others. One election is enough.
#[test]
fn who_waits_is_told_by_the_first_that_is_freed() {
    paused(|| async {
        for silent in 0..VOTERS {
            let sims = voters(VOTERS);
            let lose = |_| {
                sims[..silent]
                    .iter()
                    .for_each(|sim| sim.loses_messages(true))
            };
            let took = handed_on(&sims, BETWEEN_LOOKS, lose).await;
            let spread = if VOTERS - silent >= MAJORITY { 0 } else { 20 };
            let limit = Duration::from_millis(spread) + 3 * ROUND_TRIP;
            assert!(took <= limit, "{silent} are silent: {took:?}");
            assert_eq!(count(&sims, "first"), VOTERS, "{silent} are silent");
        }
    });
}

/// A waiter waits while the release reaches all voters, and no vote is split.
#[test]
fn who_waits_asks_when_a_majority_is_freed() {
    paused(|| async {
        let sims = voters(VOTERS);
        let slow_down = |at_release| {
            for (number, sim) in (0..).zip(&sims).filter(|_| at_release) {
                sim.next([Fate::Slow(ONE_WAY + number * 3 * ONE_WAY)]);
            }
        };
        let took = handed_on(&sims, BETWEEN_LOOKS, slow_down).await;
        assert!(took <= 3 * ROUND_TRIP, "{took:?}");
        assert_eq!(count(&sims, "first"), VOTERS, "one election");
    });
}

/// The recheck finds the free lock a second later.
#[test]
fn a_release_that_nobody_hears_costs_a_second() {
    paused(|| async {
        let sims = voters(VOTERS);
        let lose = |_| sims.iter().for_each(|sim| sim.loses_messages(true));
        let took = handed_on(&sims, BETWEEN_LOOKS, lose).await;
        assert!(took <= Duration::from_millis(1_200), "{took:?}");
    });
}

/// A release between the first answer and the time when the subscription is ready is found by
/// asking once more.
#[test]
fn what_was_released_before_anybody_listened_is_found() {
    paused(|| async {
        for step in 0..60 {
            let sims = voters(VOTERS);
            sims.iter().for_each(|sim| sim.listens_for(5 * ONE_WAY));
            let took = handed_on(&sims, step * ONE_WAY / 4, |_| {}).await;
            let limit = Duration::from_millis(30);
            assert!(took <= limit, "released at {step}: {took:?}");
        }
    });
}

/// If a majority is held and a minority free, a waiter has no cause to ask. Nor has it after
/// another caller's lost election, whose votes go back silently.
#[test]
fn who_waits_asks_only_when_a_majority_may_be_free() {
    paused(|| async {
        // The free voters answer first, or last.
        for held in [0..MAJORITY, VOTERS - MAJORITY..VOTERS] {
            let sims = voters(VOTERS);
            let free = |voter: &usize| !held.contains(voter);
            let free: Vec<_> = (0..VOTERS)
                .filter(free)
                .map(|voter| Arc::clone(&sims[voter]))
                .collect();
            let (one, two) = (several(&sims).await, several(&sims).await);
            let holder = Owner::unique();
            sims[held]
                .iter()
                .for_each(|sim| sim.take_away(holder, 10 * TTL));
            let waits = request();
            let watch = async {
                sleep(Duration::from_millis(100)).await;
                sims.iter().for_each(|sim| sim.forget_history());
                sleep(Duration::from_secs(10)).await;
                assert_eq!(count(&sims, "first"), 0);
                let looks = count(&sims, "look");
                assert!(looks <= 11 * VOTERS, "{looks} looks in ten seconds");
                for _ in 0..10 {
                    let tried = two.try_acquire(&request()).await.expect("an answer");
                    assert!(tried.is_none(), "it is held");
                    sleep(Duration::from_millis(50)).await;
                }
                assert_eq!(
                    count(&sims, "first"),
                    10 * VOTERS,
                    "who waits has not asked"
                );
                assert_eq!(count(&free, "outvoted"), 10 * free.len());
            };
            let waiting = timeout(Duration::from_secs(30), one.acquire(&waits));
            let (answer, ()) = tokio::join!(waiting, watch);
            assert!(answer.is_err(), "it is held");
            sleep(10 * ROUND_TRIP).await;
            are_free(&free, "it has left");
        }
    });
}

/// When a caller that others saw with a majority leaves, they are notified.
#[test]
fn who_leaves_with_a_majority_is_heard() {
    paused(|| async {
        let sims = voters(VOTERS);
        let (one, two) = (several(&sims).await, several(&sims).await);
        let (leaves, waits) = (request(), request());
        // The caller has the votes, and does not know it yet.
        let slow = Duration::from_millis(300);
        sims.iter()
            .for_each(|sim| sim.next([Fate::SlowAnswer(slow)]));
        let leaving = async {
            let left = timeout(Duration::from_millis(100), one.acquire(&leaves)).await;
            assert!(left.is_err(), "no answer has come");
            Instant::now()
        };
        let waiting = async {
            sleep(ROUND_TRIP).await;
            had(&two, &waits).await;
        };
        let ((), at) = tokio::join!(waiting, leaving);
        took_at_most(at, Duration::from_millis(40), "");
    });
}

/// A voter's engine has stopped, and nobody gives its votes back. The lock works with the other
/// voters, and so does the stop.
#[test]
fn a_voter_whose_engine_has_stopped_holds_up_nobody() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let running = engine.running().expect("it runs");
        running.store.stop_voter(1).await;
        for fate in [
            Fate::Fine,
            Fate::SlowAnswer(Duration::from_secs(9)),
            Fate::AnswerLost,
        ] {
            sims[1].next([fate]);
            let (request, start) = (request(), Instant::now());
            had(&engine, &request).await;
            assert_eq!(released(&engine, &request).await, Released::Released);
            took_at_most(start, 4 * ROUND_TRIP, &format!("{fate:?}"));
            timeout(WINDOW, engine.settle())
                .await
                .expect("the others settle");
            sleep(WINDOW).await;
            are_free(&sims, "by a release, or by its ttl");
        }
        timeout(Duration::from_secs(1), engine.stop())
            .await
            .expect("it stops");
    });
}

/// Waiters are told, and what they leave is given back before the engine has stopped.
#[test]
fn a_stop_ends_all_waiting() {
    paused(|| async {
        for others in [Others::Hold, Others::SplitTheVote] {
            let (sims, engine) = scene().await;
            let before = others.vote(&sims);
            let request = request();
            let stop = async {
                sleep(Duration::from_secs(3)).await;
                engine.stop().await;
            };
            let acquiring = timeout(Duration::from_secs(4), engine.acquire(&request));
            let (answer, ()) = tokio::join!(acquiring, stop);
            let error = answer.expect("it is told").expect_err("it has stopped");
            assert!(error.to_string().contains("has stopped"), "{error}");
            let after: Vec<_> = sims.iter().map(|sim| sim.holder()).collect();
            assert_eq!(after, before, "{others:?}");
            sims.iter().for_each(|sim| sim.forget_history());
            sleep(Duration::from_secs(20)).await;
            let idle = |sim: &Arc<Sim>| sim.looks() == 0 && sim.sent().is_empty();
            assert!(sims.iter().all(idle), "{others:?}");
        }
    });
}

/// A majority must be there, all must be willing, and all must differ.
#[test]
fn voters_are_seen_to_at_the_start() {
    paused(|| async {
        let sims = voters(VOTERS);
        are_gone(&sims[..2], true);
        let engine = opened(&sims).await.expect("a majority answers");
        let request = request();
        had(&engine, &request).await;
        assert_eq!(votes(&sims, request.owner), MAJORITY);
        released(&engine, &request).await;
        sims[2].set_gone(true);
        let limit = sims[0].request_timeout() + Duration::from_secs(1);
        let start = Instant::now();
        let said = is_unavailable(opened(&sims).await.map(drop));
        assert!(said.contains("2 of 5 nodes answered and 3 must"), "{said}");
        took_at_most(start, limit, "");
        are_gone(&sims[..3], false);
        sims[1].is_identified("a server");
        sims[4].is_identified("a server");
        let error = opened(&sims).await.expect_err("two names for one server");
        assert_eq!(error.kind(), BackendErrorKind::Config);
        assert!(error.to_string().contains("one server"), "{error}");
    });
}

/// The guarantee for tokens is that of the weakest voter.
#[test]
fn tokens_are_worth_what_the_worst_are() {
    paused(|| async {
        let sims = voters(3);
        let engine = several(&sims).await;
        sims.iter()
            .for_each(|sim| sim.gives_tokens(TokenTier::Strict));
        assert_eq!(engine.capabilities().tokens, TokenTier::Strict);
        sims[1].gives_tokens(TokenTier::BestEffort);
        assert_eq!(engine.capabilities().tokens, TokenTier::BestEffort);
    });
}
