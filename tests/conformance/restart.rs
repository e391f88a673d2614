//! The store's servers stop and start again, with all that they have confirmed.

use super::tokens::{gives_none, next};
use super::{Store, connect, held, process, queued};
use crate::support::locks::{healed, is_busy, served};
use crate::support::wait::HANG;

pub(crate) async fn tokens_rise_across_a_restart(store: &mut dyn Store) {
    let before = {
        let manager = process(store).await;
        if gives_none(&manager) {
            return;
        }
        next(&manager, "key").await
    };
    if !store.restart().await {
        return;
    }
    let manager = process(store).await;
    assert!(next(&manager, "key").await > before);
}

/// Leases, and places in a queue in their order. To who is patient it is no outage.
pub(crate) async fn what_is_held_and_waited_for_goes_on(store: &mut dyn Store) {
    let patient = async || connect(super::config(store).request_timeout(HANG)).await;
    let (holder, first, second) = (patient().await, patient().await, patient().await);
    let guard = held(holder.lock("key")).await;
    let first = tokio::spawn(first.lock("key").acquire());
    queued(store, &holder, "key", 1).await;
    let second = tokio::spawn(second.lock("key").acquire());
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
    let next = served(first).await;
    assert!(next.token() > token || gives_none(&holder));
    let fair = holder.capabilities().fair;
    assert!(!fair || !second.is_finished(), "it was overtaken");
    next.release().await.expect("the release");
    served(second).await.release().await.expect("the release");
}
