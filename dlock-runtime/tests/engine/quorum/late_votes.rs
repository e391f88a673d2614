//! Votes that come when the election is decided already, and a voter was lost since.

use super::*;
use crate::token::TOKENS_PER_GRANT;

/// When a late vote is run: after the election is decided, and before a raise is answered or later.
const LATE: Duration = Duration::from_millis(5);
/// When a late vote is answered.
const ANSWERED: Duration = LATE.saturating_add(ONE_WAY);
/// How long only those that decided the election are raised, and a moment.
const FOR_THE_FIRST: Duration = Duration::from_millis(21);

/// No answer comes in time, or the connection is known to be broken.
const LOST: [Fate; 2] = [Fate::Slow(TTL), Fate::RequestLost];

const HIGH: u64 = 1_000_000;

/// The first three of five voters decide. The counters of two of them are behind, and one of these
/// is lost before it is raised. With `late`, the others vote after that; the rest is silent.
async fn one_is_lost(lost: Fate, late: usize) -> (Vec<Arc<Sim>>, Several) {
    let (sims, engine) = scene().await;
    sims[0].next([Fate::Fine, lost]);
    sims[1].counts_from(HIGH);
    sims[2].counts_from(2 * HIGH);
    for (number, sim) in sims[MAJORITY..].iter().enumerate() {
        let votes = number < late;
        sim.next([Fate::Slow(if votes { LATE } else { TTL })]);
    }
    (sims, engine)
}

/// The voters that have the vote and a counter that has reached the token.
fn sure(sims: &[Arc<Sim>], request: &Request, grant: &Grant) -> usize {
    let last = u64::from(grant.token) + TOKENS_PER_GRANT - 1;
    let is_sure = |sim: &&Arc<Sim>| sim.holder() == Some(request.owner) && sim.counter() >= last;
    sims.iter().filter(is_sure).count()
}

/// With the votes of all, a majority has reached the token already.
#[test]
fn late_votes_stand_in_for_a_voter_that_is_lost() {
    paused(|| async {
        for lost in LOST {
            let (sims, engine) = one_is_lost(lost, 2).await;
            let (request, start) = (request(), Instant::now());
            let grant = had(&engine, &request).await;
            took_at_most(start, ANSWERED + MOMENT, &format!("{lost:?}"));
            assert_eq!(count(&sims[MAJORITY..], "raise"), 0, "{lost:?}");
            assert!(sure(&sims, &request, &grant) >= MAJORITY, "{lost:?}");
            is_given_back(&engine, &request, &format!("{lost:?}")).await;
            sleep(WINDOW).await;
            are_free(&sims, &format!("{lost:?}"));
        }
    });
}

/// It is raised at once if the connection of the lost voter is known to be broken. Otherwise, that
/// voter may take a while first.
#[test]
fn one_late_vote_is_raised_in_place_of_a_lost_voter() {
    paused(|| async {
        for (lost, wait) in LOST.into_iter().zip([FOR_THE_FIRST, LATE]) {
            // With four votes, this one has reached the token, and nobody waits for its answer.
            for other in [Fate::Fine, Fate::Slow(TTL)] {
                let said = format!("{lost:?}, {other:?}");
                let (sims, engine) = one_is_lost(lost, 1).await;
                sims[1].next([Fate::Fine, other]);
                let (request, start) = (request(), Instant::now());
                let grant = had(&engine, &request).await;
                took_at_most(start, wait + 2 * ROUND_TRIP + MOMENT, &said);
                assert_eq!(sims[3].count("raise"), 1, "{said}");
                assert!(sure(&sims, &request, &grant) >= MAJORITY, "{said}");
            }
        }
    });
}

/// It counts as it is. And the token is not below that of any grant before it.
#[test]
fn a_late_voter_with_a_higher_counter_need_not_be_raised() {
    paused(|| async {
        for lost in LOST {
            let said = format!("{lost:?}");
            let (sims, engine) = one_is_lost(lost, 1).await;
            sims[3].counts_from(9 * HIGH);
            let (request, start) = (request(), Instant::now());
            let grant = had(&engine, &request).await;
            took_at_most(start, ANSWERED + MOMENT, &said);
            assert_eq!(sims[3].count("raise"), 0, "{said}");
            assert!(sure(&sims, &request, &grant) >= MAJORITY, "{said}");
            assert!(u64::from(grant.token) > 2 * HIGH, "{said}");
        }
    });
}

/// While all answer in their time, late votes cost nothing, and the token is there as soon as it
/// would be without them.
#[test]
fn late_votes_cost_no_command() {
    paused(|| async {
        // This one is slow, and the late vote is there before its answer. With it, another that is
        // being raised need not be.
        for other in [Fate::Fine, Fate::Slow(2 * LATE)] {
            let (sims, engine) = one_is_lost(Fate::Slow(2 * LATE), 1).await;
            sims[1].next([Fate::Fine, other]);
            let start = Instant::now();
            had(&engine, &request()).await;
            took_at_most(start, 2 * LATE + 2 * ROUND_TRIP + MOMENT, "");
            sleep(Duration::from_secs(1)).await;
            assert_eq!(count(&sims[..MAJORITY], "raise"), 2, "{other:?}");
            assert_eq!(count(&sims[MAJORITY..], "raise"), 0, "{other:?}");
        }
    });
}

/// If those that decided the election are lost and the others are silent, another election is held
/// before long.
#[test]
fn late_votes_are_not_awaited_for_long() {
    paused(|| async {
        let (sims, engine) = one_is_lost(Fate::RequestLost, 0).await;
        sims[1].next([Fate::Fine, Fate::RequestLost]);
        let (request, start) = (request(), Instant::now());
        had(&engine, &request).await;
        took_at_most(start, Duration::from_millis(200), "");
        let holder = holder(&sims).expect("a majority has it");
        assert_ne!(holder, request.owner, "another election");
        is_given_back(&engine, &request, "").await;
        sleep(WINDOW).await;
        are_free(&sims, "all have answered");
    });
}

/// A vote that is run after its election was given up goes back, whatever the next one does.
#[test]
fn a_vote_that_is_too_late_is_undone() {
    paused(|| async {
        for late in [60, 100, 300, 1_500, 9_000] {
            for lost in LOST {
                for fate in [Fate::Slow, Fate::Late, Fate::SlowAnswer] {
                    let late = Duration::from_millis(late);
                    let said = format!("{:?}, {lost:?}", fate(late));
                    let (sims, engine) = one_is_lost(lost, 0).await;
                    sims[1].next([Fate::Fine, lost]);
                    for sim in &sims[MAJORITY..] {
                        sim.forget_fates();
                        sim.next([fate(late)]);
                    }
                    let (request, start) = (request(), Instant::now());
                    had(&engine, &request).await;
                    sleep_until(start + late + Duration::from_secs(8)).await;
                    let holder = holder(&sims).expect("a majority has it");
                    assert!(sims[3].ran(request.owner, "first"), "{said}");
                    let voters = votes(&sims, holder);
                    let free = sims.iter().filter(|sim| sim.is_free()).count();
                    assert_eq!(voters + free, VOTERS, "{said}: nobody else has one");
                    is_given_back(&engine, &request, &said).await;
                    sleep(WINDOW).await;
                    are_free(&sims, &said);
                }
            }
        }
    });
}

/// A caller leaves at each instant, while its votes are in and a raise or a vote is awaited.
#[test]
fn a_caller_that_leaves_before_the_late_votes_leaves_nothing() {
    paused(|| async {
        for lost in LOST {
            for late in 0..=2 {
                for step in 0..=100 {
                    let said = format!("{lost:?}, {late} late, left at {step}");
                    let (sims, engine) = one_is_lost(lost, late).await;
                    let request = request();
                    let acquiring = engine.acquire(&request);
                    if timeout(step * ONE_WAY / 4, acquiring).await.is_ok() {
                        continue;
                    }
                    timeout(WINDOW, engine.settle()).await.expect("it is told");
                    sleep(WINDOW).await;
                    are_free(&sims, &said);
                }
            }
        }
    });
}

/// Whoever votes late, and whoever is lost before it is raised.
#[test]
fn tokens_rise_with_late_votes() {
    paused(|| async {
        let sims = voters(VOTERS);
        let (one, two) = (several(&sims).await, several(&sims).await);
        let mut last = crate::token::FencingToken::NONE;
        for round in 0..1_000 {
            let engine = if round % 2 == 0 { &one } else { &two };
            for sim in &sims {
                // Locks of other keys draw tokens at some voters only.
                sim.counts_from(sim.counter() + 64 * fastrand::u64(..3));
                let late = Fate::Slow(fastrand::u32(..9) * ONE_WAY);
                sim.next(match fastrand::u32(..6) {
                    0 => vec![Fate::Refused],
                    1 => vec![Fate::Fine, Fate::RequestLost],
                    2 => vec![Fate::Fine, Fate::Refused],
                    3 => vec![late, Fate::Refused],
                    4 => vec![late],
                    _ => vec![],
                });
            }
            let request = request();
            let token = had(engine, &request).await.token;
            assert!(token > last, "{token} after {last}, round {round}");
            last = token;
            released(engine, &request).await;
            sims.iter().for_each(|sim| sim.forget_fates());
            sleep(20 * ROUND_TRIP).await;
        }
    });
}
