//! What is the same for each class: with `recipe` on our side, which Java calls `kind`.

use std::time::Duration;

use dlock::LockError;

use crate::service::WATCH_DOG;
use crate::support::locks::{free, had, held, is_busy, served, shown};
use crate::support::wait::{HANG, until, within};
use crate::{Scene, connect};

/// They exclude each other, and who waits is woken by the other.
pub(crate) async fn exclude_each_other(recipe: &str, kind: &str) {
    Scene::of_each(recipe, async |mut scene| {
        // Names with braces go another way into the names of channels.
        for key in ["stock:42", "{stock}:42", "{stock}", "a}b", "ä"] {
            let guard = held(scene.ours.lock(key)).await;
            assert_eq!(scene.java.told(&format!("try {kind} {key}")).await, "busy");
            scene.give_to_java(guard, kind, key).await;
            is_busy(scene.ours.lock(key).try_acquire().await);
            let guard = scene.take_from_java(scene.ours.lock(key), key).await;
            guard.release().await.expect("the release");
            // What is free is free for both.
            let Scene { java, ours, .. } = &mut scene;
            assert_eq!(java.told(&format!("try {kind} {key}")).await, "held");
            assert_eq!(java.told("release").await, "released");
            had(ours, key).await;
        }
    })
    .await;
}

/// Looking once a second would not take it through all of them in time.
pub(crate) async fn wake_each_other_at_once(recipe: &str, kind: &str) {
    const TIMES: usize = 400;
    Scene::of_each(recipe, async |mut scene| {
        let turns = async {
            let mut guard = held(scene.ours.lock("key")).await;
            for _ in 0..TIMES {
                scene.give_to_java(guard, kind, "key").await;
                guard = scene.take_from_java(scene.ours.lock("key"), "key").await;
            }
        };
        within(HANG, turns).await;
    })
    .await;
}

pub(crate) async fn see_who_holds(recipe: &str, kind: &str) {
    Scene::of_each(recipe, async |scene| {
        let Scene {
            server,
            mut java,
            ours,
        } = scene;
        let other = connect(&server.url(), recipe).await;
        let guard = held(ours.lock("ours")).await;
        let held_by_java = format!("try {kind} java 600000");
        assert_eq!(java.told(&held_by_java).await, "held");
        for (key, is_ours) in [("ours", true), ("java", false)] {
            let lock = shown(&other, key).await;
            let [holder] = &lock.holders[..] else {
                panic!("{lock:?}");
            };
            // As it stands in the hash.
            let fields: Vec<String> = server.command(&["HKEYS", key]).await;
            assert_eq!(fields, std::slice::from_ref(&holder.owner));
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
pub(crate) async fn lose_what_was_taken_away(recipe: &str, kind: &str) {
    Scene::of_each(recipe, async |scene| {
        let Scene {
            server,
            mut java,
            ours,
        } = scene;
        // An operator of Java's ends ours: the body sees it at the next renewal, and does
        // not give back what is Java's by then.
        let guard = held(ours.lock("key").ttl(Duration::from_millis(900))).await;
        assert_eq!(java.told(&format!("break {kind} key")).await, "broken");
        assert_eq!(java.told(&format!("try {kind} key 600000")).await, "held");
        within(HANG, guard.lost()).await;
        let error = guard.release().await.expect_err("it was lost");
        assert!(matches!(error, LockError::Lost { .. }), "{error}");
        is_busy(ours.lock("key").try_acquire().await);
        // And the other way round.
        server.command::<()>(&["DEL", "key"]).await;
        let guard = held(ours.lock("key")).await;
        assert_eq!(java.told("owns").await, "no");
        assert_eq!(java.told("release").await, "not held");
        is_busy(ours.lock("key").try_acquire().await);
        guard.release().await.expect("the release");
    })
    .await;
}

pub(crate) async fn a_killed_service_frees_its_lock(recipe: &str, kind: &str) {
    Scene::of_each(recipe, async |mut scene| {
        // Renewed, for as long as it lives.
        assert_eq!(scene.java.told(&format!("try {kind} key")).await, "held");
        let waiting = scene.waits(scene.ours.lock("key"), "key").await;
        let renewed = async || {
            let lock = shown(&scene.ours, "key").await;
            lock.holders[0].expires_in
        };
        let is_low = |left: &Option<Duration>| left.is_some_and(|left| left < WATCH_DOG * 3 / 4);
        let is_high = |left: &Option<Duration>| left.is_some_and(|left| left > WATCH_DOG * 3 / 4);
        until("it runs down", renewed, is_low).await;
        until("it is renewed", renewed, is_high).await;
        assert!(!waiting.is_finished());
        scene.java.program.process.kill();
        served(waiting).await.release().await.expect("the release");
    })
    .await;
}

pub(crate) async fn a_dead_process_of_ours_frees_its_lock(recipe: &str, kind: &str) {
    Scene::of_each(recipe, async |scene| {
        let Scene {
            server, mut java, ..
        } = scene;
        let guard = crate::processes::holder(&server, recipe, "key").await;
        let waits = format!("lock {kind} key 600000");
        assert_eq!(java.told(&waits).await, "waits");
        assert!(!java.has_answered());
        drop(guard);
        assert_eq!(java.answer().await, "held");
        assert_eq!(java.told("release").await, "released");
    })
    .await;
}
