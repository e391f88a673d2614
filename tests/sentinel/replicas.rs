//! `replicas=N`: what counts is what N replicas have.

use std::time::Duration;

use dlock::LockManager;

use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{config, connect, had, held, is_unavailable, queued, says, served};
use crate::support::sentinel::{Deployment, Passwords, replicated};
use crate::support::wait::{HANG, eventually, within};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// A deployment whose replicas follow, and a manager that asks for so many.
async fn scene(more: &str, request_timeout: Duration) -> (Deployment, LockManager) {
    let deployment = Deployment::calm(&Passwords::default(), |port| port).await;
    replicated(&deployment.servers[0], 2).await;
    let config = config(&deployment.url(more)).request_timeout(request_timeout);
    (deployment, connect(config).await)
}

async fn holds(deployment: &Deployment, server: usize, key: &str) -> bool {
    let lock = format!("dlock:{{{key}}}");
    let exists: u32 = deployment.servers[server].command(&["EXISTS", &lock]).await;
    exists == 1
}

/// Whoever has the lock, so have the replicas by then.
#[tokio::test]
async fn a_lock_that_is_had_is_on_the_replicas() {
    let (deployment, manager) = scene("?replicas=2", HANG).await;
    for round in 0..20 {
        let key = format!("key:{round}");
        let guard = held(manager.lock(&key)).await;
        for replica in [1, 2] {
            let there = holds(&deployment, replica, &key).await;
            assert!(there, "{key} at {replica}");
        }
        guard.release().await.expect("the release");
    }
    // Nor does one who was let in by a release come before them.
    let guard = held(manager.lock("key")).await;
    let other = connect(config(&deployment.url("?replicas=2"))).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    queued(&manager, "key", 1).await;
    let words = ["GET", "dlock:{key}"];
    let holder = async |server: usize| deployment.servers[server].command::<String>(&words).await;
    guard.release().await.expect("the release");
    let _next = served(waiting).await;
    let granted = holder(0).await;
    for replica in [1, 2] {
        assert_eq!(holder(replica).await, granted);
    }
}

/// As durable as the lock was.
#[tokio::test]
async fn what_was_done_is_on_the_replicas() {
    let (deployment, manager) = scene("?replicas=2", HANG).await;
    let lock = |key: &str| manager.lock(key).once(HANG);
    for round in 0..20 {
        let key = format!("key:{round}");
        let guard = held(lock(&key)).await;
        guard.release_done().await.expect("the release");
        let words = ["GET", &format!("dlock:{{{key}}}")];
        for replica in [1, 2] {
            let value: String = deployment.servers[replica].command(&words).await;
            assert!(value.starts_with("d:"), "{key} at {replica}: {value}");
        }
    }
    let config = config(&deployment.url("?replicas=2"));
    let hasty = connect(config.request_timeout(REQUEST_TIMEOUT)).await;
    let hold = async || held(hasty.lock("key").once(HANG)).await;
    let guard = unless_it_stands_still(REQUEST_TIMEOUT / 4, hold).await;
    deployment.servers[2].pause();
    is_unavailable(within(HANG, guard.release_done()).await);
}

/// It is given back, and the caller hears why.
#[tokio::test]
async fn a_lock_that_too_few_replicas_have_is_not_had() {
    let (deployment, manager) = scene("?replicas=2", REQUEST_TIMEOUT).await;
    deployment.servers[2].pause();
    // Else nobody says who has it.
    let still = REQUEST_TIMEOUT / 4;
    let told = async || {
        for mode in ["waits", "tries", "reads"] {
            let lock = manager.lock(mode);
            let lock = match mode {
                "waits" => within(HANG, lock.acquire()).await,
                "tries" => within(HANG, lock.try_acquire()).await,
                _ => within(HANG, lock.read().acquire()).await,
            };
            let words = ["`mymaster`", ": 1 of its replicas", "`replicas=2`"];
            says(&is_unavailable(lock), &words);
            eventually("it is given back", async || {
                (!holds(&deployment, 0, mode).await).then_some(())
            })
            .await;
        }
    };
    unless_it_stands_still(still, told).await;
    deployment.servers[2].resume();
    unless_it_stands_still(still, async || had(&manager, "waits").await).await;
}

/// A lease is renewed on the replicas, or not at all.
#[tokio::test]
async fn a_lease_that_replicas_do_not_hear_of_ends() {
    let ttl = Duration::from_millis(1_500);
    unless_it_stands_still(ttl / 4, async || ends_without_replicas(ttl).await).await;
}

async fn ends_without_replicas(ttl: Duration) {
    let (deployment, manager) = scene("?replicas=1", REQUEST_TIMEOUT).await;
    let guard = held(manager.lock("key").ttl(ttl)).await;
    // One is enough.
    deployment.servers[1].pause();
    tokio::time::sleep(2 * ttl).await;
    assert!(guard.is_held());
    deployment.servers[2].pause();
    within(HANG, guard.lost()).await;
    assert!(!guard.is_held());
    for replica in [1, 2] {
        deployment.servers[replica].resume();
    }
    had(&manager, "key").await;
}

/// A short absence is waited for, as an outage is.
#[tokio::test]
async fn replicas_that_come_back_in_time_are_waited_for() {
    let (deployment, manager) = scene("?replicas=2", HANG).await;
    deployment.servers[1].pause();
    let waiting = tokio::spawn(manager.lock("key").run(async {}));
    eventually("the master has the lock", async || {
        holds(&deployment, 0, "key").await.then_some(())
    })
    .await;
    assert!(!waiting.is_finished());
    deployment.servers[1].resume();
    served(waiting).await;
}
