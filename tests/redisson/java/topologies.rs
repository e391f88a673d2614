//! The same in a cluster, and behind sentinels.

use std::time::Duration;

use dlock::LockManager;

use crate::connect;
use crate::service::{Service, VERSIONS};
use crate::support::cluster::Cluster;
use crate::support::locks::{had, held, is_busy, served};
use crate::support::sentinel::{Deployment, MASTER};

/// In Java by the same name.
const RECIPES: [&str; 3] = ["lock", "fenced", "fair"];

/// There and back, for keys on all nodes.
async fn take_turns(java: &mut Service, ours: &LockManager, kind: &str) {
    for key in ["a", "b", "c", "{d}:1", "e:1", "f{g}"] {
        let guard = held(ours.lock(key)).await;
        assert_eq!(java.told(&format!("try {kind} {key}")).await, "busy");
        assert_eq!(java.told(&format!("lock {kind} {key}")).await, "waits");
        for _ in 0..3 {
            // Ours lasts longer than any test: only our message wakes Java.
            guard_waits(java).await;
        }
        guard.release().await.expect("the release");
        assert_eq!(java.answer().await, "held");
        is_busy(ours.lock(key).try_acquire().await);
        let waiting = tokio::spawn(ours.lock(key).acquire());
        assert_eq!(java.told("release").await, "released");
        served(waiting).await.release().await.expect("the release");
        had(ours, key).await;
    }
}

/// It is given time to listen, and is not served.
async fn guard_waits(java: &Service) {
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!java.has_answered());
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn they_exclude_and_wake_each_other_in_a_cluster() {
    let cluster = Cluster::start(Duration::from_secs(5)).await;
    let ports: Vec<_> = cluster.masters().iter().map(|node| node.port()).collect();
    for version in VERSIONS {
        let mut java = Service::start(version, "cluster", &ports).await;
        for recipe in RECIPES {
            let ours = connect(&cluster.url(""), recipe).await;
            take_turns(&mut java, &ours, recipe).await;
        }
    }
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn they_exclude_and_wake_each_other_behind_sentinels() {
    let deployment = Deployment::watchful().await;
    let ports: Vec<_> = deployment.sentinels.iter().map(|it| it.port()).collect();
    for version in VERSIONS {
        let kind = format!("sentinel:{MASTER}");
        let mut java = Service::start(version, &kind, &ports).await;
        for recipe in RECIPES {
            let ours = connect(&deployment.url(""), recipe).await;
            take_turns(&mut java, &ours, recipe).await;
        }
    }
}
