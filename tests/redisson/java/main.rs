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

mod fenced;
mod lock;
mod processes;
mod read_write;
mod service;
mod topologies;

use dlock::LockManager;

use service::{Service, VERSIONS};
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
}

fn url(server: &str, recipe: &str) -> String {
    format!("{server}?layout=redisson&recipe={recipe}")
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
