//! `etcdctl lock NAME`, the real one, and ours.

use std::time::Duration;

use dlock::LockManager;
use dlock_conformance::Store as _;

use crate::EtcdStore;
use crate::harness::{config, connect};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{self, held, is_busy, queued, served, shown};
use crate::support::program::Program;
use crate::support::wait::{HANG, eventually, until};

/// `etcdctl lock`, which holds until it is told to end.
struct Control(Program);

impl Control {
    fn lock(store: &EtcdStore, key: &str) -> Self {
        let name = format!("{}/{key}", store.prefix);
        Self(Program::start(
            store.server.etcdctl(&["lock", "--ttl=10", &name]),
        ))
    }

    /// It prints the key that it holds.
    async fn holds(&self) -> String {
        eventually("etcdctl holds", async || {
            self.has_it().then(|| self.0.printed())
        })
        .await
    }

    fn has_it(&self) -> bool {
        !self.0.printed().is_empty()
    }

    async fn release(mut self) {
        self.0.process.terminate();
        self.0.process.end().await;
    }
}

/// Who holds a lock, who waits, and which processes they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_a_lock_is_seen_by_etcdctl() {
    let store = EtcdStore::start().await;
    let called = async |label| locks::connect(config(&store.url()).label(label)).await;
    let (holder, other) = (called("orders").await, called("reports").await);
    let guard = held(holder.lock("stock:42")).await;
    let waiting = tokio::spawn(other.lock("stock:42").acquire());
    queued(&holder, "stock:42", 1).await;
    let seen = shown(&holder, "stock:42").await;
    let [_, places] = &seen.stored_as[..] else {
        panic!("the mark and the places: {seen:?}")
    };
    let look = ["get", "--prefix", places, "--sort-by=CREATE"];
    let printed = store.server.control(&look).await;
    let lines: Vec<_> = printed.lines().filter(|line| !line.is_empty()).collect();
    let [key, first, _, second] = lines[..] else {
        panic!("two places: {printed}")
    };
    assert!(key.starts_with(&**places), "{printed}");
    let process = seen.holders[0].process.as_ref().expect("a process");
    for (value, label) in [(first, "orders"), (second, "reports")] {
        let said = format!("@{},{},{label},", process.host, std::process::id());
        assert!(value.contains(&said), "{printed}");
    }
    guard.release().await.expect("the release");
    drop(served(waiting).await);
}

/// It knows nothing of marks, and does not stand behind one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_does_not_wait_behind_a_mark() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let guard = held(manager.lock("stock:42").once(HANG)).await;
    guard.release_done().await.expect("the release");
    let control = Control::lock(&store, "stock:42");
    control.holds().await;
    control.release().await;
    assert!(manager.forget("stock:42").await.expect("forget"));
}

async fn managers(store: &EtcdStore) -> [LockManager; 2] {
    let lock_service = format!("{}?recipe=lock-service", store.url());
    [connect(&store.url()).await, connect(&lock_service).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_etcdctl_holds_is_busy_here() {
    let store = EtcdStore::start().await;
    let judge = connect(&store.url()).await;
    for manager in managers(&store).await {
        for key in ["stock:42", "with%2Fslash"] {
            let ours = key.replace("%2F", "/");
            let control = Control::lock(&store, key);
            let place = control.holds().await;
            assert!(place.contains(key), "{place}");
            is_busy(manager.lock(&*ours).try_acquire().await);
            let waiting = tokio::spawn(manager.lock(&ours).run(async {}));
            queued(&judge, &ours, 1).await;
            assert!(!waiting.is_finished());
            control.release().await;
            served(waiting).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_here_is_waited_for_by_etcdctl() {
    let store = EtcdStore::start().await;
    let judge = connect(&store.url()).await;
    for manager in managers(&store).await {
        let guard = held(manager.lock("key")).await;
        let control = Control::lock(&store, "key");
        queued(&judge, "key", 1).await;
        // A moment in which it could wrongly say that it has it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!control.has_it());
        guard.release().await.expect("the release");
        control.holds().await;
        control.release().await;
    }
    // Readers keep it out as well.
    let [manager, _] = managers(&store).await;
    let guard = held(manager.lock("key").read()).await;
    let control = Control::lock(&store, "key");
    queued(&judge, "key", 1).await;
    let reader = manager.lock("key").read();
    let behind = tokio::spawn(async move { reader.run(async {}).await });
    queued(&judge, "key", 2).await;
    guard.release().await.expect("the release");
    control.holds().await;
    assert!(
        !behind.is_finished(),
        "a reader waits for the one before it"
    );
    control.release().await;
    served(behind).await;
}

/// In the order in which they came, whoever they are; and one that is killed
/// frees the lock within its ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_are_served_in_one_queue() {
    unless_it_stands_still(Duration::from_millis(500), async || {
        are_served_in_one_queue().await
    })
    .await;
}

async fn are_served_in_one_queue() {
    let store = EtcdStore::start().await;
    let judge = connect(&store.url()).await;
    let guard = held(judge.lock("key")).await;
    let first = Control::lock(&store, "key");
    queued(&judge, "key", 1).await;
    let second = connect(&store.url()).await;
    let second = tokio::spawn(second.lock("key").run(async {}));
    queued(&judge, "key", 2).await;
    let mut third = Control::lock(&store, "key");
    queued(&judge, "key", 3).await;
    guard.release().await.expect("the release");
    first.holds().await;
    assert!(!second.is_finished() && !third.has_it());
    first.release().await;
    served(second).await;
    third.holds().await;
    third.0.process.kill();
    let free = async || judge.inspect("key").await.expect("inspect");
    until("its lease has ended", free, Option::is_none).await;
}
