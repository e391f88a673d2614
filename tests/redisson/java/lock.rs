//! `recipe=lock`, which is `RLock`.

use crate::support::locks::{had, is_busy};
use crate::{Scene, scenes};

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_lock_and_ours_exclude_each_other() {
    scenes::exclude_each_other("lock", "lock").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn who_waits_is_woken_by_the_other_at_once() {
    scenes::wake_each_other_at_once("lock", "lock").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn each_sees_who_holds_the_lock() {
    scenes::see_who_holds("lock", "lock").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn what_was_taken_away_is_lost_on_either_side() {
    scenes::lose_what_was_taken_away("lock", "lock").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_killed_service_frees_its_lock() {
    scenes::a_killed_service_frees_its_lock("lock", "lock").await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_dead_process_of_ours_frees_its_lock() {
    scenes::a_dead_process_of_ours_frees_its_lock("lock", "lock").await;
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
