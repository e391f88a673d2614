//! The same in a cluster, and behind sentinels.

use std::time::Duration;

use dlock::LockManager;

use crate::read_write::{OUR_READER, THEIR_READER, WRITERS};
use crate::service::{Service, VERSIONS};
use crate::support::cluster::Cluster;
use crate::support::locks::{had, held, is_busy, served};
use crate::support::sentinel::{Deployment, MASTER};
use crate::{Pair, connect};

const PAIRS: [Pair; 6] = [
    Pair::of("lock"),
    Pair::of("fenced"),
    Pair::of("fair"),
    WRITERS,
    OUR_READER,
    THEIR_READER,
];

/// There and back, for keys on all nodes.
async fn take_turns(java: &mut Service, ours: &LockManager, pair: Pair) {
    let kind = pair.java;
    for key in ["a", "b", "c", "{d}:1", "e:1", "f{g}"] {
        let wants = || pair.wants(ours, key);
        let guard = held(wants()).await;
        assert_eq!(java.told(&format!("try {kind} {key}")).await, "busy");
        assert_eq!(java.told(&format!("lock {kind} {key}")).await, "waits");
        // Ours lasts longer than any test: only our message wakes Java.
        assert!(!java.has_answered());
        guard.release().await.expect("the release");
        assert_eq!(java.answer().await, "held");
        is_busy(wants().try_acquire().await);
        let waiting = tokio::spawn(wants().acquire());
        assert_eq!(java.told("release").await, "released");
        served(waiting).await.release().await.expect("the release");
        had(ours, key).await;
    }
}

#[tokio::test]
#[ignore = "needs Redisson: ./tests/run.sh --all"]
async fn they_exclude_and_wake_each_other_in_a_cluster() {
    let cluster = Cluster::start(Duration::from_secs(5)).await;
    let ports: Vec<_> = cluster.masters().iter().map(|node| node.port()).collect();
    for version in VERSIONS {
        let mut java = Service::start(version, "cluster", &ports).await;
        for pair in PAIRS {
            let ours = connect(&cluster.url(""), pair.recipe).await;
            take_turns(&mut java, &ours, pair).await;
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
        for pair in PAIRS {
            let ours = connect(&deployment.url(""), pair.recipe).await;
            take_turns(&mut java, &ours, pair).await;
        }
    }
}
