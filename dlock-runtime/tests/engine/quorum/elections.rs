//! How long elections take, whom they concern, and who asks when.

use super::*;

/// Most of the ttl must be left when the lock is granted.
#[test]
fn a_short_lease_is_not_waited_for_long() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let ttl = Duration::from_secs(1);
        let late = Fate::SlowAnswer(2 * ttl / 5);
        sims[..MAJORITY].iter().for_each(|sim| sim.next([late]));
        let request = Request::new("key", Mode::Write, ttl);
        let grant = had(&engine, &request).await;
        let took = grant.sent_at.elapsed();
        assert!(took <= ttl / 4, "{took:?}");
        is_given_back(&engine, &request, "").await;
        sleep(WINDOW).await;
        are_free(&sims, "both elections");
    });
}

/// An election that begins near the end of a call ends with it, or soon after.
#[test]
fn a_call_ends_with_its_last_election() {
    paused(|| async {
        let (sims, engine) = scene().await;
        are_gone(&sims[2..], true);
        let least = sims[0].request_timeout() / 10;
        let start = Instant::now();
        is_unavailable(engine.try_acquire(&request()).await);
        let limit = sims[0].request_timeout() + least;
        took_at_most(start, limit, "");
    });
}

/// A release is sent only to voters that may have the vote.
#[test]
fn who_has_refused_its_vote_is_not_asked_to_release_it() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let other = Owner::unique();
        for sim in &sims[MAJORITY..] {
            sim.take_away(other, 2 * WINDOW);
        }
        let request = request();
        had(&engine, &request).await;
        is_given_back(&engine, &request, "").await;
        sleep(WINDOW).await;
        assert_eq!(count(&sims[MAJORITY..], "release"), 0);
        assert_eq!(votes(&sims, other), VOTERS - MAJORITY);
    });
}

/// The lock was granted before there was a connection to it.
#[test]
fn who_was_not_asked_for_its_vote_is_not_asked_to_release_it() {
    paused(|| async {
        let sims = voters(VOTERS);
        let engine = opened(&sims).await.expect("it opens");
        let far = &sims[MAJORITY..];
        far.iter()
            .for_each(|sim| sim.dials_for(Duration::from_secs(1)));
        let request = request();
        had(&engine, &request).await;
        is_given_back(&engine, &request, "").await;
        sleep(WINDOW).await;
        assert_eq!(count(far, "first") + count(far, "release"), 0);
    });
}

/// The election was lost before this vote was cast. What overtakes it does not give it back.
#[test]
fn a_slow_vote_of_a_lost_election_is_undone() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let slow = Duration::from_secs(1);
        let other = Owner::unique();
        sims[..4].iter().for_each(|sim| sim.take_away(other, TTL));
        sims[4].next([Fate::Slow(slow)]);
        let request = request();
        let tried = engine.try_acquire(&request).await.expect("an answer");
        assert!(tried.is_none(), "another has it");
        sleep(slow + 2 * ROUND_TRIP).await;
        assert!(sims[4].ran(request.owner, "first"));
        assert!(sims[4].is_free());
    });
}

fn of_process(name: &str) -> Request {
    let owner = Owner::draw(Origin::here(name)).expect("a random number");
    request().granted_to(owner)
}

/// A process has released the lock and wants it again at once. It was told that another one
/// listens, which is slow just now.
#[test]
fn who_has_just_had_the_lock_leaves_it_to_others_for_a_moment() {
    paused(|| async {
        let sims = voters(VOTERS);
        let (one, two) = (several(&sims).await, several(&sims).await);
        let (caller, first, waits) = (Executor::new(), of_process("one"), of_process("two"));
        had(&one, &first).await;
        let again = async {
            sleep(Duration::from_millis(100)).await;
            caller.stall();
            is_given_back(&one, &first, "").await;
            let (next, start) = (of_process("one"), Instant::now());
            had(&one, &next).await;
            assert!(start.elapsed() >= 2 * ROUND_TRIP, "{:?}", start.elapsed());
            is_given_back(&one, &next, "").await;
        };
        let waiting = caller.run(two.acquire(&waits));
        tokio::select! {
            answer = waiting => panic!("it stands still: {answer:?}"),
            () = again => {}
        }
    });
}

/// The present holder came without a message. Whether a waiter asks depends on how both of them
/// want the lock.
#[test]
fn who_waits_asks_only_if_the_holder_is_not_in_its_way() {
    paused(|| async {
        for (mode, is_read, asks) in [
            (Mode::Write, false, false),
            (Mode::Write, true, false),
            (Mode::Read, false, false),
            (Mode::Read, true, true),
        ] {
            let (sims, engine) = scene().await;
            let holder = Owner::unique();
            sims.iter().for_each(|sim| sim.take_away(holder, TTL));
            let waits = Request::new("key", mode, TTL);
            let watch = async {
                sleep(Duration::from_millis(100)).await;
                sims.iter().for_each(|sim| {
                    sim.is_read(is_read);
                    sim.forget_history();
                });
                sleep(Duration::from_secs(5)).await;
                assert!(sims.iter().all(|sim| sim.looks() > 0));
                let asked = count(&sims, "first") > 0;
                assert_eq!(asked, asks, "{mode:?}, the holder reads: {is_read}");
            };
            tokio::select! {
                answer = engine.acquire(&waits) => panic!("it is held: {answer:?}"),
                () = watch => {}
            }
        }
    });
}
