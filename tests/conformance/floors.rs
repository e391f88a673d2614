//! A floor for the tokens: the store keeps it, and processes that do not name it obey it too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use dlock::{FencingToken, LockError, LockManager};
use tokio::task::JoinSet;

use super::restart::next_token;
use super::tokens::next;
use super::{Store, connect, held, process, queued};
use crate::support::critical::Tokens;
use crate::support::locks::{is_unsupported, served};
use crate::support::wait::{HANG, until, within};

/// A floor that no token reaches by itself, even if tokens are made from the microseconds of a
/// clock.
pub(crate) fn above(token: FencingToken) -> u64 {
    u64::from(token) + 1_000_000_000_000
}

async fn naming(store: &dyn Store, floor: u64) -> LockManager {
    connect(super::config(store).token_floor(floor)).await
}

/// Half of the processes of a deployment name the floor, in different orders: for a key that was
/// used, one that is held and waited for, one that was read, and new keys.
pub(crate) async fn a_floor_is_obeyed_by_who_does_not_name_it(store: &mut dyn Store) {
    if !store.lifts_tokens() {
        return;
    }
    let before = [process(store).await, process(store).await];
    next(&before[0], "used").await;
    if before[0].capabilities().read_write {
        drop(held(before[0].lock("read").read()).await);
    }
    let guard = held(before[0].lock("held")).await;
    let waiting = tokio::spawn(next_token(before[1].lock("held")));
    queued(store, &before[0], "held", 1).await;

    let floor = above(guard.token());
    let by_name = naming(store, floor).await;
    assert!(guard.is_held(), "a lease goes on");
    guard.release().await.expect("the release");
    let waited = served(waiting).await;
    assert!(u64::from(waited) > floor, "{waited}, above {floor}");
    let after = process(store).await;
    for key in ["used", "held", "read", "new"] {
        let tokens = Tokens::default();
        for manager in [&before[0], &by_name, &before[1], &after] {
            let token = next(manager, key).await;
            assert!(u64::from(token) > floor, "`{key}`: {token}, above {floor}");
            tokens.note(token);
        }
        tokens.check(4);
    }

    // A floor can be raised, but not lowered.
    let lower = naming(store, floor / 2).await;
    assert!(u64::from(next(&lower, "lower").await) > floor);
    let higher = above(next(&lower, "used").await);
    naming(store, higher).await;
    for key in ["used", "higher"] {
        assert!(u64::from(next(&before[1], key).await) > higher);
    }
}

/// A request that asks after the floor was raised gets a token above it, whatever other requests
/// were doing meanwhile, such as making the first record of a key.
pub(crate) async fn a_floor_is_raised_while_locks_are_taken(store: &mut dyn Store) {
    const SHARED: usize = 4;
    const ROUNDS: usize = 4;
    if !store.lifts_tokens() {
        return;
    }
    let first = process(store).await;
    let mut floor = above(next(&first, "first").await);
    let raised = Arc::new(AtomicU64::new(0));
    let (taken, over) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let shared: Arc<[Tokens; SHARED]> = Arc::default();
    let mut taking = JoinSet::new();
    for task in 0..8 {
        // Without hand-overs: a lock that is handed over in a process keeps its tokens.
        let manager = connect(super::config(store).handoff(0)).await;
        let (raised, taken, over) = (Arc::clone(&raised), Arc::clone(&taken), Arc::clone(&over));
        let shared = Arc::clone(&shared);
        taking.spawn(async move {
            let mut counts = [0; SHARED];
            for number in 0.. {
                if over.load(SeqCst) {
                    break;
                }
                let key = match number % 2 {
                    0 => format!("of:{task}:{number}"),
                    _ => format!("of:all:{}", number / 2 % SHARED),
                };
                let floor = raised.load(SeqCst);
                let guard = held(manager.lock(&*key)).await;
                let token = guard.token();
                assert!(u64::from(token) > floor, "`{key}`: {token}, above {floor}");
                if number % 2 == 1 {
                    shared[number / 2 % SHARED].note(token);
                    counts[number / 2 % SHARED] += 1;
                }
                guard.release().await.expect("the release");
                taken.fetch_add(1, SeqCst);
            }
            counts
        });
    }
    for _ in 0..ROUNDS {
        let before = taken.load(SeqCst);
        let so_many = async || taken.load(SeqCst) - before;
        until("locks are taken", so_many, |&number| number > 20).await;
        naming(store, floor).await;
        raised.store(floor, SeqCst);
        floor += 1_000_000_000;
    }
    let before = taken.load(SeqCst);
    let so_many = async || taken.load(SeqCst) - before;
    until("locks are taken", so_many, |&number| number > 20).await;
    over.store(true, SeqCst);
    let counts = within(HANG, taking.join_all()).await;
    for (key, tokens) in shared.iter().enumerate() {
        tokens.check(counts.iter().map(|counts| counts[key]).sum());
    }
}

pub(crate) async fn a_floor_that_cannot_be_is_refused(store: &mut dyn Store) {
    let connected = LockManager::connect(super::config(store).token_floor(1)).await;
    if store.lifts_tokens() {
        connected.expect("a floor that is passed already");
    } else {
        let error = is_unsupported(connected).to_string();
        assert!(error.contains("`token_floor`"), "{error}");
    }
    for floor in [i64::MAX.unsigned_abs(), 1 << 63, u64::MAX] {
        let connected = LockManager::connect(super::config(store).token_floor(floor)).await;
        match connected {
            Err(LockError::Config { setting, .. }) => assert_eq!(setting, "token_floor"),
            other => panic!("{floor}: {other:?}"),
        }
    }
}
