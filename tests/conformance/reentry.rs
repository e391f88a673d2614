//! Reentrancy follows the chain of awaits: calls that the body awaits re-enter, and calls beside
//! it queue.

use std::sync::Arc;
use std::time::Duration;

use dlock::{FencingToken, LockError, LockManager, LockScopeExt, current, distributed_lock};
use tokio::sync::oneshot;

use super::{Store, had, process};
use crate::support::critical::Section;
use crate::support::locks::{held, is_busy, says, served, would_deadlock};
use crate::support::wait::{HANG, within};

/// The value of a body under the lock.
async fn ran<T>(manager: &LockManager, body: impl Future<Output = T>) -> T {
    let ran = within(HANG, manager.lock("key").run(body)).await;
    ran.expect("the lock")
}

fn token() -> FencingToken {
    current().expect("inside the lock").token()
}

pub(crate) async fn a_nested_call_returns_at_once_with_the_same_token(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let body = async {
        let outer = token();
        let lock = || manager.lock("key");
        let inner = lock().run(async { token() }).await.expect("re-entry");
        let tried = lock().try_acquire().await.expect("re-entry");
        let within_no_time = lock().acquire_within(Duration::ZERO).await;
        let within_no_time = within_no_time.expect("re-entry");
        assert_eq!([inner, tried.token(), within_no_time.token()], [outer; 3]);
        drop((tried, within_no_time));
        // The calls that re-entered have ended; the body still has the lock.
        assert!(current().expect("inside the lock").is_held());
        is_busy(other.lock("key").try_acquire().await);
    };
    ran(&manager, body).await;
    had(&other, "key").await;
}

#[distributed_lock(key = "order:<id>")]
async fn outer(id: u32) -> Result<(FencingToken, FencingToken), LockError> {
    Ok((token(), inner(id).await?))
}

#[distributed_lock(key = "order:<id>")]
async fn inner(id: u32) -> Result<FencingToken, LockError> {
    Ok(token())
}

pub(crate) async fn a_nested_attribute_reenters(store: &mut dyn Store) {
    let manager = process(store).await;
    let nested = within(HANG, manager.scope(outer(7))).await;
    let (outside, inside) = nested.expect("the lock");
    assert_eq!(outside, inside);
}

pub(crate) async fn re_entry_asks_nothing_of_the_store(store: &mut dyn Store) {
    let manager = process(store).await;
    let body = async {
        store.set_outage(true).await;
        let mut inside = Ok(());
        for _ in 0..100 {
            inside = inside.and(manager.lock("key").run(async {}).await);
        }
        store.set_outage(false).await;
        inside
    };
    let inside = ran(&manager, body).await;
    inside.expect("re-entry during an outage");
}

/// Both halves run in one task, but neither is inside the other's body.
pub(crate) async fn halves_of_a_join_exclude_each_other(store: &mut dyn Store) {
    let manager = process(store).await;
    let section = Section::default();
    let halves = async {
        tokio::join!(
            manager.lock("key").run(section.visit()),
            manager.lock("key").run(section.visit()),
        )
    };
    let (one, two) = within(HANG, halves).await;
    one.and(two).expect("the lock");
    assert_eq!((section.entries(), section.most()), (2, 1));

    // Inside a body that has the lock, both re-enter, and may overlap like any two calls that are
    // awaited together.
    let body = async {
        tokio::join!(
            manager.lock("key").run(async { token() }),
            manager.lock("key").run(async { token() }),
        )
    };
    let (one, two) = ran(&manager, body).await;
    assert_eq!(one.expect("re-entry"), two.expect("re-entry"));
}

pub(crate) async fn a_spawned_task_waits(store: &mut dyn Store) {
    let manager = process(store).await;
    let body = async {
        let tried = tokio::spawn(manager.lock("key").try_acquire());
        is_busy(tried.await.expect("no panic"));
        let waiting = manager.lock("key").run(async { token() });
        (token(), tokio::spawn(waiting))
    };
    let (outside, waiting) = ran(&manager, body).await;
    let inside = served(waiting).await;
    assert!(
        inside > outside || inside == FencingToken::NONE,
        "a grant of its own"
    );
}

pub(crate) async fn a_spawned_task_in_the_lock_scope_reenters(store: &mut dyn Store) {
    let manager = process(store).await;
    let body = async {
        let spawned = async { dlock::lock("key").run(async { token() }).await };
        let inside = tokio::spawn(spawned.in_lock_scope()).await;
        (token(), inside.expect("no panic"))
    };
    // `dlock::lock` finds the manager of the scope in the spawned task too.
    let run = manager.scope(manager.lock("key").run(body));
    let (outside, inside) = within(HANG, run).await.expect("the lock");
    assert_eq!(inside.expect("re-entry"), outside);
}

#[expect(clippy::async_yields_async, reason = "the task outlives the body")]
pub(crate) async fn the_lock_scope_ends_with_the_lock(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let (tell, told) = oneshot::channel::<()>();
    let body = async {
        let lock = manager.lock("key");
        let late = async move {
            told.await.expect("the test says when");
            assert!(current().is_none(), "inside a lock that was released");
            lock.try_acquire().await.map(drop)
        };
        tokio::spawn(late.in_lock_scope())
    };
    let late = manager.lock("key").run(body).await.expect("the lock");
    let _guard = held(other.lock("key")).await;
    tell.send(()).expect("the task waits");
    is_busy(within(HANG, late).await.expect("no panic"));
}

/// A task that re-entered keeps the lock until it has ended, so that no body runs without the
/// lock.
#[expect(clippy::async_yields_async, reason = "the task outlives the body")]
pub(crate) async fn a_task_inside_keeps_the_lock(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let section = Arc::new(Section::default());
    let (enter, entered) = oneshot::channel();
    let (tell, told) = oneshot::channel::<()>();
    let inside = {
        let section = Arc::clone(&section);
        manager.lock("key").run(async move {
            let body = async {
                enter.send(()).expect("the parent waits");
                told.await.expect("the test says when");
            };
            section.during(body).await;
        })
    };
    let body = async {
        let spawned = tokio::spawn(inside.in_lock_scope());
        entered.await.expect("the task re-enters");
        spawned
    };
    let spawned = ran(&manager, body).await;
    is_busy(other.lock("key").try_acquire().await);
    tell.send(()).expect("the task waits");
    served(spawned).await;
    ran(&other, section.visit()).await;
    assert_eq!((section.entries(), section.most()), (2, 1));
}

pub(crate) async fn writing_inside_ones_own_read_is_refused(store: &mut dyn Store) {
    let manager = process(store).await;
    if !manager.capabilities().read_write {
        return;
    }
    let body = async {
        let inside = manager.lock("key").read().run(async {}).await;
        inside.expect("reading inside a read");
        within(HANG, manager.lock("key").acquire()).await.map(drop)
    };
    let wrote = manager.lock("key").read().run(body).await;
    says(&would_deadlock(wrote.expect("the lock")), &["`key`"]);
}

pub(crate) async fn reading_inside_ones_own_write_is_re_entry(store: &mut dyn Store) {
    let manager = process(store).await;
    if !manager.capabilities().read_write {
        return;
    }
    let body = async {
        let inside = manager.lock("key").read().run(async { token() });
        (token(), within(HANG, inside).await)
    };
    let (outside, inside) = manager.lock("key").run(body).await.expect("the lock");
    assert_eq!(inside.expect("re-entry"), outside);
}

pub(crate) async fn current_shows_the_innermost_lock(store: &mut dyn Store) {
    let manager = process(store).await;
    let shown = || current().map(|held| (held.key().to_string(), held.is_held()));
    assert_eq!(shown(), None);
    let outer = async {
        assert_eq!(shown(), Some(("outer".to_owned(), true)));
        let inner = async { assert_eq!(shown(), Some(("inner".to_owned(), true))) };
        manager.lock("inner").run(inner).await.expect("the lock");
        assert_eq!(shown(), Some(("outer".to_owned(), true)));
        // A guard opens no scope.
        let guard = held(manager.lock("guard")).await;
        assert_eq!(shown(), Some(("outer".to_owned(), true)));
        guard.release().await.expect("the release");
    };
    manager.lock("outer").run(outer).await.expect("the lock");
    assert_eq!(shown(), None);
}
