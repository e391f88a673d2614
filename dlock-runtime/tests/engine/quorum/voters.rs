//! The voters as stores of their own: their start, their end, and how they are.

use dlock_conformance::support::log::Log;

use super::*;
use crate::outlast::tests::Panics;

async fn is_had_and_given_back(engine: &Several) {
    let request = request();
    had(engine, &request).await;
    is_given_back(engine, &request, "").await;
}

/// Later, locks go on without it. At the start, somebody is there to see to it.
#[test]
fn a_voter_that_refuses_fails_the_start() {
    paused(|| async {
        let sims = voters(VOTERS);
        let other = several(&sims).await;
        sims[1].state().refuses = Some(foreign());
        let error = opened(&sims).await.expect_err("one of them refuses");
        assert_eq!(error.kind(), BackendErrorKind::Config, "{error}");
        had(&other, &request()).await;
        let error = other.raise_tokens(1_000).await.expect_err("it refuses");
        assert_eq!(error.kind(), BackendErrorKind::Config, "{error}");
    });
}

#[test]
fn a_start_that_fails_leaves_no_voter_open() {
    paused(|| async {
        let sims = voters(VOTERS);
        are_gone(&sims[2..], true);
        is_unavailable(opened(&sims).await.map(drop));
        assert!(sims.iter().all(|sim| sim.state().closed));
    });
}

/// What a caller has just left at them goes back first.
#[test]
fn a_stop_waits_until_the_voters_are_told() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let left = timeout(ONE_WAY + MOMENT, engine.acquire(&request())).await;
        assert!(left.is_err(), "no answer has come");
        assert!(sims.iter().all(|sim| !sim.is_free()));
        engine.stop().await;
        are_free(&sims, "before it has stopped");
        assert!(sims.iter().all(|sim| sim.state().closed));
    });
}

/// An engine that is dropped without a stop leaves no task behind that looks after a voter.
#[test]
fn voters_are_left_alone_when_their_engine_is_dropped() {
    paused(|| async {
        for dropped in [false, true] {
            let (sims, engine, _) = held().await;
            sims[4].set_gone(true);
            had(&engine, &Request::new("other", Mode::Write, TTL)).await;
            sleep(Duration::from_secs(3)).await;
            sims.iter().for_each(|sim| sim.forget_history());
            let engine = (!dropped).then_some(engine);
            sims[4].set_gone(false);
            sleep(WINDOW).await;
            let is_asked = sims[4].count("ping") > 0;
            assert_eq!(is_asked, engine.is_some());
        }
    });
}

/// One that does not answer in its time holds up no other.
#[test]
fn an_examination_tells_what_each_voter_has_found() {
    paused(|| async {
        let (sims, engine) = scene().await;
        let finding = |voter: usize| Finding::new(Level::Warn, "server", voter.to_string());
        for (voter, sim) in sims.iter().enumerate() {
            sim.state().findings = vec![finding(voter)];
        }
        let all: Vec<_> = (0..VOTERS).map(finding).collect();
        assert_eq!(engine.examine().await, all);
        sims[0].state().examined_for = sims[0].request_timeout();
        assert_eq!(engine.examine().await, all[1..]);
    });
}

/// Until the first of them knows others.
#[test]
fn the_servers_are_those_of_all_voters() {
    paused(|| async {
        let servers = |hosts: &[&str]| {
            let hosts = hosts.iter().map(|&host| String::from(host));
            Some(Servers::new(Protocol::Other, hosts))
        };
        let sims = voters(3);
        for (sim, host) in sims.iter().zip(["a:1", "b:2", "c:3"]) {
            sim.state().servers = servers(&[host]);
        }
        let engine = several(&sims).await;
        assert_eq!(engine.servers(), servers(&["a:1", "b:2", "c:3"]));
        sims[0].state().located = servers(&["d:4", "e:5"]);
        assert_eq!(engine.servers(), servers(&["d:4", "e:5"]));
    });
}

/// A majority is enough, and the others know the floor. The first that answers does not hurry it.
#[test]
fn tokens_are_raised_at_a_majority() {
    paused(|| async {
        let floor = 1_000;
        let (sims, engine) = scene().await;
        let slow = Fate::Slow(Duration::from_millis(700));
        sims[1..].iter().for_each(|sim| sim.next([slow]));
        engine.raise_tokens(floor).await.expect("a majority");
        assert!(sims.iter().all(|sim| sim.counter() >= floor));
        assert_eq!(count(&sims, "raise"), VOTERS, "each is asked once");
        are_gone(&sims[MAJORITY..], true);
        engine.raise_tokens(2 * floor).await.expect("a majority");
        let raised = sims.iter().filter(|sim| sim.counter() >= 2 * floor);
        assert_eq!(raised.count(), MAJORITY);
        assert!(sims.iter().all(|sim| sim.given() >= 2 * floor));
        assert!(u64::from(had(&engine, &request()).await.token) > 2 * floor);
    });
}

/// A voter that cannot vote for a moment is nobody's concern. If it refuses, an operator must see
/// to it, and reads of it once.
#[test]
fn what_an_operator_must_see_to_is_logged_once() {
    paused(|| async {
        let (log, _guard) = Log::of_this_thread();
        let (sims, engine) = scene().await;
        let lock = async || {
            is_had_and_given_back(&engine).await;
            sleep(Duration::from_secs(2)).await;
        };
        sims[0].next([Fate::Refused]);
        lock().await;
        assert_eq!(log.text(), "");
        sims[0].state().refuses = Some(foreign());
        for _ in 0..3 {
            lock().await;
        }
        let lines = log.lines_with("something else stands there");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("locks go on with the other nodes"));
    });
}

/// However often it was asked meanwhile whether it answers.
#[test]
fn a_voter_that_is_gone_for_long_is_left_out_until_it_is_back() {
    paused(|| async {
        let (log, _guard) = Log::of_this_thread();
        let (sims, engine) = scene().await;
        sims[4].set_gone(true);
        is_had_and_given_back(&engine).await;
        sleep(Duration::from_secs(30)).await;
        sims[4].forget_history();
        for _ in 0..3 {
            is_had_and_given_back(&engine).await;
            sleep(Duration::from_secs(2)).await;
        }
        assert_eq!(sims[4].count("first"), 0, "it is gone");
        let lines = log.lines_with("does not answer");
        assert_eq!(lines.len(), 1, "{lines:?}");
        sims[4].set_gone(false);
        sleep(Duration::from_secs(8)).await;
        is_had_and_given_back(&engine).await;
        assert_eq!(sims[4].count("first"), 1, "it is back");
    });
}

/// It is seen to answer at the first look.
#[test]
fn a_voter_that_is_back_right_after_the_start_is_asked() {
    paused(|| async {
        let sims = voters(VOTERS);
        sims[4].set_gone(true);
        let engine = opened(&sims).await.expect("a majority answers");
        sims[4].set_gone(false);
        sleep(Duration::from_secs(8)).await;
        let request = request();
        had(&engine, &request).await;
        assert_eq!(votes(&sims, request.owner), VOTERS);
    });
}

/// It hears that a voter is silent, and that it answers again. Without the task that tells it so,
/// the voter would be left out for good.
#[test]
fn a_voter_comes_back_though_the_subscriber_panics() {
    paused(|| async {
        let (_log, _guard) = Log::of_this_thread();
        let _panics = tracing::subscriber::set_default(Panics);
        let (sims, engine) = scene().await;
        sims[4].set_gone(true);
        is_had_and_given_back(&engine).await;
        sleep(Duration::from_secs(3)).await;
        sims[4].set_gone(false);
        sleep(Duration::from_secs(8)).await;
        let request = request();
        had(&engine, &request).await;
        sleep(ROUND_TRIP).await;
        assert_eq!(votes(&sims, request.owner), VOTERS);
        is_given_back(&engine, &request, "").await;
    });
}
