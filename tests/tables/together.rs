//! Locks that are taken, or given back, in one transaction.

use std::collections::HashMap;
use std::time::Duration;

use dlock::{LockError, LockGuard, LockManager};
use dlock_conformance::{connect, process};
use tokio::time::sleep;

use super::{FarTables, Tables};
use crate::support::locks::{
    all_at_once, free, had, held, impatient, nothing_left, queued, served,
};
use crate::support::wait::{HANG, until};

/// More than go at once, so that some gather.
const LOCKS: usize = 40;

fn key(number: usize) -> String {
    format!("key:{number}")
}

/// A try at each of these locks at the same time.
async fn tries(manager: &LockManager, keys: &[String]) -> Vec<Result<LockGuard, LockError>> {
    all_at_once(keys.iter().map(|key| manager.lock(&**key).try_acquire())).await
}

/// Whether its lock is had is another matter for each of them, and who waits for one is
/// told when that is given back. Tokens rise, whether a lock is new or was used before.
pub(crate) async fn each_is_answered_as_if_it_were_alone<S: Tables>(store: &mut S) {
    let (manager, other) = (process(store).await, process(store).await);
    let keys: Vec<_> = (0..LOCKS).map(key).collect();
    had(&manager, "warm").await;
    let mut last = HashMap::new();
    for _ in ["they are new", "they were used"] {
        let mut of_the_other = Vec::new();
        for key in keys.iter().step_by(3) {
            of_the_other.push(held(other.lock(&**key)).await);
        }
        let mut had = Vec::new();
        for (number, tried) in tries(&manager, &keys).await.into_iter().enumerate() {
            match tried {
                Ok(guard) => had.push((number, guard)),
                Err(error) => assert!(matches!(error, LockError::Busy { .. }), "{error:?}"),
            }
        }
        let numbers: Vec<_> = had.iter().map(|(number, _)| *number).collect();
        let expected: Vec<_> = (0..LOCKS).filter(|number| number % 3 != 0).collect();
        assert_eq!(numbers, expected);
        let mut waiting = Vec::new();
        for (number, guard) in &had {
            let shown = manager.inspect(&key(*number)).await.expect("answers");
            let shown = shown.expect("a holder");
            assert_eq!(shown.holders.len(), 1, "{shown:?}");
            let before = last.insert(*number, guard.token());
            assert!(before < Some(guard.token()), "{number}: {before:?}");
            let next = tokio::spawn(other.lock(key(*number)).acquire());
            queued(&manager, &key(*number), 1).await;
            waiting.push((*number, next));
        }
        let released = all_at_once(had.into_iter().map(|(_, guard)| guard.release())).await;
        assert!(released.iter().all(Result::is_ok), "{released:?}");
        for (number, next) in waiting {
            let next = served(next).await;
            let before = last.insert(number, next.token());
            assert!(before < Some(next.token()), "{number}: {before:?}");
            of_the_other.push(next);
        }
        let released = all_at_once(of_the_other.into_iter().map(LockGuard::release)).await;
        assert!(released.iter().all(Result::is_ok), "{released:?}");
        nothing_left(&manager).await;
    }
}

pub(crate) async fn one_that_is_refused_fails_alone<S: Tables>(store: &mut S) {
    let manager = process(store).await;
    had(&manager, "warm").await;
    let spoilt = LOCKS / 2;
    let row = format!(
        "INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited)
             VALUES ('{}', 9223372036854775800, 'w', '', 0, 0)",
        key(spoilt)
    );
    store.execute(&row).await;
    let keys: Vec<_> = (0..LOCKS).map(key).collect();
    for (number, tried) in tries(&manager, &keys).await.into_iter().enumerate() {
        let said = match tried {
            Ok(guard) => {
                assert_ne!(number, spoilt, "no token is left");
                guard.release().await.expect("held");
                continue;
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(number, spoilt, "{said}");
        assert!(said.contains("row of this lock"), "{said}");
    }
}

/// An operator has not ended a transaction: those who ask for that lock wait for it, and
/// those who ask together with them do not.
pub(crate) async fn a_row_that_somebody_keeps_costs_no_other_lock<S: FarTables>(store: &mut S) {
    let config = store.direct().request_timeout(2 * HANG);
    let manager = connect(config).await;
    let keys: Vec<_> = (0..LOCKS).map(key).collect();
    let kept = LOCKS / 2;
    had(&manager, "warm").await;
    let keeper = store.keep_new(&key(kept)).await;
    let mut asked: Vec<_> = keys
        .iter()
        .map(|key| tokio::spawn(manager.lock(&**key).try_acquire()))
        .collect();
    let of_kept = asked.remove(kept);
    let mut had = Vec::new();
    for one in asked {
        had.push(served(one).await);
    }
    assert!(!of_kept.is_finished(), "somebody keeps its row");
    drop(keeper);
    had.push(served(of_kept).await);
    // The same when they are given back.
    let keeper = store.keep(&key(kept)).await;
    let of_kept = had.pop().expect("it was had");
    let of_kept = tokio::spawn(of_kept.release());
    let released = all_at_once(had.into_iter().map(LockGuard::release)).await;
    assert!(released.iter().all(Result::is_ok), "{released:?}");
    assert!(!of_kept.is_finished(), "somebody keeps its row");
    drop(keeper);
    served(of_kept).await;
    nothing_left(&manager).await;
}

/// Nobody knows whether they were had. They are free again, and nothing of them comes
/// later.
pub(crate) async fn those_whose_answer_is_lost_are_given_back<S: FarTables>(store: &mut S) {
    let manager = process(store).await;
    let keys: Vec<_> = (0..LOCKS).map(key).collect();
    // So that there are connections: whoever cleans the tables takes up one.
    store.proxy().delay(Some(Duration::from_millis(20)));
    let had = tries(&manager, &keys).await.into_iter();
    let had = had.map(|guard| guard.expect("free").release());
    all_at_once(had).await;
    store.proxy().delay(None);
    store.proxy().swallow_replies(true);
    let asked: Vec<_> = keys
        .iter()
        .map(|key| tokio::spawn(manager.lock(&**key).try_acquire()))
        .collect();
    // The first are on their way, and the others gather.
    let direct = connect(store.direct()).await;
    let had = async || direct.list("key:").await.expect("answers").len();
    until("the first are had", had, |&had| had > 0).await;
    for one in &asked {
        one.abort();
    }
    store.proxy().swallow_replies(false);
    for key in &keys {
        free(&direct, key).await;
    }
    nothing_left(&direct).await;
}

/// Somebody keeps some of the rows, one after the other, for longer than anybody waits. A
/// row that is come to then is locked for nobody.
pub(crate) async fn a_row_that_is_reached_late_is_locked_for_nobody<S: FarTables>(store: &mut S) {
    const STEP: Duration = Duration::from_millis(900);
    let direct = connect(store.direct()).await;
    let config = || store.direct().request_timeout(Duration::from_secs(2));
    let manager = impatient(|| config().ttl(20 * HANG)).await;
    let keys: Vec<_> = (0..LOCKS).map(key).collect();
    // So that each has a row.
    for guard in all_at_once(keys.iter().map(|key| direct.lock(&**key).acquire())).await {
        guard.expect("the lock").release().await.expect("held");
    }
    let mut keepers = Vec::new();
    for number in 10..17 {
        keepers.push(store.keep(&key(number)).await);
    }
    let asked = tries(&manager, &keys);
    let keeps = async {
        for keeper in keepers {
            sleep(STEP).await;
            drop(keeper);
        }
    };
    let (asked, ()) = tokio::join!(asked, keeps);
    for guard in asked.into_iter().flatten() {
        // On a busy machine it may hear nothing of this in its short time; then it goes on.
        let released = guard.release().await;
        let is_done = matches!(released, Ok(()) | Err(LockError::Unavailable { .. }));
        assert!(is_done, "{released:?}");
    }
    nothing_left(&direct).await;
}
