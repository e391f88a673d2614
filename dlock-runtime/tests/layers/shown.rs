//! What `{:?}` shows: what a user has given and been given, and nothing of the inside.

use dlock_runtime::{LockScopeExt, LossReason, OnLost, current, lock};

use crate::support::locks::held;
use crate::{manager, seconds as s};

#[tokio::test(start_paused = true)]
async fn a_guard_is_its_key_its_token_and_whether_it_is_held() {
    let (memory, here) = manager().await;
    let guard = held(here.lock("k").ttl(s(3))).await;
    let token = guard.token();
    assert_eq!(
        format!("{guard:?}"),
        format!(
            "LockGuard {{ key: LockKey(k), mode: Write, token: {token:?}, is_held: true, .. }}"
        )
    );
    memory.faults().take_away("k");
    assert_eq!(guard.lost().await, LossReason::Gone);
    assert_eq!(
        format!("{guard:?}"),
        format!("LockGuard {{ key: LockKey(k), mode: Write, token: {token:?}, lost: Gone, .. }}")
    );
}

#[tokio::test(start_paused = true)]
async fn several_keys_have_several_tokens() {
    let (_, here) = manager().await;
    let guard = held(here.lock(["a", "b"]).read()).await;
    let tokens = guard.tokens();
    let (key, token) = (guard.key(), &tokens);
    assert_eq!(
        format!("{guard:?}"),
        format!("LockGuard {{ key: {key:?}, mode: Read, tokens: {token:?}, is_held: true, .. }}")
    );
}

#[tokio::test(start_paused = true)]
async fn so_is_what_a_body_sees_of_its_lock() {
    let (_, here) = manager().await;
    let body = here.lock("k").run(async {
        let held = current().expect("inside");
        let scope = format!("{:?}", async {}.in_lock_scope());
        assert_eq!(scope, "InLockScope { inside: [LockKey(k)], .. }");
        held
    });
    let held = body.await.expect("free");
    let token = held.token();
    assert_eq!(
        format!("{held:?}"),
        format!("Held {{ key: LockKey(k), mode: Write, token: {token:?}, is_held: false, .. }}")
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_is_what_was_set() {
    assert_eq!(
        format!("{:?}", lock("k")),
        "LockRequest { key: LockKey(k), mode: Write, .. }"
    );
    let request = lock("k").permits(2).ttl(s(3)).max_hold(s(9));
    let request = request.renew(false).on_lost(OnLost::Continue);
    assert_eq!(
        format!("{request:?}"),
        "LockRequest { key: LockKey(k), mode: Permits(2), ttl: 3s, max_hold: 9s, \
         on_lost: Continue, renew: false, .. }"
    );
    let (_, here) = manager().await;
    let scope = format!("{:?}", here.scope(async {}));
    assert_eq!(scope, format!("InLockScope {{ manager: {here:?}, .. }}"));
}
