//! The store's servers stop and start again, with all that they have confirmed.

use dlock::{FencingToken, LockError, LockRequest};

use super::tokens::{gives_none, next};
use super::{Store, connect, held, queued};
use crate::support::locks::{healed, is_busy, served};
use crate::support::wait::HANG;

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

/// Leases and places in a queue. To who is patient it is no outage. (A waiter who does
/// not listen yet may be passed over for the next one.)
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

/// Waits for a lock, and gives it back.
pub(crate) async fn next_token(request: LockRequest) -> Result<FencingToken, LockError> {
    let guard = request.acquire().await?;
    let token = guard.token();
    guard.release().await.map(|()| token)
}
