//! Faults that the suite of all stores does not make.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use dlock::{Config, LockManager};
use dlock_conformance::support::dir::TempDir;
use tokio::runtime::Builder;

const TTL: Duration = Duration::from_secs(600);

async fn manager(directory: &Path) -> LockManager {
    let config = Config::with_backend(crate::directory(directory)).ttl(TTL);
    LockManager::connect(config).await.expect("the directory")
}

/// Otherwise the lease of a thread that stands still just then ends too late for its holder.
#[test]
fn a_lease_counts_from_before_the_question() {
    const STANDS_STILL: Duration = Duration::from_millis(300);
    let mut runtime = Builder::new_current_thread();
    runtime.enable_all().thread_name_fn(|| {
        // The caller asks for a new thread here.
        thread::sleep(STANDS_STILL);
        "worker".into()
    });
    runtime.build().expect("a runtime").block_on(async {
        let dir = TempDir::default();
        let manager = manager(dir.path()).await;
        let asked = Instant::now();
        let guard = manager.lock("key").ttl(10 * STANDS_STILL).renew(false);
        let guard = guard.acquire().await;
        let guard = guard.expect("the lock");
        let ends = guard.deadline().expect("its lease ends");
        assert!(ends.into_std() < asked + 10 * STANDS_STILL + STANDS_STILL / 2);
    });
}
