//! What is refused of permits, and what is told of them.

use std::time::Duration;

use dlock_conformance::support::alone::alone_with_its_log;
use dlock_conformance::support::locks::{held, is_busy, is_misconfigured, is_unsupported, says};
use dlock_conformance::support::over_memory::Otherwise;
use dlock_runtime::backend::Capabilities;
use dlock_runtime::backend::memory::Memory;
use dlock_runtime::{Config, LockManager};
use tokio::time::Instant;

use crate::{connect, manager};

#[tokio::test(start_paused = true)]
async fn numbers_that_mean_nothing_are_refused() {
    let (memory, manager) = manager().await;
    let error = is_misconfigured(manager.lock("key").permits(0).acquire().await);
    says(&error, &["permits", "from 1 to 4294967295"]);
    let fenced = manager.lock("key").permits(2).fenced(true);
    says(
        &is_misconfigured(fenced.acquire().await),
        &["permits", "fenced"],
    );
    drop(held(manager.lock("key").permits(1).fenced(true)).await);
    // The last of the two would win, and without a word there might be no ceiling.
    for both in [
        manager.lock("key").permits(2).read(),
        manager.lock("key").read().permits(2),
    ] {
        says(
            &is_misconfigured(both.acquire().await),
            &["`read` and `permits`", "keep one"],
        );
    }

    let config = Config::with_backend(memory).fenced(true);
    let all_fenced = LockManager::connect(config).await.expect("memory");
    is_misconfigured(all_fenced.lock("key").permits(2).acquire().await);
    // Not inside one's own lock either.
    let inside = async { is_misconfigured(manager.lock("key").permits(0).acquire().await) };
    manager.lock("key").run(inside).await.expect("free");
}

/// A store that says nothing of permits.
#[derive(Debug, Default)]
struct WithoutPermits(Memory);

#[async_trait::async_trait]
impl Otherwise for WithoutPermits {
    fn memory(&self) -> &Memory {
        &self.0
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("theirs");
        capabilities.read_write = true;
        capabilities.local = true;
        capabilities
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_does_not_know_permits_is_not_asked_for_one() {
    let manager = WithoutPermits::default().manager().await;
    drop(held(manager.lock("key").read()).await);
    let refused = is_unsupported(manager.lock("key").permits(2).acquire().await);
    says(&refused, &["`key`", "theirs", "permits"]);
    // Not inside one's own lock either, where nothing is asked of it.
    for permits in [1, 2] {
        let inside = async { is_unsupported(manager.lock("key").permits(permits).acquire().await) };
        manager.lock("key").run(inside).await.expect("free");
    }
    is_unsupported(manager.lock(["key", "other"]).permits(2).acquire().await);
}

#[test]
fn two_numbers_for_one_key_are_told_once_for_the_key() {
    let name = "permits::two_numbers_for_one_key_are_told_once_for_the_key";
    alone_with_its_log(name, async |log| {
        let manager = LockManager::connect(Config::default().namespace("shop")).await;
        let manager = manager.expect("memory");
        let permits = |most| {
            manager
                .lock("api:acme")
                .ttl(Duration::from_secs(90))
                .permits(most)
        };
        let first = held(permits(2)).await;
        is_busy(permits(1).try_acquire().await);
        let second = held(permits(2)).await;
        is_busy(permits(2).try_acquire().await);
        drop((first, second));
        let told = log.lines_with("dlock::permits");
        assert_eq!(told.len(), 1, "{told:?}");
        for word in [
            "WARN",
            "`api:acme`",
            "one of 1 permits",
            "one of 2",
            "is told once",
        ] {
            assert!(told[0].contains(word), "{told:?}");
        }
        // A call that re-enters, and a key among others.
        let outer = manager.lock(["api:acme", "nested"]).permits(2);
        let inner = async || manager.lock("nested").permits(3).run(async {}).await;
        outer.run(inner()).await.expect("free").expect("re-entry");
        let told = log.lines_with("dlock::permits");
        assert_eq!(told.len(), 2, "{told:?}");
        for word in ["`nested`", "one of 3 permits", "for one of 2"] {
            assert!(told[1].contains(word), "{told:?}");
        }
    });
}

/// Not later: it is nobody's any more, and nobody says so.
#[tokio::test(start_paused = true)]
async fn a_permit_of_the_dead_comes_free_when_its_ttl_is_over() {
    let (memory, living) = manager().await;
    let other = connect(&memory).await;
    let ttl = Duration::from_secs(9);
    let (stays, begun) = (held(living.lock("key").permits(2)).await, Instant::now());
    std::mem::forget(held(living.lock("key").permits(2).ttl(ttl).renew(false)).await);
    let next = held(other.lock("key").permits(2)).await;
    let had = begun.elapsed();
    assert!(
        had >= ttl && had <= ttl + Duration::from_millis(10),
        "{had:?}"
    );
    assert!(stays.is_held() && next.is_held());
}
