//! `recipe=read-write`, which is `RReadWriteLock`.

use crate::dead::Dead;
use crate::monitor::DLOCK;
use crate::scenes::play;
use crate::service::{VERSIONS, WATCH_DOG};
use crate::support::locks::{had, held, is_busy, served};
use crate::support::wait::until;
use crate::{Pair, Scene, processes};

pub(crate) const WRITERS: Pair = Pair {
    recipe: "read-write",
    reads: false,
    java: "write",
};
pub(crate) const OUR_READER: Pair = Pair {
    reads: true,
    ..WRITERS
};
pub(crate) const THEIR_READER: Pair = Pair {
    java: "read",
    ..WRITERS
};

mod writers {
    super::play! {
        super::WRITERS;
        both_exclude_each_other
        who_waits_hears_of_the_others_release
        each_sees_who_holds_the_lock
        what_was_taken_away_is_lost_on_either_side
        a_killed_service_frees_its_lock
        a_dead_process_of_ours_frees_its_lock
    }
}

mod our_reader_and_their_writer {
    super::play! {
        super::OUR_READER;
        both_exclude_each_other
        who_waits_hears_of_the_others_release
        each_sees_who_holds_the_lock
        what_was_taken_away_is_lost_on_either_side
        a_killed_service_frees_its_lock
        a_dead_process_of_ours_frees_its_lock
    }
}

mod our_writer_and_their_reader {
    super::play! {
        super::THEIR_READER;
        both_exclude_each_other
        who_waits_hears_of_the_others_release
        each_sees_who_holds_the_lock
        what_was_taken_away_is_lost_on_either_side
        a_killed_service_frees_its_lock
        a_dead_process_of_ours_frees_its_lock
    }
}

/// A reader of theirs beside ours; writers of either wait for both.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn readers_share_on_both_sides() {
    Scene::of_each(OUR_READER, async |mut scene| {
        for key in ["key", "{key}:1"] {
            let ours = scene.ours.clone();
            let reader = held(ours.lock(key).read()).await;
            assert_eq!(scene.java.told(&format!("try read {key}")).await, "held");
            is_busy(ours.lock(key).try_acquire().await);
            assert_eq!(scene.java.told("release").await, "released");
            assert_eq!(scene.java.told(&format!("try write {key}")).await, "busy");
            scene.give_to_java(reader, key).await;
            is_busy(ours.lock(key).read().try_acquire().await);
            is_busy(ours.lock(key).try_acquire().await);
            assert_eq!(scene.java.told("release").await, "released");
        }
    })
    .await;
}

/// Redisson asks the timeouts of the readers whom it leaves behind how long they last.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn the_last_reader_of_theirs_leaves_ours_alone() {
    Scene::of_each(OUR_READER, async |scene| {
        let Scene {
            server,
            mut java,
            ours,
            ..
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
    Scene::of_each(OUR_READER, async |mut scene| {
        assert_eq!(scene.java.told("try write key").await, "held");
        assert_eq!(scene.java.told("try read key").await, "held");
        let reading = scene.waits("key").await;
        assert_eq!(scene.java.told("unlock write key").await, "released");
        let reader = served(reading).await;
        is_busy(scene.ours.lock("key").try_acquire().await);
        assert_eq!(scene.java.told("release").await, "released");
        reader.release().await.expect("the release");
        had(&scene.ours, "key").await;
    })
    .await;
}

/// An old version renews the leases of all readers with its own, and so those of the dead;
/// for no longer than one of its readers stays. The new one lets them end.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_dead_reader_of_ours_stays_no_longer_than_those_of_theirs() {
    for version in VERSIONS {
        let scene = Scene::of(version, OUR_READER).await;
        let Scene {
            server,
            mut java,
            ours,
            ..
        } = scene;
        let holder = processes::holder(&server, OUR_READER, "key").await;
        assert_eq!(java.told("try read key").await, "held");
        let fields: Vec<String> = server.command(&["HKEYS", "key"]).await;
        let field = fields.iter().find(|field| field.contains(DLOCK));
        let timeout = format!("{{key}}:{}:rwlock_timeout:1", field.expect("our reader"));
        let waiting = tokio::spawn(ours.lock("key").acquire());
        drop(holder);
        let dead = Dead::now(&server).await;
        if version == VERSIONS[0] {
            dead.is_kept(&timeout, processes::TTL).await;
        } else {
            dead.leaves_key(&timeout, processes::TTL).await;
        }
        assert!(!waiting.is_finished());
        is_busy(ours.lock("key").try_acquire().await);
        // By then it has the watch dog's time at most.
        assert_eq!(java.told("release").await, "released");
        let released = Dead::now(&server).await;
        released.leaves_key(&timeout, WATCH_DOG).await;
        served(waiting).await.release().await.expect("the release");
    }
}
