//! `recipe=read-write`, which is `RReadWriteLock`.

use crate::Scene;
use crate::support::locks::{free, had, held, is_busy, queued, served};
use crate::support::wait::until;

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn readers_share_and_a_writer_is_alone_on_both_sides() {
    Scene::of_each("read-write", async |scene| {
        let Scene { mut java, ours, .. } = scene;
        for key in ["key", "{key}:1"] {
            // A reader of theirs beside ours; writers of either wait for both.
            let reader = held(ours.lock(key).read()).await;
            assert_eq!(java.told(&format!("try read {key}")).await, "held");
            is_busy(ours.lock(key).try_acquire().await);
            assert_eq!(java.told("release").await, "released");
            assert_eq!(java.told(&format!("try write {key}")).await, "busy");
            assert_eq!(java.told(&format!("lock write {key}")).await, "waits");
            queued(&ours, key, 1).await;
            assert!(reader.is_held() && !java.has_answered());
            reader.release().await.expect("the release");
            assert_eq!(java.answer().await, "held");

            // A writer of theirs; readers and writers of ours wait.
            is_busy(ours.lock(key).read().try_acquire().await);
            is_busy(ours.lock(key).try_acquire().await);
            let reading = tokio::spawn(ours.lock(key).read().acquire());
            queued(&ours, key, 1).await;
            assert_eq!(java.told("release").await, "released");
            served(reading).await.release().await.expect("the release");

            // A writer of ours; a reader of theirs waits.
            let writer = held(ours.lock(key)).await;
            assert_eq!(java.told(&format!("try read {key}")).await, "busy");
            assert_eq!(java.told(&format!("try write {key}")).await, "busy");
            assert_eq!(java.told(&format!("lock read {key}")).await, "waits");
            queued(&ours, key, 1).await;
            writer.release().await.expect("the release");
            assert_eq!(java.answer().await, "held");
            // And a writer of ours for it.
            let writing = tokio::spawn(ours.lock(key).acquire());
            queued(&ours, key, 1).await;
            assert_eq!(java.told("release").await, "released");
            served(writing).await.release().await.expect("the release");
            free(&ours, key).await;
        }
    })
    .await;
}

/// Redisson asks the timeouts of the readers whom it leaves behind how long they last.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn the_last_reader_of_theirs_leaves_ours_alone() {
    Scene::of_each("read-write", async |scene| {
        let Scene {
            server,
            mut java,
            ours,
        } = scene;
        let reader = held(ours.lock("key").read()).await;
        for _ in 0..3 {
            assert_eq!(java.told("try read key").await, "held");
            assert_eq!(java.told("release").await, "released");
            is_busy(ours.lock("key").try_acquire().await);
            assert_eq!(java.told("try write key").await, "busy");
        }
        // And ours leaves theirs alone.
        assert_eq!(java.told("try read key").await, "held");
        reader.release().await.expect("the release");
        is_busy(ours.lock("key").try_acquire().await);
        assert_eq!(java.told("release").await, "released");
        had(&ours, "key").await;
        // With nothing left, but for the latches of Java's releases for a while.
        let left = async || {
            let mut keys = server.keys().await;
            keys.retain(|key| !key.starts_with("redisson_unlock_latch"));
            keys
        };
        until("nothing is left", left, Vec::is_empty).await;
    })
    .await;
}

/// A writer who reads too, and stops writing, tells nobody.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_writer_that_becomes_a_reader_lets_ours_in() {
    Scene::of_each("read-write", async |scene| {
        let Scene { mut java, ours, .. } = scene;
        assert_eq!(java.told("try write key").await, "held");
        assert_eq!(java.told("try read key").await, "held");
        let reading = tokio::spawn(ours.lock("key").read().acquire());
        queued(&ours, "key", 1).await;
        assert_eq!(java.told("unlock write key").await, "released");
        let reader = served(reading).await;
        is_busy(ours.lock("key").try_acquire().await);
        assert_eq!(java.told("release").await, "released");
        reader.release().await.expect("the release");
        had(&ours, "key").await;
    })
    .await;
}
