//! Guarantee 3: the tokens of one key rise from grant to grant.

use std::sync::Arc;
use std::time::Duration;

use dlock::backend::TokenTier;
use dlock::{FencingToken, LockError, LockManager, distributed_lock};
use tokio::task::JoinSet;

use super::{Store, connect, free, process};
use crate::support::critical::Tokens;
use crate::support::locks::{all_served, held, is_unsupported};
use crate::support::wait::{HANG, within};

/// The token of one more grant.
pub(crate) async fn next(manager: &LockManager, key: &str) -> FencingToken {
    let guard = held(manager.lock(key)).await;
    let token = guard.token();
    guard.release().await.expect("the release");
    token
}

pub(crate) fn gives_none(manager: &LockManager) -> bool {
    manager.capabilities().tokens == TokenTier::None
}

pub(crate) async fn tokens_rise_from_grant_to_grant(store: &mut dyn Store) {
    let managers = [process(store).await, process(store).await];
    if gives_none(&managers[0]) {
        assert_eq!(next(&managers[0], "key").await, FencingToken::NONE);
        return;
    }
    let tokens = Tokens::default();
    for round in 0..40 {
        // In an irregular order.
        tokens.note(next(&managers[(round / 3) % 2], "key").await);
    }
    tokens.check(40);
}

/// Bodies of two processes. Most of them get the lock by a hand-over, and there are more of them
/// than a grant has token numbers.
pub(crate) async fn tokens_rise_through_hand_overs(store: &mut dyn Store) {
    for handoff in [0, 32, 63] {
        let managers = [
            connect(super::config(store).handoff(handoff)).await,
            connect(super::config(store).handoff(handoff)).await,
        ];
        if gives_none(&managers[0]) {
            return;
        }
        let tokens = Arc::new(Tokens::default());
        let mut contenders = JoinSet::new();
        for number in 0..300 {
            let (manager, tokens) = (managers[number % 2].clone(), Arc::clone(&tokens));
            contenders.spawn(async move {
                let body = async {
                    tokens.note(dlock::current().expect("inside the lock").token());
                    tokio::task::yield_now().await;
                };
                manager.lock(format!("key:{handoff}")).run(body).await
            });
        }
        all_served(contenders).await;
        tokens.check(300);
    }
}

pub(crate) async fn tokens_rise_after_a_lease_ran_out(store: &mut dyn Store) {
    let manager = process(store).await;
    if gives_none(&manager) {
        return;
    }
    let guard = held(manager.lock("key").ttl(store.short_ttl()).renew(false)).await;
    within(HANG, guard.lost()).await;
    assert!(next(&manager, "key").await > guard.token());
}

/// A key still gets greater tokens when the store no longer keeps anything for it.
pub(crate) async fn tokens_rise_over_keys_that_were_idle(store: &mut dyn Store) {
    let manager = process(store).await;
    if gives_none(&manager) {
        return;
    }
    let ttl = store.short_ttl();
    let before = next(&manager, "key").await;
    // Everything that the store kept for the key may go when its ttl has passed. The expiry of
    // another lock shows that it has passed.
    let guard = held(manager.lock("clock").ttl(ttl).renew(false)).await;
    within(HANG, guard.lost()).await;
    free(&manager, "clock").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let other = process(store).await;
    assert!(next(&other, "key").await > before);
}

#[distributed_lock(key = "job", fenced)]
async fn guarded() -> Result<u64, LockError> {
    Ok(dlock::current().map_or(0, |held| held.token().into()))
}

pub(crate) async fn fenced_is_refused_where_tokens_may_go_back(store: &mut dyn Store) {
    let manager = process(store).await;
    let answer = manager.scope(guarded()).await;
    if manager.capabilities().tokens == TokenTier::Strict {
        assert!(answer.expect("the lock") > 0);
    } else {
        let error = is_unsupported(answer);
        assert!(error.to_string().contains("fenced"), "{error}");
    }
}
