//! The store's servers stop and start again, with everything that they have confirmed.

use std::sync::Arc;
use std::time::Duration;

use dlock::{FencingToken, LockError, LockManager, LockRequest};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::floors::above;
use super::tokens::gives_none;
use super::{Store, connect, held, queued};
use crate::support::critical::Section;
use crate::support::locks::{all_served, healed, is_busy, is_done, nothing_left, served};
use crate::support::wait::{HANG, within};

/// The token of one more grant. A short lease may end on a slow machine before it is given back.
async fn next(manager: &LockManager, key: &str) -> FencingToken {
    let guard = held(manager.lock(key)).await;
    let token = guard.token();
    match guard.release().await {
        Ok(()) | Err(LockError::Lost { .. }) => token,
        Err(error) => panic!("{error:?}"),
    }
}

pub(crate) async fn tokens_rise_across_a_restart(store: &mut dyn Store) {
    // A crash may undo a release: the lease then ends by itself.
    let ttl = store.short_ttl();
    let config = |store: &dyn Store| super::config(store).ttl(ttl);
    let before = {
        let manager = connect(config(store)).await;
        if gives_none(&manager) {
            return;
        }
        next(&manager, "key").await
    };
    if !store.restart().await {
        return;
    }
    let manager = connect(config(store)).await;
    assert!(next(&manager, "key").await > before);
}

pub(crate) async fn a_floor_outlasts_a_restart(store: &mut dyn Store) {
    if !store.lifts_tokens() {
        return;
    }
    let ttl = store.short_ttl();
    let config = |store: &dyn Store| super::config(store).ttl(ttl);
    let floor = {
        let manager = connect(config(store)).await;
        let floor = above(next(&manager, "key").await);
        connect(config(store).token_floor(floor)).await;
        floor
    };
    if !store.restart().await {
        return;
    }
    let manager = connect(config(store)).await;
    for key in ["key", "new"] {
        assert!(u64::from(next(&manager, key).await) > floor);
    }
}

/// Leases and places in the queue survive. A patient caller does not notice an outage. (A waiter
/// that does not listen yet may be passed over.)
pub(crate) async fn what_is_held_and_waited_for_goes_on(store: &mut dyn Store) {
    let patient = async || connect(super::config(store).request_timeout(HANG)).await;
    let (holder, first, second) = (patient().await, patient().await, patient().await);
    let guard = held(holder.lock("key")).await;
    let first = tokio::spawn(next_token(first.lock("key")));
    queued(store, &holder, "key", 1).await;
    let second = tokio::spawn(next_token(second.lock("key")));
    queued(store, &holder, "key", 2).await;
    if !store.restart().await {
        return;
    }
    healed(&holder).await;
    assert!(guard.is_held());
    is_busy(holder.lock("key").try_acquire().await);
    queued(store, &holder, "key", 2).await;
    let token = guard.token();
    guard.release().await.expect("it was held to the end");
    for waiting in [first, second] {
        let next = served(waiting).await;
        assert!(next > token || gives_none(&holder), "{next} after {token}");
    }
}

/// Two hundred tasks want one of seven permits that are all held; and a body that was done stays
/// done.
pub(crate) async fn permits_and_what_was_done_go_on(store: &mut dyn Store) {
    let patient = async || connect(super::config(store).request_timeout(HANG)).await;
    let (holder, one, other) = (patient().await, patient().await, patient().await);
    let can = holder.capabilities();
    if !can.permits || !can.once {
        return;
    }
    let permit = |manager: &LockManager| manager.lock("key").permits(7);
    let done = held(holder.lock("done").once(10 * HANG)).await;
    done.release_done().await.expect("the release");
    let mut all = Vec::new();
    for _ in 0..7 {
        all.push(held(permit(&holder)).await);
    }
    let inside = Arc::new(Section::default());
    let mut contenders = JoinSet::new();
    for manager in [&one, &other].into_iter().cycle().take(200) {
        let (lock, inside) = (permit(manager), Arc::clone(&inside));
        contenders.spawn(lock.run(async move {
            inside.during(sleep(Duration::from_millis(2))).await;
        }));
    }
    if can.fair {
        queued(store, &holder, "key", 14).await;
    }
    if !store.restart().await {
        contenders.abort_all();
        return;
    }
    healed(&holder).await;
    is_done(within(HANG, other.lock("done").try_acquire()).await);
    is_busy(permit(&holder).try_acquire().await);
    assert_eq!(inside.entries(), 0, "somebody was let in");
    for permit in all {
        permit.release().await.expect("it was held to the end");
    }
    all_served(contenders).await;
    assert_eq!(inside.entries(), 200);
    assert!(inside.most() <= 7, "{} of seven", inside.most());
    assert!(holder.forget("done").await.expect("forget"));
    nothing_left(&holder).await;
}

/// Waits for a lock, gives it back, and returns its token.
pub(crate) async fn next_token(request: LockRequest) -> Result<FencingToken, LockError> {
    let guard = request.acquire().await?;
    let token = guard.token();
    guard.release().await.map(|()| token)
}
