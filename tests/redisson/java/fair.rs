//! `recipe=fair`, which is `RFairLock`.

use std::time::Duration;

use crate::dead::{Dead, holder};
use crate::scenes::play;
use crate::service::{FAIR_WAIT, Service, VERSIONS};
use crate::support::locks::{held, queued, served};
use crate::support::redis::RedisServer;
use crate::{Pair, Scene, connect, processes};

const FAIR: Pair = Pair::of("fair");

play! {
    FAIR;
    both_exclude_each_other
    who_waits_hears_of_the_others_release
    who_waits_for_a_while_is_woken_or_leaves
    each_sees_who_holds_the_lock
    what_was_taken_away_is_lost_on_either_side
    a_killed_service_frees_its_lock
}

/// In 3.21.3 nobody in Java looks again when a lease ends that was renewed, or a few
/// milliseconds later than it thinks, and would sleep for ever; but one of ours behind it
/// does, and tells it.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_dead_process_of_ours_frees_its_lock() {
    Scene::of_each(FAIR, async |scene| {
        let Scene {
            server,
            mut java,
            ours,
            ..
        } = scene;
        let holds = processes::holder(&server, FAIR, "key").await;
        assert_eq!(java.told("lock fair key 600000").await, "waits");
        queued(&ours, "key", 1).await;
        let behind = tokio::spawn(ours.lock("key").acquire());
        queued(&ours, "key", 2).await;
        assert!(!java.has_answered());
        let field = holder(&server, "key").await;
        drop(holds);
        let dead = Dead::now(&server).await;
        dead.leaves("key", &field, processes::TTL).await;
        assert_eq!(java.answer().await, "held");
        assert!(!behind.is_finished());
        assert_eq!(java.told("release").await, "released");
        served(behind).await.release().await.expect("the release");
    })
    .await;
}

/// Of both versions, and dlock between them.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn who_comes_first_is_served_first_on_whichever_side() {
    let server = RedisServer::start().await;
    let ours = connect(&server.url(), "fair").await;
    let [mut old, mut new] = [
        Service::start(VERSIONS[0], "single", &[server.port()]).await,
        Service::start(VERSIONS[1], "single", &[server.port()]).await,
    ];
    for round in 0..3 {
        let guard = held(ours.lock("key")).await;
        let mut waiting = Vec::new();
        for (place, java) in [&mut old, &mut new].into_iter().enumerate() {
            assert_eq!(java.told("lock fair key").await, "waits");
            queued(&ours, "key", 2 * place + 1).await;
            let other = connect(&server.url(), "fair").await;
            let behind = tokio::spawn(async move { other.lock("key").acquire().await });
            waiting.push(behind);
            queued(&ours, "key", 2 * place + 2).await;
        }
        guard.release().await.expect("the release");
        let mut waiting = waiting.into_iter();
        for (place, java) in [&mut old, &mut new].into_iter().enumerate() {
            assert_eq!(java.answer().await, "held");
            queued(&ours, "key", 3 - 2 * place).await;
            assert_eq!(java.told("release").await, "released");
            let guard = served(waiting.next().expect("one")).await;
            queued(&ours, "key", 2 - 2 * place).await;
            guard.release().await.expect("the release");
        }
        assert!(!old.has_answered() && !new.has_answered(), "round {round}");
    }
}

/// The first place, behind a holder of ours.
const PLACE_ENDS: Duration = processes::TTL.saturating_add(FAIR_WAIT);

/// Who is first in the queue.
async fn first(server: &RedisServer) -> String {
    let first = ["LINDEX", "redisson_lock_queue:{key}", "0"];
    server.command(&first).await
}

/// It is told, as the one who is first, and cannot take it.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_killed_waiter_of_theirs_blocks_for_no_longer_than_its_place_lasts() {
    Scene::of_each(FAIR, async |scene| {
        let Scene {
            server,
            mut java,
            ours,
            ..
        } = scene;
        // Its place ends as long after the lease as it lasts.
        let holds = processes::holder(&server, FAIR, "key").await;
        assert_eq!(java.told("lock fair key").await, "waits");
        queued(&ours, "key", 1).await;
        let place = first(&server).await;
        java.program.process.kill();
        let dead = Dead::now(&server).await;
        let waiting = tokio::spawn(ours.lock("key").acquire());
        queued(&ours, "key", 2).await;
        drop(holds);
        dead.leaves_the_queue("key", &place, PLACE_ENDS).await;
        served(waiting).await.release().await.expect("the release");
    })
    .await;
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn a_killed_waiter_of_ours_blocks_for_no_longer_than_its_place_lasts() {
    Scene::of_each(FAIR, async |scene| {
        let Scene {
            server,
            mut java,
            ours,
            ..
        } = scene;
        let holds = processes::holder(&server, FAIR, "key").await;
        let waiter = processes::waiter(&server, FAIR, "key");
        queued(&ours, "key", 1).await;
        assert_eq!(java.told("lock fair key").await, "waits");
        queued(&ours, "key", 2).await;
        let place = first(&server).await;
        drop(waiter);
        let dead = Dead::now(&server).await;
        drop(holds);
        dead.leaves_the_queue("key", &place, PLACE_ENDS).await;
        assert_eq!(java.answer().await, "held");
        assert_eq!(java.told("release").await, "released");
    })
    .await;
}

/// Neither stands in the queue for longer than it waits.
#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn who_gives_up_on_either_side_leaves_the_queue() {
    Scene::of_each(FAIR, async |scene| {
        let Scene {
            server,
            mut java,
            ours,
            ..
        } = scene;
        let guard = held(ours.lock("key")).await;
        let other = connect(&server.url(), "fair").await;
        let waiting = tokio::spawn(other.lock("key").acquire());
        queued(&ours, "key", 1).await;
        assert_eq!(java.told("try fair key").await, "busy");
        assert_eq!(java.told("lock fair key").await, "waits");
        queued(&ours, "key", 2).await;
        waiting.abort();
        queued(&ours, "key", 1).await;
        guard.release().await.expect("the release");
        assert_eq!(java.answer().await, "held");
        assert_eq!(java.told("release").await, "released");
    })
    .await;
}
