//! Breaking a lock at several voters.

use super::*;

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

async fn broken(engine: &Several, owner: Owner) -> Result<Released, BackendError> {
    let shown = HolderInfo::new(owner.to_string(), None);
    engine.break_lock("key", &shown).await
}

/// Gives these voters to a holder of another process.
fn held_at(sims: &[Arc<Sim>]) -> Owner {
    let holder = Owner::unique();
    sims.iter().for_each(|sim| sim.take_away(holder, TTL));
    holder
}

/// When all answer, they are asked once. A majority that is lost is a lock that is broken.
#[test]
fn a_break_takes_the_votes_of_all() {
    paused(|| async {
        for number in 0..=VOTERS {
            let said = format!("held at {number}");
            let (sims, engine) = scene().await;
            let holder = held_at(&sims[..number]);
            let start = Instant::now();
            let told = broken(&engine, holder).await.expect("an answer");
            took_at_most(start, ROUND_TRIP + MOMENT, &said);
            assert_eq!(told == Released::Released, number >= MAJORITY, "{said}");
            assert_eq!(count(&sims, "release"), VOTERS, "{said}");
            are_free(&sims, &said);
        }
    });
}

/// The holder learns of it at its next renewal, and does not vote again.
#[test]
fn who_is_broken_has_lost_the_lock() {
    paused(|| async {
        let (sims, engine, request) = held().await;
        let told = broken(&engine, request.owner).await.expect("an answer");
        assert_eq!(told, Released::Released);
        let answer = renewed(&engine, &request).await.expect("an answer");
        assert!(matches!(answer, Renewed::Gone), "{answer:?}");
        are_free(&sims, "it is not asked for again");
        let told = broken(&engine, request.owner).await.expect("an answer");
        assert_eq!(told, Released::NotHeld);
    });
}

/// A renewal that has seen a majority may give votes again that are broken already. While a voter
/// is silent these could be a majority, so the others are asked until none of them had one.
#[test]
fn what_is_voted_again_during_a_break_is_taken_too() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let holder = held_at(&sims);
        sims[4].set_gone(true);
        let start = Instant::now();
        let voting = async {
            sleep(PATIENCE / 2).await;
            assert_eq!(votes(&sims[..4], holder), 0);
            sims[..2].iter().for_each(|sim| sim.take_away(holder, TTL));
        };
        let (told, ()) = tokio::join!(broken(&engine, holder), voting);
        assert_eq!(told.expect("an answer"), Released::Released);
        assert_eq!(votes(&sims[..4], holder), 0);
        assert!(start.elapsed() >= 2 * PATIENCE, "none had one at the last");
        took_at_most(start, sims[0].request_timeout(), "");
    });
}

/// Nobody can have a majority any more, though there is nobody left to make sure.
#[test]
fn a_break_that_has_seen_a_majority_has_succeeded() {
    paused(|| async {
        for number in [2, 3, 4] {
            let (sims, engine) = scene().await;
            let holder = held_at(&sims[..number]);
            sims[4].set_gone(true);
            let going = async {
                sleep(PATIENCE / 2).await;
                are_gone(&sims, true);
            };
            let (told, ()) = tokio::join!(broken(&engine, holder), going);
            if number >= MAJORITY {
                assert_eq!(told.expect("an answer"), Released::Released);
            } else {
                is_unavailable(told);
            }
        }
    });
}

#[test]
fn a_break_that_reaches_a_minority_has_failed() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let holder = held_at(&sims);
        are_gone(&sims[2..], true);
        let said = is_unavailable(broken(&engine, holder).await);
        assert!(said.contains("2 of 5 nodes answered"), "{said}");
        assert_eq!(votes(&sims, holder), MAJORITY);
    });
}

/// The first that answers does not hurry the others before a majority has answered.
#[test]
fn a_break_waits_for_a_slow_majority() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let holder = held_at(&sims);
        let slow = Fate::Slow(Duration::from_millis(300));
        sims[1..].iter().for_each(|sim| sim.next([slow]));
        let told = broken(&engine, holder).await.expect("an answer");
        assert_eq!(told, Released::Released);
        assert_eq!(count(&sims, "release"), VOTERS, "each is asked once");
    });
}
