//! `recipe=lock`, which is `RLock`.

use crate::scenes::play;
use crate::service::VERSIONS;
use crate::support::locks::{had, held, is_busy};
use crate::{Pair, Scene};

const LOCK: Pair = Pair::of("lock");

play! {
    LOCK;
    both_exclude_each_other
    who_waits_hears_of_the_others_release
    who_waits_for_a_while_is_woken_or_leaves
    each_sees_who_holds_the_lock
    what_was_taken_away_is_lost_on_either_side
    a_killed_service_frees_its_lock
    a_dead_process_of_ours_frees_its_lock
}

/// What is not Redisson's is told, and nobody waits for it.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_lock_of_another_class_is_busy() {
    Scene::of_each(LOCK, async |scene| {
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

/// What 4.7.0 has besides: it asks in its own way, for the same lock.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_lock_that_is_not_reentered_in_java_is_the_same() {
    for (recipe, java) in [("lock", "non-reentrant"), ("fair", "non-reentrant-fair")] {
        let pair = Pair {
            java,
            ..Pair::of(recipe)
        };
        let mut scene = Scene::of(VERSIONS[1], pair).await;
        for _ in 0..3 {
            scene.takes_turns("key").await;
        }
    }
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn several_locks_in_java_are_several_keys_here() {
    Scene::of_each(LOCK, async |scene| {
        let Scene { mut java, ours, .. } = scene;
        let both = held(ours.lock(["a", "b"])).await;
        assert_eq!(java.told("try multi a,b 600000").await, "busy");
        both.release().await.expect("the release");
        assert_eq!(java.told("try multi a,b 600000").await, "held");
        for key in ["a", "b"] {
            is_busy(ours.lock(key).try_acquire().await);
        }
        is_busy(ours.lock(["a", "b"]).try_acquire().await);
        assert_eq!(java.told("release").await, "released");
        had(&ours, "a").await;
        had(&ours, "b").await;
    })
    .await;
}
