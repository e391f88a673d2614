//! Locks that are shared with services in Java: the real Redisson, in a Java machine of its
//! own, and dlock. Each test is for one version from before 3.22 and for a new one.
//!
//! The tests need Java and Redisson's jars: `./tests/run.sh --all` installs both, and runs
//! them. By themselves, with the jars there:
//!
//! ```text
//! cargo test --test redisson_java -- --ignored
//! ```

#![cfg(feature = "redis")]

#[path = "../../support/mod.rs"]
mod support;

mod fair;
mod fenced;
mod lock;
mod processes;
mod read_write;
mod scenes;
mod service;
mod topologies;

use dlock::{LockError, LockGuard, LockManager, LockRequest};
use tokio::task::JoinHandle;

use service::{FAIR_WAIT, Service, VERSIONS};
use support::locks::{queued, served};
use support::redis::RedisServer;

/// A server, a service in Java, and dlock.
struct Scene {
    server: RedisServer,
    java: Service,
    ours: LockManager,
}

impl Scene {
    /// For each version of Redisson.
    async fn of_each(recipe: &str, play: impl AsyncFn(Self)) {
        for version in VERSIONS {
            let server = RedisServer::start().await;
            let java = Service::start(version, "single", &[server.port()]).await;
            let ours = connect(&server.url(), recipe).await;
            play(Self { server, java, ours }).await;
        }
    }

    /// Waits on our side, behind what holds the lock.
    async fn waits(
        &self,
        request: LockRequest,
        key: &str,
    ) -> JoinHandle<Result<LockGuard, LockError>> {
        let waiting = tokio::spawn(request.acquire());
        queued(&self.ours, key, 1).await;
        assert!(!waiting.is_finished());
        waiting
    }

    /// Ours is given back to one in Java who waits for it.
    async fn give_to_java(&mut self, guard: LockGuard, kind: &str, key: &str) {
        let Self { java, ours, .. } = self;
        assert_eq!(java.told(&format!("lock {kind} {key}")).await, "waits");
        queued(ours, key, 1).await;
        assert!(guard.is_held() && !java.has_answered());
        // Ours lasts longer than any test: only our message wakes Java.
        guard.release().await.expect("the release");
        assert_eq!(java.answer().await, "held");
    }

    /// And theirs to one of ours.
    async fn take_from_java(&mut self, request: LockRequest, key: &str) -> LockGuard {
        let waiting = self.waits(request, key).await;
        assert_eq!(self.java.told("release").await, "released");
        served(waiting).await
    }
}

fn url(server: &str, recipe: &str) -> String {
    let wait = match recipe {
        "fair" => format!("&fair_wait={}s", FAIR_WAIT.as_secs()),
        _ => String::new(),
    };
    format!("{server}?layout=redisson&recipe={recipe}{wait}")
}

/// With leases that outlast every test.
async fn connect(server: &str, recipe: &str) -> LockManager {
    support::locks::connect(support::locks::config(&url(server, recipe))).await
}

/// In a normal run this does nothing.
#[test]
fn plays_a_role() {
    if let Some(role) = support::worker::role() {
        processes::play(&role);
    }
}
