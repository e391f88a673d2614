//! Locks that are shared with services in Java: the real Redisson, in a Java machine of its
//! own, and dlock. Each test is for one version from before 3.22 and for a new one.
//!
//! The tests need Java and Redisson's jars: `./tests/run.sh --all` installs both, and runs
//! them. By themselves, with the jars there:
//!
//! ```text
//! cargo test --all-features --test redisson_java -- --ignored
//! ```

#[path = "../../support/mod.rs"]
mod support;

mod dead;
mod fair;
mod fenced;
mod lock;
mod monitor;
mod names;
mod processes;
mod read_write;
mod scenes;
mod scripts;
mod service;
mod topologies;

use dlock::{LockError, LockGuard, LockManager, LockRequest};
use tokio::task::JoinHandle;

use service::{FAIR_WAIT, Service, VERSIONS, WATCH_DOG};
use support::calm::unless_it_stands_still;
use support::locks::{held, is_busy, queued, served, wants};
use support::redis::RedisServer;

/// One of ours and one of Java's who exclude each other.
#[derive(Clone, Copy, Debug)]
struct Pair {
    recipe: &'static str,
    /// Ours reads.
    reads: bool,
    /// What Redisson's kind of lock is called in Java.
    java: &'static str,
}

impl Pair {
    /// Both have the lock alone, by a recipe that is called alike in Java.
    const fn of(recipe: &'static str) -> Self {
        Self {
            recipe,
            reads: false,
            java: recipe,
        }
    }

    /// What ours has, by the name that Java has for it.
    fn ours(self) -> &'static str {
        match (self.recipe, self.reads) {
            ("read-write", true) => "read",
            ("read-write", false) => "write",
            _ => self.java,
        }
    }

    /// What ours asks `manager` for.
    fn wants(self, manager: &LockManager, key: &str) -> LockRequest {
        wants(manager.lock(key), self.reads)
    }
}

/// A server, a service in Java, and dlock.
struct Scene {
    pair: Pair,
    server: RedisServer,
    java: Service,
    ours: LockManager,
}

impl Scene {
    /// For each version of Redisson.
    async fn of_each(pair: Pair, play: impl AsyncFn(Self)) {
        for version in VERSIONS {
            // On both sides, leases are renewed in time if nothing stands still for this long.
            unless_it_stands_still(WATCH_DOG / 4, async || {
                play(Self::of(version, pair).await).await;
            })
            .await;
        }
    }

    async fn of(version: &str, pair: Pair) -> Self {
        let server = RedisServer::start().await;
        let java = Service::start(version, "single", &[server.port()]).await;
        let ours = connect(&server.url(), pair.recipe).await;
        Self {
            pair,
            server,
            java,
            ours,
        }
    }

    fn wants(&self, key: &str) -> LockRequest {
        self.pair.wants(&self.ours, key)
    }

    /// There and back. Neither has it beside the other.
    async fn takes_turns(&mut self, key: &str) {
        let tries = format!("try {} {key}", self.pair.java);
        let guard = held(self.wants(key)).await;
        assert_eq!(self.java.told(&tries).await, "busy");
        self.give_to_java(guard, key).await;
        is_busy(self.wants(key).try_acquire().await);
        let guard = self.take_from_java(key).await;
        guard.release().await.expect("the release");
        // What is free is free for both.
        assert_eq!(self.java.told(&tries).await, "held");
        assert_eq!(self.java.told("release").await, "released");
        let guard = held(self.wants(key)).await;
        guard.release().await.expect("the release");
    }

    /// Waits on our side, behind what holds the lock.
    async fn waits(&self, key: &str) -> JoinHandle<Result<LockGuard, LockError>> {
        let waiting = tokio::spawn(self.wants(key).acquire());
        queued(&self.ours, key, 1).await;
        assert!(!waiting.is_finished());
        waiting
    }

    /// Ours is given back to one in Java who waits for it.
    async fn give_to_java(&mut self, guard: LockGuard, key: &str) {
        let Self {
            pair, java, ours, ..
        } = self;
        let waits = java.told(&format!("lock {} {key}", pair.java)).await;
        assert_eq!(waits, "waits");
        queued(ours, key, 1).await;
        assert!(guard.is_held() && !java.has_answered());
        // Ours lasts longer than any test: only our message wakes Java.
        guard.release().await.expect("the release");
        assert_eq!(java.answer().await, "held");
    }

    /// And theirs to one of ours.
    async fn take_from_java(&mut self, key: &str) -> LockGuard {
        let waiting = self.waits(key).await;
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
