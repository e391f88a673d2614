//! `recipe=lock`, which is `RLock`.

use crate::scenes::play;
use crate::support::locks::{had, is_busy};
use crate::{Pair, Scene};

const LOCK: Pair = Pair::of("lock");

play! {
    LOCK;
    both_exclude_each_other
    who_waits_hears_of_the_others_release
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
