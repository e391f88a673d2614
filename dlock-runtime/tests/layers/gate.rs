use std::sync::{Arc, Mutex};

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::{Config, LockError, LockManager, current};

use crate::{connect, manager, seconds, settle, waits};

#[tokio::test(start_paused = true)]
async fn hand_overs_are_in_order_and_their_tokens_rise() {
    let (_, manager) = manager().await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let first = manager.lock("k").try_acquire().await.expect("free");
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..100 {
        let (manager, served) = (manager.clone(), Arc::clone(&served));
        tasks.spawn(async move {
            let body = async {
                let token = current().expect("inside").token();
                served.lock().expect("no panic").push((number, token));
                tokio::task::yield_now().await;
            };
            manager.lock("k").run(body).await
        });
        settle().await;
    }
    let token = first.token();
    first.release().await.expect("held");
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic").expect("served");
    }
    let served = std::mem::take(&mut *served.lock().expect("no panic"));
    assert!(
        served.iter().map(|(number, _)| *number).eq(0..100),
        "{served:?}"
    );
    assert!(served[0].1 > token);
    assert!(
        served.windows(2).all(|pair| pair[0].1 < pair[1].1),
        "{served:?}"
    );
    assert!(manager.list("").await.expect("answers").is_empty());
}

/// The place in the store's queue belongs to the gate: when the task that
/// waits in it gives up, the next one goes on from there.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_passes_its_place_on() {
    let (memory, here) = manager().await;
    let (holder, later) = (connect(&memory).await, connect(&memory).await);
    let held = holder.lock("k").try_acquire().await.expect("free");
    let mut leader = Box::pin(here.lock("k").acquire());
    let mut second = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut leader).await && waits(&mut second).await);
    let mut elsewhere = Box::pin(later.lock("k").acquire());
    assert!(waits(&mut elsewhere).await);
    drop(leader);
    held.release().await.expect("held");
    assert!(
        waits(&mut elsewhere).await,
        "it came after the place of `here`"
    );
    let guard = second.await.expect("the place was kept");
    guard.release().await.expect("held");
    elsewhere
        .await
        .expect("its turn")
        .release()
        .await
        .expect("held");
}

#[tokio::test(start_paused = true)]
async fn the_last_waiter_to_leave_leaves_the_queue() {
    let (memory, here) = manager().await;
    let holder = connect(&memory).await;
    let held = holder.lock("k").try_acquire().await.expect("free");
    let mut one = Box::pin(here.lock("k").acquire());
    let mut two = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut one).await && waits(&mut two).await);
    let waiters = || async {
        holder
            .inspect("k")
            .await
            .expect("answers")
            .expect("held")
            .waiters
    };
    assert_eq!(
        waiters().await,
        1,
        "two tasks of one process are one request"
    );
    drop(two);
    assert_eq!(waiters().await, 1);
    drop(one);
    assert_eq!(waiters().await, 0);
    held.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn no_more_hand_overs_in_a_row_than_the_limit() {
    let memory = Memory::new();
    let config = |handoff| Config::with_backend(memory.clone()).handoff(handoff);
    let here = LockManager::connect(config(2)).await.expect("connects");
    let there = LockManager::connect(config(0)).await.expect("connects");
    let order = Arc::new(Mutex::new(String::new()));
    let held = here.lock("k").try_acquire().await.expect("free");
    let mut tasks = tokio::task::JoinSet::new();
    for (manager, name) in [(&here, "h"); 8].into_iter().chain([(&there, "t"); 2]) {
        let (manager, order) = (manager.clone(), Arc::clone(&order));
        tasks.spawn(async move {
            let body = async { order.lock().expect("no panic").push_str(name) };
            manager.lock("k").run(body).await
        });
        settle().await;
    }
    held.release().await.expect("held");
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic").expect("served");
    }
    // The guard's turn came before anybody queued, so it handed over to none;
    // then a turn and two hand-overs at most while somebody waits elsewhere.
    assert_eq!(*order.lock().expect("no panic"), "thhhthhhhh");
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_told_to_all_who_wait() {
    let (memory, here) = manager().await;
    let holder = connect(&memory).await;
    let held = holder.lock("k").try_acquire().await.expect("free");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        tasks.spawn(here.lock("k").acquire());
    }
    settle().await;
    memory.faults().set_unavailable(true);
    while let Some(task) = tasks.join_next().await {
        let answer = task.expect("no panic");
        assert!(
            matches!(answer, Err(LockError::Unavailable { .. })),
            "{answer:?}"
        );
    }
    memory.faults().set_unavailable(false);
    held.release().await.expect("held");
    here.lock("k")
        .try_acquire()
        .await
        .expect("healed")
        .release()
        .await
        .expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_leaves_the_others_in_line() {
    let (_, manager) = manager().await;
    let held = manager.lock("k").try_acquire().await.expect("free");
    let hasty = manager.lock("k").acquire_within(seconds(1));
    let patient = manager.lock("k").acquire_within(seconds(100));
    let (hasty, patient, ()) = tokio::join!(hasty, patient, async {
        tokio::time::sleep(seconds(2)).await;
        held.release().await.expect("held");
    });
    assert!(matches!(hasty, Err(LockError::Timeout { .. })), "{hasty:?}");
    patient.expect("its turn").release().await.expect("held");
}

/// A grant that crosses with the drop of its waiter goes to the next one.
#[tokio::test(start_paused = true)]
async fn a_turn_that_crosses_with_a_drop_is_passed_on() {
    let (_, manager) = manager().await;
    let held = manager.lock("k").try_acquire().await.expect("free");
    let mut one = Box::pin(manager.lock("k").acquire());
    let mut two = Box::pin(manager.lock("k").acquire());
    assert!(waits(&mut one).await && waits(&mut two).await);
    held.release().await.expect("held");
    // It has been given the lead, and does not know it yet.
    drop(one);
    two.await.expect("passed on").release().await.expect("held");
    assert!(manager.list("").await.expect("answers").is_empty());
}
