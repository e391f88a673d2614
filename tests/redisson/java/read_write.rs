//! `recipe=read-write`, which is `RReadWriteLock`.

use crate::Scene;
use crate::support::locks::{free, had, held, is_busy, served};
use crate::support::wait::until;

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn readers_share_and_a_writer_is_alone_on_both_sides() {
    Scene::of_each("read-write", async |mut scene| {
        for key in ["key", "{key}:1"] {
            let ours = scene.ours.clone();
            // A reader of theirs beside ours; writers of either wait for both.
            let reader = held(ours.lock(key).read()).await;
            assert_eq!(scene.java.told(&format!("try read {key}")).await, "held");
            is_busy(ours.lock(key).try_acquire().await);
            assert_eq!(scene.java.told("release").await, "released");
            assert_eq!(scene.java.told(&format!("try write {key}")).await, "busy");
            scene.give_to_java(reader, "write", key).await;

            // A writer of theirs; readers and writers of ours wait.
            is_busy(ours.lock(key).read().try_acquire().await);
            is_busy(ours.lock(key).try_acquire().await);
            let reader = scene.take_from_java(ours.lock(key).read(), key).await;
            reader.release().await.expect("the release");

            // A writer of ours; a reader of theirs waits, and a writer of ours for it.
            let writer = held(ours.lock(key)).await;
            assert_eq!(scene.java.told(&format!("try read {key}")).await, "busy");
            assert_eq!(scene.java.told(&format!("try write {key}")).await, "busy");
            scene.give_to_java(writer, "read", key).await;
            let writer = scene.take_from_java(ours.lock(key), key).await;
            writer.release().await.expect("the release");
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
    Scene::of_each("read-write", async |mut scene| {
        assert_eq!(scene.java.told("try write key").await, "held");
        assert_eq!(scene.java.told("try read key").await, "held");
        let reading = scene.waits(scene.ours.lock("key").read(), "key").await;
        assert_eq!(scene.java.told("unlock write key").await, "released");
        let reader = served(reading).await;
        is_busy(scene.ours.lock("key").try_acquire().await);
        assert_eq!(scene.java.told("release").await, "released");
        reader.release().await.expect("the release");
        had(&scene.ours, "key").await;
    })
    .await;
}
