//! `recipe=lock`, which is `RLock`.

use std::time::Duration;

use dlock::LockError;

use crate::service::WATCH_DOG;
use crate::support::locks::{free, had, held, is_busy, queued, served, shown};
use crate::support::wait::{HANG, until, within};
use crate::{Scene, connect};

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_lock_and_ours_exclude_each_other() {
    Scene::of_each("lock", async |scene| {
        let Scene { mut java, ours, .. } = scene;
        // Names with braces go another way into the names of channels.
        for key in ["stock:42", "{stock}:42", "{stock}", "a}b", "ä"] {
            let guard = held(ours.lock(key)).await;
            assert_eq!(java.told(&format!("try lock {key}")).await, "busy");
            assert_eq!(java.told(&format!("lock lock {key}")).await, "waits");
            queued(&ours, key, 1).await;
            assert!(guard.is_held() && !java.has_answered());
            // Ours lasts longer than any test: only our message wakes Java.
            guard.release().await.expect("the release");
            assert_eq!(java.answer().await, "held");

            is_busy(ours.lock(key).try_acquire().await);
            let waiting = tokio::spawn(ours.lock(key).acquire());
            queued(&ours, key, 1).await;
            assert!(!waiting.is_finished());
            assert_eq!(java.told("release").await, "released");
            served(waiting).await.release().await.expect("the release");
            // What is free is free for both.
            assert_eq!(java.told(&format!("try lock {key}")).await, "held");
            assert_eq!(java.told("release").await, "released");
            had(&ours, key).await;
        }
    })
    .await;
}

/// Looking once a second would not take it through all of them in time.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn who_waits_is_woken_by_the_other_at_once() {
    const TIMES: usize = 400;
    Scene::of_each("lock", async |scene| {
        let Scene { mut java, ours, .. } = scene;
        let turns = async {
            let mut guard = held(ours.lock("key")).await;
            for _ in 0..TIMES {
                assert_eq!(java.told("lock lock key").await, "waits");
                guard.release().await.expect("the release");
                assert_eq!(java.answer().await, "held");
                let waiting = tokio::spawn(ours.lock("key").acquire());
                queued(&ours, "key", 1).await;
                assert_eq!(java.told("release").await, "released");
                guard = served(waiting).await;
            }
        };
        within(HANG, turns).await;
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn each_sees_who_holds_the_lock() {
    Scene::of_each("lock", async |scene| {
        let Scene {
            server,
            mut java,
            ours,
        } = scene;
        let other = connect(&server.url(), "lock").await;
        let guard = held(ours.lock("ours")).await;
        assert_eq!(java.told("try lock java 600000").await, "held");
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
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn what_was_taken_away_is_lost_on_either_side() {
    Scene::of_each("lock", async |scene| {
        let Scene {
            server,
            mut java,
            ours,
        } = scene;
        // An operator of Java's ends ours: the body sees it at the next renewal, and does
        // not give back what is Java's by then.
        let guard = held(ours.lock("key").ttl(Duration::from_millis(900))).await;
        assert_eq!(java.told("break lock key").await, "broken");
        assert_eq!(java.told("try lock key 600000").await, "held");
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

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_killed_service_frees_its_lock() {
    Scene::of_each("lock", async |scene| {
        let Scene { mut java, ours, .. } = scene;
        // Renewed, for as long as it lives.
        assert_eq!(java.told("try lock key").await, "held");
        let waiting = tokio::spawn(ours.lock("key").acquire());
        queued(&ours, "key", 1).await;
        let renewed = async || {
            let lock = shown(&ours, "key").await;
            lock.holders[0].expires_in
        };
        let is_low = |left: &Option<Duration>| left.is_some_and(|left| left < WATCH_DOG * 3 / 4);
        let is_high = |left: &Option<Duration>| left.is_some_and(|left| left > WATCH_DOG * 3 / 4);
        until("it runs down", renewed, is_low).await;
        until("it is renewed", renewed, is_high).await;
        assert!(!waiting.is_finished());
        java.program.process.kill();
        served(waiting).await.release().await.expect("the release");
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_dead_process_of_ours_frees_its_lock() {
    Scene::of_each("lock", async |scene| {
        let Scene {
            server, mut java, ..
        } = scene;
        let guard = crate::processes::holder(&server, "key").await;
        assert_eq!(java.told("lock lock key 600000").await, "waits");
        assert!(!java.has_answered());
        drop(guard);
        assert_eq!(java.answer().await, "held");
        assert_eq!(java.told("release").await, "released");
    })
    .await;
}

/// What is not Redisson's is told, and nobody waits for it.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_lock_of_another_class_is_busy() {
    Scene::of_each("lock", async |scene| {
        let Scene { mut java, ours, .. } = scene;
        for kind in ["read", "write", "fair", "fenced"] {
            assert_eq!(java.told(&format!("try {kind} key 600000")).await, "held");
            is_busy(ours.lock("key").try_acquire().await);
            assert_eq!(java.told("release").await, "released");
            had(&ours, "key").await;
        }
    })
    .await;
}
