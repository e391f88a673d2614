//! When a renewal is decided, and what it says.

use super::*;

/// How long a renewal waits for the others once it is decided.
const FOR_THE_OTHERS: Duration = Duration::from_millis(20);

/// The first that answers does not hurry the others before the renewal is decided.
#[test]
fn a_renewal_waits_for_a_slow_majority() {
    paused(|| async {
        let (sims, engine, request) = held().await;
        let slow = Fate::Slow(Duration::from_millis(300));
        sims[1..].iter().for_each(|sim| sim.next([slow]));
        is_renewed(&engine, &request, "").await;
        assert_eq!(count(&sims, "renew"), VOTERS, "each is asked once");
    });
}

/// A loss is told as soon as an extension.
#[test]
fn a_renewal_does_not_wait_for_the_last_voter() {
    paused(|| async {
        for lost in [0, 1, MAJORITY, MAJORITY + 1] {
            let said = format!("{lost} lost");
            let (sims, engine, request) = held().await;
            sims[..lost].iter().for_each(|sim| sim.forgets());
            sims[4].next([Fate::SlowAnswer(Duration::from_secs(1))]);
            let start = Instant::now();
            let answer = renewed(&engine, &request).await.expect("an answer");
            let is_gone = matches!(answer, Renewed::Gone);
            assert_eq!(is_gone, lost >= MAJORITY, "{said}: {answer:?}");
            // Those without the vote are asked for it again, and then raised.
            let limit = FOR_THE_OTHERS + 3 * ROUND_TRIP + MOMENT;
            took_at_most(start, limit, &said);
        }
    });
}

/// Two of five have lost the vote and one is silent, which may still have it: the renewal is asked
/// again, and nothing is given back.
#[test]
fn what_may_be_held_is_not_lost() {
    paused(|| async {
        for silent in [2, 4] {
            let (sims, engine, request) = held().await;
            let lost: Vec<_> = (0..VOTERS).filter(|&voter| voter != silent).collect();
            lost[..2].iter().for_each(|&voter| sims[voter].forgets());
            sims[silent].set_gone(true);
            is_unavailable(renewed(&engine, &request).await);
            assert_eq!(votes(&sims, request.owner), MAJORITY, "{silent} is silent");
            sims[silent].set_gone(false);
            sleep(Duration::from_secs(8)).await;
            is_renewed(&engine, &request, "it answers again").await;
            assert_eq!(votes(&sims, request.owner), VOTERS);
            is_given_back(&engine, &request, "").await;
        }
    });
}

/// Not that enough have answered: those that have lost the vote do not count.
#[test]
fn an_outage_says_how_many_have_renewed_it() {
    paused(|| async {
        for lost in [0, 1, 2] {
            let (sims, engine, request) = held().await;
            sims[..lost].iter().for_each(|sim| sim.forgets());
            are_gone(&sims[lost + 1..], true);
            let said = is_unavailable(renewed(&engine, &request).await);
            let must = format!("renewed at 1 of 5 nodes, lost at {lost}, and 3 must renew it");
            assert!(said.contains(&must), "{said}");
        }
    });
}
