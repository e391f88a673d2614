//! Tests for a store of several servers, one of which leads and is replaced when it fails. Each
//! such store runs all of them: [`failovers!(crate::ItsStore)`](crate::failovers!).

use std::time::Duration;

use async_trait::async_trait;
use dlock::{LockError, LockGuard, LockManager};

use crate::processes::{ENDLESS, Scene, all_end_well};
use crate::restart::next_token;
use crate::support::calm::{always, unless_it_stands_still};
use crate::support::locks::{connect, held, is_busy, nothing_left, queued, served, shown};
use crate::support::runtimes::current_thread;
use crate::support::wait::{HANG, eventually, within};
use crate::{Running, Store};

/// While the machine stands still for this long, the servers may elect other leaders than the tests
/// expect.
const STANDS_STILL: Duration = Duration::from_millis(500);

/// How a leader fails. A store is asked only for what its [`failures`](Led::failures) name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// It is silent, and its connections stay open.
    Hangs,
    /// Its connections break.
    Dies,
}

/// A store whose leader can be replaced.
#[async_trait(?Send)]
pub trait Led: Store {
    /// The failures of leaders that are tested, one after the other.
    fn failures(&self) -> &[Failure] {
        &[Failure::Hangs, Failure::Dies]
    }

    /// Whether a leader may confirm something that the next one does not know. Then holders may
    /// overlap, and their tokens tell them apart.
    fn forgets(&self) -> bool {
        false
    }

    /// Waits until the next leader knows everything that was confirmed about `key`.
    async fn has_told(&self, key: &str) {
        let _ = key;
    }

    /// Makes the leader for `key` fail.
    async fn lose_leader(&mut self, key: &str, failure: Failure);

    /// Brings the failed leader back, as a follower.
    async fn leader_is_back(&mut self);
}

/// A manager that waits as long as a failover takes.
async fn patient(store: &dyn Led) -> LockManager {
    connect(store.config().request_timeout(HANG / 2)).await
}

/// Several processes hold and wait while their leader fails. Every call ends, all processes
/// continue by themselves, and no two are inside together that their tokens could not tell apart.
async fn processes_go_on(store: &mut dyn Led) {
    let scene = Scene::around(store);
    const WORKERS: [&str; 3] = ["a", "b", "c"];
    let forgets = scene.store.forgets();
    let mut workers = WORKERS.map(|name| scene.worker("contend", name, 3, ENDLESS, forgets));
    for failure in scene.store.failures().to_vec() {
        scene.others_add("nobody", 30).await;
        // From here on, two processes may hold the lock.
        for name in WORKERS.iter().filter(|_| forgets) {
            scene.resource.suspended(name);
        }
        scene.store.lose_leader("counter", failure).await;
        scene.others_add("nobody", 30).await;
        scene.store.leader_is_back().await;
        scene.others_add("nobody", 30).await;
        for name in WORKERS.iter().filter(|_| forgets) {
            scene.resource.resumed(name);
        }
    }
    for name in WORKERS {
        scene.adds(name, 3).await;
    }
    std::fs::write(scene.stop_sign(), "").expect("a file");
    all_end_well(&mut workers).await;
    scene.resource.history().check();
    nothing_left(&scene.judge().await).await;
}

/// What the next leader knows is kept: holders renew their leases there, and waiters keep
/// waiting. Tokens rise.
async fn a_lease_and_its_waiters_go_along(store: &mut dyn Led) {
    let (holder, other) = (patient(store).await, patient(store).await);
    let ttl = Duration::from_secs(30);
    let shared = Shared::of(&other, ttl).await;
    let guard = held(holder.lock("key").ttl(ttl)).await;
    let first = tokio::spawn(next_token(other.lock("key").ttl(ttl)));
    queued(&holder, "key", 1).await;
    let late = patient(store).await;
    let second = tokio::spawn(next_token(late.lock("key").ttl(ttl)));
    queued(&holder, "key", 2).await;
    store.has_told("key").await;
    let marking = tokio::spawn(shared.begins_to_mark());
    store.lose_leader("key", Failure::Dies).await;
    let shared = within(HANG, marking).await.expect("no panic");
    shared.goes_along(&holder, store.forgets()).await;
    for manager in [&holder, &other, &late] {
        queued(manager, "key", 2).await;
    }
    is_renewed(&other, "key").await;
    assert!(guard.is_held());
    is_busy(holder.lock("key").try_acquire().await);
    let token = guard.token();
    let mut last = token;
    guard.release().await.expect("it was held to the end");
    // No standstill explains a token that falls, unless one makes a server the leader that forgets.
    let forgets = store.forgets();
    let rises = |next, before| {
        always(
            next > before || forgets,
            format_args!("{next} after {before}"),
        );
        assert!(next > before, "{next} after {before}");
    };
    // A waiter that does not listen yet may be passed over.
    for waiting in [first, second] {
        let next = served(waiting).await;
        rises(next, token);
        last = last.max(next);
    }
    store.leader_is_back().await;
    let again = held(holder.lock("key")).await;
    rises(again.token(), last);
    again.release().await.expect("the release");
    nothing_left(&holder).await;
}

/// Permits that are held, a body that has been done, and one that is about to be done.
struct Shared {
    permits: Vec<LockGuard>,
    once: bool,
    marks: Option<LockGuard>,
    marked: Option<Result<(), LockError>>,
}

impl Shared {
    async fn of(manager: &LockManager, ttl: Duration) -> Self {
        let can = manager.capabilities();
        let mut permits = Vec::new();
        for _ in 0..if can.permits { 2 } else { 0 } {
            permits.push(held(manager.lock("permits").permits(2).ttl(ttl)).await);
        }
        let mut marks = None;
        if can.once {
            let once = |key| manager.lock(key).once(10 * HANG).ttl(ttl);
            let done = held(once("done")).await;
            done.release_done().await.expect("the release");
            marks = Some(held(once("marked")).await);
        }
        Self {
            permits,
            once: can.once,
            marks,
            marked: None,
        }
    }

    /// Called when the leader fails.
    async fn begins_to_mark(mut self) -> Self {
        if let Some(marks) = self.marks.take() {
            self.marked = Some(within(HANG, marks.release_done()).await);
        }
        self
    }

    async fn goes_along(self, other: &LockManager, forgets: bool) {
        if let [first, _] = &self.permits[..] {
            let asked = async || {
                let lock = other.lock("permits").permits(2);
                match within(HANG, lock.try_acquire()).await {
                    Err(LockError::Unavailable { .. }) => None,
                    answer => Some(answer),
                }
            };
            is_busy(eventually("it answers", asked).await);
            assert!(first.is_held());
        }
        for permit in self.permits {
            permit.release().await.expect("it was held to the end");
        }
        if self.once {
            for key in ["done", "marked"] {
                // A mark that only the failed leader has confirmed may be forgotten.
                let may_be_gone = forgets && key == "marked";
                let forgotten = other.forget(key).await.expect("forget");
                assert!(forgotten || may_be_gone, "{key}");
            }
        }
        if let Some(marked) = self.marked {
            assert!(marked.is_ok() || forgets, "{marked:?}");
        }
    }
}

/// Waits until a lease is extended, as the present leader shows it.
async fn is_renewed(manager: &LockManager, key: &str) {
    let left = async || shown(manager, key).await.holders[0].expires_in;
    let Some(mut before) = left().await else {
        // The lease ends with a session, which is alive.
        return;
    };
    eventually("it is renewed", async || {
        let now = left().await?;
        let is_longer = now > before;
        before = now;
        is_longer.then_some(())
    })
    .await;
}

#[doc(hidden)]
pub mod cases {
    use super::{Led, Running};

    pub fn processes_go_on(store: &mut dyn Led) -> Running<'_> {
        Box::pin(super::processes_go_on(store))
    }

    pub fn a_lease_and_its_waiters_go_along(store: &mut dyn Led) -> Running<'_> {
        Box::pin(super::a_lease_and_its_waiters_go_along(store))
    }
}

/// Runs one case with its own store.
#[doc(hidden)]
pub fn run<S: Led>(case: fn(&mut dyn Led) -> Running<'_>) {
    current_thread().block_on(unless_it_stands_still(STANDS_STILL, async || {
        case(&mut S::start().await).await;
    }));
}

/// Generates a test for each case, for one store: the path, from the crate's root, of a type that
/// implements [`Led`](crate::failover::Led). The test program must also have
/// [`contenders!`](crate::contenders!).
#[macro_export]
macro_rules! failovers {
    ($store:ty) => {
        $crate::failovers! { $store:
            processes_go_on
            a_lease_and_its_waiters_go_along
        }
    };
    ($store:ty: $($case:ident)*) => {$(
        #[test]
        fn $case() {
            $crate::failover::run::<$store>($crate::failover::cases::$case);
        }
    )*};
}
