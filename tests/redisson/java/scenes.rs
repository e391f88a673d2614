//! What is the same for each class.

use std::time::Duration;

use dlock::LockError;

use crate::dead::{Dead, holder as holds};
use crate::monitor::{Monitor, delays, heard};
use crate::service::WATCH_DOG;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{free, held, is_busy, queued, served, shown};
use crate::support::wait::{HANG, until, within};
use crate::{Pair, Scene, connect, processes};

/// Of these scenes, for one pair, tests.
macro_rules! play {
    ($pair:expr; $($scene:ident)*) => {$(
        #[tokio::test]
        #[ignore = "needs Redisson: ./tests/run.sh --all"]
        async fn $scene() {
            crate::scenes::$scene($pair).await;
        }
    )*};
}

pub(crate) use play;

/// And who waits is woken by the other.
pub(crate) async fn both_exclude_each_other(pair: Pair) {
    Scene::of_each(pair, async |mut scene| {
        // Names with braces go another way into the names of channels.
        for key in ["stock:42", "{stock}:42", "{stock}", "a}b", "ä"] {
            scene.takes_turns(key).await;
        }
    })
    .await;
}

/// Ours looks at the lock each second, so that a message which it does not hear shows as one
/// more command only. In Java nobody looks.
pub(crate) async fn who_waits_hears_of_the_others_release(pair: Pair) {
    const TIMES: usize = 40;
    Scene::of_each(pair, async |mut scene| {
        let monitor = Monitor::of(&scene.server).await;
        let mut guard = held(scene.wants("key")).await;
        for _ in 0..TIMES {
            scene.give_to_java(guard, "key").await;
            guard = scene.take_from_java("key").await;
        }
        let log = monitor.all(&scene.server, "end").await;
        let heard = heard(&log, "key");
        // On a slow machine it sometimes looks before it has heard. If there is no message,
        // it looks each time.
        assert!(heard > TIMES / 2, "{heard} of {TIMES} times, in\n{log}");
        // A release that goes unheard is waited for a second on ours, and until the lease ends
        // in Java.
        for (side, is_ours) in [("ours", true), ("theirs", false)] {
            let delays = delays(&log, "key", is_ours);
            assert!(delays.len() > TIMES / 2, "{delays:?}, in\n{log}");
            let [usual, longest] = [delays.len() / 2, delays.len() - 1].map(|nth| delays[nth]);
            println!(
                "{side}, {} turns: {usual:?} mostly, {longest:?} at most; {heard} heard",
                delays.len()
            );
            assert!(usual < Duration::from_secs(1), "{delays:?}, in\n{log}");
        }
    })
    .await;
}

/// Of who waits in Java for a limited time: it is woken, or leaves nothing behind.
pub(crate) async fn who_waits_for_a_while_is_woken_or_leaves(pair: Pair) {
    Scene::of_each(pair, async |mut scene| {
        let guard = held(scene.wants("key")).await;
        let within = |time: u32| format!("within {} key {time}", pair.java);
        assert_eq!(scene.java.told(&within(300)).await, "waits");
        assert_eq!(scene.java.answer().await, "busy");
        queued(&scene.ours, "key", 0).await;
        assert_eq!(scene.java.told(&within(600_000)).await, "waits");
        queued(&scene.ours, "key", 1).await;
        guard.release().await.expect("the release");
        assert_eq!(scene.java.answer().await, "held");
        let guard = scene.take_from_java("key").await;
        guard.release().await.expect("the release");
        free(&scene.ours, "key").await;
    })
    .await;
}

pub(crate) async fn each_sees_who_holds_the_lock(pair: Pair) {
    Scene::of_each(pair, async |scene| {
        let guard = held(scene.wants("ours")).await;
        let Scene {
            pair,
            server,
            mut java,
            ours,
        } = scene;
        let other = connect(&server.url(), pair.recipe).await;
        let held_by_java = format!("try {} java 600000", pair.java);
        assert_eq!(java.told(&held_by_java).await, "held");
        // What Java sees of ours is what it would see of its own.
        for (key, sees) in [
            ("ours", "locked, for a while"),
            ("java", "locked, for a while, by itself"),
            ("nobody", "free"),
        ] {
            let class = if key == "java" {
                pair.java
            } else {
                pair.ours()
            };
            assert_eq!(java.told(&format!("sees {class} {key}")).await, sees);
        }
        for (key, is_ours) in [("ours", true), ("java", false)] {
            let lock = shown(&other, key).await;
            let [holder] = &lock.holders[..] else {
                panic!("{lock:?}");
            };
            assert_eq!(holder.owner, holds(&server, key).await);
            assert_eq!(holder.owner.contains("00646c6f636b"), is_ours, "{lock:?}");
            assert!(holder.expires_in.is_some_and(|left| left > 2 * WATCH_DOG));
        }
        let mut keys = other.list("").await.expect("a list");
        keys.sort_by(|one, other| one.key.cmp(&other.key));
        let keys: Vec<_> = keys.into_iter().map(|lock| lock.key).collect();
        // Nor the latches that unlocking leaves for a while in Java.
        assert_eq!(keys, ["java", "ours"]);
        assert_eq!(java.told("release").await, "released");
        guard.release().await.expect("the release");
        free(&ours, "java").await;
        free(&ours, "ours").await;
    })
    .await;
}

/// Nobody gives back, or extends, what is the other's.
pub(crate) async fn what_was_taken_away_is_lost_on_either_side(pair: Pair) {
    Scene::of_each(pair, async |scene| {
        let Scene {
            server,
            mut java,
            ours,
            ..
        } = scene;
        let wants = || pair.wants(&ours, "key");
        let (kind, ends_ours) = (pair.java, format!("break {} key", pair.ours()));
        // An operator of Java's ends ours: the body sees it at the next renewal, and does
        // not give back what is Java's by then.
        let ttl = Duration::from_millis(900);
        let ended = async || {
            let guard = held(wants().ttl(ttl)).await;
            assert_eq!(java.told(&ends_ours).await, "broken");
            guard
        };
        let guard = unless_it_stands_still(ttl / 4, ended).await;
        assert_eq!(java.told(&format!("try {kind} key 600000")).await, "held");
        within(HANG, guard.lost()).await;
        let error = guard.release().await.expect_err("it was lost");
        assert!(matches!(error, LockError::Lost { .. }), "{error}");
        is_busy(wants().try_acquire().await);
        // And the other way round.
        server.command::<()>(&["DEL", "key"]).await;
        let guard = held(wants()).await;
        assert_eq!(java.told("owns").await, "no");
        assert_eq!(java.told("release").await, "not held");
        assert_eq!(java.told(&format!("try {kind} key")).await, "busy");
        guard.release().await.expect("the release");
    })
    .await;
}

pub(crate) async fn a_killed_service_frees_its_lock(pair: Pair) {
    Scene::of_each(pair, async |mut scene| {
        // Renewed, for as long as it lives.
        let takes = format!("try {} key", pair.java);
        assert_eq!(scene.java.told(&takes).await, "held");
        let waiting = scene.waits("key").await;
        let renewed = async || {
            let lock = shown(&scene.ours, "key").await;
            lock.holders[0].expires_in
        };
        let is_low = |left: &Option<Duration>| left.is_some_and(|left| left < WATCH_DOG * 3 / 4);
        let is_high = |left: &Option<Duration>| left.is_some_and(|left| left > WATCH_DOG * 3 / 4);
        until("it runs down", renewed, is_low).await;
        until("it is renewed", renewed, is_high).await;
        assert!(!waiting.is_finished());
        let field = holds(&scene.server, "key").await;
        scene.java.program.process.kill();
        let dead = Dead::now(&scene.server).await;
        dead.leaves("key", &field, WATCH_DOG).await;
        served(waiting).await.release().await.expect("the release");
    })
    .await;
}

pub(crate) async fn a_dead_process_of_ours_frees_its_lock(pair: Pair) {
    Scene::of_each(pair, async |scene| {
        let Scene {
            server, mut java, ..
        } = scene;
        let holder = processes::holder(&server, pair, "key").await;
        let waits = format!("lock {} key 600000", pair.java);
        assert_eq!(java.told(&waits).await, "waits");
        let field = holds(&server, "key").await;
        assert!(!java.has_answered());
        drop(holder);
        let dead = Dead::now(&server).await;
        dead.leaves("key", &field, processes::TTL).await;
        assert_eq!(java.answer().await, "held");
        assert_eq!(java.told("release").await, "released");
    })
    .await;
}
