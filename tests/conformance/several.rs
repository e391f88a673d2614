//! Locks on several keys.

use std::sync::Arc;

use dlock::{LockError, LockManager, distributed_lock};
use tokio::task::JoinSet;

use super::tokens::{gives_none, next};
use super::{Store, free, had, held, nothing_left, process, queued};
use crate::support::critical::PlainCounter;
use crate::support::locks::{all_served, is_busy};

pub(crate) async fn several_keys_are_had_together(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    // `b` twice: the call must not wait for itself.
    let guard = held(manager.lock(["b", "a", "b"])).await;
    for key in ["a", "b"] {
        is_busy(other.lock(key).try_acquire().await);
    }
    guard.release().await.expect("the release");
    for key in ["a", "b"] {
        drop(other.lock(key).try_acquire().await.expect("a free lock"));
    }
}

pub(crate) async fn all_or_none(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    for one in ["a", "b", "c"] {
        let guard = held(other.lock(one)).await;
        is_busy(manager.lock(["c", "a", "b"]).try_acquire().await);
        for key in ["a", "b", "c"].into_iter().filter(|key| *key != one) {
            free(&other, key).await;
        }
        guard.release().await.expect("the release");
    }
    // If the wait for one key is given up, the others are given back.
    let guard = held(other.lock("b")).await;
    let waiting = tokio::spawn(manager.lock(["a", "b"]).acquire());
    queued(store, &other, "b", 1).await;
    waiting.abort();
    free(&other, "a").await;
    queued(store, &other, "b", 0).await;
    guard.release().await.expect("the release");
    nothing_left(&other).await;
}

#[distributed_lock(key = ["account:<from>", "account:<to>"])]
async fn transfer(from: usize, to: usize, moves: &[PlainCounter; 3]) -> Result<(), LockError> {
    moves[from].add_one().await;
    if from != to {
        moves[to].add_one().await;
    }
    Ok(())
}

/// Transfers in all directions at once neither block each other forever nor lose an update.
pub(crate) async fn order_does_not_matter(store: &mut dyn Store) {
    let managers = [process(store).await, process(store).await];
    let moves: Arc<[PlainCounter; 3]> = Arc::default();
    let mut transfers = JoinSet::new();
    let mut expected = [0; 3];
    for round in 0..6 {
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 0), (2, 1), (2, 2)] {
            expected[from] += 1;
            expected[to] += u64::from(from != to);
            let (manager, moves): (LockManager, _) =
                (managers[round % 2].clone(), Arc::clone(&moves));
            transfers.spawn(async move { manager.scope(transfer(from, to, &moves)).await });
        }
    }
    all_served(transfers).await;
    assert_eq!([0, 1, 2].map(|account| moves[account].value()), expected);
    nothing_left(&managers[0]).await;
}

pub(crate) async fn tokens_come_in_the_order_written(store: &mut dyn Store) {
    let manager = process(store).await;
    // Makes the tokens of the keys differ.
    for _ in 0..3 {
        had(&manager, "b").await;
    }
    let before = [next(&manager, "b").await, next(&manager, "a").await];
    let guard = held(manager.lock(["b", "a", "b"])).await;
    let tokens = guard.tokens();
    assert_eq!(tokens.len(), 2, "duplicates are folded: {tokens:?}");
    assert_eq!(guard.token(), tokens[0]);
    guard.release().await.expect("the release");
    let after = [next(&manager, "b").await, next(&manager, "a").await];
    if !gives_none(&manager) {
        for (index, token) in tokens.into_iter().enumerate() {
            assert!(before[index] < token && token < after[index]);
        }
    }
}
