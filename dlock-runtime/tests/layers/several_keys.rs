//! Several keys that are one lock.

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::{OnLost, current, lock};
use tokio::time::{sleep, timeout};

use crate::{connect, seconds as s, settle};

#[tokio::test(start_paused = true)]
async fn reentering_one_of_several_keys_shows_that_one() {
    let here = connect(&Memory::new()).await;
    let body = async {
        let outer = current().unwrap().tokens();
        let (key, token) = lock("b")
            .run(async {
                let h = current().unwrap();
                (h.key().to_string(), h.token())
            })
            .await
            .unwrap();
        (outer, key, token)
    };
    let (outer, key, token) = here.scope(lock(["a", "b"]).run(body)).await.unwrap();
    assert_eq!((key.as_str(), token), ("b", outer[1]), "outer {outer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_handed_over_is_renewed_while_another_key_is_awaited() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let b = there.lock("b").acquire().await.unwrap();
    let start = there.lock("a").ttl(s(3)).acquire().await.unwrap();
    // leads, with a waiter behind it when the grant comes
    let m = here.clone();
    let first = tokio::spawn(async move { m.lock("a").ttl(s(3)).renew(false).run(async {}).await });
    settle().await;
    let m = here.clone();
    let both = tokio::spawn(async move { m.lock(["a", "b"]).ttl(s(3)).run(async {}).await });
    settle().await;
    start.release().await.unwrap();
    first.await.unwrap().unwrap();
    sleep(s(10)).await;
    b.release().await.unwrap();
    both.await
        .unwrap()
        .expect("renewed like any; the body never even ran");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_of_several_keys_lasts_its_ttl() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let b = there.lock("b").acquire().await.unwrap();
    let m = here.clone();
    let both = tokio::spawn(async move {
        m.lock(["a", "b"])
            .ttl(s(30))
            .renew(false)
            .run(async { sleep(s(25)).await })
            .await
    });
    sleep(s(7)).await;
    b.release().await.unwrap();
    both.await
        .unwrap()
        .expect("a body of 25 s within a ttl of 30 s");
}

#[tokio::test(start_paused = true)]
async fn losing_one_key_leaves_the_other_enterable() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let body = async {
        memory.faults().take_away("c");
        current().unwrap().lost().await;
        lock("d").run(async {}).await
    };
    let r = timeout(
        s(3600),
        here.scope(lock(["c", "d"]).on_lost(OnLost::Continue).run(body)),
    )
    .await;
    assert!(
        r.is_ok(),
        "`d` is still ours, and renewed for ever: deadlock"
    );
}

#[tokio::test(start_paused = true)]
async fn who_lost_one_of_several_keys_hands_none_over() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let first = here.lock("d").acquire().await.unwrap();
    let both = tokio::spawn({
        let (here, memory) = (here.clone(), memory.clone());
        let body = async move {
            memory.faults().take_away("c");
            let held = current().unwrap();
            held.lost().await;
            held.tokens()[1]
        };
        let lock = here.lock(["c", "d"]).on_lost(OnLost::Continue);
        async move { lock.run(body).await }
    });
    settle().await;
    let behind = tokio::spawn({
        let lock = here.lock("d");
        async move { lock.run(async { current().unwrap().token() }).await }
    });
    settle().await;
    first.release().await.unwrap();
    let (both, behind) = (both.await.unwrap().unwrap(), behind.await.unwrap().unwrap());
    assert!(
        u64::from(behind) >= u64::from(both) + dlock_runtime::TOKENS_PER_GRANT,
        "handed over: {both}, then {behind}"
    );
}
